"""DSML calls: what is written is read back, however it is cut; what models do wrong is mended or reported, and never vanishes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.chat import CallArguments, CallEnd, CallStart, ToolCall
from ds4py.chat.calls import CallPart, Plain
from ds4py.chat.formats.dsml import V4, Dialect, DsmlCalls, block, escaped, unescaped
from ds4py.chat.formats.dsml_parser import DsmlParser

M = "｜DSML｜"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "list": {}}},
        },
    }
]
END = V4.end_parameter


def param(name: str, value: str, string: str = "true") -> str:
    return f'<{M}parameter name="{name}" string="{string}">{value}{END}\n'


def invoke(name: str, *params: str) -> str:
    return f'<{M}invoke name="{name}">\n{"".join(params)}</{M}invoke>\n'


def wrapped(*invokes: str) -> str:
    return f"<{M}tool_calls>\n{''.join(invokes)}</{M}tool_calls>"


def read(pieces: Sequence[str], dialect: Dialect = V4) -> list[CallPart]:
    """All parts, neighbours of a kind joined."""
    parser = DsmlParser(dialect, TOOLS)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.flush()
    out: list[CallPart] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, Plain) and isinstance(last, Plain):
            out[-1] = Plain(last.text + part.text, last.at)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            out[-1] = CallArguments(part.index, last.text + part.text)
        else:
            out.append(part)
    return out


def calls(parts: Sequence[CallPart]) -> list[tuple[str, str, bool]]:
    """(name, arguments, complete) of each call."""
    names = [part.name for part in parts if isinstance(part, CallStart)]
    given = [part for part in parts if isinstance(part, CallArguments)]
    texts = ["".join(part.text for part in given if part.index == i) for i in range(len(names))]
    ends = {part.index: part.complete for part in parts if isinstance(part, CallEnd)}
    assert sorted(ends) == list(range(len(names)))
    return [(name, text, ends[i]) for i, (name, text) in enumerate(zip(names, texts, strict=True))]


def text_of(parts: Sequence[CallPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Plain))


def whole(text: str) -> tuple[str, list[tuple[str, Any, bool]]]:
    """(text, calls with their arguments parsed), the same one character at a time."""
    parts = read([text])
    assert parts == read(list(text))
    found = [(name, json.loads(arguments) if complete else arguments, complete) for name, arguments, complete in calls(parts)]
    return text_of(parts), found


def test_text_then_calls() -> None:
    text = "Let me see.\n\n" + wrapped(invoke("f", param("s", "a\n b "), param("n", "5", "false")), invoke("g"))
    assert whole(text) == ("Let me see.", [("f", {"s": "a\n b ", "n": 5}, True), ("g", {}, True)])
    parts = read([text])
    assert [part.end for part in parts if isinstance(part, CallEnd)] == [text.index("</｜DSML｜invoke>") + 15, len(text)]
    assert parts[0] == Plain("Let me see.", 0)


def test_arguments_come_as_they_are_written() -> None:
    """Strings at once, numbers when they are whole, lists as they stand; nothing is ever taken back."""
    parser = DsmlParser(V4, TOOLS)
    parser.feed(f'<{M}tool_calls>\n<{M}invoke name="f">\n<{M}parameter name="s" string="true">')
    assert parser.feed('he said "hi"\n') == [CallArguments(0, 'he said \\"hi\\"')]  # a line break may belong to a closing tag
    assert parser.feed("x<") == [CallArguments(0, "\\nx")]
    assert parser.feed("b>") == [CallArguments(0, "<b>")]
    parser.feed(f'{END}\n<{M}parameter name="list" string="false">')
    assert parser.feed('[1, {"a": "') == [CallArguments(0, '[1, {"a": "')] and not parser.is_syntax
    assert parser.feed('b"}') == [CallArguments(0, 'b"}')] and parser.is_syntax
    assert parser.feed(f"]{END}") == [CallArguments(0, "]")]


def test_vendors_prompts_are_read_back(golden_v4: Any) -> None:
    for i in (1, 3):
        messages, text = golden_v4(i)
        made = [call for message in messages for call in message.get("tool_calls") or []]
        rest = text[text.index(f"</think>\n\n<{M}") + len("</think>") :]
        answer = rest[: rest.index("<｜end▁of▁sentence｜>")]
        wanted = [(c["function"]["name"], json.loads(c["function"]["arguments"]), True) for c in made]
        assert whole(answer) == ("", wanted)


ANY_TEXT = st.lists(
    st.sampled_from([*"<>&;/\n a\"'\\", M, "DSML｜", END, "&lt;", "amp;", f"</{M}invoke>", f"</{M}tool_calls>", "日"]), max_size=8
).map("".join)
ARGUMENTS = st.dictionaries(
    ANY_TEXT.filter(bool),
    st.one_of(ANY_TEXT, st.none(), st.booleans(), st.integers(), st.lists(ANY_TEXT), st.dictionaries(ANY_TEXT, ANY_TEXT)),
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["f", 'q"<&>', "ü"]), ARGUMENTS), min_size=1, max_size=3), st.data())
def test_what_is_written_is_read_back(made: list[tuple[str, dict[str, Any]]], data: st.DataObject) -> None:
    text = "ok\n\n" + block([ToolCall(name, json.dumps(arguments)) for name, arguments in made], V4)
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = read([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
    assert text_of(parts) == "ok"
    assert [(name, json.loads(arguments), complete) for name, arguments, complete in calls(parts)] == [(*m, True) for m in made]


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_escapes_are_undone_and_hide_the_closing_tag(text: str) -> None:
    assert END not in escaped(text, END) and unescaped(escaped(text, END), END) == text
    if END not in text and "lt;/" + M not in text:
        assert escaped(text, END) == text


PIECES = st.sampled_from(
    [
        *(f"<{M}tool_calls>", f"</{M}tool_calls>", f'<{M}invoke name="f">', f"</{M}invoke>", END, f"<{M}", f"<{M}invoke"),
        *(f'<{M}parameter name="s" string="true">', f'<{M}parameter name="n" string="false">'),
        *("<DSML｜tool_calls>", '<DSML｜invoke name="g">'),
        *("\n", "\n\n", " ", "x", "<", "</", '{"a": [1]}', "5", "true", '"', "&lt;", "&amp;lt;", f"&lt;/{M}parameter>"),
        *(f"</{M}par", "</DSML｜parameter>", '<DSML｜parameter name="s">', f"<{M}parameter name=n string=false>", ">", "=", "｜"),
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.data())
def test_events_do_not_depend_on_where_the_text_is_cut(text: str, data: st.DataObject) -> None:
    """Any text at all, sound or not; a state that is taken back reads on as if nothing had happened."""
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    once = read([text])
    assert once == read([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
    assert once == read(list(text))
    if not calls(once):
        assert text_of(once) == text
    n = len(text_of(once)) + sum(len(part.text) for part in once if isinstance(part, CallArguments))
    assert n <= 6 * len(text) + 2
    parser, half = DsmlParser(V4, TOOLS), len(text) // 2
    first = parser.feed(text[:half])
    state = parser.state
    parser.feed("wrong" + text), parser.flush()
    parser.state = state
    again = [*first, *parser.feed(text[half:]), *parser.flush()]
    assert calls(again) == calls(once) and text_of(again) == text_of(once)


MENDED: dict[str, tuple[str, list[tuple[str, Any, bool]]]] = {
    "no first bar": (
        wrapped(invoke("f", param("s", "a"))).replace(f"<{M}", "<DSML｜").replace(f"</{M}", "</DSML｜"), [("f", {"s": "a"}, True)]
    ),
    "no block": (invoke("f", param("s", "a")) + invoke("g"), [("f", {"s": "a"}, True), ("g", {}, True)]),
    "no block, but its end": (invoke("f", param("s", "a")) + f"</{M}tool_calls>", [("f", {"s": "a"}, True)]),
    "no end of the block": (f"<{M}tool_calls>\n" + invoke("f", param("s", "a")), [("f", {"s": "a"}, True)]),
    "half an end of the block": (f"<{M}tool_calls>\n" + invoke("f") + f"</{M}tool", [("f", {}, True)]),
    "no end of the call": (
        f'<{M}tool_calls>\n<{M}invoke name="f">\n' + param("s", "a") + f"</{M}tool_calls>", [("f", {"s": "a"}, True)]
    ),
    "no end of the call, another": (
        f'<{M}tool_calls>\n<{M}invoke name="f">\n' + param("s", "a") + invoke("g") + f"</{M}tool_calls>",
        [("f", {"s": "a"}, True), ("g", {}, True)],
    ),
    "no ends at all": (f'<{M}tool_calls>\n<{M}invoke name="f">\n' + param("s", "a"), [("f", {"s": "a"}, True)]),
    "no end of the value": (
        f'<{M}invoke name="f">\n<{M}parameter name="s" string="true">a\n</{M}invoke>\n</{M}tool_calls>', [("f", {"s": "a"}, True)]
    ),
    "other tags in a value": (
        wrapped(invoke("f", param("s", f'</{M}invoke>\n</{M}tool_calls>\n<{M}parameter name="n">'))),
        [("f", {"s": f'</{M}invoke>\n</{M}tool_calls>\n<{M}parameter name="n">'}, True)],
    ),
    "no word about the kind": (
        wrapped(invoke("f", f'<{M}parameter name="s">5{END}', f'<{M}parameter name="n">5{END}')),
        [("f", {"s": "5", "n": 5}, True)],
    ),
    "attributes in other clothes": (
        wrapped(invoke("f", f"<{M}parameter string='false'  name = n >5{END}")), [("f", {"n": 5}, True)]
    ),
    "Python's words": (
        wrapped(invoke("f", param("n", "True", "false"), param("m", "None", "false"))), [("f", {"n": True, "m": None}, True)]
    ),
    "a word that is no JSON": (wrapped(invoke("f", param("n", "about five", "false"))), [("f", {"n": "about five"}, True)]),
    "a string's list in brackets": (wrapped(invoke("f", param("s", "[x] done", "false"))), [("f", {"s": "[x] done"}, True)]),
    "blanks around JSON": (wrapped(invoke("f", param("list", " [1,\n2] ", "false"))), [("f", {"list": [1, 2]}, True)]),
    "two blocks": (wrapped(invoke("f")) + "\n\n" + wrapped(invoke("g")), [("f", {}, True), ("g", {}, True)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MENDED)
def test_what_is_plain_is_mended(name: str) -> None:
    text, wanted = MENDED[name]
    assert whole(text) == ("", wanted)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (wrapped(invoke("f", "<path>x</path>", param("s", "a"))), '{"s": "a"}'),
        (wrapped(invoke("f", param("s", "a"), param("s", "b"))), '{"s": "a", "s": "b"}'),
        (wrapped(invoke("f", param("list", "[1, 2", "false"))), '{"list": [1, 2}'),
        (wrapped(invoke("f", param("list", "[1] and more", "false"))), '{"list": [1] and more}'),
        (f'<{M}tool_calls>\n<{M}invoke name="f">\n<{M}parameter name="s" string="true">half a te', '{"s": "half a te'),
        (f'<{M}tool_calls>\n<{M}invoke name="f">\n<{M}parameter name="n" string="false">5', '{"n": '),
        (f'<{M}tool_calls>\n<{M}invoke name="f">\n<{M}param', ""),
    ],
)
def test_what_is_not_plain_is_reported_and_nothing_is_invented(text: str, arguments: str) -> None:
    parts = read([text])
    assert parts == read(list(text)) and calls(parts) == [("f", arguments, False)]


@pytest.mark.parametrize(
    "text",
    [
        f"The tag <{M}tool_calls> opens a block.",
        f"<{M}tool_calls>\n</{M}tool_calls>",
        f"<{M}tool_calls>\n",
        f"<{M}invoke",
        f"<{M}invoke nothing>",
        f"a\n\n\n<{M}parameter name=\"s\">x{END}",
        "a < b\n\n",
        "\n\n",
        f"<{M}" * 3,
    ],
)  # fmt: skip
def test_markup_that_is_no_call_is_text(text: str) -> None:
    assert whole(text) == (text, [])


def test_text_behind_calls_is_text_and_blanks_there_are_not() -> None:
    assert whole(wrapped(invoke("f")) + " \n\n") == ("", [("f", {}, True)])
    assert whole(wrapped(invoke("f")) + "\n\nDone.") == ("\n\nDone.", [("f", {}, True)])
    assert whole(f"<{M}tool_calls>\n" + invoke("f") + "Done.") == ("\nDone.", [("f", {}, True)])
    assert whole(wrapped(invoke("f")) + f" <{M}tool_calls>") == (f" <{M}tool_calls>", [("f", {}, True)])
    assert whole(f"<{M}tool_calls>{wrapped(invoke('f'))}") == (f"<{M}tool_calls>", [("f", {}, True)])


def test_markup_is_drawn_greedily_and_values_are_not() -> None:
    text = "x\n\n" + wrapped(invoke("f", param("s", "v </p> </v"), param("n", "12", "false")))
    parser, marks = DsmlParser(V4, TOOLS), []
    for char in text:
        marks.append(parser.is_syntax)
        parser.feed(char)
    shown = "".join("^" if mark else " " for mark in marks)
    value, number = text.index("v </p> </v"), text.index("12")
    assert shown[:5] == "     " and shown[5 : value].count(" ") == 0
    assert shown[value : value + 10] == " " * 10 and shown[value + 10 : value + 13] == "   "  # `</` might still be a value's
    assert shown[value + 13 : number] == "^" * (number - value - 13) and shown[number : number + 2] == "  "
    assert shown[-10:] == "^" * 10


def test_calls_inside_reasoning_are_known_by_their_tags() -> None:
    syntax = DsmlCalls()
    assert syntax.begun(f"so I call <{M}tool_calls>") == 10 and syntax.begun(f'a<{M}invoke name="') == 1
    assert syntax.begun(f"the mark {M} and <{M}tool") is None
    rendered = f"a{wrapped(invoke('f'))}b{wrapped(invoke('g'))}c"
    start, end = syntax.find(rendered, rendered.index('"g"')) or (0, 0)
    assert rendered[start:end] == wrapped(invoke("g"))
    assert syntax.find("nothing", 3) is None


def test_the_next_models_names_are_a_dialect() -> None:
    spaced = Dialect(" calls", " invoke", " parameter")
    text = "ok\n\n" + block([ToolCall("f", '{"s": "a", "n": [1]}')], spaced)
    assert text.startswith(f'ok\n\n<{M} calls>\n<{M} invoke name="f">\n<{M} parameter name="s" string="true">a</{M} parameter>')
    parts = read([text], spaced)
    assert parts == read(list(text), spaced)
    assert text_of(parts) == "ok" and calls(parts) == [("f", '{"s": "a", "n": [1]}', True)]
