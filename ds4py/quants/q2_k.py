"""Q2_K: 256 values of 2 bits in 16 groups, each with a 4-bit scale and a 4-bit minimum.

Value = (d * scale) * q - (dmin * min); `scales` byte g has group g's scale in its low nibble and the minimum in the high one.
Each half of 128 values takes 32 bytes of `qs`: bit pair p of byte j is value 32 p + j of the half.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import trims
from ds4py.quants.layout import F32, Batch, Blocks, Quant, bit_planes, f32, pack
from ds4py.quants.two_level import bytes_of, fit_shifted


def decode_q2_k(blocks: Blocks) -> F32:
    n = len(blocks)
    scales = blocks["scales"]
    scale = f32(blocks["d"]) * (scales & 0x0F).astype(np.float32)
    minimum = f32(blocks["dmin"]) * (scales >> 4).astype(np.float32)
    q = bit_planes(blocks["qs"].reshape(2 * n, 32), 2).reshape(n, 16, 16).astype(np.float32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(n, 256)


LAYOUT = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])


def encode_q2_k(batch: Batch) -> Blocks:
    fit = fit_shifted(batch, 16, 3, 15, (*trims(0, 0.4, 0.8), (0, -1.5)))
    out = np.zeros(batch.n, LAYOUT)
    out["d"], out["dmin"] = fit.d, fit.dmin
    out["scales"] = (bytes_of(fit.scales) | bytes_of(fit.minimums) << np.uint8(4)).T
    out["qs"] = pack(bytes_of(fit.q).reshape(2, 4, 32, -1), 2).reshape(64, -1).T
    return out


Q2_K = Quant(GgmlType.Q2_K, LAYOUT, decode_q2_k, encode_q2_k)
