"""Rows to stored bytes: checks, and the cutting of rows into batches of blocks that the types' encoders take.

The idea: an encoder sees a batch of columns (`layout.Batch`) whose largest magnitudes are near 1 and whose weights are above 0,
so no encoder meets overflow, zero weights or row lengths. The invariant: what a block becomes depends on that block and its
weights alone. numpy sums a column in another order when it is the only one, so a lone column gets a second, empty one beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ds4py.errors import FormatError
from ds4py.gguf.types import GgmlType
from ds4py.quants.floats import encode_bf16, encode_f16
from ds4py.quants.layout import F32, LEAST_WEIGHT, U8, Batch, Quant

_BATCH_VALUES = 1 << 16  # a few arrays of this many float32 fit into a core's second-level cache


def check_finite(rows: F32, what: str) -> None:
    """FormatError if any value is NaN or infinite, saying how many."""
    with np.errstate(invalid="ignore", over="ignore"):
        sound = not rows.size or bool(np.isfinite(rows.min() + rows.max()))
    if not sound:
        n_bad = int(np.count_nonzero(~np.isfinite(rows)))
        if n_bad:
            raise FormatError(f"{n_bad} of {rows.size} {what} are NaN or infinite, and such numbers cannot be quantized")


def _block_weights(importance: F32 | None, row_len: int, block_len: int) -> F32 | None:
    """importance [row_len] as weights [row_len / block_len, block_len]; None if all count alike."""
    if importance is None:
        return None
    if importance.dtype != np.float32 or importance.shape != (row_len,):
        raise ValueError(f"importance must be float32 [{row_len}], not {importance.dtype} {list(importance.shape)}")
    check_finite(importance, "importance values")
    if (importance < 0).any():
        raise FormatError(f"{np.count_nonzero(importance < 0)} of {row_len} importance values are negative")
    blocks = importance.reshape(-1, block_len)
    largest = blocks.max(axis=1, keepdims=True)
    relative = np.divide(blocks, largest, out=np.ones_like(blocks), where=largest > 0)
    floored: F32 = np.maximum(relative, LEAST_WEIGHT)
    return floored


def _batch(blocks: F32, weights: F32 | None, first: int) -> Batch:
    """Blocks [n, block_len], the first of which is number `first` of the tensor, as a batch of max(n, 2) columns."""
    n, block_len = blocks.shape
    x = np.zeros((block_len, max(n, 2)), np.float32)
    x[:, :n] = blocks.T
    exponent = np.frexp(np.maximum(x.max(axis=0), -x.min(axis=0)))[1]
    unit = np.ldexp(np.float32(1), np.clip(exponent, -100, 127))
    x *= np.float32(1) / unit
    if weights is None:
        return Batch(x, None, unit)
    w = np.ones_like(x)
    w[:, :n] = weights[(first + np.arange(n)) % len(weights)].T
    return Batch(x, w, unit)


def encode_rows(spec: Quant, rows: F32, importance: F32 | None) -> U8:
    """`quants.encode` for a known type."""
    if rows.dtype != np.float32 or rows.ndim != 2:
        raise ValueError(f"rows must be float32 [n_rows, row_len], not {rows.dtype} {list(rows.shape)}")
    if rows.shape[1] % spec.block_len:
        raise ValueError(f"rows of {rows.shape[1]} values are no multiple of {spec.name}'s blocks of {spec.block_len}")
    check_finite(rows, "values")
    weights = _block_weights(importance, rows.shape[1], spec.block_len)
    flat = np.ascontiguousarray(rows).reshape(-1)
    if spec.encode is None:
        return _encode_floats(spec.type, flat)
    blocks = flat.reshape(-1, spec.block_len)
    out = np.empty(len(blocks), spec.layout)
    step = _BATCH_VALUES // spec.block_len
    for first in range(0, len(blocks), step):
        part = blocks[first : first + step]
        out[first : first + step] = spec.encode(_batch(part, weights, first))[: len(part)]
    return out.view(np.uint8)


def _encode_floats(kind: GgmlType, values: npt.NDArray[np.float32]) -> U8:
    if kind is GgmlType.F32:
        return values.astype("<f4").view(np.uint8)
    return encode_f16(values) if kind is GgmlType.F16 else encode_bf16(values)
