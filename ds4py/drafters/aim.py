"""From rows of a draft model's logits to a draft: which token to propose at each position, and where to stop.

Every drafter that has logits aims the same way: it asks the target's own sampler, with the penalties, bias and masks that hold at
each coming position and the target's noise at a warmth that counts choose (warmth.py), and stops where its own measure of
confidence falls below what the user asked for. Where the rows come from (one forward per token, a block at once, a Markov chain
over a block) is the drafter's business: it hands over a function from the token before to the next row.

Rejected: proposing greedily as llama.cpp does, which at temperature 1 finds the target's token half as often on flat
distributions. Where drafts may decide the text (opportunistic decoding) proposals are greedy all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ds4py.drafters.warmth import LEVELS, Warmth
from ds4py.errors import NumericError
from ds4py.protocols import F32, Draft, SamplerView

# (number of the token in the draft, the token before it) -> (logits [V], confidence in what will be chosen from them, or None)
RowAfter = Callable[[int, int], tuple[F32, float | None]]


@dataclass(frozen=True)
class Limits:
    """Where a draft model's drafts end. `least`: of its confidence in a token; 0: it is not asked for."""

    n_max: int
    n_min: int = 0  # shorter drafts are dropped
    least: float = 0.0


class Aim:
    """What one session's drafter knows of how to aim."""

    def __init__(self, greedy: bool) -> None:
        """`greedy`: propose likeliest tokens whatever the temperature."""
        self._warmth = None if greedy else Warmth()

    def forget(self, pos: int) -> None:
        """Positions >= `pos` are gone; the token at `pos` itself may be chosen again."""
        if self._warmth:
            self._warmth.forget(pos + 1)

    def seen(self, pos: int, tokens: Sequence[int]) -> None:
        """`tokens` stand at positions from `pos` on: score what was proposed for one of them."""
        waiting = self._warmth.waiting if self._warmth else None
        if self._warmth and waiting is not None and pos <= waiting < pos + len(tokens):
            self._warmth.learn(tokens[waiting - pos])

    def draft(
        self, k: int, last: int, view: SamplerView, limits: Limits, row_after: RowAfter, source: str, lag: int = 0
    ) -> Draft:
        """At most k tokens to follow `last`. A row without a finite maximum ends the draft: a broken draft model drafts short."""
        tokens: list[int] = []
        sure: list[float] = []
        before, stopped = last, None
        while len(tokens) < k:
            row, confidence = row_after(len(tokens), before)
            if confidence is not None:
                if confidence < limits.least:
                    stopped = confidence
                    break
                sure.append(confidence)
            try:
                before = self._choose(row, view, first=not tokens)
            except NumericError:
                break
            tokens.append(before)
            view.push(before)
        if len(tokens) < limits.n_min:
            tokens = []
        return Draft(tokens, sure[: len(tokens)] if sure else None, source, lag=lag, stopped=stopped)

    def _choose(self, row: F32, view: SamplerView, first: bool) -> int:
        if self._warmth is None or view.params().temperature == 0:
            return view.propose(row, 0.0)
        if not first:
            return view.propose(row, self._warmth.level)
        guesses = [view.propose(row, level) for level in LEVELS]
        self._warmth.guessed(view.pos, guesses)
        return guesses[LEVELS.index(self._warmth.level)]


def top_probability(row: F32) -> float:
    """The largest of softmax(row) at temperature 1."""
    scaled = row - row.max()
    np.exp(scaled, out=scaled)
    return float(1 / scaled.sum(dtype=np.float64))  # numpy widens some thousand values at a time: no copy of the row
