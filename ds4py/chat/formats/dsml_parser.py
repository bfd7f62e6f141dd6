"""Reading DSML calls as they stream (dsml.py tells the form): events for every character that decides something, none before.

A block may be cut anywhere. Strings are handed on escaped for JSON as they come, objects and lists as they stand; numbers and
words when they are complete, since only then it is known whether they are JSON (what is not becomes the string it reads as).

It is lenient where the meaning is plain. The mark's first bar may be missing. Calls may stand without the block's tags. Closing
tags may be missing where another tag or the end of the answer takes their place; a forgotten `</parameter>` is only believed in
at the very end of an answer, since a text may well quote the other tags. `string` may be missing (then the schema decides). What
is not plain makes a call incomplete, for its caller to refuse and the model to try again: text between parameters, a parameter
twice, a list that does not end. A block in which no call begins is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from ds4py.chat.calls import CallPart, Plain, function_of, joined, schema_of
from ds4py.chat.events import CallArguments, CallEnd, CallStart
from ds4py.chat.formats.dsml import Dialect, is_string, unescaped, unescaped_name
from ds4py.chat.json_scan import JsonState, advance

_MARK: Final = "｜?DSML｜"
_MARKS: Final = ("｜DSML｜", "DSML｜")
_BLANK: Final = " \t\r\n"
_LONGEST_TAG: Final = 2000  # characters; what is longer is none
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


class Phase(Enum):
    TEXT = "text"
    BLOCK = "block"  # inside the block's tags, or behind a call, between calls
    CALL = "call"  # between parameters
    STRING = "string"
    JSON = "json"
    SCALAR = "scalar"  # a value that is neither text nor object nor list, or may not be; or whose first character is due


@dataclass(frozen=True)
class DsmlState:
    """All that is remembered. n_seen: characters fed; index: calls before this one; raw: markup of a block that has no call yet,
    which `fresh` says; ended: where the last call's own markup ended, if its CallEnd is due; loose: the parameter's tag had no
    first bar, so its closing tag needs none."""

    phase: Phase = Phase.TEXT
    held: str = ""
    n_seen: int = 0
    index: int = 0
    raw: str = ""
    fresh: bool = False
    ended: int | None = None
    after_call: bool = False
    name: str = ""
    keys: tuple[str, ...] = ()
    text_wanted: bool = False  # the schema says that the value at hand is a string
    loose: bool = False
    json: JsonState = JsonState()
    sound: bool = True


class DsmlParser:
    """A `CallParser`."""

    def __init__(self, dialect: Dialect, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools = tools
        self._tags = _Tags(dialect)
        self.state = DsmlState()

    @property
    def is_syntax(self) -> bool:
        """Values are payload until what is held back can only be a closing tag."""
        state = self.state
        if state.phase is Phase.TEXT:
            return len(state.held.lstrip(_BLANK)) >= 2
        if state.phase in (Phase.STRING, Phase.SCALAR):
            return re.search("</[｜D]", state.held) is not None
        return state.phase is not Phase.JSON or not state.json.in_text

    def feed(self, text: str) -> list[CallPart]:
        rest = self.state.held + text
        self.state = replace(self.state, held="", n_seen=self.state.n_seen + len(text))
        return joined(self._run(rest, False))

    def flush(self) -> list[CallPart]:
        rest = self.state.held
        self.state = replace(self.state, held="")
        parts = self._run(rest, True)
        state = self.state
        if state.phase is Phase.TEXT or state.fresh:
            self._plain(state.raw + state.held, 0, parts)
        elif state.phase is Phase.BLOCK:
            self._end_due(parts, state.n_seen)
        else:
            self._cut(parts)
        self.state = replace(self.state, phase=Phase.TEXT, held="", raw="", fresh=False, ended=None)
        return joined(parts)

    def _run(self, rest: str, at_end: bool) -> list[CallPart]:
        steps = {
            Phase.TEXT: self._text,
            Phase.BLOCK: self._block,
            Phase.CALL: self._call,
            Phase.STRING: self._string,
            Phase.JSON: self._json,
            Phase.SCALAR: self._scalar,
        }
        parts: list[CallPart] = []
        waits = False
        while rest and not waits:
            rest, waits = steps[self.state.phase](rest, parts, at_end)
        self.state = replace(self.state, held=rest)
        return parts

    # A step takes the undecided text, adds the parts it decides and returns (what is left, whether that must wait for more).
    # At the end of the answer nothing more comes, so a step decides what it can and leaves the rest.

    def _text(self, text: str, parts: list[CallPart], at_end: bool) -> tuple[str, bool]:
        found = self._tags.opening.search(text)
        if found:
            before = text[: found.start()]
            n_breaks = len(before) - len(before.rstrip("\n"))
            shown = "" if self.state.after_call and before.isspace() else before[: len(before) - min(2, n_breaks)]
            self._plain(shown, len(text), parts)
            n = found.end() if found["block"] else found.start()
            self.state = replace(self.state, phase=Phase.BLOCK, raw=text[len(shown) : n], fresh=True)
            return text[n:], False
        keep = self._tags.maybe_opening(text)
        if at_end or (self.state.after_call and text[:keep].isspace()):
            return text, True
        self._plain(text[:keep], len(text), parts)
        return text[keep:], True

    def _plain(self, text: str, n_left: int, parts: list[CallPart]) -> None:
        """`text` is the answer's; it begins n_left characters before the end of what was fed (0: it is the end)."""
        if self.state.after_call and text.isspace() and not n_left:
            return  # blanks behind the last call belong to the markup
        if text:
            parts.append(Plain(text, self.state.n_seen - (n_left or len(text))))
            self.state = replace(self.state, after_call=False)

    def _block(self, text: str, parts: list[CallPart], at_end: bool) -> tuple[str, bool]:
        """Between the block's tags: a call, the closing tag, or something else."""
        body = text.lstrip(_BLANK)
        tag = self._tags.read(self._tags.invoke, body)
        if tag is not None and "name" in tag.attributes:
            self._end_due(parts, self.state.ended or 0)
            name = tag.attributes["name"]
            parts.append(CallStart(self.state.index, name))
            self.state = replace(self.state, phase=Phase.CALL, raw="", fresh=False, name=name, keys=(), sound=True)
            return body[tag.n :], False
        closing = None if self.state.fresh else self._tags.end_block.match(body)
        if closing:
            self._end_due(parts, self.state.n_seen - len(body) + closing.end())
            self.state = replace(self.state, phase=Phase.TEXT)
            return body[closing.end() :], False
        if not at_end and self._tags.may_become(body, self._tags.invoke, self._tags.end_block):
            return text, True
        if at_end and not self.state.fresh and self._tags.closes(body):
            return text, True
        return self._block_is_over(text, parts)

    def _block_is_over(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        """Something that is no call: the block was none, or its closing tag is missing."""
        self._end_due(parts, self.state.ended or 0)
        raw, fresh = self.state.raw, self.state.fresh
        self.state = replace(self.state, phase=Phase.TEXT, raw="", fresh=False)
        if not fresh:
            return text, False
        n = 0 if "<" in raw else 1  # without the block's tag it began with a call's, which would lead here again
        self._plain(raw + text[:n], len(text) + len(raw), parts)
        return text[n:], False

    def _end_due(self, parts: list[CallPart], end: int) -> None:
        """The last call is over; its markup ended at `end`."""
        if self.state.ended is not None:
            parts.append(CallEnd(self.state.index, self.state.sound, end))
            self.state = replace(self.state, index=self.state.index + 1, ended=None, after_call=True)

    def _call(self, text: str, parts: list[CallPart], at_end: bool) -> tuple[str, bool]:
        """Between parameters: another one, or the end of the call."""
        body = text.lstrip(_BLANK)
        tag = self._tags.read(self._tags.parameter, body)
        if tag is not None and "name" in tag.attributes:
            self._begin(tag.attributes, not body.startswith("<｜"), parts)
            return body[tag.n :], False
        closing = self._tags.end_call.match(body)
        if closing or self._tags.end_block.match(body) or self._tags.opening.match(body):
            n_closed = closing.end() if closing else 0
            self._close(parts, self.state.n_seen - len(body) + n_closed)
            return body[n_closed:], False
        if at_end or self._tags.may_become(body, *self._tags.in_call):
            return body, True
        self.state = replace(self.state, sound=False)  # whatever it was, something of the call is missing
        at = body.find("<", 1)
        return (body[at:], False) if at > 0 else ("", True)

    def _close(self, parts: list[CallPart], end: int) -> None:
        self._give("}" if self.state.keys else "{}", parts)
        self.state = replace(self.state, phase=Phase.BLOCK, ended=end, raw="")

    def _begin(self, attributes: Mapping[str, str], loose: bool, parts: list[CallPart]) -> None:
        """A parameter, up to its value."""
        key, state = attributes["name"], self.state
        wanted = self._is_string(key)
        told = attributes.get("string")
        is_text = told == "true" if told in ("true", "false") else wanted
        lead = ", " if state.keys else "{"
        self._give(f"{lead}{json.dumps(key, ensure_ascii=False)}: " + ('"' if is_text else ""), parts)
        self.state = replace(
            self.state,
            phase=Phase.STRING if is_text else Phase.SCALAR,
            keys=(*state.keys, key),
            sound=state.sound and key not in state.keys,
            text_wanted=wanted,
            loose=loose,
        )

    def _string(self, text: str, parts: list[CallPart], at_end: bool) -> tuple[str, bool]:
        n_value, n_all, closed = self._value_end(text, at_end)
        value = unescaped(text[:n_value], self._tags.dialect.end_parameter)
        self._give(json.dumps(value, ensure_ascii=False)[1:-1], parts)
        if closed:
            self._give('"', parts)
            self.state = replace(self.state, phase=Phase.CALL)
        return text[n_all:], not closed

    def _json(self, text: str, parts: list[CallPart], at_end: bool) -> tuple[str, bool]:
        """An object or a list behind its first character, as it stands."""
        n_value, n_all, closed = self._value_end(text, at_end)
        scan, sound = self.state.json, self.state.sound
        for char in text[:n_value]:
            sound = sound and (scan.depth > 0 or char in _BLANK)
            scan = advance(scan, char)
        self._give(text[:n_value], parts)
        self.state = replace(self.state, json=scan, sound=sound)
        if closed:
            self.state = replace(self.state, phase=Phase.CALL, sound=sound and scan.depth == 0)
        return text[n_all:], not closed

    def _scalar(self, text: str, parts: list[CallPart], at_end: bool) -> tuple[str, bool]:
        body = text.lstrip(_BLANK)
        if body[:1] in ("{", "[") and not self.state.text_wanted:
            self._give(body[0], parts)
            self.state = replace(self.state, phase=Phase.JSON, json=advance(JsonState(), body[0]))
            return body[1:], False
        n_value, n_all, closed = self._value_end(text, at_end)
        if not closed:
            return text, True
        self._give(_as_json(unescaped(text[:n_value], self._tags.dialect.end_parameter)), parts)
        self.state = replace(self.state, phase=Phase.CALL)
        return text[n_all:], False

    def _value_end(self, text: str, at_end: bool) -> tuple[int, int, bool]:
        """(characters of a value that are decided, characters that are done with, whether it is complete)."""
        found = (self._tags.end_loosely if self.state.loose else self._tags.end_parameter).search(text)
        if found:
            return found.start(), found.end(), True
        if at_end:
            forgotten = self._tags.end_forgotten.search(text)
            n = forgotten.start() if forgotten else len(text)
            return n, n, forgotten is not None
        keep = self._tags.maybe_end(text)
        return keep, keep, False

    def _cut(self, parts: list[CallPart]) -> None:
        """The answer has ended inside a call. One that only lacks closing tags is whole."""
        state = self.state
        whole = state.phase is Phase.CALL and self._tags.closes(state.held.strip())
        if whole:
            self._give("}" if state.keys else "{}", parts)
        parts.append(CallEnd(state.index, whole and state.sound, state.n_seen))
        self.state = replace(self.state, index=state.index + 1)

    def _is_string(self, key: str) -> bool:
        tool = next((tool for tool in self._tools if function_of(tool).get("name") == self.state.name), None)
        properties = schema_of(tool).get("properties") if tool is not None else None
        return isinstance(properties, Mapping) and is_string(properties.get(key))

    def _give(self, text: str, parts: list[CallPart]) -> None:
        if text:
            parts.append(CallArguments(self.state.index, text))


def _as_json(value: str) -> str:
    """`value` if it is JSON or Python's word for something that is; else as a JSON string."""
    word = _WORDS.get(value.strip(), value.strip())
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return word


@dataclass(frozen=True)
class _Tag:
    """An opening tag: its attributes, and how long it is."""

    attributes: Mapping[str, str]
    n: int


class _Tags:
    """The tags of a dialect, as things to look for; immutable."""

    def __init__(self, dialect: Dialect) -> None:
        calls, invoke, parameter = map(re.escape, (dialect.calls, dialect.invoke, dialect.parameter))
        self.dialect = dialect
        self.opening = re.compile(rf"<{_MARK}(?:(?P<block>{calls}>)|{invoke}\s)")
        self.block = re.compile(rf"<{_MARK}{calls}>")
        self.invoke = re.compile(rf"<{_MARK}{invoke}(?=[\s>])")
        self.parameter = re.compile(rf"<{_MARK}{parameter}(?=[\s>])")
        self.end_block = re.compile(rf"</{_MARK}{calls}>")
        self.end_call = re.compile(rf"</{_MARK}{invoke}>")
        self.end_parameter = re.compile(re.escape(dialect.end_parameter))
        self.end_loosely = re.compile(rf"</{_MARK}{parameter}>")
        self.end_forgotten = re.compile(rf"\n?</{_MARK}{invoke}>\s*(?:</{_MARK}{calls}>\s*)?\Z")
        self.in_call = (self.parameter, self.end_call, self.end_block, self.invoke, self.block)
        tags = {self.block: f"<{{}}{dialect.calls}>", self.invoke: f"<{{}}{dialect.invoke}"}
        tags |= {self.parameter: f"<{{}}{dialect.parameter}"}
        tags |= {self.end_block: f"</{{}}{dialect.calls}>", self.end_call: f"</{{}}{dialect.invoke}>"}
        self._spelled = {tag: [text.format(mark) for mark in _MARKS] for tag, text in tags.items()}
        self._openings = [*self._spelled[self.block], *(text + " " for text in self._spelled[self.invoke])]
        closers = "|".join(_beginnings(f"</{mark}{name}>") for mark in _MARKS for name in (dialect.parameter, dialect.invoke))
        block = "|".join(map(_beginnings, self._spelled[self.end_block]))
        whole = rf"</{_MARK}{invoke}>\s*(?:</{_MARK}{calls}>\s*|{block})?"
        entity = _beginnings(f"lt;{dialect.end_parameter[1:]}")
        self._maybe_end = re.compile(rf"(?:\n?(?:{whole}|{closers})|\n|&(?:amp;)*(?:a|am|amp|{entity})?)\Z")

    def read(self, kind: re.Pattern[str], text: str) -> _Tag | None:
        """The opening tag that `text` begins with, if it is whole."""
        found = kind.match(text)
        if found is None:
            return None
        attributes: dict[str, str] = {}
        at = found.end()
        while pair := _ATTRIBUTE.match(text, at):
            attributes[pair[1]] = unescaped_name(next(value for value in pair.groups()[1:] if value is not None))
            at = pair.end()
        end = _TAG_END.match(text, at)
        return _Tag(attributes, end.end()) if end else None

    def may_become(self, text: str, *tags: re.Pattern[str]) -> bool:
        """Whether `text` may be the beginning of one of `tags`."""
        for tag in tags:
            for spelled in self._spelled[tag]:
                if spelled.startswith(text):
                    return True
                if text.startswith(spelled) and _OPEN_TAG.fullmatch(text, len(spelled)) and len(text) < _LONGEST_TAG:
                    return True
        return False

    def closes(self, text: str) -> bool:
        """Whether `text` is nothing, or the beginning of a tag that closes a call or a block."""
        ends = [*self._spelled[self.end_call], *self._spelled[self.end_block]]
        return not text or (text.startswith("</") and any(spelled.startswith(text) for spelled in ends))

    def maybe_opening(self, text: str) -> int:
        """Where what may be the beginning of calls begins: up to two line breaks and a part of a tag."""
        at = text.rfind("<", max(0, len(text) - max(map(len, self._openings))))
        if at < 0 or not any(spelled.startswith(text[at:]) for spelled in self._openings):
            at = len(text)
        n_breaks = len(text[:at]) - len(text[:at].rstrip("\n"))
        return at - min(2, n_breaks)

    def maybe_end(self, text: str) -> int:
        """Where what may be the end of a value, or an escape in it, begins."""
        found = self._maybe_end.search(text)
        return found.start() if found else len(text)


_VALUE: Final = r"""(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+))"""
_ATTRIBUTE: Final = re.compile(rf"\s+([A-Za-z_]+)\s*=\s*{_VALUE}")
_TAG_END: Final = re.compile(r"\s*>")
_PART: Final = r"""\s+(?:[A-Za-z_]+\s*(?:=\s*(?:"[^"]*|'[^']*|[^\s"'<>]+)?)?)?"""
_OPEN_TAG: Final = re.compile(rf"(?:\s+[A-Za-z_]+\s*=\s*{_VALUE})*(?:{_PART})?")


def _beginnings(text: str) -> str:
    """An expression for every beginning of `text` but the empty one, the longest first."""
    return "|".join(re.escape(text[:n]) for n in range(len(text), 0, -1))
