"""Caches and State without a model: storage format, slots, floors, snapshots, and what damaged files are told."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.errors import FormatError
from ds4py.protocols import CacheView, StateView, Timeline
from ds4py.state import FullCache, SlidingCache, Snapshot, State

G, D = 3, 8


def rows(lo: int, hi: int, salt: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [G, n, D] that tell their position, head and dimension."""
    pos = np.arange(lo, hi)[None, :, None]
    keys = (pos % 251 * 8 + np.arange(D) + 0.25 * np.arange(G)[:, None, None] + salt).astype(np.float32)
    return keys, -keys


def ring(window: int, slack: int, dtype: Any = np.float32) -> SlidingCache:
    return SlidingCache(window, slack, G, D, D, dtype)


def full(n_ctx: int = 64, dtype: Any = np.float32) -> FullCache:
    return FullCache(n_ctx, G, D, D, dtype)


def write(state: State, n: int, salt: int = 0, tiled: bool = False) -> None:
    """`n` more positions, as a forward would write them."""
    for cache in state.caches:
        cache.store(state.pos, *rows(state.pos, state.pos + n, salt))  # type: ignore[attr-defined]
    state.advance(n, tiled)


def assert_rows(cache: Any, lo: int, hi: int, salt: int = 0) -> None:
    for got, want in zip(cache.logical(lo, hi), rows(lo, hi, salt), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_storage_format(dtype: Any) -> None:
    """The slots that the contract names, checked one by one with its own formula."""
    for cache, lo, hi in ((full(50, dtype), 0, 50), (ring(20, 9, dtype), 71, 100)):
        assert cache.keys.dtype == cache.values.dtype == dtype
        assert cache.keys.shape == (G, cache.capacity // 16, D, 16) and cache.values.shape == (G, cache.capacity, D)
        cache.store(lo, *rows(lo, hi))
        keys, values = rows(lo, hi)
        for p in range(lo, hi):
            slot = p % cache.capacity
            np.testing.assert_array_equal(cache.keys[:, slot // 16, :, slot % 16], keys[:, p - lo].astype(dtype))
            np.testing.assert_array_equal(cache.values[:, slot], values[:, p - lo].astype(dtype))


@given(window=st.integers(1, 40), slack=st.integers(0, 40), lo=st.integers(0, 500), data=st.data())
@settings(max_examples=60, deadline=None)
def test_reading_gives_what_was_written(window: int, slack: int, lo: int, data: st.DataObject) -> None:
    cache = ring(window, slack)
    n = data.draw(st.integers(1, cache.capacity))
    cache.store(lo, *rows(lo, lo + n))
    a = data.draw(st.integers(lo, lo + n))
    assert_rows(cache, a, data.draw(st.integers(a, lo + n)))


def test_capacity_is_whole_tiles_and_addresses_are_aligned() -> None:
    state = State([full(100), ring(20, 9), ring(16, 16)], 100)
    assert [cache.capacity for cache in state.caches] == [112, 32, 32]
    assert state.table.dtype == np.int64 and state.table.shape == (3, 4)
    for row, cache in zip(state.table.tolist(), state.caches, strict=True):
        assert row == [cache.keys.ctypes.data, cache.values.ctypes.data, cache.capacity, cache.window]
        assert row[0] % 64 == row[1] % 64 == 0


def test_addresses_in_the_table_reach_the_rows() -> None:
    """What a compiled kernel does: arithmetic on the address, no numpy."""
    state = State([ring(16, 4)], 100)
    write(state, 30)
    keys, values, capacity, _ = state.table[0].tolist()
    head, pos, dim = 2, 25, 5
    slot = pos % capacity
    key = ctypes.c_float.from_address(keys + 4 * ((head * (capacity // 16) + slot // 16) * D * 16 + dim * 16 + slot % 16)).value
    value = ctypes.c_float.from_address(values + 4 * ((head * capacity + slot) * D + dim)).value
    want = rows(pos, pos + 1)[0][head, 0, dim]
    assert (key, value) == (want, -want)


def test_a_long_context_costs_nothing_until_it_is_used() -> None:
    """A gigabyte of cache; a few positions touch a few pages per head."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is read from /proc")
    before = resident_bytes()
    caches = [FullCache(32768, 4, 128, 128) for _ in range(16)]
    state = State(caches, 32768)
    assert state.n_bytes == 2 * 16 * 32768 * 4 * 128 * 2
    wide = np.ones((4, 5, 128), np.float16)
    for cache in caches:
        cache.store(0, wide, wide)
    assert resident_bytes() - before < 16 * 4 * 2 * 4 * mmap.PAGESIZE + (2 << 20)


def test_state_keeps_the_contracts() -> None:
    state = State([full(), ring(16, 4)], 64)
    assert isinstance(state, Timeline)
    view: StateView = state  # for mypy
    caches: list[CacheView] = list(view.caches)
    assert len(caches) == 2 and (view.pos, view.floor, view.n_ctx) == (0, 0, 64)


@pytest.mark.parametrize(("window", "slack"), [(16, 4), (5, 3), (2, 0), (20, 33)])
def test_floor_is_exact(window: int, slack: int) -> None:
    """For every number of positions written and every position below: `truncate` is allowed exactly when the rows that the next
    token would see are all there. "There" is decided by brute force on a ring of window + slack rows. (Position 0 needs no rows,
    but it is no neighbour of the others: `clear` goes there.)"""
    for high in range(0, 3 * (window + slack) + 2):
        state = State([ring(window, slack)], 10_000)
        for _ in range(high):
            write(state, 1)
        stored = set(range(max(0, high - window - slack), high))
        for p in range(1, high + 1):
            needed = set(range(max(0, p - window + 1), p))
            assert (p >= state.floor) == (needed <= stored), (high, p, state.floor)
        assert state.floor == (0 if high <= window + slack else high - 1 - slack)


def test_truncate_is_an_assignment() -> None:
    state = State([full(), ring(16, 4)], 64)
    write(state, 30)
    assert (state.pos, state.high, state.floor) == (30, 30, 25)
    state.truncate(27)
    assert (state.pos, state.high, state.floor) == (27, 30, 25)
    write(state, 2, salt=1)
    assert (state.pos, state.high, state.floor) == (29, 30, 25)
    assert_rows(state.caches[1], 12, 27)
    assert_rows(state.caches[1], 27, 29, salt=1)
    for bad in (24, 30, -1):
        with pytest.raises(ValueError, match=f"cannot truncate to {bad}: reachable are 25..29"):
            state.truncate(bad)
    with pytest.raises(ValueError, match="the context holds 64"):
        state.advance(36, False)
    assert state.pos == 29


def test_clear_starts_over_below_any_floor() -> None:
    state = State([ring(16, 4)], 100)
    write(state, 60, tiled=True)
    state.clear()
    assert (state.pos, state.high, state.floor, state.tiles) == (0, 0, 0, ())
    write(state, 20, salt=5)
    state.truncate(0)


def test_record_of_tiles() -> None:
    state = State([], 1000)
    state.advance(16, True)
    state.advance(32, True)
    assert state.tiles == ((0, 48),)
    state.advance(5, False)
    state.truncate(50)
    state.advance(14, False)
    state.advance(16, True)
    assert state.tiles == ((0, 48), (64, 80))
    state.truncate(70)
    assert state.tiles == ((0, 48), (64, 70))
    state.advance(3, False)
    assert state.tiles == ((0, 48), (64, 70))
    state.truncate(64)
    assert state.tiles == ((0, 48),)
    state.truncate(20)
    state.advance(12, False)
    state.truncate(32)
    assert state.tiles == ((0, 20),)


def test_snapshot_is_a_copy_of_the_live_rows() -> None:
    state = State([full(200), ring(16, 4)], 200)
    write(state, 100, tiled=True)
    state.truncate(98)
    snapshot = state.snapshot()
    assert [part["keys"].shape[1] for part in snapshot.parts] == [98, 18]  # the ring holds 80..99; 98 and 99 do not count
    assert snapshot.n_bytes == 2 * (98 + 18) * G * D * 4 + 2 * 8
    write(state, 50, salt=3)
    state.restore(snapshot)
    assert (state.pos, state.tiles) == (98, ((0, 98),))
    assert_rows(state.caches[0], 0, 98)
    assert_rows(state.caches[1], 80, 98)
    assert state.floor == 95, "nothing older than 80 exists, so 95 is the lowest position whose window of 16 is whole"
    state.truncate(95)
    write(state, 10, salt=9)
    assert state.floor == 100


@pytest.mark.parametrize("slack", [0, 4, 7, 60])
def test_restore_into_another_slack(slack: int) -> None:
    """A ring of any slack takes over what it can hold, and its floor tells what it got."""
    state = State([ring(16, 4)], 200)
    write(state, 100)
    other = State([ring(16, slack)], 200)
    other.restore(state.snapshot())
    assert other.floor == max(80, 100 - 16 - slack) + 16 - 1
    assert_rows(other.caches[0], other.floor - 15, 100)
    write(other, 1)
    assert other.floor <= 101


def test_payload_round_trip() -> None:
    state = State([full(200, np.float16), ring(16, 4, np.float16)], 200)
    write(state, 64, tiled=True)
    write(state, 7)
    payload = state.payload()
    assert set(payload) == {"pos", "tiles"} | {f"cache.{i}.{part}" for i in (0, 1) for part in ("first", "keys", "values")}
    other = State([full(100, np.float16), ring(16, 4, np.float16)], 100)
    other.load(payload)
    assert (other.pos, other.tiles, other.floor) == (71, ((0, 64),), state.floor)
    for name, array in other.payload().items():
        assert array.dtype == payload[name].dtype
        np.testing.assert_array_equal(array, payload[name])


def test_empty_state_round_trip() -> None:
    state, other = State([full(), ring(16, 4)], 64), State([full(), ring(16, 4)], 64)
    write(other, 40)
    other.load(state.payload())
    assert (other.pos, other.floor, other.tiles) == (0, 0, ())


DAMAGE = {
    "pos missing": lambda p: p.pop("pos"),
    "pos float": lambda p: p.update(pos=np.array(40.0)),
    "pos array": lambda p: p.update(pos=np.array([40])),
    "pos negative": lambda p: p.update(pos=np.array(-1)),
    "pos too high": lambda p: p.update(pos=np.array(41)),
    "pos beyond context": lambda p: p.update(pos=np.array(4000)),
    "tiles flat": lambda p: p.update(tiles=np.array([0, 16])),
    "tiles beyond pos": lambda p: p.update(tiles=np.array([[0, 48]])),
    "tiles reversed": lambda p: p.update(tiles=np.array([[16, 0]])),
    "tiles overlap": lambda p: p.update(tiles=np.array([[0, 20], [16, 32]])),
    "cache missing": lambda p: [p.pop(name) for name in list(p) if name.startswith("cache.1.")],
    "keys missing": lambda p: p.pop("cache.0.keys"),
    "extra cache": lambda p: p.update({"cache.7.keys": np.zeros(3)}),
    "wrong dtype": lambda p: p.update({"cache.0.keys": p["cache.0.keys"].astype(np.float16)}),
    "wrong shape": lambda p: p.update({"cache.0.values": p["cache.0.values"][:, :, :4]}),
    "rows missing": lambda p: p.update({"cache.1.values": p["cache.1.values"][:, 1:]}),
    "first missing": lambda p: p.pop("cache.1.first"),
    "first float": lambda p: p.update({"cache.1.first": np.array(20.0)}),
    "first negative": lambda p: p.update({"cache.1.first": np.array(-1)}),
    "full cache cut": lambda p: cut(p, 0, 3),
    "window cut": lambda p: cut(p, 1, 10),
}


def cut(payload: dict[str, np.ndarray], cache: int, n: int) -> None:
    """Drop the first n rows of a cache, consistently."""
    payload[f"cache.{cache}.first"] = payload[f"cache.{cache}.first"] + n
    for name in ("keys", "values"):
        payload[f"cache.{cache}.{name}"] = payload[f"cache.{cache}.{name}"][:, n:]


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_payload_changes_nothing(name: str) -> None:
    donor, state = State([full(), ring(16, 4)], 64), State([full(), ring(16, 4)], 64)
    write(donor, 32, tiled=True)
    write(donor, 8)
    payload = donor.payload()
    State([full(), ring(16, 4)], 64).load(payload)  # sound before it is damaged
    DAMAGE[name](payload)
    write(state, 30, salt=7)
    with pytest.raises(FormatError):
        state.load(payload)
    assert (state.pos, state.tiles) == (30, ())
    assert_rows(state.caches[0], 0, 30, salt=7)
    assert_rows(state.caches[1], 10, 30, salt=7)


def test_snapshot_with_other_caches_is_refused() -> None:
    with pytest.raises(FormatError, match="has 2 caches, this model has 1"):
        State([full()], 64).restore(Snapshot(0, (), ({}, {})))


def test_out_of_range_reads_are_refused() -> None:
    for cache in (full(64), ring(16, 16)):
        with pytest.raises(ValueError):
            cache.logical(5, cache.capacity + 6)
        with pytest.raises(ValueError):
            cache.logical(-1, 3)
