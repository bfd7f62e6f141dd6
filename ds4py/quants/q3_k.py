"""Q3_K: 256 values of 3 bits in 16 groups, each with a signed 6-bit scale.

Value = (d * (scale - 32)) * (q - 4), where the low two bits of q lie in `qs` as in Q2_K and bit p of `hmask` byte j is the third
bit of value 32 p + j. Scale g: low nibble from byte g % 8 of `scales` (high half for g >= 8), upper two bits from bit pair g // 4
of byte 8 + g % 4.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, Batch, Blocks, Quant, bit_planes, f32, nibbles, pack
from ds4py.quants.two_level import bytes_of, fit_scaled


def decode_q3_k(blocks: Blocks) -> F32:
    n = len(blocks)
    packed = blocks["scales"]
    upper = bit_planes(packed[:, 8:], 2).reshape(n, 16)
    scales = (nibbles(packed[:, :8]) | (upper << 4)).astype(np.float32) - np.float32(32)
    scale: F32 = f32(blocks["d"]) * scales
    low = bit_planes(blocks["qs"].reshape(2 * n, 32), 2).reshape(n, 256)
    high = bit_planes(blocks["hmask"], 1).reshape(n, 256)
    q = (low | (high << 2)).astype(np.float32) - np.float32(4)
    return (scale[:, :, None] * q.reshape(n, 16, 16)).reshape(n, 256)


LAYOUT = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])


def encode_q3_k(batch: Batch) -> Blocks:
    fit = fit_scaled(batch, 16, (-4, 3), (-32, 31), (-4, -4.5, -5, -5.5, -3.5, -3, 2.5, 3, 3.5, 4))
    q, scales = bytes_of(fit.q + np.float32(4)), bytes_of(fit.scales + np.float32(32))
    out = np.zeros(batch.n, LAYOUT)
    out["d"] = fit.d
    out["qs"] = pack((q & np.uint8(3)).reshape(2, 4, 32, -1), 2).reshape(64, -1).T
    out["hmask"] = pack((q >> np.uint8(2)).reshape(8, 32, -1), 1).T
    out["scales"][:, :8] = pack((scales & np.uint8(15)).reshape(2, 8, -1), 4).T
    out["scales"][:, 8:] = pack((scales >> np.uint8(4)).reshape(4, 4, -1), 2).T
    return out


Q3_K = Quant(GgmlType.Q3_K, LAYOUT, decode_q3_k, encode_q3_k)
