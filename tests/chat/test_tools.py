"""Tools in prompts: native, described, and calls put back exactly as they were sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.chat import ChatFormat, Message, ToolCall, open_format
from ds4py.chat.calls import CallSyntax
from ds4py.chat.formats.bare_json import BareCalls
from ds4py.chat.formats.tagged import TaggedCalls
from ds4py.chat.grammar import GrammarCompiler
from ds4py.gguf import open_gguf
from ds4py.server.chatml import TEMPLATE
from ds4py.server.scripted import read_script
from ds4py.tokenizer import PromptText, Tokenizer, load_tokenizer

SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}, "required": ["s"]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
SAMPLED = '<tool_call>{"arguments":{"s":  "<|im_end|>"},"name":"f"}</tool_call>\n\n<tool_call>\n{"name": "g"}}</tool_call>'
CALLS = (ToolCall("f", '{"s":  "<|im_end|>"}', "call_1"), ToolCall("g", "{}", "call_2"))
# Llama 3.2's template in small: calls are a bare object and take the place of the text.
BARE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
)
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


@pytest.mark.parametrize("syntax", [TaggedCalls(), TaggedCalls(xml=True), BareCalls()])
def test_grammars_allow_what_the_parser_reads_and_nothing_else(tokenizer: Tokenizer, syntax: CallSyntax) -> None:
    xml = isinstance(syntax, TaggedCalls) and syntax.xml
    key = "parameters" if isinstance(syntax, BareCalls) else "arguments"
    body = f'{{"name": "g", "{key}": {{"s": "a<b", "n": 3}}}}'
    good = body if isinstance(syntax, BareCalls) else f"<tool_call>\n{body}\n</tool_call>"
    if xml:
        good = (
            "<tool_call>\n<function=g>\n<parameter=s>\na</b\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
        )
    compiler = GrammarCompiler(tokenizer)
    one, many = (compiler.compile("lark", syntax.grammar(TOOLS, parallel, tokenizer.vocab.markers)) for parallel in (False, True))
    between = "; " if isinstance(syntax, BareCalls) else "\n"

    def accepts(grammar: Any, text: str) -> bool:
        matcher = grammar._matcher.deep_copy()
        ids = tokenizer.encode(text, special=True)
        return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())

    first = one._matcher.deep_copy()
    if not isinstance(syntax, BareCalls):  # the marker is drawn as the token that the model was trained on
        assert np.flatnonzero(np.unpackbits(np.frombuffer(first.compute_bitmask(), np.uint8), bitorder="little")).tolist() == [
            tokenizer.vocab.markers["<tool_call>"]
        ]
    assert accepts(one, good) and accepts(many, good) and accepts(many, good + between + good)
    assert not accepts(one, good + between + good) and not accepts(one, good.replace("g", "h", 1).replace('"g"', '"h"'))
    assert not accepts(one, good.replace("3", '"x"')) and not accepts(one, "hello")
    parser = syntax.parser(TOOLS)
    assert [getattr(part, "name", None) for part in parser.feed(good)][0] == "g"
