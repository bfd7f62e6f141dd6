"""How far a text is the beginning of a JSON value, told as it comes.

Some clients parse a call's arguments while they stream and give up on the first character that no JSON can have there. So for
them what a model writes is handed on only as far as it may still become JSON; that the call cannot be read is said in words.
The state is where in the grammar of RFC 8259 the text stands; nothing is parsed twice.
"""

from __future__ import annotations

import re
from typing import Final

_WHITE: Final = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_LITERALS: Final = ("true", "false", "null")


class JsonPrefix:
    """`feed` pieces; it gives what of them still belongs to the beginning of a value, and nothing from the first character on
    that does not."""

    def __init__(self) -> None:
        self._open = ""  # brackets
        self._place = "value"  # what may come: value, first (value or "]"), key, first key, colon, comma, string, end, word
        self._escape: str | None = None  # of the string at hand, as far as it has been read
        self._is_key = False
        self._word = ""  # a number or a literal, as far as it has been read
        self.holds = True

    def feed(self, text: str) -> str:
        for i, char in enumerate(text):
            if not self.holds or not self._takes(char):
                self.holds = False
                return text[:i]
        return text

    def _takes(self, char: str) -> bool:
        if self._place == "string":
            return self._in_string(char)
        if self._place == "word":
            if _begins(self._word + char):
                self._word += char
                return True
            if not (_NUMBER.fullmatch(self._word) or self._word in _LITERALS):
                return False
            self._after_value()
        if char in _WHITE:
            return True
        if self._place in ("value", "first"):
            return self._value(char)
        if self._place in ("key", "first key"):
            if char == "}" and self._place == "first key":
                return self._close("{")
            return self._begin_string(True) if char == '"' else False
        if self._place == "colon":
            self._place = "value"
            return char == ":"
        if self._place == "comma":
            if char == ",":
                self._place = "key" if self._open.endswith("{") else "value"
                return True
            return char in "]}" and self._close("{" if char == "}" else "[")
        return False  # behind the end

    def _value(self, char: str) -> bool:
        if char == "]" and self._place == "first":
            return self._close("[")
        if char == '"':
            return self._begin_string(False)
        if char in "{[":
            self._open += char
            self._place = "first key" if char == "{" else "first"
            return True
        self._place, self._word = "word", char
        return _begins(char)

    def _begin_string(self, is_key: bool) -> bool:
        self._place, self._is_key, self._escape = "string", is_key, None
        return True

    def _in_string(self, char: str) -> bool:
        if self._escape is not None:
            self._escape += char
            if self._escape[0] != "u":
                fine, done = char in '"\\/bfnrt', True
            else:
                fine, done = self._escape == "u" or char in "0123456789abcdefABCDEF", len(self._escape) == 5
            self._escape = None if done else self._escape
            return fine
        if char == "\\":
            self._escape = ""
        elif char == '"':
            if self._is_key:
                self._place = "colon"
            else:
                self._after_value()
        return char >= " "

    def _close(self, bracket: str) -> bool:
        fits = self._open.endswith(bracket)
        self._open = self._open[:-1]
        self._after_value()
        return fits

    def _after_value(self) -> None:
        self._place, self._word = "comma" if self._open else "end", ""


def _begins(word: str) -> bool:
    """Whether a number or a literal may begin so."""
    return bool(_NUMBER_BEGUN.fullmatch(word)) or any(literal.startswith(word) for literal in _LITERALS)
