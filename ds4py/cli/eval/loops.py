"""Is a continuation going round in circles? A draft is always right then, and a speed measured on it means nothing.

Two marks. A tail that repeats with some period, at least three times over: the classic loop of a greedy small model. And a text
most of whose 8-token stretches stood in it before, which catches loops with a counter in them. Neither looks at the prompt, so an
edit that copies its prompt is no loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

_LEAST = 24  # tokens that a repetition must cover
_TIMES = 3  # the stretch and its repeats
_STRETCH = 8
_STALE = 0.5  # share of stretches that stood before


def looping(tokens: Sequence[Hashable]) -> str:
    """Why `tokens` (ids or words of a continuation) are a loop, as a phrase; empty if they are none."""
    period = tail_period(tokens)
    if period:
        return f"its end repeats every {period} tokens"
    share = stale_share(tokens)
    return f"{share:.0%} of it stood in it before" if share > _STALE else ""


def tail_period(tokens: Sequence[Hashable]) -> int:
    """The smallest period of a tail that covers at least 24 tokens and three periods; 0 if there is none."""
    n = len(tokens)
    for period in range(1, n // _TIMES + 1):
        least = max(_LEAST, _TIMES * period) - period
        run = 0
        while run < n - period and tokens[n - 1 - run] == tokens[n - 1 - run - period]:
            run += 1
            if run >= least:
                return period
    return 0


def stale_share(tokens: Sequence[Hashable]) -> float:
    """Share of the 8-token stretches that occurred earlier in `tokens`; 0 for fewer than 32 tokens."""
    stretches = [tuple(tokens[i : i + _STRETCH]) for i in range(len(tokens) - _STRETCH + 1)]
    return 1 - len(set(stretches)) / len(stretches) if len(tokens) >= 4 * _STRETCH else 0.0
