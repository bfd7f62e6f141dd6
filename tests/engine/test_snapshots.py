"""Checkpoints stay within their budget and lie densest near the end."""

from __future__ import annotations

from toy_model import ToyModel

from ds4py.engine.snapshots import Checkpoints
from ds4py.protocols import Span
from ds4py.state import State


def advanced(model: ToyModel, n: int) -> State:
    state = model.new_state(4096, 8)
    feed(model, state, n)
    return state


def feed(model: ToyModel, state: State, n: int) -> None:
    for _ in range(n):
        model.forward([Span(state, [1])])


def test_nothing_is_kept_where_truncating_suffices() -> None:
    state = advanced(ToyModel(), 40)
    kept = Checkpoints(1 << 20)
    kept.take(state)
    assert kept.positions == [] and kept.newest() is None and state.floor == 0


def test_thinning_is_logarithmic_and_within_the_budget() -> None:
    model = ToyModel(window=4, max_rows=4)
    state = advanced(model, 20)
    one = state.checkpoint().n_bytes
    kept = Checkpoints(one * 8, spacing=10)
    for _ in range(200):
        feed(model, state, 2)
        kept.pass_by(state)
        assert kept.n_bytes <= one * 8
    at = kept.positions
    assert len(at) == 8 and at[-1] > 410 and at == sorted(at)
    distances = [state.pos - p for p in at]
    assert distances[-2] <= 20, "the end is dense"
    assert distances[0] >= 200, "the beginning is not forgotten"
    gaps = [b - a for a, b in zip(at, at[1:], strict=False)]
    assert sum(gaps[: len(gaps) // 2]) > 3 * sum(gaps[len(gaps) // 2 + 1 :])


def test_truncation_drops_what_lies_past_it_and_one_place_is_taken_once() -> None:
    model = ToyModel(window=4, max_rows=4)
    state = advanced(model, 20)
    kept = Checkpoints(1 << 20)
    kept.take(state)
    kept.take(state)
    feed(model, state, 5)
    kept.take(state)
    assert kept.positions == [20, 25]
    kept.truncate(24)
    assert kept.positions == [20]


def test_a_budget_below_one_checkpoint_keeps_none() -> None:
    kept = Checkpoints(10)
    kept.take(advanced(ToyModel(window=4, max_rows=4), 20))
    assert kept.positions == []
