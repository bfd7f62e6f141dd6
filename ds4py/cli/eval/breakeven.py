"""How often a drafter must be right to pay: arithmetic on measured costs.

A pass with k drafted tokens costs the verify of k + 1 rows and the drafting, and commits 1 + a + a^2 + ... + a^k tokens if each
guess is right with chance a once those before it were. Plain decoding commits one token for the verify of one row. So the pass
must commit cost(k) tokens to break even, cost in units of a plain token, and `wanted` times as many to be that much faster. The
chance that this takes is found by bisection; above k + 1 tokens no chance is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FAST = 1.5
_STEPS = 50


@dataclass(frozen=True)
class Need:
    """What a drafter needs at one depth. cost: of a pass, in plain tokens. Chances are None where certainty is not enough."""

    drafter: str
    depth: int
    cost: float
    even: float | None  # chance of a guess at which drafting costs nothing
    fast: float | None  # ... at which it is FAST times as fast

    @property
    def fast_tokens(self) -> float:
        """Tokens a pass must commit to be FAST times as fast."""
        return FAST * self.cost


@dataclass(frozen=True)
class Costs:
    """verify: rows -> seconds of a forward of the target. draft: length -> seconds of drafting."""

    verify: Mapping[int, float]
    draft: Mapping[int, float]
    in_one_pass: bool = False  # a block drafter takes as long for one token as for all

    def of(self, depth: int) -> float:
        """A pass with `depth` drafted tokens, in plain tokens."""
        rows = sorted(self.verify)
        seconds = float(np.interp(depth + 1, rows, [self.verify[n] for n in rows])) + self._drafting(depth)
        return seconds / self.verify[1]

    def _drafting(self, depth: int) -> float:
        """Between measured lengths a straight line; beyond them in proportion, or the same for a drafter of one pass."""
        lengths = sorted(self.draft)
        if not lengths:
            return 0.0
        found = float(np.interp(depth, lengths, [self.draft[n] for n in lengths]))
        if self.in_one_pass or lengths[0] <= depth <= lengths[-1]:
            return found
        return found * depth / (lengths[-1] if depth > lengths[-1] else lengths[0])


def tokens_of(chance: float, depth: int) -> float:
    """Tokens that a pass commits on average."""
    return sum(chance**i for i in range(depth + 1))


def chance_for(tokens: float, depth: int) -> float | None:
    """The chance at which a pass of `depth` drafted tokens commits `tokens`; None if none is enough."""
    if tokens > depth + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of(middle, depth) < tokens else (low, middle)
    return high if tokens > 1 else 0.0


def need(drafter: str, costs: Costs, depth: int) -> Need:
    cost = costs.of(depth)
    return Need(drafter, depth, cost, chance_for(cost, depth), chance_for(FAST * cost, depth))


def easiest(needs: Iterable[Need], fast: bool) -> Need | None:
    """The depth that asks least of the drafter: to break even, or to be FAST times as fast. None if no depth can."""
    possible = [(found, one) for one in needs if (found := one.fast if fast else one.even) is not None]
    return min(possible, key=lambda pair: pair[0])[1] if possible else None


def sentences(needs: Sequence[Need], measured: Mapping[str, float]) -> list[str]:
    """One line for each drafter. measured: drafter -> tokens it committed a pass."""
    lines = []
    for name in dict.fromkeys(one.drafter for one in needs):
        own = [one for one in needs if one.drafter == name]
        even, fast = easiest(own, fast=False), easiest(own, fast=True)
        first = (
            "no acceptance breaks even, whatever the depth"
            if even is None
            else f"breaks even at {even.even:.2f} accepted ({even.depth} ahead, a pass costs {even.cost:.2f} tokens)"
        )
        second = (
            f"no acceptance makes it {FAST} x"
            if fast is None
            else f"{FAST} x needs {fast.fast:.2f} ({fast.depth} ahead, {fast.fast_tokens:.2f} tokens a pass)"
        )
        seen = f"; it committed {measured[name]:.2f} a pass" if name in measured else ""
        lines.append(f"{name}: {first}; {second}{seen}")
    return lines
