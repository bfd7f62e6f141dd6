"""Tool calls in every syntax, cut at every place: the same calls, nothing lost, nothing invented (FC-32, 34, 37, 38)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.chat import Called, CallEnd, CallStart, Text, collect
from ds4py.chat.calls import CallParser, CallPart, CallSyntax, Plain, joined
from ds4py.chat.formats.bare_json import BareCalls
from ds4py.chat.formats.mistral import MistralCalls
from ds4py.chat.formats.tagged import TaggedCalls

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": kinds}}}
    for name, kinds in {
        "f": {"s": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}},
        "g": {"a": {"type": "string"}, "any": {}},
    }.items()
]
TAGGED, XML, BARE, GLM, MISTRAL = TaggedCalls(), TaggedCalls(xml=True), BareCalls(), TaggedCalls(glm="\n"), MistralCalls()


def read(syntax: CallSyntax, pieces: list[str]) -> list[CallPart]:
    parser = syntax.parser(TOOLS)
    return joined([part for piece in pieces for part in parser.feed(piece)] + parser.flush())


def result(parts: list[CallPart]) -> tuple[str, list[tuple[str, str, bool]]]:
    reply = collect(Text(part.text) if isinstance(part, Plain) else part for part in parts)
    return reply.text, [(call.name, call.arguments, call.complete) for call in reply.calls]


ONE = '<tool_call>\n{"name": "f", "arguments": {"s": "a"}}\n</tool_call>'
CASES = [  # syntax, text, plain text, calls
    (TAGGED, "no call at all < tool", "no call at all < tool", []),
    (TAGGED, ONE, "", [("f", '{"s": "a"}', True)]),
    (TAGGED, f"Look:\n\n{ONE}\n", "Look:", [("f", '{"s": "a"}', True)]),
    (TAGGED, f"{ONE}\n{ONE}", "", [("f", '{"s": "a"}', True)] * 2),
    (TAGGED, f"{ONE} done.", " done.", [("f", '{"s": "a"}', True)]),
    (TAGGED, '<tool_call>{"arguments": {"a": 1}, "name": "g"}</tool_call>', "", [("g", '{"a": 1}', True)]),
    (TAGGED, '<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("g", '{"a": 1}', True)]),
    (TAGGED, '<tool_call>{"name": "g", "arguments": null}</tool_call>', "", [("g", "{}", True)]),
    (TAGGED, '<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}", True)]),
    (TAGGED, '<tool_call>{"name": "g", "arguments": {"a": "x"}}}\n</tool_call>', "", [("g", '{"a": "x"}', True)]),
    (TAGGED, '<tool_call>{"name": "f"}\n{"name": "g"}</tool_call>', "", [("f", "{}", True), ("g", "{}", True)]),
    (TAGGED, f'<tool_call>{{"name": "g"}}\n{ONE}', "", [("g", "{}", True), ("f", '{"s": "a"}', True)]),
    (TAGGED, '<tool_call>{"type": "function", "function": {"name": "g", "arguments": {}}}</tool_call>', "", [("g", "{}", True)]),
    # closers missing, or the text ends inside: repaired, cut and marked, never completed
    (TAGGED, '<tool_call>\n{"name": "f", "arguments": {"s": "a"}}', "", [("f", '{"s": "a"}', True)]),
    (TAGGED, '<tool_call>{"name": "f", "arguments": {"s": "a', "", [("f", '{"s": "a', False)]),
    (TAGGED, '<tool_call>{"name": "f", "arguments": {"s": "a"}', "", [("f", '{"s": "a"}', False)]),
    (TAGGED, 'x <tool_call>{"na', 'x <tool_call>{"na', []),
    (TAGGED, "x\n<tool_c", "x\n<tool_c", []),
    # markup that is no call stays visible
    (TAGGED, "a <tool_call> what? </tool_call> b", "a <tool_call> what? </tool_call> b", []),
    (TAGGED, 'a <tool_call>{"x": 1}</tool_call>', 'a <tool_call>{"x": 1}</tool_call>', []),
    # closing tags, braces and escapes inside strings are payload
    (TAGGED, '<tool_call>{"name":"f","arguments":{"s":"</tool_call>}\\"{"}}</tool_call>', "",
     [("f", '{"s":"</tool_call>}\\"{"}', True)]),
    (TAGGED, '<tool_call>{"name":"f","arguments":{"p":"C:\\\\u002f x","q":"a:b","r":"\\u00e9\\u002f"}}</tool_call>', "",
     [("f", '{"p":"C:\\\\u002f x","q":"a:b","r":"\\u00e9\\u002f"}', True)]),
    (TAGGED, '<tool_call>{"name":"f","arguments":{"s":"\\ud83d\\ude00 \\ud83d \\u0000 \u2028"}}</tool_call>', "",
     [("f", '{"s":"\\ud83d\\ude00 \\ud83d \\u0000 \u2028"}', True)]),
    # the other dialect, whichever was described
    (TAGGED, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>", "",
     [("f", '{"s": "a"}', True)]),
    (XML, "ok <tool_call><function=f><parameter=n>5</parameter><parameter=s>5</parameter></function></tool_call>", "ok",
     [("f", '{"n": 5, "s": "5"}', True)]),
    (XML, '<tool_call>\n<function=f>\n<parameter=s>\n"q"\n\n</tool_call>\n</parameter>\n</function>\n</tool_call>', "",
     [("f", '{"s": "\\"q\\"\\n\\n</tool_call>"}', True)]),
    (XML, "<tool_call>\n<function=f>\n<parameter=l>\n[1, 2\n</parameter>\n</function>\n</tool_call>", "",
     [("f", '{"l": "[1, 2"}', True)]),
    (XML, "<tool_call>\n<function=g>\n</function>\n</tool_call>", "", [("g", "{}", True)]),
    (XML, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</tool_call>", "", [("f", '{"s": "a"}', True)]),
    (XML, "<tool_call>\n<function=f>\n<parameter=s>\na\n</function>\n</tool_call>", "", [("f", '{"s": "a"}', True)]),
    (XML, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>", "", [("f", '{"s": "a"}', True)]),
    (XML, "<tool_call>\n<function=f>\n<parameter=s>\nab", "", [("f", '{"s": "ab', False)]),
    (XML, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<param", "", [("f", '{"s": "a"', False)]),
    (XML, "<tool_call>\n<function=f", "<tool_call>\n<function=f", []),
    (XML, ONE, "", [("f", '{"s": "a"}', True)]),
    # bare objects: only at the start, and only with a tool's name
    (BARE, '{"name": "f", "parameters": {"s": "a"}}', "", [("f", '{"s": "a"}', True)]),
    (BARE, ' <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": "b"}}', "",
     [("f", "{}", True), ("g", '{"a": "b"}', True)]),
    (BARE, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    (BARE, '{"age": 36}', '{"age": 36}', []),
    (BARE, 'It is {"name": "f"}', 'It is {"name": "f"}', []),
    (BARE, '{"name": "f", "parameters": {"s": "a', "", [("f", '{"s": "a', False)]),
    (BARE, '{"name": "f"}\n\nDone', "\n\nDone", [("f", "{}", True)]),
    (BARE, '{"parameters": {"a": 1}, "name": "g"}', "", [("g", '{"a": 1}', True)]),
    (BARE, '```json\n{"name": "g", "parameters": {"a": "b"}}\n```', "", [("g", '{"a": "b"}', True)]),
    (BARE, '```json\n{"x": 1}\n```', '```json\n{"x": 1}\n```', []),
    (BARE, "```python\nf()\n```", "```python\nf()\n```", []),
    # GLM's keys and values, with line breaks between the tags or without
    (GLM, "Look:\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a \"b\"\n</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5"
     "</arg_value>\n</tool_call>", "Look:", [("f", '{"s": "a \\"b\\"\\n", "n": 5}', True)]),
    (GLM, "<tool_call>f<arg_key>s</arg_key><arg_value></tool_call> <</arg_value></tool_call><tool_call>g</tool_call>", "",
     [("f", '{"s": "</tool_call> <"}', True), ("g", "{}", True)]),
    (GLM, "<tool_call>other<arg_key>l</arg_key><arg_value>[1]</arg_value>", "", [("other", '{"l": "[1]"}', True)]),
    (GLM, "<tool_call>f<arg_key>l</arg_key><arg_value>[1, 2]</arg_value></tool_call>", "", [("f", '{"l": [1, 2]}', True)]),
    (GLM, "<tool_call>f<arg_key>s</arg_key><arg_value>ab</arg_val", "", [("f", '{"s": "ab', False)]),
    (GLM, "<tool_call>f<arg_key>s", "", [("f", "", False)]),
    (GLM, "<tool_call>f", "<tool_call>f", []),
    (GLM, "<tool_call>other</tool_call>", "<tool_call>other</tool_call>", []),
    (GLM, ONE, "", [("f", '{"s": "a"}', True)]),
    (TAGGED, "<tool_call>\nf\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>\n</tool_call>", "", [("f", '{"s": "a"}', True)]),
    # Mistral's, as a list and as names with arguments
    (MISTRAL, 'Look: [TOOL_CALLS] [{"name": "f", "arguments": {"s": "]}"}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]',
     "Look:", [("f", '{"s": "]}"}', True), ("g", "{}", True)]),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"s": "[TOOL_CALLS]"}[TOOL_CALLS]g[ARGS]{}', "",
     [("f", '{"s": "[TOOL_CALLS]"}', True), ("g", "{}", True)]),
    (MISTRAL, '[TOOL_CALLS]f{"n": 1} done', " done", [("f", '{"n": 1}', True)]),
    (MISTRAL, '[TOOL_CALLS] {"name": "f", "arguments": {"n": 1}}', "", [("f", '{"n": 1}', True)]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}', "", [("f", '{"n": 1}', True)]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"s": "a', "", [("f", '{"s": "a', False)]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"s": "a', "", [("f", '{"s": "a', False)]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f"}, {"x": 1}]', ', {"x": 1}]', [("f", "{}", True)]),
    (MISTRAL, "a [TOOL_CALLS] what?", "a [TOOL_CALLS] what?", []),
    (MISTRAL, "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]", []),
    (MISTRAL, "[TOOL_CALLS]f[CALL_ID]ab", "[TOOL_CALLS]f[CALL_ID]ab", []),
    (MISTRAL, "a list [1] and [TOOL", "a list [1] and [TOOL", []),
    # small models forget the tags
    (TAGGED, '{"name": "f", "arguments": {"s": "a"}}', "", [("f", '{"s": "a"}', True)]),
    (TAGGED, '```json\n{"name": "f", "arguments": {"s": "a"}}\n```\n', "", [("f", '{"s": "a"}', True)]),
    (TAGGED, '{"name": "f"}\n{"name": "g"}\n<tool_call>{"name": "g"}</tool_call> so', " so",
     [("f", "{}", True), ("g", "{}", True), ("g", "{}", True)]),
    (TAGGED, '{"name": "Ada"} <tool_call>{"name": "g"}</tool_call>', '{"name": "Ada"}', [("g", "{}", True)]),
]


@pytest.mark.parametrize(("syntax", "text", "plain", "calls"), CASES)
def test_every_cut_gives_the_same(syntax: CallSyntax, text: str, plain: str, calls: list[tuple[str, str, bool]]) -> None:
    whole = read(syntax, [text])
    assert result(whole) == (plain, calls)
    for at in range(1, len(text)):
        assert read(syntax, [text[:at], text[at:]]) == whole, at
    assert read(syntax, list(text)) == whole


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_arbitrary_text_is_never_lost_and_never_depends_on_cuts(data: st.DataObject) -> None:
    syntax = data.draw(st.sampled_from([TAGGED, XML, BARE, GLM, MISTRAL]))
    words = ["<tool_call>", "</tool_call>", "{", "}", '"name"', ": ", '"f"', '"arguments"', "<function=f>", "<parameter=s>", "\n"]
    more = ["</parameter>", "</function>", "<", ",", "\\", '"', "x", " ", "[", "]", ";"]
    glm = ["f", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
    mistral = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", '{"name": "f"', "}", ", "]
    more += glm if syntax is GLM else mistral * 2 if syntax is MISTRAL else []
    text = "".join(data.draw(st.lists(st.sampled_from(words + more), max_size=25)))
    whole = read(syntax, [text])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(syntax, pieces) == whole
    started = [part.index for part in whole if isinstance(part, CallStart)]
    assert started == list(range(len(started))) == [part.index for part in whole if isinstance(part, CallEnd)]
    if not started:
        assert result(whole)[0] == text


def test_a_parser_goes_back_by_its_state() -> None:
    for syntax, text, *_ in CASES:
        parser = syntax.parser(TOOLS)
        states = []
        for char in text:
            states.append(parser.state)
            parser.feed(char)
        for at in (len(text) // 3, 2 * len(text) // 3):
            parser.state = states[at]
            again: list[CallPart] = [part for char in text[at:] for part in parser.feed(char)]
            parser.state = states[at]
            assert joined(again) == joined(parser.feed(text[at:]))


def payload_of(syntax: CallSyntax, text: str) -> str:
    """The characters of `text` that are drawn as the request says."""
    parser: CallParser = syntax.parser(TOOLS)
    out = ""
    for char in text:
        out += "" if parser.is_syntax else char
        parser.feed(char)
    return out


def test_what_is_payload() -> None:
    text = 'Hi <t1\n<tool_call>\n{"name": "f", "arguments": {"key": "va\\"l", "n": 5, "l": ["x"]}}\n</tool_call>'
    assert payload_of(TAGGED, text) == 'Hi <t\n<tva\\"l"x"'
    xml = "<tool_call>\n<function=f>\n<parameter=s>\na </b> c\n</parameter>\n</function>\n</tool_call>"
    assert payload_of(XML, xml) == "<t\na </b> c\n</p"
    glm = "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>\na </b></arg_value>\n</tool_call>"
    assert payload_of(GLM, glm) == "<t\na </b></a"
    assert payload_of(MISTRAL, 'a [T [TOOL_CALLS][{"name": "f", "arguments": {"s": "ab"}}]') == 'a [T[Tab"'
    assert payload_of(MISTRAL, '[TOOL_CALLS]f[ARGS]{"s": "ab"}') == '[Tab"'
    assert payload_of(BARE, '{"name": "f", "parameters": {"s": "ab"}}') == '{"name": "f",ab"'  # until it is known for a call
    assert payload_of(TAGGED, '{"name": "Ada", "age": 36}') == '{"name": "Ada", "age": 36}'


def test_json_that_is_no_call_streams_at_once() -> None:
    for syntax in (TAGGED, BARE):
        parser = syntax.parser(TOOLS)
        assert parser.feed('{"age": 3') == [Plain('{"age": 3', 0)] and parser.feed("6,") == [Plain("6,", 9)]


def test_streamed_arguments_only_grow() -> None:
    text = '<tool_call>{"name":"f","arguments":{"p":"C:\\\\u002f x","q":"a:b","r":"\\u00e9"}}</tool_call>'
    parser, seen = TAGGED.parser(TOOLS), ""
    for char in text:
        for part in parser.feed(char):
            seen += getattr(part, "text", "")
    assert json.loads(seen) == {"p": "C:\\u002f x", "q": "a:b", "r": "é"}


def test_a_call_in_a_rendered_prompt_is_found() -> None:
    text = f"a{ONE}b{ONE}c"
    for at in (20, len(ONE) + 25):
        span = TAGGED.find(text, at)
        assert span is not None and text[slice(*span)] == ONE
    in_list = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "§", "arguments": {"a": "}"}}]'
    for form in (in_list, '[TOOL_CALLS]§[ARGS]{"a": "}"}'):
        span = MISTRAL.find(f"a{form}b", form.index("§") + 1)
        assert span is not None and f"a{form}b"[slice(*span)] == form
    assert MISTRAL.find("no mark", 3) is None and MISTRAL.find("[TOOL_CALLS] [{", 13) is None
    bare = 'x{"name": "§", "parameters": {"a": "}"}}y'
    span = BARE.find(bare, bare.index("§"))
    assert span is not None and bare[slice(*span)] == bare[1:-1]
    assert TAGGED.find("no tags", 3) is None and BARE.find("no brace", 3) is None


def test_collect_gathers_calls() -> None:
    _, calls = result(read(TAGGED, [ONE]))
    assert collect([CallStart(0, "f"), CallEnd(0, True)]).calls == (Called("f", "", True),) and len(calls) == 1
