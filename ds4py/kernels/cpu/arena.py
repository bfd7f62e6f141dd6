"""Memory for packed weights: large pieces of the address space, in pages of 2 MB where the system has them.

A decoded token reads every weight once, and in pages of 4 kB looks up an address for each (measured: 3 to 4 % of a token).
Matrices are of any size, so they are laid one after another into pieces that are larger than most of them; a matrix that does
not fit the rest of a piece begins a new one.

Pages are taken as they are written, so a piece costs what lies in it, and at most 2 MB at its end. Rejected: numpy's own request
for large pages, which it makes for arrays of 4 MB or more only; MAP_HUGETLB, whose pages an administrator has to set aside.
"""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np

PIECE: Final = 64 << 20  # bytes
PAGE: Final = 2 << 20
LINE: Final = 64


class Arena:
    """Hands out memory that is zero, aligned to cache lines, and never given back before the arena."""

    def __init__(self) -> None:
        self._piece = np.zeros(0, np.uint8)  # what is left of the newest

    def take(self, n_bytes: int) -> np.ndarray:
        """uint8 [n_bytes]. MemoryError if there is none."""
        size = -(-n_bytes // LINE) * LINE
        if size > len(self._piece):
            self._piece = _piece(max(size, PIECE))
        taken, self._piece = self._piece[:n_bytes], self._piece[size:]
        return taken


def _piece(n_bytes: int) -> np.ndarray:
    """uint8 [n_bytes] that begins where a large page may."""
    try:
        memory = mmap.mmap(-1, n_bytes + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no address space for {n_bytes} bytes of weights") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a system built without them
            pass
    whole = np.frombuffer(memory, np.uint8)
    skip = -whole.ctypes.data % PAGE
    return whole[skip : skip + n_bytes]
