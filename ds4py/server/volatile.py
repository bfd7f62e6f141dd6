"""Lines at the head of a system text that change from day to day: moved behind it, so that what follows them stays cached.

Many clients begin their system text with today's date or the present time. A prompt is cached from its beginning, so one changed
digit there costs everything behind it, tools and instructions of many thousand tokens. Such a line is set at the head of the
first turn of the user instead: the model still reads it, and a change costs the conversation but not the instructions. Only the
first lines of a long text are looked at, and only for lines that are a date or a time and little else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ds4py.chat import Message

_LONG: Final = 2000  # characters of a system text that is worth it
_LINES: Final = 4  # at its head, blank ones not counted
_MOST: Final = 120  # characters of such a line
_DATE = re.compile(
    r"\b\d{4}-\d{1,2}-\d{1,2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|\b\d{1,2}:\d{2}\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d{1,2}\b|\b\d{1,2}\.? (?:jan|feb|mar|apr|may|jun|jul|aug"
    r"|sep|oct|nov|dec)",
    re.IGNORECASE,
)
_SPEAKS_OF_IT = re.compile(r"\b(?:today|date|time|now|current|currently)\b", re.IGNORECASE)


def settled(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with such lines moved from the head of the system text to the first user's turn."""
    if not messages or messages[0].role != "system" or len(messages[0].content) < _LONG:
        return tuple(messages)
    at = next((i for i, message in enumerate(messages) if message.role == "user"), None)
    kept, moved = _split(messages[0].content)
    if at is None or not moved:
        return tuple(messages)
    out = list(messages)
    out[0] = replace(out[0], content=kept)
    lead = "\n".join(moved)
    out[at] = replace(out[at], content=f"{lead}\n\n{out[at].content}")
    return tuple(out)


def _split(text: str) -> tuple[str, list[str]]:
    """(the text without its volatile lines, those lines)."""
    lines = text.split("\n")
    seen, moved = 0, list[int]()
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        if len(line) <= _MOST and _DATE.search(line) and _SPEAKS_OF_IT.search(line):
            moved.append(i)
        seen += 1
        if seen == _LINES:
            break
    kept = "\n".join(line for i, line in enumerate(lines) if i not in moved)
    return (kept.lstrip("\n") if moved else kept), [lines[i].strip() for i in moved]
