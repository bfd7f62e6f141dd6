"""Rows of float32 to stored bytes of any type that can be written, with the checks that keep broken numbers out of files.

The idea: a weight that is NaN or infinite is refused by the tensor's name, before and after encoding: before, because the source
is damaged; after, because a finite weight may be too large for the type (float16 ends at 65,504, and so do the scales of most
blocks) and would be cut. The second check costs a decode, so it is made only where values are large enough for it to matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ds4py import quants
from ds4py.errors import FormatError
from ds4py.gguf import GgmlType, Tensor
from ds4py.protocols import F32

_SAFE_PEAK = 16_000.0  # no scale or minimum of any type overflows below it


@dataclass(frozen=True)
class Slab:
    """Rows first .. first + n of a tensor, all of them in its matrix number `mat` (an expert)."""

    first: int
    n: int
    mat: int


def can_encode(kind: GgmlType) -> bool:
    return kind in quants.ENCODABLE


def read_rows(tensor: Tensor, slab: Slab, where: str) -> F32:
    """float32 [n, K], decoded. FormatError naming the tensor if a value is not finite."""
    row_bytes = tensor.nbytes // tensor.n_rows
    data = tensor.read(slab.first * row_bytes, (slab.first + slab.n) * row_bytes)
    rows = quants.decode(tensor.type, data, slab.n * tensor.row_len).reshape(slab.n, tensor.row_len)
    if not math.isfinite(_peak(rows)):
        at = slab.first + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise FormatError(f"{where}: tensor {tensor.name} has a NaN or an infinity in row {at}: the model is damaged")
    return rows


def encode_rows(kind: GgmlType, rows: F32, importance: F32 | None, name: str, where: str) -> npt.NDArray[np.uint8]:
    """uint8 [n * row bytes]. `importance` float32 [K]. FormatError naming the tensor if the type cannot hold its values."""
    data = quants.encode(kind, rows, importance).reshape(-1)
    peak = _peak(rows)
    if peak > _SAFE_PEAK and _peak(quants.decode(kind, data, rows.size)) < peak / 2:
        raise FormatError(
            f"{where}: tensor {name} has values as large as {peak:.3g}, which {kind.name} cannot hold; "
            f"keep it wider with --tensor-type '{name}=F32'"
        )
    return data


def _peak(rows: F32) -> float:
    """The largest magnitude; NaN or infinite if a value is."""
    high, low = float(rows.max()), float(rows.min())  # both are NaN if one value is
    return max(high, -low)
