"""Rows in company: the promise that a row's bits depend on its inputs and the cache alone, tried on whole models.

`Alone` decodes a text one token at a time on one thread and keeps what every position gave (a hash of its logits) and left (one
of all caches), and snapshots at the depths that are asked for. `Company` goes back to such a depth and evaluates the same tokens
many at once, with other numbers of threads, or beside other sessions; nothing may differ by a bit.

Edges are where kernels change their ways: tiles of 16 positions in attention (the cache's own tiles), and the ends of rings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from toy_model import remembered

from ds4py.models import LoadedModel
from ds4py.protocols import Span
from ds4py.state import Snapshot, State

TILE = 16
MOST_ROWS = 65
SLACK = 8


def edges(n: int, *more: int) -> list[int]:
    """Depths below n on both sides of every tile edge, and of every multiple of `more` (capacities of rings)."""
    found = {0}
    for step in (TILE, *more):
        for edge in range(step, n + 1, step):
            found |= {edge - 1, edge, edge + 1}
    return sorted(depth for depth in found if depth < n)


def ring_capacities(model: LoadedModel) -> list[int]:
    """Rows that the model's rings hold in a state made by `new_state` below."""
    return sorted({cache.capacity for cache in new_state(model, 64).caches if cache.window})


def new_state(model: LoadedModel, n_ctx: int) -> State:
    return model.new_state(n_ctx, SLACK)


def digest(array: np.ndarray) -> bytes:
    return blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()


def state_digest(state: State) -> bytes:
    """Of everything that counts below pos."""
    return digest(np.concatenate([part.ravel().view(np.uint8) for part in remembered(state)]))


@dataclass(frozen=True)
class Alone:
    """What decoding `ids` one by one gave. rows[p]: hash of the logits after token p; left[p]: of the caches at position p."""

    ids: Sequence[int]
    rows: Sequence[bytes]
    left: Sequence[bytes]
    at: dict[int, Snapshot]

    @classmethod
    def decode(cls, model: LoadedModel, ids: Sequence[int], depths: Sequence[int]) -> Alone:
        """Open `model` with one thread. AssertionError for logits that show nothing."""
        state = new_state(model, len(ids) + SLACK)
        rows: list[bytes] = []
        left = [state_digest(state)]
        at = {0: state.snapshot()}
        for token in ids:
            logits = model.forward([Span(state, [token], 1)]).of(0)
            assert np.isfinite(logits).all() and logits.std() > 0.1, f"position {len(rows)}"
            rows.append(digest(logits[0]))
            left.append(state_digest(state))
            if state.pos in depths:
                at[state.pos] = state.snapshot()
        return cls(ids, rows, left, at)


@dataclass
class Company:
    """The same tokens on `model`, many at once. Counts what was compared."""

    alone: Alone
    model: LoadedModel
    n_rows: int = 0
    n_calls: int = 0

    def check(self, spans: Sequence[tuple[int, int]], where: str = "") -> None:
        """One call with a session for each (depth, number of rows). AssertionError for any bit that differs from `alone`."""
        states = []
        for depth, _ in spans:
            states.append(new_state(self.model, len(self.alone.ids) + SLACK))
            states[-1].restore(self.alone.at[depth])
        tokens = [self.alone.ids[depth : depth + n] for depth, n in spans]
        out = self.model.forward([Span(state, ids, len(ids)) for state, ids in zip(states, tokens, strict=True)])
        for i, ((depth, n), state) in enumerate(zip(spans, states, strict=True)):
            what = f"{n} rows at depth {depth}, {len(spans)} sessions {where}"
            found = [digest(row) for row in out.of(i)]
            wrong = [depth + r for r in range(n) if found[r] != self.alone.rows[depth + r]]
            assert len(found) == n and not wrong, f"{what}: other logits at positions {wrong}"
            assert state_digest(state) == self.alone.left[depth + n], f"{what}: other caches"
            self.n_rows += n
        self.n_calls += 1


def calls(alone: Alone, every: int = 1) -> Iterator[tuple[int, int]]:
    """(depth, rows) for every depth that `alone` kept, with each `every`-th number of rows from 1 to 65, another share of them at
    each depth: after `every` depths all numbers have been there."""
    for i, depth in enumerate(sorted(alone.at)):
        for n in range(1 + i % every, MOST_ROWS + 1, every):
            if depth + n <= len(alone.ids):
                yield depth, n


def parties(alone: Alone, n_calls: int, seed: int = 0) -> Iterator[list[tuple[int, int]]]:
    """Two to five sessions of one call, at depths that `alone` kept, at most 65 rows in all."""
    rng = np.random.default_rng(seed)
    depths = sorted(alone.at)
    for _ in range(n_calls):
        spans: list[tuple[int, int]] = []
        left = MOST_ROWS
        for still_to_come in range(int(rng.integers(2, 6)) - 1, -1, -1):
            depth = int(rng.choice(depths))
            most = min(left - still_to_come, len(alone.ids) - depth)
            spans.append((depth, 1 + int(rng.integers(0, most) * rng.random())))
            left -= spans[-1][1]
        yield spans


def compare(
    alone: Alone,
    open_model: Callable[[int], LoadedModel],
    threads: Sequence[int],
    every: int,
    n_parties: int,
    cross: bool = False,
) -> Company:
    """Every call and party on models of each number of threads: in turn, or (`cross`) all on each. Gives the sum of the counts.
    `open_model(n)`: the model of `alone` with n threads."""
    companies = [Company(alone, open_model(n)) for n in threads]
    spans: list[Any] = [*([one] for one in calls(alone, every)), *parties(alone, n_parties)]
    for i, call in enumerate(spans):
        for n, company in zip(threads, companies, strict=True):
            if cross or threads[i % len(threads)] == n:
                company.check(call, f"on {n} threads")
    return Company(alone, companies[0].model, sum(c.n_rows for c in companies), sum(c.n_calls for c in companies))
