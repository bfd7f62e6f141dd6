"""The inside of a call in the dialect of Qwen3-Coder and Qwen3.8: `<function=NAME>`, then `<parameter=KEY>` blocks of raw text.

Values are text as it is, so they need no escapes, and what they are (a string, a number, a list) is told by the tool's schema.
They become JSON here: a string is handed on escaped as it comes, anything else when it is complete, since only then it is known
whether it is JSON at all; if it is not, it stays the string it was. A newline after the opening and before the closing tag
belongs to the tags. A value ends at its own closing tag, or where function and call are closed together (the tag was forgotten);
any other tag in it is text.

GLM 4.5 and later spell the same parts in another way: the bare name, then pairs of `<arg_key>KEY</arg_key>` and
`<arg_value>VALUE</arg_value>`, whose values have no newlines of the tags'. A `Spelling` tells the two apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from ds4py.chat.calls import beginnings, function_of, schema_of
from ds4py.chat.events import CallArguments, CallEvent, CallStart
from ds4py.chat.json_scan import WHITE

FUNCTION: Final = "<function="
ARG_KEY: Final = "<arg_key>"
_BLANKS: Final = "[ \\t\\r\\n]*"
_CLOSE: Final = "</tool_call>"


@dataclass(frozen=True)
class Spelling:
    """How the parts of a call are written. head, key: all of what stands in front of the first parameter and of a value, with a
    group `name`; key_lead: what every key begins with; ends: tags that end the call, the first of them its own; value_end: what
    ends a value; maybe_end: the end of a text that may yet become that; padded: a newline inside a value's tags is theirs."""

    head: re.Pattern[str]
    key: re.Pattern[str]
    key_lead: str
    ends: tuple[str, ...]
    value_end: re.Pattern[str]
    maybe_end: re.Pattern[str]
    padded: bool


XML: Final = Spelling(
    re.compile(rf"{FUNCTION}(?P<name>[^>]*)>"),
    re.compile("<parameter=(?P<name>[^>]*)>"),
    "<parameter=",
    ("</function>", _CLOSE),
    re.compile(rf"\n?</parameter>|\n?</function>{_BLANKS}{_CLOSE}"),
    re.compile(rf"\n?(?:{beginnings(*'</parameter>')}|{beginnings(*'</function>', _BLANKS, *_CLOSE)})\Z"),
    padded=True,
)
ARGS: Final = Spelling(
    re.compile(rf"(?P<name>[^\s<{{}}]{{1,200}}){_BLANKS}(?={ARG_KEY}|{_CLOSE})"),
    re.compile(rf"{ARG_KEY}(?P<name>[^<]*)</arg_key>{_BLANKS}<arg_value>"),
    ARG_KEY,
    (_CLOSE,),
    re.compile("</arg_value>"),
    re.compile(rf"{beginnings(*'</arg_value>')}\Z"),
    padded=False,
)
# A text that may yet become the head of a call in GLM's spelling.
MAYBE_ARGS: Final = re.compile(rf"[^\s<{{}}]{{0,200}}{_BLANKS}(?:{beginnings(*ARG_KEY)}|{beginnings(*_CLOSE)})\Z")


class Place(Enum):
    NAME = "name"
    BETWEEN = "between"  # parameters
    FIRST = "first"  # before the first character of a value
    VALUE = "value"
    DONE = "done"


@dataclass(frozen=True)
class XmlState:
    place: Place = Place.NAME
    name: str | None = None
    key: str = ""
    value: str = ""  # of a parameter that is no string
    n_keys: int = 0
    held: str = ""  # the end of what was fed, undecided: how much of a closing tag stands there


class XmlBody:
    """Reads one call, without the tags around it; see the head of this file."""

    def __init__(self, index: int, tools: Sequence[Mapping[str, Any]], state: XmlState, spelling: Spelling = XML) -> None:
        self._index = index
        self._tools = tools
        self._spelling = spelling
        self.state = state
        self._events: list[CallEvent] = []

    @property
    def done(self) -> bool:
        return self.state.place is Place.DONE

    @property
    def started(self) -> bool:
        return self.state.name is not None

    @property
    def complete(self) -> bool:
        """Whether all values are closed and no other one was begun; the function's own closing tag may be missing."""
        held = self.state.held.strip()
        return self.state.place is Place.DONE or (self.state.place is Place.BETWEEN and (not held or held.startswith("</")))

    @property
    def in_payload(self) -> bool:
        """A closing tag counts as one from `</p` on."""
        return self.state.place in (Place.FIRST, Place.VALUE) and len(self.state.held.lstrip("\n")) < 3

    def feed(self, text: str) -> tuple[list[CallEvent], int]:
        """(events, characters of `text` that are decided); what is not must be fed again with more behind it."""
        self._events = []
        steps = {Place.NAME: self._name, Place.BETWEEN: self._between, Place.FIRST: self._first, Place.VALUE: self._value}
        at = 0
        while self.state.place is not Place.DONE:
            n = steps[self.state.place](text[at:])
            if n is None:
                break
            at += n
        self.state = replace(self.state, held=text[at:])
        return self._events, at

    def cut(self) -> list[CallEvent]:
        """The text has ended: close what only lacks its tag, invent nothing."""
        self._events = []
        if self.complete and not self.done:
            self._close()
        return self._events

    # A step takes the undecided text and returns how much of it is decided, or None if that must wait for more.

    def _name(self, text: str) -> int | None:
        found = self._spelling.head.match(text)
        if found is None:
            return None
        name = found["name"].strip().strip("\"'")
        self.state = replace(self.state, place=Place.BETWEEN, name=name)
        self._events.append(CallStart(self._index, name))
        return found.end()

    def _between(self, text: str) -> int | None:
        body = text.lstrip(WHITE)
        n_white = len(text) - len(body)
        spelling = self._spelling
        if body.startswith(spelling.key_lead):
            found = spelling.key.match(body)
            if found is None:
                return None
            self._begin(found["name"].strip().strip("\"'"))
            return n_white + found.end()
        if body.startswith(spelling.ends):
            self._close()
            own = spelling.ends[0]
            return n_white + (len(own) if own != _CLOSE and body.startswith(own) else 0)
        if any(tag.startswith(body) for tag in (spelling.key_lead, *spelling.ends)):
            return None
        return n_white + 1  # stray characters between parameters mean nothing

    def _first(self, text: str) -> int | None:
        if not text:
            return None
        self.state = replace(self.state, place=Place.VALUE)
        return 1 if self._spelling.padded and text[0] == "\n" else 0

    def _value(self, text: str) -> int | None:
        found = self._spelling.value_end.search(text)
        if found is None:
            maybe = self._spelling.maybe_end.search(text)
            decided = maybe.start() if maybe else len(text)
            if not decided:
                return None
            self._add(text[:decided])
            return decided
        self._add(text[: found.start()])
        self._end()
        at_function = found.group().find("</function>")
        return found.start() + at_function if at_function >= 0 else found.end()

    def _begin(self, key: str) -> None:
        self.state = replace(self.state, place=Place.FIRST, key=key, value="", n_keys=self.state.n_keys + 1)
        lead = "{" if self.state.n_keys == 1 else ", "
        self._give(f"{lead}{json.dumps(key, ensure_ascii=False)}: " + ('"' if self._is_text() else ""))

    def _add(self, text: str) -> None:
        if self._is_text():
            self._give(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self.state = replace(self.state, value=self.state.value + text)

    def _end(self) -> None:
        self._give('"' if self._is_text() else _as_json(self.state.value))
        self.state = replace(self.state, place=Place.BETWEEN, value="")

    def _close(self) -> None:
        self._give("}" if self.state.n_keys else "{}")
        self.state = replace(self.state, place=Place.DONE)

    def _is_text(self) -> bool:
        """Whether the schema says that the parameter at hand is a string (or says nothing)."""
        tool = next((tool for tool in self._tools if function_of(tool).get("name") == self.state.name), None)
        properties = schema_of(tool).get("properties") if tool is not None else None
        found = properties.get(self.state.key) if isinstance(properties, Mapping) else None
        kind = found.get("type", "string") if isinstance(found, Mapping) else "string"
        return kind == "string"

    def _give(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self._index, text))


def _as_json(value: str) -> str:
    """`value` if it is JSON, else as a JSON string."""
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return value.strip()
