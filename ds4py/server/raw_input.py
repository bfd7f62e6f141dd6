"""The raw text of a custom tool's call, out of the JSON that models write: `{"input": "..."}`.

It comes piece by piece like everything of a reply, so escapes are undone as they are complete, and what is handed on, joined,
depends on the text alone. Arguments of another form are the input as they stand: nothing that a model wrote gets lost.
"""

from __future__ import annotations

import json
import re

from ds4py.chat.json_scan import JsonState, advance
from ds4py.server.tools import INPUT

_WHOLE_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})\Z')
_MAYBE_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4}|u[dD][89abAB][0-9a-fA-F]{2}\\(?:u[0-9a-fA-F]{0,4})?)?\Z")


class RawInput:
    """`feed` pieces of a call's arguments, then `end`; both give the input text that they decide."""

    def __init__(self) -> None:
        self._json = JsonState()
        self._key = ""
        self._inside = self._found = False  # the value is being read; it was begun
        self._escape = ""
        self._all: list[str] = []

    def feed(self, text: str) -> str:
        self._all.append(text)
        return "".join(self._char(char) for char in text)

    def end(self) -> str:
        """What is left: an escape that never ended, or everything if there was no such input."""
        return _unescaped(self._escape) if self._found else "".join(self._all)

    def _char(self, char: str) -> str:
        before = self._json
        self._json = advance(before, char)
        if self._inside:
            if before.in_string and not self._json.in_string:
                self._inside = False
                return self._flushed()
            return self._text(char)
        if before.depth == 1 and before.is_key:
            if before.in_string and self._json.in_string:
                self._key += char
            elif char == '"' and self._json.in_string:
                self._key = ""
        elif before.depth == 1 and char == '"' and self._json.in_text and self._key == INPUT and not self._found:
            self._inside = self._found = True
        return ""

    def _text(self, char: str) -> str:
        """One character of the string."""
        if not self._escape:
            if char == "\\":
                self._escape = char
                return ""
            return char
        self._escape += char
        if _WHOLE_ESCAPE.search(self._escape):
            return self._flushed()
        if _MAYBE_ESCAPE.match(self._escape):
            return ""
        held, self._escape = self._escape[:-1], ""  # half a surrogate pair, or no escape at all
        return _unescaped(held) + self._text(char)

    def _flushed(self) -> str:
        done, self._escape = self._escape, ""
        return _unescaped(done)


def _unescaped(escape: str) -> str:
    try:
        text: str = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
