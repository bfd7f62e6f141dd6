"""Quant types: how values are packed into blocks. One file per type or family; a new one is a file and a line in `QUANTS`.

`decode` is the reference for every kernel that reads blocks, and bit-equal to the `gguf` package, which has no Q8_K: that type
is bit-equal to llama.cpp's C function. `encode` is the way back (`encoding.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ds4py.errors import UnsupportedError
from ds4py.gguf.types import GgmlType
from ds4py.quants.encoding import encode_rows
from ds4py.quants.floats import BF16, F16, F32
from ds4py.quants.iq2_xxs import IQ2_XXS
from ds4py.quants.iq4 import IQ4_NL, IQ4_XS
from ds4py.quants.layout import Quant
from ds4py.quants.mxfp4 import MXFP4
from ds4py.quants.q2_k import Q2_K
from ds4py.quants.q3_k import Q3_K
from ds4py.quants.q4 import Q4_0, Q4_1
from ds4py.quants.q4_k import Q4_K
from ds4py.quants.q5 import Q5_0, Q5_1
from ds4py.quants.q5_k import Q5_K
from ds4py.quants.q6_k import Q6_K
from ds4py.quants.q8 import Q8_0, Q8_K

__all__ = ["ENCODABLE", "QUANTS", "Quant", "decode", "encode", "quant"]

_ALL = (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_K, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ4_NL, IQ4_XS, MXFP4)
QUANTS: Mapping[GgmlType, Quant] = MappingProxyType({q.type: q for q in _ALL})

# What `encode` can write: Q8_K holds activations only, and IQ4_XS is read for the files that have it.
ENCODABLE = frozenset({q.type for q in _ALL if q.encode is not None} | {GgmlType.F32, GgmlType.F16, GgmlType.BF16})

_CHUNK_VALUES = 1 << 16  # decoded at a time: temporaries stay in cache, and a large tensor needs no large ones


def quant(kind: GgmlType) -> Quant:
    """The quant type `kind`; UnsupportedError if we cannot decode it."""
    if kind not in QUANTS:
        names = ", ".join(q.name for q in _ALL)
        raise UnsupportedError(f"tensor type {kind.name} cannot be decoded: supported are {names}")
    return QUANTS[kind]


def decode(kind: GgmlType, data: npt.NDArray[np.uint8], n_values: int) -> npt.NDArray[np.float32]:
    """Stored bytes `data` [n_values / block_len * block_bytes] -> float32 [n_values].

    Raises UnsupportedError for a type without decoder, ValueError if `data` does not have exactly `n_values` values.
    """
    spec = quant(kind)
    if data.dtype != np.uint8 or data.ndim != 1 or len(data) != kind.nbytes(n_values):
        raise ValueError(f"{n_values} values of {kind.name} take {kind.nbytes(n_values)} bytes, not {data.shape} {data.dtype}")
    blocks = spec.blocks(data)
    out = np.empty((len(blocks), spec.block_len), np.float32)
    step = _CHUNK_VALUES // spec.block_len
    with np.errstate(all="ignore"):  # scales may be infinite or NaN; so are then the values
        for first in range(0, len(blocks), step):
            out[first : first + step] = spec.decode(blocks[first : first + step])
    return out.reshape(n_values)


def encode(
    kind: GgmlType, rows: npt.NDArray[np.float32], importance: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.uint8]:
    """float32 [n_rows, row_len] -> stored bytes [n_rows * row_bytes], with the least squared error that we find.

    importance: float32 [row_len], how much a squared error in each column counts; not negative. The result depends on each
    row's values and the importance alone, bit for bit, however the rows are cut into calls or threads. Magnitudes beyond what a
    type can hold are cut to its largest. Raises UnsupportedError for a type without encoder, FormatError for NaN or infinite
    values and for a bad importance, ValueError where shape or dtype are wrong or row_len is no multiple of the block.
    """
    if kind not in ENCODABLE:
        names = ", ".join(sorted(k.name for k in ENCODABLE))
        raise UnsupportedError(f"tensor type {kind.name} cannot be written: supported are {names}")
    return encode_rows(quant(kind), rows, importance)
