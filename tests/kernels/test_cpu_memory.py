"""Where packed weights lie."""

from __future__ import annotations

import numpy as np

from ds4py.kernels.cpu.arena import PIECE, Arena


def test_matrices_do_not_share_memory_and_begin_at_cache_lines() -> None:
    arena = Arena()
    sizes = [1, 63, 64, 65, 1 << 20, PIECE - 100, PIECE + 5, 7]
    taken = [arena.take(n) for n in sizes]
    for i, memory in enumerate(taken):
        assert len(memory) == sizes[i] and memory.ctypes.data % 64 == 0 and not memory.any()
        memory[:] = i + 1
    assert all((memory == i + 1).all() for i, memory in enumerate(taken))


def test_small_matrices_lie_one_after_another() -> None:
    """In pieces of their own, models of many small matrices would never get large pages."""
    arena = Arena()
    starts = np.diff([arena.take(1000).ctypes.data for _ in range(100)])
    assert set(starts.tolist()) == {1024}
