"""Q5_0 and Q5_1: like Q4_0 and Q4_1 with a fifth bit per value.

Bit j of the 32-bit `qh` is bit 4 of value j. Q5_0: d * (q - 16). Q5_1: d * q + m.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, U8, Blocks, Quant, f32, nibbles


def _q(blocks: Blocks) -> U8:
    """The 5-bit values [n, 32]; `qh` is kept as bytes, whose bits in little order are the word's."""
    high = np.unpackbits(np.ascontiguousarray(blocks["qh"]), axis=1, bitorder="little")
    return nibbles(blocks["qs"]) | (high << np.uint8(4))


def decode_q5_0(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * (_q(blocks).astype(np.float32) - np.float32(16))


def decode_q5_1(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * _q(blocks).astype(np.float32) + f32(blocks["m"])


Q5_0 = Quant(GgmlType.Q5_0, np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), decode_q5_0)
Q5_1 = Quant(GgmlType.Q5_1, np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), decode_q5_1)
