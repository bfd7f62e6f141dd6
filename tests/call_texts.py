"""One call in every syntax, for tests of grammars: the text, and a vocabulary in which the families' marks are tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ds4py.chat.formats.bare_json import BareCalls
from ds4py.chat.formats.mistral import MistralCalls
from ds4py.chat.formats.tagged import TaggedCalls
from ds4py.server.scripted import read_script
from ds4py.tokenizer import Tokenizer, load_tokenizer

SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}, "required": ["s"]}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]

GOOD = {  # a call in each syntax, and what stands between two
    TaggedCalls(): ('<tool_call>\n{"name": "g", "arguments": {"s": "a<b", "n": 3}}\n</tool_call>', "\n"),
    TaggedCalls(xml=True): (
        "<tool_call>\n<function=g>\n<parameter=s>\na</b\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
        "\n",
    ),
    TaggedCalls(glm="\n"): (
        "<tool_call>g\n<arg_key>s</arg_key>\n<arg_value>a<b</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "\n",
    ),
    TaggedCalls(glm=""): (
        "<tool_call>g<arg_key>s</arg_key><arg_value>a<b</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>",
        "\n",
    ),
    BareCalls(): ('{"name": "g", "parameters": {"s": "a<b", "n": 3}}', "; "),
    MistralCalls(): ('[TOOL_CALLS][{"name": "g", "arguments": {"s": "a<b", "n": 3}}]', ", "),
    MistralCalls(True): ('[TOOL_CALLS]g[ARGS]{"s": "a<b", "n": 3}', ""),
    MistralCalls(True, True): ('[TOOL_CALLS]g[CALL_ID]abcdef123[ARGS]{"s": "a<b", "n": 3}', ""),
}


def with_marks() -> Tokenizer:
    """The scripted vocabulary with the marks of all families as tokens of the types that their files give them."""
    made = read_script({"replies": [{"pieces": ["x"]}]}, "test", 64)
    marks = {"[TOOL_CALLS]": 3, "[ARGS]": 3, "[CALL_ID]": 3, "<arg_key>": 4, "</arg_key>": 4, "<arg_value>": 4, "</arg_value>": 4}
    kv = dict(made.file.kv)
    kv["tokenizer.ggml.tokens"] = [*kv["tokenizer.ggml.tokens"], *marks]
    kv["tokenizer.ggml.token_type"] = [*kv["tokenizer.ggml.token_type"], *marks.values()]
    return load_tokenizer(replace(made.file, kv=kv))
