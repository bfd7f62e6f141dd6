"""Finding tokens by their literal spelling.

The idea: special tokens are few kinds of text (`<|im_end|>`, `</think>`, runs of newlines), so a compiled regex of their first
two characters jumps to the candidates and a dictionary look-up, longest spelling first, decides. Leftmost match wins, then the
longest.
Rejected: one alternation of all spellings (gemma has 6,400, which takes longer to compile than the whole file takes to open).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class Matcher:
    """Splits text at the spellings of a table; immutable."""

    def __init__(self, table: Mapping[str, int]) -> None:
        """`table`: non-empty spelling -> token id."""
        self._table = dict(table)
        lengths: dict[str, set[int]] = {}
        for spelling in self._table:
            lengths.setdefault(spelling[:2], set()).add(len(spelling))
        for prefix, found in lengths.items():
            if len(prefix) == 2 and prefix[0] in self._table:
                found.add(1)
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        prefixes = sorted(self._lengths, key=len, reverse=True)
        self._candidates = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Pieces of `text` in order: (text, None) for what matches nothing, never empty, and (spelling, id) for tokens."""
        start = at = 0
        while self._candidates and (found := self._candidates.search(text, at)):
            at = found.start()
            for length in self._lengths[found.group()]:
                token = self._table.get(text[at : at + length])
                if token is not None:
                    if at > start:
                        yield text[start:at], None
                    yield text[at : at + length], token
                    start = at = at + length
                    break
            else:
                at += 1
        if start < len(text):
            yield text[start:], None
