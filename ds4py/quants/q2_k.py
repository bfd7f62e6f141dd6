"""Q2_K: 256 values of 2 bits in 16 groups, each with a 4-bit scale and a 4-bit minimum.

Value = (d * scale) * q - (dmin * min); `scales` byte g has group g's scale in its low nibble and the minimum in the high one.
Each half of 128 values takes 32 bytes of `qs`: bit pair p of byte j is value 32 p + j of the half.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, Blocks, Quant, bit_planes, f32


def decode_q2_k(blocks: Blocks) -> F32:
    n = len(blocks)
    scales = blocks["scales"]
    scale = f32(blocks["d"]) * (scales & 0x0F).astype(np.float32)
    minimum = f32(blocks["dmin"]) * (scales >> 4).astype(np.float32)
    q = bit_planes(blocks["qs"].reshape(2 * n, 32), 2).reshape(n, 16, 16).astype(np.float32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(n, 256)


LAYOUT = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q2_K = Quant(GgmlType.Q2_K, LAYOUT, decode_q2_k)
