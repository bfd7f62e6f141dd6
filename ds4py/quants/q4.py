"""Q4_0 and Q4_1: 32 values of 4 bits and one or two float16 numbers.

Value j < 16 is the low nibble of byte j, value 16 + j its high nibble. Q4_0: d * (q - 8). Q4_1: d * q + m.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, Blocks, Quant, f32, nibbles


def decode_q4_0(blocks: Blocks) -> F32:
    q = nibbles(blocks["qs"]).astype(np.float32) - np.float32(8)
    return f32(blocks["d"]) * q


def decode_q4_1(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * nibbles(blocks["qs"]).astype(np.float32) + f32(blocks["m"])


Q4_0 = Quant(GgmlType.Q4_0, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), decode_q4_0)
Q4_1 = Quant(GgmlType.Q4_1, np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]), decode_q4_1)
