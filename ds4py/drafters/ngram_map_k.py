"""ngram-map-k: ngram-simple with a memory of how many of the copied tokens each key was good for.

The last n tokens (the key) are looked up in the history, and the m tokens that followed them last time are proposed, but no more
than held the last time that this key was used. A key whose offer failed at its first token is silent the next time, while its
offer is still compared with the text: it speaks again as soon as it would have been right. llama.cpp's stored lengths never grow
back, so one bad moment silences a key for good; that is not copied.

As documented, a key must have occurred `min_hits` times. As in llama.cpp, only occurrences with a complete m-gram and one more
token behind them count, the very first token is never part of a match, and fewer than 2n + m tokens are too short a history.
Of several occurrences the newest is copied. llama.cpp prefers those of the prompt, since text that it generated may vanish from
under its table; here truncation takes such text out of the index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds4py.drafters.config import NgramSizes
from ds4py.drafters.ngram_index import NgramIndex, Uses, check_sizes
from ds4py.protocols import F32, Draft, Needs, SamplerView


class NgramMapK:
    """A Drafter; see the head of this file."""

    name = "ngram-map-k"

    def __init__(self, sizes: NgramSizes) -> None:
        """Raises UsageError for sizes out of range."""
        self.needs = Needs()
        self._sizes = check_sizes(self.name, sizes)
        self._index = NgramIndex(sizes.key, n_after=sizes.value + 1)
        self._uses = Uses(sizes.value)

    @property
    def pos(self) -> int:
        return len(self._index)

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        self._index.truncate(pos)
        self._uses.truncate(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        if len(tokens):
            self._uses.arrive(self.pos, tokens[0])
        for token in tokens:
            self._index.push(token)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        n, m, index = self._sizes.key, self._sizes.value, self._index
        self._uses.truncate(self.pos, inclusive=True)  # asked again at the same position: the earlier offer is void
        if len(index) < 2 * n + m:
            return Draft()
        key = index.find(last)
        if key is None or index.count(key) < self._sizes.min_hits:
            return Draft()
        source = index.latest(key) + n
        held = self._uses.held(key, index.tokens, last)
        self._uses.record(self.pos, last, key, source)
        return Draft(index.tokens[source : source + min(held, k)], source=self.name)
