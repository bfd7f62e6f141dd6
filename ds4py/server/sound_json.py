"""Arguments of calls as JSON that strict parsers take: two slips of models are put right, where their meaning is plain.

A line break or tab that stands in a string as it is becomes its escape. Half a surrogate pair, which is no character, becomes
U+FFFD: parsers that are strict about it would lose the whole reply. Everything else is handed on as it was written; what comes
out, joined, does not depend on how the text was cut.
"""

from __future__ import annotations

import json
import re
from typing import Final

_HEX: Final = "[0-9a-fA-F]"
_HIGH: Final = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOW: Final = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_SPECIAL = re.compile(r'["\\\x00-\x1f]')
_ESCAPE = re.compile(rf"(?P<pair>{_HIGH}{_LOW})|(?P<half>{_HIGH}|{_LOW})|\\.", re.DOTALL)
_BEGUN = re.compile(rf"(?:{_HIGH})?\\(?:u{_HEX}{{0,3}})?|{_HIGH}")  # what may yet become another one


class SoundJson:
    """`feed` pieces of one call's arguments, then `end`."""

    def __init__(self) -> None:
        self._in_string = False
        self._held = ""

    def feed(self, text: str) -> str:
        text, self._held = self._held + text, ""
        out: list[str] = []
        at = 0
        while (found := _SPECIAL.search(text, at)) is not None:
            out.append(text[at : found.start()])
            at = found.start()
            if text[at] != "\\":
                out.append(self._sound(text[at]))
                at += 1
                continue
            escape = _ESCAPE.match(text, at)
            if escape is None or _BEGUN.fullmatch(text, at):
                self._held = text[at:]
                return "".join(out)
            out.append("\\ufffd" if escape["half"] else escape[0])
            at = escape.end()
        return "".join([*out, text[at:]])

    def end(self) -> str:
        """What is held back: nothing more comes."""
        held, self._held = self._held, ""
        return re.sub(f"{_HIGH}|{_LOW}", r"\\ufffd", held)

    def _sound(self, char: str) -> str:
        """A quote, or a character that may not stand in a string."""
        if char == '"':
            self._in_string = not self._in_string
            return char
        return json.dumps(char)[1:-1] if self._in_string else char
