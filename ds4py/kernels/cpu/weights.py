"""One matrix as the CPU kernels hold it.

A quantised matrix is repacked (packed.py) by compiled code when it is first multiplied, on all threads, a slab of rows at a
time, and the file's pages are handed back to the system as it goes: resident are the packed bytes, never a dequantised matrix.
Float matrices (F32, F16, BF16) and IQ2_XXS are multiplied straight from the mapped file. A matrix that is only looked up (an
untied embedding) stays in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ds4py.errors import UnsupportedError
from ds4py.gguf import Tensor
from ds4py.gguf.types import GgmlType
from ds4py.kernels.cpu import unpack
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.packed import BLOCK, FORM_OF, GROUP, Packed, groups, pairs

if TYPE_CHECKING:
    from ds4py.kernels.cpu.backend import CpuKernels

FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
SLAB_BYTES = 8 << 20  # source bytes between two page releases


class CpuWeight:
    """A matrix [n_rows, row_len]; `prepare()` before `address` is used."""

    def __init__(self, backend: CpuKernels, tensor: Tensor):
        if tensor.type not in FORM_OF and tensor.type not in FLOATS and tensor.type != GgmlType.IQ2_XXS:
            raise UnsupportedError(f"tensor {tensor.name} has type {tensor.type.name}, which the CPU kernels do not compute on")
        self.tensor, self.type = tensor, tensor.type
        self.row_len, self.n_rows = tensor.row_len, tensor.n_rows
        self.form: Packed | None = FORM_OF.get(tensor.type)
        self.row_bytes = tensor.nbytes // max(1, tensor.n_rows)
        self._backend = backend
        self._file = tensor.data  # keeps the map alive
        self._packed: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_rows, self.row_len

    @property
    def file_address(self) -> int:
        return int(self._file.ctypes.data)

    @property
    def n_groups(self) -> int:
        return groups(self.n_rows)

    @property
    def padded_rows(self) -> int:
        return self.n_groups * GROUP if self.form else -(-self.n_rows // 4) * 4

    @property
    def address(self) -> int:
        assert self._packed is not None, "prepare() comes first"
        return int(self._packed.ctypes.data)

    @property
    def resident_bytes(self) -> int:
        return self._packed.nbytes if self._packed is not None else 0

    def prepare(self) -> None:
        """Repack, once. Does nothing for forms that are multiplied as they are."""
        if self.form is None or self._packed is not None:
            return
        packed = self._backend.arena.take(self.form.n_bytes(self.n_rows, self.row_len))
        at = self._backend.kernel(f"repack_{self.type.name}", lambda t: unpack.repack(self.type, t))
        slab = max(GROUP, SLAB_BYTES // max(1, self.row_bytes) // GROUP * GROUP)
        for row in range(0, self.n_rows, slab):
            record = np.zeros((1, RECORD), np.int64)
            n = min(slab, self.n_rows - row)
            record[0, 0] = at
            args = (
                self.file_address,
                packed.ctypes.data,
                self.n_rows,
                self.row_len // BLOCK,
                self.row_bytes,
                pairs(self.row_len),
                row,
                n,
            )
            record[0, 2 : 2 + len(args)] = args
            self._backend.executor.run(record)
            self.tensor.release(0, (row + n) * self.row_bytes)
        self._packed = packed
        self.tensor.release()
