"""Which drafted tokens are committed.

The target's token at a position is a pure function of its logits row and the position (sampling.py), so a verify has nothing to
decide: it draws the target's own token at each row, and a row is worth reading as long as the draft had guessed the one before
it. Greedy decoding and exact sampling are the same rule, and what is committed is the text that plain decoding would have
given: `TargetDraw`.

`Opportunistic` is what ds4 does above temperature 0 unless told otherwise: a drafted token that is the target's likeliest is
committed without a draw. More of a draft holds, the text is less random than the settings say, and which text it is depends on
the drafts: on the drafter, its depth and what it saw. No identity with plain decoding is claimed for it.

`Synthetic` is for benchmarks: it accepts by given chances, so its text means nothing.

Rejected: accepting a proposal with its probability and resampling what remains (Leviathan et al. 2023). It keeps the
distribution but not the text: the answer would then depend on the drafter, its depth and its schedule.

Another rule is another class with `walk`, handed to a session by SessionOptions(rule=...).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ds4py.engine.noise import fold
from ds4py.errors import UsageError
from ds4py.protocols import F32, Draft, SamplerView


class TargetDraw:
    """A proposal is accepted exactly when it equals the target's own draw."""

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        """Yield the target's tokens left to right, each pushed to `sampler` first, until one was not foreseen.

        rows [len(draft.tokens) + 1, V]. So the last token yielded is the target's alone, those before it were drafted too.
        """
        for i in range(len(draft.tokens) + 1):
            token = sampler.draw(rows[i])
            sampler.push(token)
            yield token
            if i < len(draft.tokens) and draft.tokens[i] != token:
                return


class Opportunistic:
    """A proposal is accepted if it is the target's likeliest token, under the filters, penalties and masks that hold at its row,
    or if it equals the target's own draw."""

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        """As TargetDraw.walk; the token after the draft is always drawn."""
        for i, drafted in enumerate(draft.tokens):
            likely = sampler.propose(rows[i], 0.0)
            token = likely if drafted == likely else sampler.draw(rows[i])
            sampler.push(token)
            yield token
            if token != drafted:
                return
        token = sampler.draw(rows[len(draft.tokens)])
        sampler.push(token)
        yield token


class Synthetic:
    """Accept token i of a draft with given chances, whatever it is: benchmarks of loops and schedulers. Not real output."""

    def __init__(self, rates: Sequence[float], seed: int, stop_ids: frozenset[int] = frozenset()) -> None:
        """rates[i]: the share of drafts of which token i is accepted, not rising. Stop ids are never accepted."""
        check_rates(rates)
        self._chances = [rate / before if before else 0.0 for rate, before in zip(rates, [1.0, *rates], strict=False)]
        self._seed, self._stop_ids = seed, stop_ids

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        for i in range(len(draft.tokens) + 1):
            token = sampler.draw(rows[i])
            drafted = draft.tokens[i] if i < len(draft.tokens) else None
            u = fold(self._seed, sampler.pos) / 2.0**64
            took = drafted is not None and drafted not in self._stop_ids and i < len(self._chances) and u < self._chances[i]
            if took and drafted is not None:
                token = drafted
            sampler.push(token)
            yield token
            if not took:
                return


def check_rates(rates: Sequence[float]) -> None:
    """Raises UsageError unless `rates` are probabilities that do not rise."""
    if any(not (math.isfinite(rate) and 0 <= rate <= 1) for rate in rates):
        raise UsageError("synthetic acceptance rates must be probabilities")
    if any(b > a for a, b in zip(rates, rates[1:], strict=False)):
        raise UsageError("synthetic acceptance rates must not rise: a token is reached only through the one before it")


def synthetic_rates(mean_len: float, n_max: int) -> list[float]:
    """Rates p, p^2, ... of drafts of n_max tokens that commit `mean_len` tokens a pass on average.

    Raises UsageError unless 1 <= mean_len <= n_max + 1."""
    if not 1 <= mean_len <= n_max + 1:  # NaN fails too
        raise UsageError(f"the synthetic acceptance length must be 1 to {n_max + 1} for drafts of {n_max} tokens, not {mean_len}")
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**i for i in range(1, n_max + 1)) < mean_len - 1 else (low, p)
    return [high**i for i in range(1, n_max + 1)]
