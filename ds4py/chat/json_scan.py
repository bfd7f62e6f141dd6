"""Following JSON text one character at a time, without ever parsing it as a whole.

The idea: to know where a value ends and whether a character lies inside a string, brackets, quotes and escapes are enough. So a
call's arguments can be handed on exactly as the model wrote them, piece by piece, whatever is in them; nothing is parsed again
and nothing that was handed on has to be taken back. The state is one small tuple, so a rewind is an assignment. Text that is no
JSON is followed as well as its brackets and quotes allow: judging it is the reader's work.
"""

from __future__ import annotations

from typing import NamedTuple

WHITE = " \t\r\n"


class JsonState(NamedTuple):
    """Where the scan is. `open` holds the open brackets; `is_key`: the string at hand or the next one is a key of an object."""

    open: str = ""
    is_key: bool = False
    in_string: bool = False
    escaped: bool = False

    @property
    def depth(self) -> int:
        return len(self.open)

    @property
    def in_text(self) -> bool:
        """Whether the next character belongs to a string that is a value."""
        return self.in_string and not self.is_key


def advance(state: JsonState, char: str) -> JsonState:
    """The state after `char`."""
    if state.in_string:
        if state.escaped:
            return state._replace(escaped=False)
        if char == "\\":
            return state._replace(escaped=True)
        return state._replace(in_string=False) if char == '"' else state
    if char == '"':
        return state._replace(in_string=True)
    if char in "{[":
        return JsonState(state.open + char, char == "{")
    if char in "}]":
        return JsonState(state.open[:-1], False)
    if char == ":":
        return state._replace(is_key=False)
    if char == ",":
        return state._replace(is_key=state.open.endswith("{"))
    return state
