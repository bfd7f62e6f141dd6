"""ngram-mod: one table from a hash of n tokens to the token that followed them, shared by all sessions.

A draft is a walk: hash the last n tokens, take the token in that slot, move the hash on, until a slot is empty or n_max tokens
are there; a walk of fewer than n_min is worth nothing. Nothing is compared, so a slot taken by another n-gram gives a wrong
guess, which the target refuses. Memory and time per token are constant, and a text that one session has seen serves all of them.

`NgramModPool` is the table: 4 Mi slots, 16 MiB. It has no positions. A rewind of one session does not take its text out of the
pool (that text may come again, and others may rely on it), so here the timeline is only the session's own tokens, from which
the next walk starts. Whoever commits drafts without a draw (opportunistic sampling) must give each session a pool of its own,
or one request's text would depend on another's. Greedy and exact sampling commit the target's own tokens, so there sharing
changes speed alone. A server keeps a pool for every client key: how fast a draft comes tells what others wrote.

Two rules empty the pool, as in llama.cpp: more than a quarter full when text arrives, or five drafts of one session in a row of
which less than a quarter was accepted. Here the session that empties it puts its own text back at once (llama.cpp loses the
prompt it has just added), at most an eighth of the pool, so that emptying is paid for by many tokens. A second series of five
without any success in between empties nothing: the pool then holds that session's own text, which emptying would bring back.

Acceptance is read off the text: the tokens that are observed after a proposal are compared with it.

Threads: a pool and its drafters belong to the thread that steps their engine's sessions; there is no lock. Slots are read and
written whole under Python's interpreter lock, so a stray concurrent user can lose entries or miscount them, never crash or
change what a target commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ds4py.drafters.config import LONGEST, ModSizes
from ds4py.drafters.rolling_hash import MOD_FACTOR, RollingHash
from ds4py.errors import UsageError
from ds4py.protocols import F32, Draft, Needs, SamplerView

POOL_SLOTS: Final = 4 << 20
SHORT_MATCH: Final = 16  # keys below this many tokens are not recommended
LOW_SHARE: Final = 0.25  # a draft is a bad one if less of it was accepted
N_LOW: Final = 5  # bad drafts in a row that empty the pool
_BULK: Final = 256  # from this many tokens on numpy is faster than a loop


class NgramModPool:
    """Which token followed each hash. A slot holds a token + 1, or 0 while it is empty, so that an empty pool costs no memory."""

    def __init__(self, n_slots: int = POOL_SLOTS) -> None:
        if n_slots < 1:
            raise ValueError(f"a pool needs at least one slot, not {n_slots}")
        self.n_slots = n_slots
        self.clear()

    def clear(self) -> None:
        self._array: npt.NDArray[np.int32] = np.zeros(self.n_slots, np.int32)
        self._slots = self._array.data  # the same memory; reads and writes of single items are faster
        self.n_used = 0

    @property
    def crowded(self) -> bool:
        """More than a quarter of the slots are taken: time to start over."""
        return 4 * self.n_used > self.n_slots

    def put(self, h: int, token: int) -> None:
        """`token` followed the n-gram whose hash is `h`; the newest wins."""
        slot = h % self.n_slots
        self.n_used += self._slots[slot] == 0
        self._slots[slot] = token + 1

    def get(self, h: int) -> int | None:
        """The token that followed last, or None."""
        entry = self._slots[h % self.n_slots]
        return entry - 1 if entry else None

    def put_all(self, hashes: npt.NDArray[np.uint64], tokens: npt.NDArray[np.int64]) -> None:
        """`put` for many, in order."""
        slots = (hashes % np.uint64(self.n_slots)).astype(np.int64)
        self.n_used += len(np.unique(slots[self._array[slots] == 0]))
        self._array[slots] = tokens + 1  # of repeated slots numpy keeps the last


class NgramMod:
    """A Drafter; see the head of this file."""

    name = "ngram-mod"

    def __init__(self, sizes: ModSizes, pool: NgramModPool | None = None) -> None:
        """`pool` is shared with other sessions; None: one of its own. Raises UsageError for sizes that can never draft."""
        self.needs = Needs()
        self.pool = pool or NgramModPool()
        self._sizes = _check(sizes)
        self._hash = RollingHash(sizes.n_match, MOD_FACTOR, 64)
        self._tokens: list[int] = []
        self._h: int | None = None  # of the last n_match tokens; None: read them anew
        self._pending: tuple[int, int, Sequence[int]] | None = None  # position of the last token, that token, what was proposed
        self._n_low = 0  # bad drafts in a row

    @property
    def advice(self) -> str | None:
        """A sentence for the user about settings that work but are not recommended."""
        if self._sizes.n_match >= SHORT_MATCH:
            return None
        return f"--spec-ngram-mod-n-match {self._sizes.n_match} is short: below {SHORT_MATCH} tokens most guesses are wrong"

    @property
    def pos(self) -> int:
        return len(self._tokens)

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= len(self._tokens):
            raise ValueError(f"truncate({pos}) of a history of {len(self._tokens)}")
        if pos < len(self._tokens):
            del self._tokens[pos:]
            self._h = self._pending = None

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        if self.pool.crowded:
            self._start_over()
        tokens = [int(token) for token in tokens]
        self._judge(tokens)
        first = max(self.pos, self._sizes.n_match)
        self._tokens += tokens
        self._learn(first)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self._pending = None
        n, sizes = self._sizes.n_match, self._sizes
        if self.pos < n:
            return Draft()
        text = [*self._tokens[self.pos - n :], int(last)]  # text[i] leaves the n-gram when token i of the draft comes
        h = self._hash.roll(self._hash_of_end(), text[0], last)
        # n_min asks how far the pool can see, so the walk goes on to there even if fewer tokens are wanted
        n_wanted = max(min(k, sizes.n_max), sizes.n_min)
        for i in range(1, n_wanted + 1):
            token = self.pool.get(h)
            if token is None:
                break
            text.append(token)
            h = self._hash.roll(h, text[i], token)
        found = text[n + 1 :]
        if len(found) < sizes.n_min:
            return Draft()
        draft = found[: min(k, sizes.n_max)]
        if draft:
            self._pending = self.pos, last, draft
        return Draft(draft, source=self.name)

    def _hash_of_end(self) -> int:
        if self._h is None:
            self._h = self._hash.of(self._tokens[-self._sizes.n_match :])
        return self._h

    def _learn(self, first: int) -> None:
        """Put the tokens at positions first .. pos into the pool, each after the n-gram before it."""
        n, tokens = self._sizes.n_match, self._tokens
        if first >= self.pos:
            self._h = None  # too short for an n-gram, or nothing new: read it when it is needed
            return
        if self.pos - first >= _BULK:
            self.pool.put_all(self._hashes(first), np.array(tokens[first:], np.int64))
            self._h = None
            return
        h = self._hash.of(tokens[first - n : first]) if self._h is None else self._h
        for i in range(first, self.pos):
            self.pool.put(h, tokens[i])
            h = self._hash.roll(h, tokens[i - n], tokens[i])
        self._h = h

    def _hashes(self, first: int) -> npt.NDArray[np.uint64]:
        """The hash of the n-gram before each position first .. pos. [pos - first]"""
        n = self._sizes.n_match
        tokens = np.array(self._tokens[first - n :], np.uint64)
        count = self.pos - first
        h = np.zeros(count, np.uint64)
        for i in range(n):
            h = h * np.uint64(MOD_FACTOR) + tokens[i : i + count]  # modulo 2^64, as array arithmetic is
        return h

    def _judge(self, tokens: Sequence[int]) -> None:
        """Compare the last proposal with the tokens that came after it."""
        pending, self._pending = self._pending, None
        if pending is None or not tokens or pending[:2] != (self.pos, tokens[0]):
            return
        draft = pending[2]
        n_accepted = next((i for i, (a, b) in enumerate(zip(draft, tokens[1:], strict=False)) if a != b), len(tokens) - 1)
        if min(n_accepted, len(draft)) >= LOW_SHARE * len(draft):
            self._n_low = 0
            return
        self._n_low += 1
        if self._n_low == N_LOW:
            self._start_over()

    def _start_over(self) -> None:
        """Empty the pool and put this session's own latest text back."""
        self.pool.clear()
        self._h = None
        self._learn(max(self._sizes.n_match, self.pos - self.pool.n_slots // 8))


def _check(sizes: ModSizes) -> ModSizes:
    for what, value, low in (("match", sizes.n_match, 1), ("min", sizes.n_min, 0), ("max", sizes.n_max, 0)):
        if not low <= value <= LONGEST:
            raise UsageError(f"--spec-ngram-mod-n-{what} must be {low} to {LONGEST}, not {value}")
    if sizes.n_min > sizes.n_max:
        both = f"--spec-ngram-mod-n-min is {sizes.n_min} and --spec-ngram-mod-n-max {sizes.n_max}"
        raise UsageError(f"{both}: with the least above the most nothing would ever be drafted")
    return sizes
