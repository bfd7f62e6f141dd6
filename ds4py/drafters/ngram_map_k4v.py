"""ngram-map-k4v: for each key up to four different continuations are counted, and a clear winner is proposed.

Where ngram-map-k copies whatever came last, this drafter waits until one of the m-grams that followed a key is at least twice
as frequent as the others together. It is right more often and speaks less often: a choice for long repetitive texts with
variants. A continuation's count rises when an occurrence of the key with m + 1 tokens behind it becomes usable, and falls when
truncation takes that occurrence back, so counts are always those of the history in hand. The first four different continuations
have a place; later ones are not counted.

As documented, the winning m-gram is what is proposed, and a key must have occurred `min_hits` times. llama.cpp copies after the
newest match whatever won, counts that match once for every time it is asked, and lets min-hits count questions; none of that is
copied. How many tokens of a continuation held is remembered for each of the four, as in ngram_map_k.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ds4py.drafters.config import NgramSizes
from ds4py.drafters.ngram_index import NgramIndex, Uses, check_sizes
from ds4py.protocols import F32, Draft, Needs, SamplerView

N_VALUES: Final = 4  # continuations of a key that have a place


@dataclass
class _Value:
    """A continuation of a key: the m tokens from `source` on, seen `count` times."""

    source: int
    count: int = 1


class NgramMapK4V:
    """A Drafter; see the head of this file."""

    name = "ngram-map-k4v"

    def __init__(self, sizes: NgramSizes) -> None:
        """Raises UsageError for sizes out of range."""
        self.needs = Needs()
        self._sizes = check_sizes(self.name, sizes)
        self._index = NgramIndex(sizes.key, n_after=sizes.value + 1)
        self._uses = Uses(sizes.value)
        self._values: dict[int, list[_Value]] = {}  # key -> its continuations in the order of the text
        self._counted: list[tuple[int, int]] = []  # of each usable start: key, place of its continuation (N_VALUES: none)

    @property
    def pos(self) -> int:
        return len(self._index)

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        for _ in self._index.truncate(pos):
            self._uncount()
        self._uses.truncate(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        if len(tokens):
            self._uses.arrive(self.pos, tokens[0])
        for token in tokens:
            start = self._index.push(token)
            if start is not None:
                self._count(start)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        n, m, index = self._sizes.key, self._sizes.value, self._index
        self._uses.truncate(self.pos, inclusive=True)  # asked again at the same position: the earlier offer is void
        if len(index) < 2 * n + m:
            return Draft()
        key = index.find(last)
        if key is None or index.count(key) < self._sizes.min_hits:
            return Draft()
        counts = [value.count for value in self._values[key]]
        best = max(counts)
        if best < 2 * (sum(counts) - best):
            return Draft()
        place = counts.index(best)  # ties: the one that came first
        source = self._values[key][place].source
        held = self._uses.held((key, place), index.tokens, last)
        self._uses.record(self.pos, last, (key, place), source)
        return Draft(index.tokens[source : source + min(held, k)], source=self.name)

    def _count(self, start: int) -> None:
        """Count the continuation of a start that became usable."""
        m, tokens, key = self._sizes.value, self._index.tokens, self._index.key_at(start)
        source = start + self._sizes.key
        values = self._values.setdefault(key, [])
        new = tokens[source : source + m]
        place = next((i for i, value in enumerate(values) if tokens[value.source : value.source + m] == new), len(values))
        if place < len(values):
            values[place].count += 1
        elif place < N_VALUES:
            values.append(_Value(source))
        self._counted.append((key, place))

    def _uncount(self) -> None:
        """Take the newest count back."""
        key, place = self._counted.pop()
        values = self._values[key]
        if place < N_VALUES:
            values[place].count -= 1
            if not values[place].count:  # the newest of the key's continuations, or it would have been counted since
                values.pop()
        if not values:
            del self._values[key]
