"""The signature of this program, on every backend and architecture: a row's bits depend on its inputs and the cache, never on how
the rows were grouped, what was tried and taken back, or who else was in the call.

All comparisons are of bits. Every test that rejects rows counts them, and those about rings make sure that the ring wrapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.errors import FormatError
from ds4py.models import LoadedModel
from ds4py.protocols import Span
from ds4py.state import State

N = 66
IDS = np.random.default_rng(3).integers(0, 320, N).tolist()
OTHER = np.random.default_rng(4).integers(0, 320, N).tolist()
SLACK = 8
WINDOW = 16


def feed(model: LoadedModel, state: State, ids: Sequence[int], path: str = "row") -> np.ndarray:
    """Logits of all `ids`, one forward: [n, V]."""
    return model.forward([Span(state, ids, n_logits=len(ids))], path=path).of(0).copy()


def one_by_one(model: LoadedModel, ids: Sequence[int] = IDS) -> np.ndarray:
    """The plain decode that everything else must equal: [n, V]."""
    state = model.new_state(len(ids) + SLACK, SLACK)
    return np.concatenate([feed(model, state, [token]) for token in ids])


def filled(model: LoadedModel, n: int, ids: Sequence[int] = IDS, n_ctx: int = N + 80) -> State:
    state = model.new_state(n_ctx, SLACK)
    for start in range(0, n, 64):
        feed(model, state, ids[start : min(n, start + 64)])
    return state


@pytest.fixture
def plain(model: LoadedModel, plains: dict[str, np.ndarray]) -> np.ndarray:
    key = f"{model.kernels.name} {type(model.network).__module__}"
    if key not in plains:
        plains[key] = one_by_one(model)
    return plains[key]


@pytest.fixture(scope="module")
def plains() -> dict[str, np.ndarray]:
    return {}


def test_rows_are_the_decode_rows(model: LoadedModel, plain: np.ndarray) -> None:
    """1 to 65 rows in one call: each row is bit for bit what decoding one token would have given."""
    assert np.isfinite(plain).all() and plain.std() > 0.3
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 64, 65):
        state = filled(model, N - n)
        np.testing.assert_array_equal(feed(model, state, IDS[N - n :]), plain[N - n :], err_msg=f"{n} rows")


def test_only_the_asked_rows_come_back(model: LoadedModel, plain: np.ndarray) -> None:
    """Asking for fewer logits changes none of them; asking for none writes the same cache."""
    state = model.new_state(N, SLACK)
    assert model.forward([Span(state, IDS[:20])]).logits.shape == (0, 320)
    out = model.forward([Span(state, IDS[20:30], n_logits=3)])
    np.testing.assert_array_equal(out.of(0), plain[27:30])


def test_truncate_and_replay_at_every_position(model: LoadedModel, plain: np.ndarray) -> None:
    """From SLACK positions ahead back to p, for every p: wrong tokens are tried there, taken back, then the true ones fed."""
    state = filled(model, SLACK)
    n_rejected = 0
    for p in range(N - SLACK):
        assert state.floor <= p, "a position within the slack is out of reach"
        state.truncate(p)
        feed(model, state, OTHER[:5])
        state.truncate(p)
        n_rejected += 5
        rows = feed(model, state, IDS[p : p + SLACK + 1])
        np.testing.assert_array_equal(rows, plain[p : p + SLACK + 1], err_msg=f"position {p}")
    assert n_rejected == 5 * (N - SLACK) and state.pos == N


def test_every_rejected_length_at_every_alignment(model: LoadedModel, plain: np.ndarray) -> None:
    """One session: before each true token a draft of 1..SLACK wrong ones is verified and rejected, twice around the ring."""
    state = model.new_state(N + SLACK, SLACK)
    lengths: set[tuple[int, int]] = set()
    for p, token in enumerate(IDS):
        k = 1 + p * 5 % SLACK
        rows = feed(model, state, [token, *OTHER[:k]])
        np.testing.assert_array_equal(rows[0], plain[p], err_msg=f"position {p} with {k} drafted")
        state.truncate(p + 1)
        lengths.add((k, (p + 1) % 16))
    assert len({k for k, _ in lengths}) == SLACK and len({slot for _, slot in lengths}) == 16


def test_sessions_in_one_forward_are_solo_runs(model: LoadedModel, plain: np.ndarray) -> None:
    """Three sessions at different positions, spans of different lengths, each equal to running alone."""
    starts, lengths = (0, 7, 40), (9, 1, 17)
    states = [filled(model, start) for start in starts]
    spans = [Span(state, IDS[at : at + n], n_logits=n) for state, at, n in zip(states, starts, lengths, strict=True)]
    out = model.forward(spans)
    for i, (at, n) in enumerate(zip(starts, lengths, strict=True)):
        np.testing.assert_array_equal(out.of(i), plain[at : at + n], err_msg=f"session {i}")
        assert states[i].pos == at + n
    out = model.forward([Span(states[0], [IDS[9]]), Span(states[2], [IDS[57]], n_logits=1)])  # and they stay apart
    assert out.of(0).shape[0] == 0
    np.testing.assert_array_equal(out.of(1), plain[57:58])


def test_sessions_do_not_see_each_other(model: LoadedModel, plain: np.ndarray) -> None:
    left, right = model.new_state(64, SLACK), model.new_state(64, SLACK)
    for p in range(20):
        out = model.forward([Span(left, [IDS[p]], n_logits=1), Span(right, [OTHER[p]], n_logits=1)])
        np.testing.assert_array_equal(out.of(0), plain[p : p + 1])
    last = out.of(1).copy()  # the next call of the same graph may write over a view
    np.testing.assert_array_equal(last, one_by_one(model, OTHER[:20])[19:20])


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -1e4])
def test_garbage_past_pos_is_never_read(model: LoadedModel, plain: np.ndarray, garbage: float) -> None:
    """Rejected rows may hold anything, also what an overflow left: not even a weight of zero may touch them."""
    state = model.new_state(N + SLACK, SLACK)
    for p in range(0, 60, 5):
        for cache in state.caches:
            first = max(0, p - (cache.window or p)) if p else 0
            kept = cache.logical(first, p)  # type: ignore[attr-defined]
            cache.keys.fill(garbage)
            cache.values.fill(garbage)
            cache.store(first, *kept)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(feed(model, state, IDS[p : p + 5]), plain[p : p + 5], err_msg=f"position {p}")


def test_snapshot_and_restore(model: LoadedModel, plain: np.ndarray) -> None:
    """Back to a position below the floor; the snapshot outlives what the session does next."""
    state = filled(model, 30)
    snapshot = state.snapshot()
    feed(model, state, OTHER[:64])
    state.restore(snapshot)
    assert state.pos == 30
    np.testing.assert_array_equal(feed(model, state, IDS[30:]), plain[30:])
    fork = model.new_state(N, SLACK)
    fork.restore(snapshot)
    np.testing.assert_array_equal(feed(model, fork, IDS[30:50]), plain[30:50])


@pytest.mark.parametrize("other_slack", [0, 5, 200])
def test_payload_through_a_file(model: LoadedModel, plain: np.ndarray, tmp_path: Path, other_slack: int) -> None:
    """Saved by one session, loaded by one of another context length and slack."""
    state = filled(model, 45)
    state.truncate(42)
    np.savez(tmp_path / "state.npz", **state.payload())
    other = model.new_state(N + 500, other_slack)
    with np.load(tmp_path / "state.npz") as payload:
        other.load(dict(payload))
    assert (other.pos, other.tiles) == (42, state.tiles) and other.floor <= 42
    np.testing.assert_array_equal(feed(model, other, IDS[42:60]), plain[42:60])


def test_payload_of_another_model_is_refused(opened: Any, backend: str) -> None:
    """Another shape of heads; models of equal shapes are told apart by whoever keeps the file."""
    state = filled(opened(backend, "qwen3"), 20)
    before = state.payload()
    for other in ("llama", "qwen2"):
        with pytest.raises(FormatError):
            state.load(filled(opened(backend, other), 10).payload())
    assert state.pos == 20
    for name, array in state.payload().items():
        np.testing.assert_array_equal(array, before[name])


def test_capacity_of_a_ring_does_not_show(opened: Any, backend: str) -> None:
    """Rings of different lengths, over more positions than the longest of them holds."""
    few_rows = opened(backend, "gemma3", 16)
    ids = [*IDS, *OTHER[:40]]
    want = one_by_one(few_rows, ids)
    capacities = set()
    for slack in (15, 20, 40, 63, 1000):
        state = few_rows.new_state(256, slack)
        capacities.add(state.caches[0].capacity)
        rows = [feed(few_rows, state, ids[at : at + 11]) for at in range(0, len(ids), 11)]
        np.testing.assert_array_equal(np.concatenate(rows), want, err_msg=f"slack {slack}")
    assert len(capacities) >= 4 and sorted(capacities)[3] < len(ids), "no ring wrapped"


def test_floor_of_a_ring(opened: Any, backend: str) -> None:
    """Nothing is lost before the ring wraps; afterwards the last `slack` rows can be taken back."""
    model = opened(backend, "gemma3", 16)
    want = one_by_one(model)
    state = model.new_state(N + 40, 15)
    for p in range(0, 60, 4):
        feed(model, state, IDS[p : p + 4])
        assert state.floor == (0 if state.pos <= WINDOW + 15 else state.pos - 1 - 15)
    low = state.floor
    state.truncate(low)
    assert state.floor == low, "the floor follows what was written, not the position"
    np.testing.assert_array_equal(feed(model, state, IDS[low : low + 10]), want[low : low + 10])
    with pytest.raises(ValueError):
        state.truncate(low - 1)


def test_taps_do_not_change_results(model: LoadedModel, plain: np.ndarray) -> None:
    state = filled(model, 10)
    out = model.forward([Span(state, IDS[10:17], n_logits=7)], taps=(-1, 0, model.n_layers - 1))
    np.testing.assert_array_equal(out.of(0), plain[10:17])
    rows = {layer: tap.copy() for layer, tap in out.taps.items()}
    again = filled(model, 10)
    for i in range(7):
        single = model.forward([Span(again, [IDS[10 + i]])], taps=(-1, 0, model.n_layers - 1))
        for layer, tap in single.taps.items():
            np.testing.assert_array_equal(tap[0], rows[layer][i], err_msg=f"layer {layer} row {i}")


def test_prefill_tiles_group_freely(model: LoadedModel) -> None:
    """The prefill path: chunk sizes cannot change a result, the record says which rows it made, and decode goes on from there."""
    tile = model.kernels.prefill_tile
    if not tile:
        pytest.skip(f"{model.kernels.name} has no prefill path")
    n = 4 * tile
    ids = (IDS + OTHER + IDS + OTHER)[: n + 8]
    seen = []
    for chunk in (tile, 2 * tile, 4 * tile):
        if chunk > model.kernels.max_rows:
            continue
        state = model.new_state(n + 64, SLACK)
        for at in range(0, n, chunk):
            model.forward([Span(state, ids[at : at + chunk])], path="prefill")
        assert state.tiles == ((0, n),)
        seen.append(feed(model, state, ids[n:]))
        assert state.tiles == ((0, n),) and state.pos == n + 8
        state.truncate(n + 3)
        state.truncate(max(state.floor, n - 3))
        assert state.tiles == ((0, state.pos if state.pos < n else n),)
    assert len(seen) >= 2
    for rows in seen[1:]:
        np.testing.assert_array_equal(rows, seen[0])
