"""Q6_K: 256 values of 6 bits in 16 groups, each with a signed 8-bit scale: (d * scale) * (q - 32).

Each half of 128 values takes 64 bytes of `ql` and 32 of `qh`: low nibbles of `ql` are values 0-63 of the half, high nibbles
values 64-127, and bit pair p of `qh` byte j is the upper two bits of value 32 p + j.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, Batch, Blocks, Quant, bit_planes, f32, nibbles, pack
from ds4py.quants.two_level import bytes_of, fit_scaled


def decode_q6_k(blocks: Blocks) -> F32:
    n = len(blocks)
    scale = f32(blocks["d"]) * blocks["scales"].astype(np.float32)
    low = nibbles(blocks["ql"].reshape(n, 2, 64)).reshape(n, 256)
    high = bit_planes(blocks["qh"].reshape(2 * n, 32), 2).reshape(n, 256)
    q = (low | (high << 4)).astype(np.float32) - np.float32(32)
    return (scale[:, :, None] * q.reshape(n, 16, 16)).reshape(n, 256)


LAYOUT = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


def encode_q6_k(batch: Batch) -> Blocks:
    fit = fit_scaled(batch, 16, (-32, 31), (-128, 127), (-32, -31.5, -32.5, -31, -30.5, 30.5, 31, 31.5))
    q = bytes_of(fit.q + np.float32(32))
    out = np.zeros(batch.n, LAYOUT)
    out["d"], out["scales"] = fit.d, fit.scales.T
    out["ql"] = pack((q & np.uint8(15)).reshape(2, 2, 64, -1), 4).reshape(128, -1).T
    out["qh"] = pack((q >> np.uint8(4)).reshape(2, 4, 32, -1), 2).reshape(64, -1).T
    return out


Q6_K = Quant(GgmlType.Q6_K, LAYOUT, decode_q6_k, encode_q6_k)
