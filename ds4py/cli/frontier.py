"""Speed at growing context lengths: the measurement behind `ds4-bench`.

The idea: one session walks up the context. At each frontier only the tokens since the last one are prefilled and timed; then
some tokens are decoded greedily and timed; then the session goes back to the frontier, outside of any timing, so that the
decoded tokens never become part of what the next frontier reads. Stop tokens do not stop: a speed needs a fixed count.

The invariant: a row's numbers describe work that was done in that row; `prefill_tokens` is what the engine says it evaluated.
Rejected: a fresh session per frontier, which evaluates the square of the context and measures the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from ds4py.engine import Session
from ds4py.errors import UsageError
from ds4py.protocols import F32

Listener = Callable[[F32], None]


@dataclass(frozen=True)
class Row:
    """One frontier. Field order is the CSV's column order; the first six columns are ds4's own."""

    ctx_tokens: int
    prefill_tokens: int
    prefill_tps: float
    gen_tokens: int
    gen_tps: float
    kvcache_bytes: int
    first_token_ms: float  # the first decode pass; the prompt's last token is evaluated in it
    steady_tps: float  # without that first pass

    @staticmethod
    def header() -> str:
        return ",".join(field.name for field in fields(Row))

    def csv(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        return ",".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)


def frontiers(start: int, last: int, factor: float, increment: int) -> list[int]:
    """Context lengths from `start` to exactly `last`, each `factor` times the one before plus `increment`. UsageError for steps
    that never arrive."""
    if start > last:
        raise UsageError(f"--ctx-start {start} is above --ctx-max {last}; lower one or raise the other")
    found = [start]
    while found[-1] < last:
        following = int(found[-1] * factor) + increment
        if following <= found[-1]:
            raise UsageError(f"--step-mul {factor:g} and --step-incr {increment} stay at {found[-1]} tokens; raise one of them")
        found.append(min(following, last))
    return found


def measure(
    session: Session, ids: Sequence[int], frontier: int, n_gen: int, teacher: bool = False, on_logits: Listener | None = None
) -> tuple[Row, list[int]]:
    """Prefill `ids[:frontier]`, decode `n_gen` tokens, go back to the frontier: the row, and the tokens decoded.

    teacher: the decoded tokens are `ids[frontier:]` instead of the model's own. `on_logits` gets the logits [V] at the frontier.
    """
    begun = time.perf_counter()
    report = session.sync(ids[:frontier])
    prefill = time.perf_counter() - begun
    kv_bytes = kv_in_use(session)
    passes = _forced(session, ids, frontier, n_gen) if teacher else _greedy(session, n_gen, on_logits)
    decoded = list(session.tokens[frontier:])
    session.rewind(frontier)
    n_decoded, seconds = sum(count for count, _ in passes), sum(spent for _, spent in passes)
    first_count, first = passes[0]
    rest = seconds - first
    row = Row(
        ctx_tokens=frontier,
        prefill_tokens=report.fed,
        prefill_tps=report.fed / prefill if report.fed else 0.0,
        gen_tokens=n_decoded,
        gen_tps=n_decoded / seconds,
        kvcache_bytes=kv_bytes,
        first_token_ms=1000 * first,
        steady_tps=(n_decoded - first_count) / rest if rest > 0 else n_decoded / seconds,
    )
    return row, decoded


def _greedy(session: Session, n_gen: int, on_logits: Listener | None) -> list[tuple[int, float]]:
    """(tokens, seconds) of each pass of a greedy generation."""
    passes: list[tuple[int, float]] = []
    before = time.perf_counter()
    for step in session.generate(n_gen):
        now = time.perf_counter()
        passes.append((len(step.tokens), now - before))
        if on_logits is not None and len(passes) == 1:
            on_logits(step.rows[0])
        before = time.perf_counter()
    return passes


def _forced(session: Session, ids: Sequence[int], frontier: int, n_gen: int) -> list[tuple[int, float]]:
    """The same for the text's own tokens, one pass each."""
    passes: list[tuple[int, float]] = []
    for token in ids[frontier : frontier + n_gen]:
        before = time.perf_counter()
        for rows in session.force([token]):
            rows.argmax()
        passes.append((1, time.perf_counter() - before))
    return passes


def kv_in_use(session: Session) -> int:
    """Bytes of keys and values that the session's positions occupy (a ring holds at most its capacity)."""
    total = 0.0
    for cache in session.state.caches:
        share = min(session.state.pos, cache.capacity) / cache.capacity
        total += share * (cache.keys.nbytes + cache.values.nbytes)
    return round(total)
