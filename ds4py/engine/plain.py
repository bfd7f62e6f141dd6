"""The drafter of plain decoding: it proposes nothing.

The loop has no branch for "no drafter". Plain decode is a verify of one row, and this object is what makes it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds4py.protocols import F32, Draft, Needs, SamplerView


class NoDrafter:
    """A Drafter that only keeps count of positions."""

    def __init__(self) -> None:
        self.needs = Needs()
        self._pos = 0

    @property
    def pos(self) -> int:
        return self._pos

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        self._pos = pos

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._pos += len(tokens)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        return Draft()
