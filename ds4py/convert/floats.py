"""Checkpoint numbers to float32: plain floats, BF16, and FP8 (e4m3) with one scale per block of the matrix.

FP8 e4m3 as checkpoints use it ("fn"): sign, 4 exponent bits with bias 7, 3 mantissa bits, no infinities, and NaN only where all
seven low bits are set; so the 256 values are a table. The value of a weight is table[byte] * scale of its block, the block being
the config's `weight_block_size` (128 x 128 in released models), the last ones cut by the matrix's edge. Scales are floats or
E8M0, a byte b that means 2^(b - 127).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ds4py.convert.safetensors import ITEM_BYTES, Entry, read_bytes
from ds4py.errors import FormatError, UnsupportedError

F32 = npt.NDArray[np.float32]
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3")
E8M0 = ("F8_E8M0", "U8")  # the second is how some programs save the first


def e4m3_table() -> F32:
    """The value of every byte [256]; NaN for 0x7f and 0xff."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7).astype(np.float64)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[(byte & 127) == 127] = np.nan
    return np.where(byte & 128, -size, size).astype(np.float32)


def rows(entry: Entry, first: int, last: int) -> F32:
    """Rows first..last of a tensor as float32 [last - first, ...]; a single number counts as one row [1].
    UnsupportedError for a type that holds no weights."""
    if entry.dtype not in FLOATS:
        raise UnsupportedError(f"{entry.path}: tensor {entry.name} has type {entry.dtype}; readable are {', '.join(FLOATS)}")
    raw = read_bytes(entry, first * entry.row_bytes, (last - first) * entry.row_bytes)
    if entry.dtype == "BF16":
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif entry.dtype == "F8_E4M3":
        values = e4m3_table()[np.frombuffer(raw, np.uint8)]
    else:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused where it is written
            values = np.frombuffer(raw, f"<f{ITEM_BYTES[entry.dtype]}").astype(np.float32)
    return values.reshape(last - first, *entry.shape[1:])


def scale_table(entry: Entry) -> F32:
    """All scales of a tensor as float32. FormatError for the E8M0 byte that means NaN."""
    n_rows = entry.shape[0] if entry.shape else 1
    if entry.dtype not in E8M0:
        return rows(entry, 0, n_rows)
    exponent = np.frombuffer(read_bytes(entry, 0, entry.nbytes), np.uint8)
    if (exponent == 255).any():
        raise FormatError(f"{entry.path}: tensor {entry.name} has a scale that is no number")
    # in float64, since 2^-127 is a subnormal float32 and some processors are told to flush those
    return np.ldexp(1.0, exponent.astype(np.int32) - 127).astype(np.float32).reshape(entry.shape)


def check_scales(weight: Entry, scales: Entry, block: tuple[int, int]) -> None:
    """FormatError unless `scales` has one number per block of `weight`."""
    if len(weight.shape) != 2:
        raise FormatError(f"{weight.path}: tensor {weight.name} has block scales but the shape {list(weight.shape)}")
    wanted = tuple(-(-n // b) for n, b in zip(weight.shape, block, strict=True))
    if scales.shape != wanted:
        raise FormatError(
            f"{scales.path}: tensor {scales.name} has shape {list(scales.shape)}; {list(weight.shape)} in blocks of "
            f"{list(block)} needs {list(wanted)}"
        )


def scaled(values: F32, first: int, scales: F32, block: tuple[int, int]) -> F32:
    """Rows `first`.. of a matrix, [n, K], times their blocks' scales [ceil(N / block[0]), ceil(K / block[1])]."""
    n, width = values.shape
    per_row = scales[(first + np.arange(n)) // block[0]]
    return values * np.repeat(per_row, block[1], axis=1)[:, :width]


def integers(entry: Entry) -> npt.NDArray[np.int64]:
    """All of a tensor of whole numbers or marks. UnsupportedError for another type."""
    kinds = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1"}
    if entry.dtype not in kinds:
        raise UnsupportedError(f"{entry.path}: tensor {entry.name} has type {entry.dtype}, and whole numbers are expected")
    raw = np.frombuffer(read_bytes(entry, 0, entry.nbytes), kinds[entry.dtype])
    return raw.astype(np.int64).reshape(entry.shape)
