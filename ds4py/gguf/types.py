"""Ids that the GGUF format fixes: tensor types with their block sizes, and metadata value types.

The idea: a tensor type is nothing but "block_len values are stored in block_bytes bytes", so sizes, row strides and bounds checks
need no knowledge of how a block is decoded; that lives in `quants/`, one file per family. Every id of the format is listed, also
those we cannot decode, so that a file with one of them can be opened, inspected and refused by name.
"""

from __future__ import annotations

from enum import IntEnum


class GgmlType(IntEnum):
    """A tensor's storage type: id, values per block, bytes per block."""

    block_len: int
    block_bytes: int

    def __new__(cls, value: int, block_len: int = 0, block_bytes: int = 0) -> GgmlType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.block_len = block_len
        member.block_bytes = block_bytes
        return member

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18

    def nbytes(self, n_values: int) -> int:
        """Bytes that hold `n_values` values; ValueError unless they are whole blocks."""
        if n_values < 0 or n_values % self.block_len:
            raise ValueError(f"{n_values} values are not whole blocks of {self.block_len} ({self.name})")
        return n_values // self.block_len * self.block_bytes


# Ids that older files used and the format has withdrawn; a refusal can then say more than "unknown".
WITHDRAWN_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


class GgufType(IntEnum):
    """A metadata value's type: id, and numpy dtype of one element ("" for strings and arrays, whose sizes vary)."""

    dtype: str

    def __new__(cls, value: int, dtype: str = "") -> GgufType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.dtype = dtype
        return member

    UINT8 = 0, "u1"
    INT8 = 1, "i1"
    UINT16 = 2, "<u2"
    INT16 = 3, "<i2"
    UINT32 = 4, "<u4"
    INT32 = 5, "<i4"
    FLOAT32 = 6, "<f4"
    BOOL = 7, "?"
    STRING = 8, ""
    ARRAY = 9, ""
    UINT64 = 10, "<u8"
    INT64 = 11, "<i8"
    FLOAT64 = 12, "<f8"
