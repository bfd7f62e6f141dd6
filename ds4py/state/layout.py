"""Where a position's row lies in the cache arrays, and memory for them.

Storage (the contract of `protocols.CacheView`), for capacity C, a multiple of 16, and slot = position % C:
keys [G, C // 16, d, 16] at [:, slot // 16, :, slot % 16]; values [G, C, d] at [:, slot]. The key tile holds one dimension of 16
positions side by side, so that a kernel gets 16 scores from d fused multiply-adds without a horizontal sum.

A run of positions is at most two runs of slots (a ring wraps once), so reading and writing are block copies, not gathers.
The alternative, storing rows in position order everywhere, was rejected: it makes every kernel transpose its keys.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

TILE = 16  # positions per key tile
Rows = npt.NDArray[Any]  # f16|f32 [G, n, d], in position order


def round_up(n: int, multiple: int = TILE) -> int:
    return -(-n // multiple) * multiple


def zeros_on_touch(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A zeroed array on pages of its own: page-aligned, and costing memory only where it has been written.

    Anonymous memory rather than `np.zeros`: numpy asks for 2 MB pages, and a cache has many separately growing regions (one per
    head), each of which would then cost 2 MB for its first row.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, max(n_bytes, 1))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        except OSError:  # a kernel without huge pages: nothing to switch off
            pass
    return np.frombuffer(memory, dtype=dtype, count=math.prod(shape)).reshape(shape)


def slot_runs(lo: int, hi: int, capacity: int) -> Iterator[tuple[int, int, int]]:
    """Positions lo..hi as runs of consecutive slots: (offset from lo, first slot, length)."""
    pos = lo
    while pos < hi:
        slot = pos % capacity
        length = min(hi - pos, capacity - slot)
        yield pos - lo, slot, length
        pos += length


def read_values(values: npt.NDArray[Any], lo: int, hi: int) -> Rows:
    """Copy of rows lo..hi: [G, hi - lo, d]."""
    n_groups, capacity, d = values.shape
    out = np.empty((n_groups, hi - lo, d), values.dtype)
    for at, slot, n in slot_runs(lo, hi, capacity):
        out[:, at : at + n] = values[:, slot : slot + n]
    return out


def read_keys(keys: npt.NDArray[Any], lo: int, hi: int) -> Rows:
    """Copy of rows lo..hi, untiled: [G, hi - lo, d]."""
    n_groups, n_tiles, d, _ = keys.shape
    out = np.empty((n_groups, hi - lo, d), keys.dtype)
    for at, slot, n in slot_runs(lo, hi, n_tiles * TILE):
        first = slot // TILE
        tiles = keys[:, first : round_up(slot + n) // TILE]
        rows = tiles.transpose(0, 1, 3, 2).reshape(n_groups, tiles.shape[1] * TILE, d)
        out[:, at : at + n] = rows[:, slot - first * TILE :][:, :n]
    return out


def write_values(values: npt.NDArray[Any], lo: int, rows: Rows) -> None:
    """Store rows [G, n, d] at positions lo..lo+n."""
    for at, slot, n in slot_runs(lo, lo + rows.shape[1], values.shape[1]):
        values[:, slot : slot + n] = rows[:, at : at + n]


def write_keys(keys: npt.NDArray[Any], lo: int, rows: Rows) -> None:
    """Store rows [G, n, d] at positions lo..lo+n, tiling them."""
    for at, slot, n in slot_runs(lo, lo + rows.shape[1], keys.shape[1] * TILE):
        slots = np.arange(slot, slot + n)
        # two index arrays around a slice: numpy puts their axis first, hence [n, G, d]
        keys[:, slots // TILE, :, slots % TILE] = rows[:, at : at + n].transpose(1, 0, 2)
