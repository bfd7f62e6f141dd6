"""What passes cost here: the target's verify by number of rows, measured on its own, and drafting by length, from the runs.

The verify is measured directly, since a depth policy that avoids a number of rows leaves no pass to learn from: a state that has
read a prompt evaluates 1, 2, 3 ... rows in turns, and is cut back after each. Times are medians over turns, and are made to rise
with the rows, so that noise cannot make more work cheaper.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

from ds4py.cli.eval.breakeven import Costs, Need, need
from ds4py.cli.eval.runs import Run
from ds4py.engine import Engine
from ds4py.protocols import Span

_TURNS = 7
_BLOCKS = ("draft-dflash", "draft-dspark")  # guess a whole block in one pass


def row_counts(n_max: int) -> list[int]:
    """Numbers of rows to measure for drafts of at most `n_max` tokens: 1 to 9, then about every fourth part more."""
    counts = list(range(1, min(n_max + 1, 9) + 1))
    while counts[-1] < n_max + 1:
        counts.append(min(n_max + 1, counts[-1] + max(counts[-1] // 4, 1)))
    return counts


def verify_costs(engine: Engine, ids: Sequence[int], counts: Sequence[int], turns: int = _TURNS) -> dict[int, float]:
    """Seconds of a forward by its rows, after the prompt `ids`, all rows asked for logits."""
    counts = [n for n in counts if n <= engine.kernels.max_rows]
    state = engine.model.new_state(len(ids) + counts[-1], slack=counts[-1])
    for at in range(0, len(ids), engine.kernels.max_rows):
        engine.model.forward([Span(state, ids[at : at + engine.kernels.max_rows])])
    seconds: dict[int, list[float]] = {n: [] for n in counts}
    for turn in range(turns + 1):
        for n in counts if turn % 2 else counts[::-1]:
            block = [ids[i % len(ids)] for i in range(n)]
            began = time.perf_counter()
            engine.model.forward([Span(state, block, n_logits=n)])
            if turn:  # the first one compiles
                seconds[n].append(time.perf_counter() - began)
            state.truncate(len(ids))
    return rising({n: statistics.median(found) for n, found in seconds.items()})


def rising(costs: Mapping[int, float]) -> dict[int, float]:
    """No number of rows cheaper than a smaller one."""
    highest, out = 0.0, {}
    for n in sorted(costs):
        highest = max(highest, costs[n])
        out[n] = highest
    return out


def draft_costs(runs: Iterable[Run]) -> dict[int, float]:
    """Median seconds of drafting by the length of the draft; drafts that had to catch up are left out."""
    seconds: dict[int, list[float]] = {}
    for run in runs:
        for done in run.passes:
            if done.drafted and not done.draft.lag:
                seconds.setdefault(done.drafted, []).append(done.draft_seconds)
    return {n: statistics.median(found) for n, found in sorted(seconds.items())}


def needs(drafter: str, verify: Mapping[int, float], runs: Sequence[Run], n_max: int) -> list[Need]:
    """What `drafter` needs at each depth up to its longest draft."""
    draft = draft_costs(runs)
    if not draft:
        return []
    costs = Costs(verify, draft, in_one_pass=drafter in _BLOCKS)
    return [need(drafter, costs, depth) for depth in range(1, min(n_max, max(verify) - 1) + 1)]
