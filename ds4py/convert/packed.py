"""FP4 weights as checkpoints pack them, moved into GGUF's MXFP4 blocks without touching a value.

Both hold 32 values of E2M1 under one E8M0 scale, and even the codes and the scale's byte are the same; only the places differ. A
checkpoint keeps nibbles and scales in two tensors, byte j of a row holding the values 2j (low nibble) and 2j + 1. A GGUF block
is the scale's byte and 16 bytes, of which byte j holds the values j (low) and j + 16 of its 32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ds4py.convert.floats import E8M0
from ds4py.convert.safetensors import Entry, read_bytes
from ds4py.errors import FormatError

_BLOCK_LEN = 32
_PACKED = ("I8", "U8")


def is_packed(weight: Entry) -> bool:
    """Whether a tensor that has scales is FP4."""
    return weight.dtype in _PACKED


def check_packed(weight: Entry, scales: Entry) -> None:
    """FormatError unless `scales` has one E8M0 byte for each 32 values of `weight`."""
    per_row = _BLOCK_LEN // 2
    wanted = (*weight.shape[:-1], weight.shape[-1] // per_row) if len(weight.shape) == 2 else ()
    if not wanted or weight.shape[-1] % per_row or scales.shape != wanted or scales.dtype not in E8M0:
        raise FormatError(
            f"{scales.path}: tensor {scales.name} is {scales.dtype} {list(scales.shape)}, which does not scale the FP4 weight "
            f"{weight.name} {list(weight.shape)}: that takes an E8M0 byte for every {per_row} bytes of a row"
        )


def packed_blocks(weight: Entry, scales: Entry, first: int, last: int) -> npt.NDArray[np.uint8]:
    """Rows first..last as MXFP4 blocks, uint8 [(last - first) * K / 32 * 17]. FormatError for the scale that means NaN."""
    n = last - first
    nibbles = np.frombuffer(read_bytes(weight, first * weight.row_bytes, n * weight.row_bytes), np.uint8)
    exponents = np.frombuffer(read_bytes(scales, first * scales.row_bytes, n * scales.row_bytes), np.uint8)
    if (exponents == 255).any():
        raise FormatError(f"{scales.path}: tensor {scales.name} has a scale that is no number between rows {first} and {last}")
    there = nibbles.reshape(-1, 16)
    codes = np.empty((len(there), _BLOCK_LEN), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = there & 15, there >> 4
    blocks = np.empty((len(there), 17), np.uint8)
    blocks[:, 0] = exponents
    blocks[:, 1:] = codes[:, :16] | codes[:, 16:] << 4
    return blocks.reshape(-1)
