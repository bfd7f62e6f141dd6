"""`--prefix-file`: earlier turns of a conversation as plain text.

A turn starts with `USER:` or `ASSISTANT:` at the start of a line and runs to the next such line; blank space around it is not
part of it. Turns alternate, begin with USER and end with ASSISTANT, so that the next turn is the user's. A file that breaks
this is refused with the line number: guessing would put one side's words into the other's mouth.
"""

from __future__ import annotations

import re
from itertools import pairwise

from ds4py.errors import FormatError

_MARK = re.compile(r"^(USER|ASSISTANT):", re.MULTILINE)


def turns(text: str, name: str) -> list[tuple[str, str]]:
    """[("user" | "assistant", words)], alternating, the last one of the assistant. FormatError naming `name` and a line."""
    text = text.replace("\r\n", "\n")
    marks = list(_MARK.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        raise FormatError(f"{name}: it must begin with a line that starts with USER:")
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    found = [(mark[1].lower(), text[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)]
    lines = [text.count("\n", 0, mark.start()) + 1 for mark in marks]
    if found[0][0] != "user":
        raise FormatError(f"{name}: line {lines[0]}: the first turn must be USER:")
    for ((before, _), (after, _)), line in zip(pairwise(found), lines[1:], strict=True):
        if before == after:
            raise FormatError(f"{name}: line {line}: two {after.upper()}: turns follow each other; they must alternate")
    if found[-1][0] != "assistant":
        raise FormatError(f"{name}: line {lines[-1]}: the last turn must be ASSISTANT:, so that the next one is yours")
    empty = next((line for (_, words), line in zip(found, lines, strict=True) if not words), None)
    if empty is not None:
        raise FormatError(f"{name}: line {empty}: this turn is empty")
    return found
