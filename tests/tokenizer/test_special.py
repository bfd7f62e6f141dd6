"""The literal matcher against a regular expression that tries every spelling, longest first."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ds4py.tokenizer import Matcher

SPELLINGS = st.lists(st.text("ab<|", min_size=1, max_size=4), max_size=8, unique=True)


@given(SPELLINGS, st.text("ab<|c", max_size=40))
def test_leftmost_longest(spellings: list[str], text: str) -> None:
    table = {spelling: i for i, spelling in enumerate(spellings)}
    want: list[tuple[str, int | None]] = [(text, None)] if text else []
    if spellings:
        pattern = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
        want = [(part, table.get(part)) for part in re.split(f"({pattern})", text) if part]
    got = list(Matcher(table).split(text))
    assert got == want or [part for part, _ in got] == [part for part, _ in want]
    assert "".join(part for part, _ in got) == text
    assert all(token is None or table[part] == token for part, token in got)
