"""--prefix-file: complete alternating turns or a sentence with the line."""

from __future__ import annotations

import pytest

from ds4py.cli.prefix import turns
from ds4py.errors import FormatError


def test_turns() -> None:
    text = "\nUSER: hi\nthere\n\nASSISTANT:\n  hello USER: not a turn\nUSER:again\r\nASSISTANT: bye\n"
    assert turns(text, "f") == [
        ("user", "hi\nthere"),
        ("assistant", "hello USER: not a turn"),
        ("user", "again"),
        ("assistant", "bye"),
    ]


@pytest.mark.parametrize(
    "text, fragment",
    [
        ("", "must begin"),
        ("hello", "must begin"),
        ("hello\nUSER: a\nASSISTANT: b", "must begin"),
        (" USER: a", "must begin"),
        ("ASSISTANT: a", "line 1: the first turn must be USER"),
        ("USER: a\n", "line 1: the last turn must be ASSISTANT"),
        ("USER: a\nASSISTANT: b\nUSER: c\n", "line 3: the last turn"),
        ("USER: a\nx\nUSER: b\nASSISTANT: c", "line 3: two USER: turns"),
        ("USER: a\nASSISTANT: b\nASSISTANT: c", "line 3: two ASSISTANT: turns"),
        ("USER:\nASSISTANT: c", "line 1: this turn is empty"),
    ],
)
def test_refused(text: str, fragment: str) -> None:
    with pytest.raises(FormatError, match=f"^f: .*{fragment}"):
        turns(text, "f")
