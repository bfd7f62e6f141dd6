"""ngram-simple: find the last n tokens earlier in the text and propose what followed them there.

The drafter for text that repeats itself word for word: an edited file, a quoted paragraph, a table. It keeps nothing but the
history, so what it proposes is a function of the tokens before it.

As documented: the newest earlier occurrence counts, and at most m tokens are copied. As in llama.cpp: a history of up to
n + m + 1 tokens is too short, the very first token is never part of a match, and a match so near the end that fewer than n
tokens follow it proposes nothing. Two departures. `min_hits` is obeyed (a key must have occurred so many times before), which
llama.cpp reads and forgets; and for m < n, where llama.cpp never drafts, m following tokens are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds4py.drafters.config import NgramSizes
from ds4py.drafters.ngram_index import NgramIndex, check_sizes
from ds4py.protocols import F32, Draft, Needs, SamplerView


class NgramSimple:
    """A Drafter; see the head of this file."""

    name = "ngram-simple"

    def __init__(self, sizes: NgramSizes) -> None:
        """Raises UsageError for sizes out of range."""
        self.needs = Needs()
        self._sizes = check_sizes(self.name, sizes)
        self._index = NgramIndex(sizes.key, n_after=1)

    @property
    def pos(self) -> int:
        return len(self._index)

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        self._index.truncate(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        for token in tokens:
            self._index.push(token)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        n, m, index = self._sizes.key, self._sizes.value, self._index
        if len(index) <= n + m + 1:
            return Draft()
        key = index.find(last)
        if key is None or index.count(key) < self._sizes.min_hits:
            return Draft()
        source = index.latest(key) + n
        n_copied = min(m, len(index) - source)
        if n_copied < min(n, m):
            return Draft()
        return Draft(index.tokens[source : source + min(n_copied, k)], source=self.name)
