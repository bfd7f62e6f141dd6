"""Q5_K: Q4_K with a fifth bit per value: bit g of `qh` byte j is bit 4 of value j of group g."""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, Blocks, Quant, bit_planes, nibbles
from ds4py.quants.q4_k import scale_and_shift


def decode_q5_k(blocks: Blocks) -> F32:
    n = len(blocks)
    low = nibbles(blocks["qs"].reshape(n, 4, 32)).reshape(n, 8, 32)
    return scale_and_shift(blocks, low | (bit_planes(blocks["qh"], 1) << np.uint8(4)))


LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
Q5_K = Quant(GgmlType.Q5_K, LAYOUT, decode_q5_k)
