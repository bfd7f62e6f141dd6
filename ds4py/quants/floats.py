"""F32, F16, BF16: plain numbers as blocks of one value.

BF16 is the upper half of a float32, so it is widened by a shift; numpy has no such type.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32 as Floats
from ds4py.quants.layout import U8, Blocks, Quant


def decode_f32(blocks: Blocks) -> Floats:
    return blocks["x"].astype(np.float32)[:, None]


def decode_f16(blocks: Blocks) -> Floats:
    return blocks["x"].astype(np.float32)[:, None]


def decode_bf16(blocks: Blocks) -> Floats:
    return (blocks["x"].astype(np.uint32) << 16).view(np.float32)[:, None]


def encode_f16(values: Floats) -> U8:
    """Nearest float16; magnitudes beyond its largest, 65504, are cut to it, for infinity is no weight."""
    return np.clip(values, -65504, 65504).astype("<f2").view(np.uint8)


def encode_bf16(values: Floats) -> U8:
    """Nearest bfloat16, ties to even; what would round to infinity is cut to the largest one."""
    bits = values.view(np.uint32)
    rounding = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    upper = ((bits + rounding) >> np.uint32(16)).astype("<u2")
    upper[(upper & 0x7FFF) == 0x7F80] -= 1
    return upper.view(np.uint8)


F32 = Quant(GgmlType.F32, np.dtype([("x", "<f4")]), decode_f32)
F16 = Quant(GgmlType.F16, np.dtype([("x", "<f2")]), decode_f16)
BF16 = Quant(GgmlType.BF16, np.dtype([("x", "<u2")]), decode_bf16)
