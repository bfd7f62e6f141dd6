"""Tools in prompts: native, described, and calls put back exactly as they were sampled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from call_texts import GOOD, TOOLS, with_marks

from ds4py.chat import CallStart, ChatFormat, Message, ToolCall, open_format
from ds4py.chat.calls import CallSyntax
from ds4py.chat.formats.bare_json import BareCalls
from ds4py.chat.formats.mistral import MistralCalls
from ds4py.chat.formats.tagged import TaggedCalls
from ds4py.chat.grammar import GrammarCompiler
from ds4py.gguf import open_gguf
from ds4py.server.chatml import TEMPLATE
from ds4py.server.scripted import read_script
from ds4py.tokenizer import PromptText, Tokenizer, load_tokenizer

SAMPLED = '<tool_call>{"arguments":{"s":  "<|im_end|>"},"name":"f"}</tool_call>\n\n<tool_call>\n{"name": "g"}}</tool_call>'
CALLS = (ToolCall("f", '{"s":  "<|im_end|>"}', "call_1"), ToolCall("g", "{}", "call_2"))
# Llama 3.2's template in small: calls are a bare object and take the place of the text.
BARE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
)
# GLM's and Mistral's in small: keys and values; a list, or names with arguments, and ids of nine characters.
GLM = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
_ID = "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
LIST = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}" + _ID +
    "{% set out = c.function | tojson %}{{ out[:-1] + ', \"id\": \"' + c.id + '\"}' }}"
    "{{ ']' if loop.last else ', ' }}{% endfor %}"
    "{% endif %}{{ m.tool_call_id }}<|im_end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
)  # fmt: skip
NAMED = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}" + _ID +
    "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
)  # fmt: skip
NO_TOOLS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return read_script({"replies": [{"pieces": ["x"]}]}, "test", 64).tokenizer


def format_of(template: str) -> ChatFormat:
    made = read_script({"replies": [{"pieces": ["x"]}], "template": template}, "test", 64)
    return open_format(made.file, made.tokenizer)


def history(content: str = "", sampled: PromptText | None = None) -> list[Message]:
    return [
        Message("user", "do"),
        Message("assistant", content, tool_calls=CALLS, sampled=sampled),
        Message("tool", "done", tool_call_id="call_1"),
        Message("tool", "too", tool_call_id="call_2"),
    ]


def segments(text: str) -> PromptText:
    """`text` with its markup of calls as tokens, and everything else, `<|im_end|>` too, as text."""
    parts: list[tuple[str, bool]] = []
    for piece in text.replace("<tool_call>", "\0<tool_call>\0").replace("</tool_call>", "\0</tool_call>\0").split("\0"):
        parts += [(piece, piece in ("<tool_call>", "</tool_call>"))] if piece else []
    return PromptText(tuple(parts))


@pytest.mark.parametrize("content", ["", "Look: <tool_call> is a tag."])
def test_sampled_calls_come_back_byte_for_byte(tokenizer: Tokenizer, content: str) -> None:
    chat = format_of(TEMPLATE)
    sampled = segments(SAMPLED)
    if content:
        sampled = PromptText(((content + "\n", False), *sampled.segments))
    prompt = chat.render(history(content, sampled), tools=TOOLS)
    text = f"{content}\n" if content else ""
    assert f"assistant\n{text}{SAMPLED}<|im_end|>\n<|im_start|>user\n<tool_response>" in str(prompt)
    canonical = str(chat.render(history(content), tools=TOOLS))
    assert canonical.count("<tool_call>") == str(prompt).count("<tool_call>") and SAMPLED not in canonical
    ids = tokenizer.encode_prompt(prompt)
    markers = tokenizer.vocab.markers
    assert ids.count(markers["<tool_call>"]) == 3  # of the two calls and of the template; the one in the text is text
    assert ids.count(markers["<|im_end|>"]) == 4 and tokenizer.decode(ids, special=True) == str(prompt)


def test_the_rest_of_the_prompt_is_the_same_with_and_without() -> None:
    chat = format_of(TEMPLATE)
    canonical = str(chat.render(history(), tools=TOOLS))
    prompt = str(chat.render(history(sampled=segments(SAMPLED)), tools=TOOLS))
    at = prompt.index(SAMPLED)
    assert canonical.startswith(prompt[:at]) and canonical.endswith(prompt[at + len(SAMPLED) :])


def test_described_formats_and_bare_calls_put_them_back_too() -> None:
    described = format_of(NO_TOOLS)
    prompt = str(described.render(history("x", segments(SAMPLED)), tools=TOOLS))
    assert f"[assistant]{SAMPLED}[user]<tool_response>\ndone\n</tool_response>\n<tool_response>\ntoo" in prompt
    bare = format_of(BARE)
    assert isinstance(bare.call_syntax, BareCalls)
    messages = [Message("user", "x"), Message("assistant", tool_calls=CALLS[:1], sampled=PromptText.plain("{odd}"))]
    assert "assistant\n{odd}<|im_end|>" in str(bare.render(messages, tools=TOOLS))


@pytest.mark.parametrize(
    ("template", "syntax", "drawn"),
    [
        (
            GLM,
            TaggedCalls(glm="\n"),
            "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value></tool_call>\n<tool_call>g</tool_call>",
        ),
        (LIST, MistralCalls(), '[TOOL_CALLS][{"arguments":{"s": "x"},"name":"f"},{"name":"g"}]'),
        (NAMED, MistralCalls(True, True), '[TOOL_CALLS]f[ARGS]{"s":  "x"}[TOOL_CALLS]g[ARGS]{}'),
    ],
)
def test_calls_of_every_template_come_back_as_they_were_drawn(template: str, syntax: CallSyntax, drawn: str) -> None:
    chat = format_of(template)
    assert chat.call_syntax == syntax
    prompt = str(chat.render(history("Look", PromptText.plain(f"Look{drawn}")), tools=TOOLS))
    canonical = str(chat.render(history("Look"), tools=TOOLS))
    at = prompt.index(drawn)
    assert f"Look{drawn}<|im_end|>" in prompt and drawn not in canonical
    assert canonical.startswith(prompt[:at]) and canonical.endswith(prompt[at + len(drawn) :])


def test_ids_that_a_template_refuses_are_shortened_alike_in_calls_and_results() -> None:
    made = format_of(LIST)
    prompt = str(made.render(history(), tools=TOOLS))
    first, second = re.findall(r'"id": "([0-9a-f]{9})"', prompt)
    assert first != second and f"[tool]done{first}<" in prompt and f"[tool]too{second}<" in prompt


def test_broken_arguments_in_a_history_do_not_end_the_conversation() -> None:
    """FC-35: a call cut by a limit stays in what a client sends."""
    calls = (ToolCall("f", '{"path": "a', "call_1"), ToolCall("g", "", "call_2"))
    for template in (GLM, LIST, NAMED, TEMPLATE, NO_TOOLS):
        prompt = str(format_of(template).render([Message("user", "x"), Message("assistant", "", tool_calls=calls)], tools=TOOLS))
        assert "path" in prompt and prompt.count("g") >= 1


def test_a_template_that_hides_names_gets_its_own_rendering() -> None:
    odd = format_of(TEMPLATE.replace("call.function.name }}", "'fixed' }}"))
    rendered = str(odd.render(history("x", segments(SAMPLED)), tools=TOOLS))
    assert rendered == str(odd.render(history("x"), tools=TOOLS)) and '{"name": "fixed"' in rendered


def test_tools_are_described_where_the_template_knows_none() -> None:
    chat = format_of(NO_TOOLS)
    prompt = str(chat.render([Message("system", "Be kind."), Message("user", "hi")], tools=TOOLS))
    assert prompt.startswith("[system]Be kind.\n\n# Tools") and json.dumps(TOOLS[0]["function"]) in prompt
    assert str(chat.render([Message("user", "hi")], tools=TOOLS)).startswith("[system]# Tools")
    assert str(chat.render([Message("user", "hi")])) == "[user]hi"
    told = str(chat.render(history("Right"), tools=TOOLS))
    assert '[assistant]Right\n<tool_call>\n{"name": "f", "arguments": {"s": "<|im_end|>"}}\n</tool_call>' in told
    unknown = format_of("{{ tools }}" + NO_TOOLS)  # takes tools, and nobody knows how it writes calls
    assert isinstance(unknown.call_syntax, TaggedCalls) and "# Tools" in str(unknown.render([Message("user", "x")], tools=TOOLS))


def test_real_templates(qwen_path: Path, smollm2_path: Path) -> None:
    for path, has_tools in ((qwen_path, True), (smollm2_path, False)):
        file = open_gguf(path)
        own = load_tokenizer(file)
        chat = open_format(file, own)
        assert chat.call_syntax == TaggedCalls()
        prompt = chat.render(history("", segments(SAMPLED)), tools=TOOLS)
        assert SAMPLED in str(prompt) and ("<tools></tools> XML tags" in str(prompt)) == has_tools


@pytest.mark.parametrize("syntax", GOOD, ids=repr)
@pytest.mark.parametrize("marks_are_tokens", [False, True])
def test_grammars_allow_what_the_parser_reads_and_nothing_else(
    tokenizer: Tokenizer, syntax: CallSyntax, marks_are_tokens: bool
) -> None:
    if marks_are_tokens:
        tokenizer = with_marks()
    good, between = GOOD[syntax]  # type: ignore[index]  # all of them are hashable
    compiler = GrammarCompiler(tokenizer)
    one, many = (compiler.compile("lark", syntax.grammar(TOOLS, parallel, tokenizer.vocab.markers)) for parallel in (False, True))
    two = good[:-1] + between + good[len("[TOOL_CALLS][") :] if syntax == MistralCalls() else good + between + good


    def accepts(grammar: Any, text: str) -> bool:
        matcher = grammar._matcher.deep_copy()
        ids = tokenizer.encode(text, special=True)
        return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())

    first = one._matcher.deep_copy()
    if syntax.opener in tokenizer.vocab.markers:  # the marker is drawn as the token that the model was trained on
        assert np.flatnonzero(np.unpackbits(np.frombuffer(first.compute_bitmask(), np.uint8), bitorder="little")).tolist() == [
            tokenizer.vocab.markers[syntax.opener]
        ]
    assert accepts(one, good) and accepts(many, good) and accepts(many, two)
    assert not accepts(one, two)
    assert not accepts(one, good.replace("g", "h", 1).replace('"g"', '"h"').replace("arh", "arg"))
    assert not accepts(one, good.replace("3", '"x"')) and not accepts(one, "hello")
    parser = syntax.parser(TOOLS)
    assert [part.name for part in [*parser.feed(two), *parser.flush()] if isinstance(part, CallStart)] == ["g", "g"]
