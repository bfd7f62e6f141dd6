"""ngram-cache: statistics of what followed the last one to four tokens, in this text, in earlier ones, and in a large corpus.

Each drafted token is looked up by the last 4, 3, 2, 1 tokens in turn, in three caches:

    context   this session's own tokens, believed readily
    dynamic   a file of what earlier sessions saw, believed only with more evidence
    static    a file made from a corpus: 2-grams; it weighs the candidates of the other two, and answers when both are silent

A longer n-gram is asked first, since what followed four tokens says more than what followed one; the thresholds below grow
towards shorter ones. Ties go to the token that was seen first. The context cache is counted up with every token and down with
every token that truncation takes back, so it is always the one of the history in hand: a shorter follow-up request starts from
its own tokens alone, and n-grams across the joints of prompt pieces are counted. (llama.cpp's keeps growing and goes stale.)

The two files are read once and shared by all sessions (lookup_file.py); while a process runs they stay as they were read, so
that a text does not depend on what other sessions said meanwhile. `take_learned` is what a session adds to the dynamic file
when it ends (learning.py), each position once, however often it is asked and whatever was taken back in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ds4py.drafters.lookup_file import MAX_N, Continuations, LookupCache, pack, push, read_lookup_cache
from ds4py.protocols import F32, Draft, Needs, SamplerView

LONGEST_DRAFT: Final = 8
STATIC_N: Final = 2  # tokens of the static cache's n-grams
STATIC_WEIGHT: Final = 100  # a candidate that the static cache has too counts this times its count there
_MIN_STATIC: Final = (2, 50)  # least evidence and percentage of the static cache alone


@dataclass(frozen=True)
class Thresholds:
    """How much evidence an n-gram of n tokens needs, at index n."""

    samples: tuple[int, ...]  # least number of times that anything followed
    percent: tuple[int, ...]  # least share of the token that is proposed


LAX: Final = Thresholds((0, 2, 2, 1, 1), (0, 66, 50, 50, 50))
STRICT: Final = Thresholds((0, 4, 3, 2, 2), (0, 75, 66, 66, 66))


@dataclass(frozen=True)
class LookupCaches:
    """What all sessions share. Not written while a session drafts."""

    static: LookupCache = field(default_factory=LookupCache)
    dynamic: LookupCache = field(default_factory=LookupCache)


def open_lookup_caches(
    static: str | os.PathLike[str] | None, dynamic: str | os.PathLike[str] | None, vocab_size: int
) -> LookupCaches:
    """Read the files that are named; a dynamic file that is not there yet is an empty cache.

    Raises FormatError for a damaged or foreign file, ResourceError for one that cannot be read."""
    return LookupCaches(
        LookupCache() if static is None else read_lookup_cache(static, vocab_size),
        LookupCache() if dynamic is None else read_lookup_cache(dynamic, vocab_size, missing_ok=True),
    )


class NgramCache:
    """A Drafter; see the head of this file."""

    name = "ngram-cache"

    def __init__(self, caches: LookupCaches | None = None) -> None:
        self.needs = Needs()
        self.learned = LookupCache()  # the context cache
        self._caches = caches or LookupCaches()
        self._tokens: list[int] = []
        self._n_taken = 0  # positions whose counts were handed out

    @property
    def pos(self) -> int:
        return len(self._tokens)

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= len(self._tokens):
            raise ValueError(f"truncate({pos}) of a history of {len(self._tokens)}")
        while len(self._tokens) > pos:
            self._pop()
        self._n_taken = min(self._n_taken, pos)

    def take_learned(self) -> LookupCache:
        """What followed what at the positions that were not taken before."""
        found = LookupCache()
        for pos in range(self._n_taken, len(self._tokens)):
            recent = self._tokens[max(pos - MAX_N, 0) : pos]
            packed = pack(recent)
            for n in range(1, len(recent) + 1):
                found.add(packed, n, self._tokens[pos])
        self._n_taken = len(self._tokens)
        return found

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        for token in tokens:
            self._push(token)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self._push(last)  # it is part of the text by now, though not evaluated
        try:
            draft = look_up(self._tokens, self.learned, self._caches, min(k, LONGEST_DRAFT))
        finally:
            self._pop()
        return Draft(draft, source=self.name)

    def _push(self, token: int) -> None:
        recent = self._tokens[-MAX_N:]
        packed = pack(recent)
        for n in range(1, len(recent) + 1):
            self.learned.add(packed, n, token)
        self._tokens.append(int(token))

    def _pop(self) -> None:
        token = self._tokens.pop()
        recent = self._tokens[-MAX_N:]
        packed = pack(recent)
        for n in range(1, len(recent) + 1):
            self.learned.remove(packed, n, token)


def look_up(tokens: Sequence[int], context: LookupCache, caches: LookupCaches, k: int) -> list[int]:
    """At most k tokens to follow `tokens`, of which there must be two."""
    if len(tokens) < STATIC_N:
        return []
    packed, n_known, draft = pack(tokens), len(tokens), list[int]()
    while len(draft) < k:
        static = caches.static.after(packed, STATIC_N)
        longest = min(MAX_N, n_known)
        token = _choose(context, packed, longest, LAX, static)
        if token is None:
            token = _choose(caches.dynamic, packed, longest, STRICT, static)
        if token is None:
            token = _likeliest(static)
        if token is None:
            break
        draft.append(token)
        packed, n_known = push(packed, token), n_known + 1
    return draft


def _choose(cache: LookupCache, packed: int, longest: int, least: Thresholds, static: Continuations | None) -> int | None:
    """The token that the longest n-gram with enough evidence proposes."""
    for n in range(longest, 0, -1):
        found = cache.after(packed, n)
        # no token can reach its share if the most frequent one does not: this keeps large tables from being searched
        if found is None or found.total < least.samples[n] or not _enough(max(found.counts.values()), found, least.percent[n]):
            continue
        token = _heaviest(found, static)
        if _enough(found.counts[token], found, least.percent[n]):
            return token
    return None


def _heaviest(found: Continuations, static: Continuations | None) -> int:
    """The token with the largest count, weighed by the static cache."""
    counts = found.counts
    if static is None:
        return max(counts, key=counts.__getitem__)
    known = static.counts
    return max(counts, key=lambda token: counts[token] * (STATIC_WEIGHT * known[token] if token in known else 1))


def _likeliest(static: Continuations | None) -> int | None:
    """What the static cache proposes alone."""
    if static is None or static.total < _MIN_STATIC[0]:
        return None
    token = max(static.counts, key=static.counts.__getitem__)
    return token if _enough(static.counts[token], static, _MIN_STATIC[1]) else None


def _enough(count: int, found: Continuations, percent: int) -> bool:
    return 100 * count >= percent * found.total
