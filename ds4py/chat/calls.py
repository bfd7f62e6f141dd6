"""Tool calls in a model's text: what a family's syntax must be able to do, and the part that most families share.

A syntax has three sides. Its parser reads a reply as it comes, and tells at every character whether the next one is syntax (to be
drawn greedily) or payload (to be drawn as the request says). Its grammar makes a model that must call a tool write nothing else.
And it finds a call in a rendered prompt, so that the bytes that were sampled can be put back in its place.

Parsers obey what all readers of a reply obey: the events, joined, depend on the text and never on how it was cut, nothing is ever
lost, and `state` is all that is remembered, so a rewind is an assignment. Markup that turns out to be no call comes out as text.
Arguments are handed on as they were written; a call that the end of the text cuts off is never completed by invention.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ds4py.chat.events import CallArguments, CallEvent, CallStart
from ds4py.chat.json_scan import WHITE, JsonState, advance


@dataclass(frozen=True)
class Plain:
    """Text that belongs to no call. `at`: its first character's place in the answer."""

    text: str
    at: int


CallPart = Plain | CallEvent


class CallParser(Protocol):
    """Reads one answer (reasoning is gone by then)."""

    state: Any  # immutable; assigning an earlier one takes the parser back to it

    def feed(self, text: str) -> list[CallPart]:
        """The parts that `text` decides."""
        ...

    def flush(self) -> list[CallPart]:
        """What is held back: the text has ended."""
        ...

    @property
    def is_syntax(self) -> bool:
        """Whether the next character is markup rather than text or payload."""
        ...


class CallSyntax(Protocol):
    """How one family writes calls."""

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> CallParser: ...

    def grammar(self, tools: Sequence[Mapping[str, Any]], parallel: bool, tokens: Mapping[str, int]) -> str:
        """Lark text (llguidance) of an answer that is one call of one of `tools`, or several if `parallel`. tokens: spelling and
        id of markers that are tokens of their own."""
        ...

    def find(self, rendered: str, at: int) -> tuple[int, int] | None:
        """Where the call that holds the character `at` begins and ends in a rendered prompt; None if it cannot be told."""
        ...

    def begun(self, text: str) -> int | None:
        """Where a call begins in `text` that nobody could take for anything else; None if none does. For calls made in the
        middle of reasoning."""
        ...

    @property
    def opener(self) -> str | None:
        """What every call begins with, if anything does."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings that may be tokens of their own."""
        ...


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function inside a tool as APIs describe it, or the tool itself if it is the function."""
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) else tool


def names_of(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(function_of(tool).get("name", "")) for tool in tools)


def schema_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema of a tool's arguments."""
    found = function_of(tool).get("parameters")
    return found if isinstance(found, Mapping) and found else {"type": "object"}


_ARGUMENTS = ("arguments", "parameters")
_NESTING = ("function", "tool_call")  # {"type": "function", "function": {...}}
_PLAIN_RUN = re.compile(r'[^"\\]+')


def quoted(text: str) -> str:
    """A Lark string, which is also a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def literal(marker: str, tokens: Mapping[str, int]) -> str:
    """A marker in Lark: as its token, if it is one (no mask offers that for its spelling), else as text."""
    return f"<[{tokens[marker]}]>" if marker in tokens else quoted(marker)


def beginnings(*parts: str) -> str:
    """A regular expression of everything that `parts` in a row begin with, all of it and nothing at all included."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"(?:{part}{pattern})?"
    return pattern


@dataclass(frozen=True)
class ObjectState:
    """Where the reading of `{"name": ..., "arguments": {...}}` is."""

    json: JsonState = JsonState()
    key: str = ""  # of depth 1, as far as it has been read
    is_value: bool = False  # the value of `key` has begun
    text: str = ""  # of that value, if it is not handed on at once
    streams: bool = False  # that value is handed on as it comes
    name: str | None = None
    early: str = ""  # arguments that came before the name
    n_given: int = 0  # characters of arguments handed on
    done: bool = False

    @property
    def in_payload(self) -> bool:
        return self.is_value and self.key in _ARGUMENTS and self.json.in_text and self.json.depth > 1


class CallObject:
    """Reads one JSON object that is a call. The name may come after the arguments, which are then held; arguments that are a JSON
    text in a string are unwrapped; none at all and null count as {}."""

    def __init__(self, index: int, state: ObjectState) -> None:
        self._index = index
        self.state = state
        self._events: list[CallEvent] = []

    def feed(self, text: str) -> tuple[list[CallEvent], int]:
        """(the events that `text` decides, characters of it that belong to the object). It begins with the opening brace."""
        self._events = []
        at = 0
        while at < len(text) and not self.state.done:
            run = _PLAIN_RUN.match(text, at) if self.state.json.in_string and not self.state.json.escaped else None
            piece = run.group() if run else text[at]
            self._piece(piece, self.state.json if run else advance(self.state.json, piece))
            at += len(piece)
        return self._events, at

    def cut(self) -> list[CallEvent]:
        """The text has ended inside the object: the rest of what is known, if it is known for a call."""
        self._events = []
        state = self.state
        if state.name is not None and state.is_value and state.key in _ARGUMENTS and not state.streams and not state.n_given:
            self._give(state.text)
        return self._events

    def _piece(self, piece: str, after: JsonState) -> None:
        """One character, or a run of them inside a string. `after`: the scan behind it."""
        before = self.state.json
        self.state = replace(self.state, json=after)
        if before.depth == 0:
            return
        if self.state.is_value:
            if before.depth == 1 and not before.in_string and piece in ",}":
                self._end_value()
            else:
                self._value(piece)
        elif before.is_key and piece != "}":
            starts = not before.in_string and piece == '"'
            inside = before.in_string and after.in_string
            self.state = replace(self.state, key="" if starts else self.state.key + piece if inside else self.state.key)
        elif piece not in WHITE and piece not in ":,}":
            self._begin_value(piece)
        if after.depth == 0:
            self._finish()

    def _begin_value(self, piece: str) -> None:
        key = self.state.key
        if key in _NESTING and piece == "{":  # what lies inside counts as if it stood outside
            self.state = replace(self.state, json=JsonState("{", True), key="")
            return
        streams = key in _ARGUMENTS and piece == "{" and self.state.name is not None and not self.state.n_given
        self.state = replace(self.state, is_value=True, text="", streams=streams)
        self._value(piece)

    def _value(self, piece: str) -> None:
        if self.state.streams:
            self._give(piece)
        elif self.state.key == "name" or self.state.key in _ARGUMENTS:
            self.state = replace(self.state, text=self.state.text + piece)

    def _end_value(self) -> None:
        """The value of `key` is complete."""
        state = self.state
        self.state = replace(state, is_value=False, streams=False, text="")
        if state.key == "name" and state.name is None:
            name = _string_in(state.text)
            if name:
                self.state = replace(self.state, name=name)
                self._events.append(CallStart(self._index, name))
                if state.early:
                    self._give(_whole(state.early))
        elif state.key in _ARGUMENTS and not state.streams and not state.n_given:
            if state.name is None:
                self.state = replace(self.state, early=state.text)
            else:
                self._give(_whole(state.text))

    def _finish(self) -> None:
        self.state = replace(self.state, done=True)
        if self.state.name is not None and not self.state.n_given:
            self._give("{}")

    def _give(self, text: str) -> None:
        if text:
            self.state = replace(self.state, n_given=self.state.n_given + len(text))
            self._events.append(CallArguments(self._index, text))


def _string_in(text: str) -> str | None:
    """The string that the JSON `text` is, if it is one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _whole(text: str) -> str:
    """Complete arguments as a JSON text: unwrapped from a string, {} for nothing and null."""
    text = text.strip()
    inner = _string_in(text) if text.startswith('"') else None
    text = text if inner is None else inner.strip()
    return "{}" if text in ("", "null") else text


def before_mark(text: str, mark: str) -> tuple[str, bool]:
    """(what of `text` stands in front of `mark` and is no markup, whether the mark is there). Blanks in front of a mark belong to
    it; if it is not there, what may be its beginning is left out."""
    at = text.find(mark)
    if at >= 0:
        return text[:at].rstrip(), True
    n_mark = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
    return text[: len(text) - n_mark].rstrip(), False


def joined(parts: list[CallPart]) -> list[CallPart]:
    """`parts` with neighbouring texts and neighbouring arguments made one."""
    out: list[CallPart] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, Plain) and isinstance(last, Plain):
            out[-1] = Plain(last.text + part.text, last.at)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.index == last.index:
            out[-1] = CallArguments(part.index, last.text + part.text)
        elif not (isinstance(part, Plain) and not part.text):
            out.append(part)
    return out
