"""The depth that gains most time, from measured costs and counted acceptance; and giving up where drafting loses.

Of a draft of k tokens three things matter, and all of them are measured on the spot, for this model, machine, drafter and text:

* what the passes cost: `Curve`s of the seconds of a verify by rows and of a proposal by tokens, medians of the last few passes
  of each count, made monotone and interpolated for counts that were not seen;
* how often token i is right if those before it were, and how often a drafter that is asked has a token i at all: counts that
  forget over about sixteen passes, by position in fine and then coarse steps;
* what plain decoding would have done in the time: the curve at one row.

From these follow, for every depth, the expected tokens and seconds of a pass. The depth with the most tokens per second is
asked for. Another one takes its place only if it promises 2 % more. Drafting goes on while it promises more than plain
decoding, and begins again only if it promises 5 % more. Where it promises little, every sixteenth pass is a plain one: a few rows
more can cost so little that it matters whether one row was measured cold.

Giving up is never for good, and what it costs is bounded by an account. Every pass pays in 1 % of its seconds; every pass that
was asked for a draft pays in what it gained against plain decoding, or takes out what it lost. The balance is at most some tens
of probes, and a passage that drafting loses before it is given up leaves a few probes of debt at most. From then on a probe, a
draft of the least depth, is made only when the balance covers its expected cost, and after a miss not before 2, then 4, 8, ...
32 passes. One that is right is followed by others at once, whatever the balance, up to twelve and until two in a row are wrong:
that is what it takes to be believed, and who is always wrong never gets there. So drafting for a text that is never foreseen
loses the first four drafts, which measure, and at most 1 % of the time after them; where drafting has gained much, some of that
may be spent on watching for the next such passage; and a drafter whose probe costs c passes is asked again every 100 c passes
at the latest.

A drafter of which the files say that no acceptance pays for it (drafters/price.py) is not given the first four drafts: it starts
as one that was given up, at the price that the files tell, until a probe has measured it. In an answer of 64 tokens they would
cost a sixth of the speed, and the prompt that it has to read before the first of them comes on top.

The first time a count is met includes compiling or recording for it, so a measurement counts only from the second one on, and the
first two passes, after a prompt or a pause, find cold caches (a quarter slower where a token takes two milliseconds). A
proposal that had to catch up with passes without drafts says nothing about a proposal's cost while drafting goes on, but it tells
what probes will cost (`CatchingUp`), and the account pays for it. A drafter that bounds what coming back takes (draft_simple.py)
stays affordable; of one that reads all it has missed, at more than 1 % of a pass per token, no probe ever is.

Since the clock decides, the number of passes differs from run to run, and the text does not (accept.py). Rejected: a fixed table
of costs, a threshold of acceptance (where drafting breaks even depends on the slope of the verify's cost, which differs by a
factor of ten between machines), and trying depths at random, which pays for what the model can predict.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

import numpy as np

from ds4py.drafters.price import Price
from ds4py.engine.noise import F64
from ds4py.protocols import I64, Pass

_KEEP: Final = 15 / 16  # of older counts when a pass adds to them
_KEEP_NEWS: Final = 0.25  # the same when a probe is right: the text has changed, older counts tell of another one
_PRIOR: Final = 0.6  # how often a drafted token is right, before anything is known
_WEIGHT: Final = 2.0  # passes that the prior, or the position before, stands for
_LEAD: Final = 1.02  # another depth must promise so much more than this one
_RETURN: Final = 1.05  # drafting must promise so much more than plain decoding, once it was given up
_SHARE: Final = 0.01  # of the time that probes may lose
_DEBT, _CREDIT = -4.0, 30.0  # least and most probes that the account may hold
_LONGEST_WAIT: Final = 32  # passes between a miss and the next probe
_SERIES: Final = 12  # probes that follow a right one
_FIRST_LIMIT: Final = 16.0  # tokens that a drafter is expected to read when it is asked again
_SLACK: Final = 4  # tokens of a lag that are not worth telling apart
_LONG_PAUSE: Final = 8  # passes; after such a one, a probe that is right is news
_FADE: Final = 63 / 64  # of counts that a pass could not add to: they grow old, and what they forbade is tried again
_CLOSE: Final = 1.15  # promised gain up to which an old measurement of plain decoding is not trusted: a pass is spent on it
_OLD: Final = 16  # passes after which it is old
_SETTLED: Final = 8  # passes, and drafts, after which not each is a reason to look at everything, but every fourth draft
_REFRESH: Final = 16  # passes without a draft between two looks at everything: looking costs a tenth of a millisecond
_FIRST_DEPTH: Final = 3  # asked for before anything is measured
_FREE_DRAFTS: Final = 4  # that are made whatever they promise
_COLD: Final = 2  # passes of a session that are slower than all others, whatever they do
_ROW_GUESS: Final = 0.1  # of the cost of one row that a further one costs, before that is measured


class Curve:
    """Seconds by count: rows of a verify, or tokens of a proposal."""

    def __init__(self, slope_guess: float) -> None:
        """slope_guess: of the value at the only count known, what each further count adds."""
        self._slope_guess = slope_guess
        self._samples: dict[int, deque[float]] = {}
        self._seen: set[int] = set()
        self._fit: tuple[F64, F64] | None = None

    def meet(self, count: int) -> None:
        """A measurement that says nothing but that what comes with the first one is over."""
        self._seen.add(count)

    def add(self, count: int, seconds: float) -> None:
        """A measurement; the first one of each count is left out."""
        if count in self._seen:
            self._samples.setdefault(count, deque(maxlen=9)).append(seconds)
            self._fit = None
        self._seen.add(count)

    @property
    def known(self) -> bool:
        return bool(self._samples)

    def at(self, counts: I64) -> F64:
        """Seconds of each of `counts`, rising with them; 0 if nothing is known."""
        if not self._samples:
            return np.zeros(len(counts))
        if self._fit is None:
            self._fit = self._monotone()
        x, y = self._fit
        slope = (y[-1] - y[0]) / (x[-1] - x[0]) if len(x) > 1 else self._slope_guess * y[0]
        found: F64 = np.interp(counts, x, y) + np.maximum(counts - x[-1], 0) * slope
        return found

    def _monotone(self) -> tuple[F64, F64]:
        """Medians by count, neighbours that fall instead of rise put together at their weighted mean."""
        groups: list[tuple[float, float, list[int]]] = []  # mean, weight, counts
        for count in sorted(self._samples):
            value, weight, counts = median(self._samples[count]), float(len(self._samples[count])), [count]
            while groups and groups[-1][0] > value:
                before, its_weight, its_counts = groups.pop()
                value = (value * weight + before * its_weight) / (weight + its_weight)
                weight, counts = weight + its_weight, its_counts + counts
            groups.append((value, weight, counts))
        x = [count for _, _, counts in groups for count in counts]
        y = [value for value, _, counts in groups for _ in counts]
        return np.array(x, np.float64), np.array(y, np.float64)


class Chances:
    """How often step i succeeds if all before it did; positions share a count, the wider the further they lie."""

    def __init__(self, n: int, prior: float) -> None:
        self._bucket = np.array([i if i < 4 else 2 + int(2 * np.log2(i / 2)) for i in range(n)], np.int64)
        self._won = [0.0] * (int(self._bucket[-1]) + 1)
        self._tried = [0.0] * len(self._won)
        self._won[0], self._tried[0] = prior * _WEIGHT, _WEIGHT

    def count(self, n_won: int, n_tried: int, keep: float) -> None:
        """Steps 0 .. n_won - 1 succeeded; if n_tried is larger, step n_won failed."""
        n = min(n_won + (n_won < n_tried), len(self._bucket))
        if n == 0:
            return
        n_reached = int(self._bucket[n - 1]) + 1
        for bucket in range(len(self._won)):
            factor = keep if bucket < n_reached else _FADE
            self._won[bucket] *= factor
            self._tried[bucket] *= factor
        for i, bucket in enumerate(self._bucket[:n].tolist()):
            self._won[bucket] += i < n_won
            self._tried[bucket] += 1

    def each(self) -> F64:
        """The chance of every step, [n]; without counts of its own a step is what the one before it is."""
        chance = self._won[0] / self._tried[0]
        chances = [chance]
        for won, tried in zip(self._won[1:], self._tried[1:], strict=True):
            chance = (won + _WEIGHT * chance) / (tried + _WEIGHT)
            chances.append(chance)
        found: F64 = np.array(chances)[self._bucket]
        return found


class CatchingUp:
    """What a drafter reads before it can propose again, when it was not asked for some passes: seconds per token, and how many
    tokens at most."""

    def __init__(self) -> None:
        self.limit = _FIRST_LIMIT  # tokens
        self._seconds = 0.0  # of a token

    def expect(self, seconds: float) -> None:
        """What a token is said to take, as long as none was measured."""
        self._seconds = seconds

    def learn(self, n_missed: int, lag: int, seconds: float) -> None:
        """After n_missed passes without a draft, `lag` tokens took `seconds`."""
        self._seconds += (seconds / lag - self._seconds) * (0.5 if self._seconds else 1.0)
        if 2 * self.limit <= n_missed and lag <= 2 * n_missed:  # a longer lag is a prompt's
            self.limit = math.inf if lag >= n_missed - _SLACK else float(lag)

    def cost(self, n_missed: int) -> float:
        """Seconds it will take after n_missed passes without a draft."""
        return self._seconds * min(n_missed, self.limit)


class CostAware:
    """protocols.DepthPolicy for one session. See the head of this file."""

    tail = 0

    def __init__(self, n_max: int, n_min: int = 0, dear: Price | None = None) -> None:
        """Depths are 0 or n_min .. n_max. `dear`: what a drafter costs of which the files say that it never pays."""
        self._n_max, self._n_min = n_max, max(1, n_min)
        self._dear = dear
        self._verify, self._draft = Curve(_ROW_GUESS), Curve(0.0)
        self._right, self._offered = Chances(max(n_max, 1), _PRIOR), Chances(max(n_max, 1), 1.0)
        self._n_passes = 0
        self._depth = 0
        self._on = True  # drafting gains, as far as is known
        self._balance = 0.0  # seconds that probes may lose
        self._n_drafts = 0  # verified
        self._n_drafting = 0  # of them since the last plain pass
        self._remeasuring = False  # this pass is a plain one to see what it costs
        self._pause, self._wait = 1, 0  # passes to wait after the next miss; still to wait now
        self._series = self._n_wrong = 0  # probes that may still follow one that was right; wrong ones in a row
        self._back, self._n_missed = CatchingUp(), 0  # passes that were not asked for a draft, up to now
        self._others = (0, 0)  # rows and sessions that shared the last forward
        self._plain = self._probe = 0.0  # seconds of a plain pass, and that a probe loses beside catching up

    def depth(self) -> int:
        return self._depth

    @property
    def drafting(self) -> bool:
        """Whether it drafts because that gains; else it only probes."""
        return self._on

    def record(self, done: Pass) -> None:
        self._n_passes += 1
        if self._n_max < self._n_min:
            return
        if self._n_passes > _COLD:
            self._verify.add(done.rows, done.verify_seconds)
        else:
            self._verify.meet(done.rows)
        if done.asked:
            if done.draft.lag == 0:
                self._draft.add(done.drafted, done.draft_seconds)
            else:
                usual = float(self._draft.at(np.array([done.drafted]))[0])
                n_missed = 0 if self._on else self._n_missed
                self._back.learn(n_missed, done.draft.lag, max(done.draft_seconds - usual, 0.0))
            news = done.accepted > 0 and not self._on and self._pause >= _LONG_PAUSE
            self._offered.count(done.drafted, done.asked, _KEEP)
            self._right.count(done.accepted, done.drafted, _KEEP_NEWS if news else _KEEP)
        self._n_drafting = 0 if not done.drafted else self._n_drafting + 1
        telling = not self._on or self._n_drafts < _SETTLED or self._n_drafts % 4 == 0
        fresh = (done.drafted and telling) or self._remeasuring or self._n_passes % _REFRESH == 0 or self._n_passes <= _SETTLED
        self._remeasuring = False
        if fresh:
            self._others = (done.rows - 1 - done.drafted, done.n_sessions - 1)
            self._price()
        self._settle(done)
        self._n_missed = 0 if done.asked else self._n_missed + 1
        self._depth = self._choose() if fresh else self._hold()

    def _price(self) -> None:
        """What plain decoding costs now, and what a probe would lose against it."""
        rows, _ = self._others
        plain, probe = self._verify.at(np.array([rows + 1, rows + 1 + self._n_min])).tolist()
        draft = float(self._draft.at(np.array([self._n_min]))[0])
        if self._dear and not self._draft.known:
            draft = (self._dear.of(self._n_min) - self._dear.row * self._n_min) * plain
            if not self._n_drafts:
                self._back.expect(self._dear.token * self._dear.row * plain)
        self._plain, self._probe = plain, probe - plain + draft

    def _settle(self, done: Pass) -> None:
        """Pay into the account, and take out what a pass with a draft lost."""
        seconds = done.draft_seconds + done.verify_seconds
        self._balance += _SHARE * seconds
        self._n_drafts += done.drafted > 0
        if done.asked and (self._n_drafts > _FREE_DRAFTS or self._dear):
            company = done.n_sessions - 1
            self._balance -= seconds - self._plain * (company + done.committed) / (company + 1)
        self._balance = min(self._balance, _CREDIT * self._probe)
        if self._on:  # a passage that drafting lost is forgiven in part, a probe never
            self._balance = max(self._balance, _DEBT * self._probe)
        self._wait = max(self._wait - 1, 0)
        if done.drafted and not self._on:
            self._n_wrong = 0 if done.accepted else self._n_wrong + 1
            going_on = self._series > 0 and self._n_wrong < 2
            self._series = self._series - 1 if going_on else _SERIES if done.accepted else 0
        if done.accepted:
            self._pause = 1
        elif done.drafted and not self._on:
            self._pause = min(2 * self._pause, _LONGEST_WAIT)
            self._wait = self._pause

    def _hold(self) -> int:
        """The depth by what was decided last: it stays, or a probe if one is due."""
        if self._on:
            return self._depth
        affordable = self._balance >= self._probe + self._back.cost(self._n_missed)
        return self._n_min if not self._wait and (self._series or affordable) else 0

    def _choose(self) -> int:
        if not self._verify.known:
            return 0
        if not self._draft.known:
            if self._dear:
                self._on = False
                return self._hold()
            return min(max(_FIRST_DEPTH, self._n_min), self._n_max)
        rates = self.rates()
        best = self._n_min + int(rates[self._n_min :].argmax())
        if rates[best] <= rates[0] * (1.0 if self._on else _RETURN):
            if self._n_drafts < _FREE_DRAFTS and not self._dear:
                return self._n_min
            self._on = False
            return self._hold()
        if self._on and self._n_drafting >= _OLD and rates[best] < rates[0] * _CLOSE:
            self._remeasuring = True
            return 0
        steady = self._on and self._n_min <= self._depth and rates[best] <= rates[self._depth] * _LEAD
        self._on = True
        return self._depth if steady else best

    def rates(self) -> F64:
        """Expected tokens per second of passes of each depth 0 .. n_max, as far as is known."""
        n = self._n_max
        rows, company = self._others
        lengths = np.arange(n + 1)
        seconds = self._verify.at(rows + 1 + lengths) + self._draft.at(lengths)  # of a pass by the length of its draft
        reached = np.concatenate([[1.0], np.cumprod(self._offered.each())])  # that a draft is at least so long
        right = np.cumprod(self._right.each())
        tokens = 1 + company + np.concatenate([[0.0], np.cumsum(reached[1:] * right)])
        ended = np.concatenate([[0.0], np.cumsum((reached[:-1] - reached[1:]) * seconds[:-1])])  # drafts that end before k
        seconds_of = ended + reached * seconds
        seconds_of[0] = self._verify.at(np.array([rows + 1]))[0]  # plain: nobody is asked
        rates: F64 = tokens / np.maximum(seconds_of, 1e-9)
        return rates
