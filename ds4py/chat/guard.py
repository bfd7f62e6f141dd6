"""Keeping markers that people spell apart from markers that templates write.

The idea: a template mixes its own markers with other people's text, and afterwards nobody can tell them apart. So before
rendering, a sentinel character is put inside everything in the messages that could begin a marker (between its first two
characters). The rendered text then spells a marker only where the template wrote it. Those become control segments, and the
sentinel is taken out of the rest. The sentinel is a Unicode noncharacter that occurs nowhere in the messages or the template,
is no whitespace to `trim` or `split`, and needs no escape in JSON. All messages are treated alike, the system's and the
assistant's too; so template logic such as `'</think>' in content` is not set off by what people quote. Reasoning the product
itself put into a history goes through `Message.reasoning` (formats/generic.py).
Rejected: encoding first and searching the ids (templates cut and join text), and breaking whole markers only (two fields that
a template joins, a name and a text, could spell one together).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ds4py.errors import UsageError
from ds4py.tokenizer import Matcher, PromptText

_NONCHARACTERS = [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900)]  # then private-use characters, if someone uses all of those


class Guard:
    """One vocabulary's markers, as things to be hidden and found again; immutable."""

    def __init__(self, markers: Iterable[str], texts: Iterable[str] = ()) -> None:
        """markers: spellings of control tokens; texts: more spellings to hide from template logic, which are no tokens."""
        table = {marker: 0 for marker in markers if len(marker) > 1}  # one character cannot be broken, so it stays text
        self._matcher = Matcher(table)
        seconds: dict[str, set[str]] = {}
        for marker in (*table, *texts):
            seconds.setdefault(marker[0], set()).add(marker[1])
        starts = [f"(?<={re.escape(a)})(?=[{re.escape(''.join(sorted(b)))}]|\\Z)" for a, b in sorted(seconds.items())]
        self._inside = re.compile("|".join(starts)) if starts else None

    def sentinel(self, values: Iterable[Any]) -> str:
        """A character that occurs in none of the strings in `values`, nor does its JSON escape."""
        text = "\n".join(_strings(values))
        for code in _NONCHARACTERS:
            if chr(code) not in text and _escape(chr(code)) not in text.lower():
                return chr(code)
        raise UsageError("the messages use every noncharacter and private-use character of Unicode; remove one of them")

    def hide(self, value: Any, sentinel: str) -> Any:
        """`value` (strings, numbers, lists, dictionaries) with the sentinel in all strings where a marker could begin."""
        if isinstance(value, str):
            return self._inside.sub(sentinel, value) if self._inside else value
        if isinstance(value, Mapping):
            return {self.hide(name, sentinel): self.hide(item, sentinel) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item, sentinel) for item in value]
        return value

    def reveal(self, rendered: str, sentinel: str) -> PromptText:
        """Markers of `rendered` as control segments, all else as plain text without the sentinel."""
        segments: list[tuple[str, bool]] = []
        for part, token in self._matcher.split(rendered):
            if token is not None:
                segments.append((part, True))
            elif plain := part.replace(sentinel, "").replace(_escape(sentinel), ""):
                segments.append((plain, False))
        return PromptText(tuple(segments))


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings(name)
            yield from _strings(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from _strings(item)
