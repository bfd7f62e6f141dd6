"""How many tokens to draft next: the policies that look at counts. The one that looks at the clock is cost.py.

A depth policy sees what passes did and answers one number. In greedy and exact decoding it can cost or gain time but never
changes text: a verify of any length commits the same tokens (accept.py). Opportunistic decoding is the exception, since there a
draft decides what is committed; so it uses only policies of this file, and the same counts give the same text on any machine.

`Adaptive` keeps a moving average of how often a drafted token is right, and asks for the depth that commits most tokens for the
price of a pass. The price is a prior that the files tell (drafters/price.py), so it is a number of the model and not of the
moment. Where no depth gains anything it gives up, never for good: it probes with the shortest draft after 4 passes, then 8, 16,
... 64; a probe that is right ends that. A drafter that had to read tokens before it could answer again is left alone for 16
passes per token at least. So drafting for a text that is never foreseen costs the first ten tokens or so, then a row in 64
passes, and of a draft model's reading a token in 16 passes. Rejected: the length of the last accepted draft as the next depth,
which follows noise; a fixed chance (40 %) down to which tokens are drafted, which is right for n-grams and loses up to a quarter
of the speed with a draft model that costs half of the target.
"""

from __future__ import annotations

from typing import Final

from ds4py.drafters.price import Price
from ds4py.errors import UsageError
from ds4py.protocols import DepthPolicy, Pass

_MEMORY: Final = 12.0  # looks at drafted tokens over which the average forgets
_FIRST_LOOKS: Final = 4.0  # that the first guess of the average stands for
_PAUSES: Final = (4, 64)  # first and longest, in passes
_READING: Final = (16, 64)  # passes of a pause for each token of a lag; most tokens that count


class FixedDepth:
    """Always the same depth: for tests, measurements and users who know what they want."""

    tail = 0

    def __init__(self, depth: int) -> None:
        if depth < 0:
            raise UsageError(f"draft depth must be 0 (no drafts) or a count of tokens, not {depth}")
        self._depth = depth

    def depth(self) -> int:
        return self._depth

    def record(self, done: Pass) -> None:
        pass


class Adaptive:
    """Depth from a moving average of acceptance; counts alone decide."""

    tail = 0

    def __init__(self, n_max: int, n_min: int = 0, price: Price | None = None) -> None:
        """Depths are 0 or n_min .. n_max. `price` of a draft; None: that of n-grams for a dense model."""
        self._n_max, self._n_min = n_max, max(1, n_min)
        self._price = price or Price()
        self._break_even = self._least_rate()  # no drafts while tokens are right less often
        self._rate = 0.7  # how often a drafted token that was looked at is right
        self._looks = _FIRST_LOOKS  # that the average stands for
        self._pause, self._wait = _PAUSES[0], 0  # length of the next pause; passes left of this one

    def depth(self) -> int:
        if self._n_max < self._n_min or self._wait:
            return 0
        return self._n_min if self._rate < self._break_even else self._best(self._rate)[0]  # the former is a probe

    def _best(self, rate: float) -> tuple[int, float]:
        """The depth that commits most tokens for the price if each is right with chance `rate`, and how many plain passes would
        have to be made for as many."""
        best, gain, likely, tokens = self._n_min, 0.0, 1.0, 1.0
        for k in range(1, self._n_max + 1):
            likely *= rate
            tokens += likely
            worth = tokens / (1 + self._price.of(k))
            if k >= self._n_min and worth > gain:
                best, gain = k, worth
        return best, gain

    def _least_rate(self) -> float:
        """The chance at which the best depth costs what it brings; above 1 if none does."""
        low, high = 0.0, 1.0
        if self._best(high)[1] < 1:
            return 2.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self._best(middle)[1] < 1 else (low, middle)
        return high

    def record(self, done: Pass) -> None:
        if self._wait:
            self._wait -= 1
        if not done.drafted:
            return
        looks = [1.0] * done.accepted + [0.0] * (done.accepted < done.drafted)
        was_off = self._rate < self._break_even
        for right in looks:
            self._looks = min(self._looks + 1, _MEMORY)
            self._rate += (right - self._rate) / self._looks
        if done.accepted and was_off:
            self._rate, self._pause = max(self._rate, min(self._break_even, 1.0)), _PAUSES[0]  # the text has changed: believe it
        elif self._rate < self._break_even:
            read = _READING[0] * min(done.draft.lag, _READING[1])
            self._wait = max(self._pause, read)
            self._pause = min(2 * self._wait, _PAUSES[1] + read)


class AtMost:
    """Another policy that asks for `most` tokens at most: a request's own limit."""

    def __init__(self, inner: DepthPolicy, most: int) -> None:
        self.inner, self._most, self.tail = inner, most, inner.tail

    def depth(self) -> int:
        return min(self.inner.depth(), self._most)

    def record(self, done: Pass) -> None:
        self.inner.record(done)


class SkipStreak:
    """Another policy that leaves out one draft after `threshold` drafts in a row without an accepted token."""

    def __init__(self, inner: DepthPolicy, threshold: int) -> None:
        self._inner, self._threshold = inner, threshold
        self.tail = inner.tail
        self._streak = 0
        self._skipping = False

    @property
    def skipping(self) -> bool:
        """Whether the next draft is left out."""
        return self._skipping

    def depth(self) -> int:
        return 0 if self._skipping else self._inner.depth()

    def record(self, done: Pass) -> None:
        self._inner.record(done)
        if self._skipping:
            self._streak, self._skipping = 0, False  # the pass without a draft is no miss
        elif done.drafted:
            self._streak = 0 if done.accepted else self._streak + 1
            self._skipping = self._streak >= self._threshold
