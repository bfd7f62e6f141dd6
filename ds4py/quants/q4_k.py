"""Q4_K: 256 values of 4 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.

Value = (d * scale) * q - (dmin * min). 32 bytes of `qs` hold two groups: low nibbles the even one, high nibbles the odd one.
The 12 bytes of `scales` are three words of four bytes: groups 0-3 have their scale in the low 6 bits of word 0 and their minimum
in those of word 1; groups 4-7 have the low 4 bits of both in word 2 (scale in the low nibble), the upper 2 at the top of words 0
and 1.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import trims
from ds4py.quants.layout import F32, U8, Batch, Blocks, Quant, f32, nibbles, pack
from ds4py.quants.two_level import Shifted, bytes_of, fit_shifted


def unpack_scales(packed: U8) -> tuple[U8, U8]:
    """[n, 12] bytes of Q4_K or Q5_K -> scales [n, 8], minimums [n, 8], both 6 bits."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 6) << 4)], axis=1)
    minimums = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, minimums


def scale_and_shift(blocks: Blocks, q: U8) -> F32:
    """q [n, 8, 32] with the block's scales and minimums applied: float32 [n, 256]."""
    scales, minimums = unpack_scales(blocks["scales"])
    scale = f32(blocks["d"]) * scales.astype(np.float32)
    minimum = f32(blocks["dmin"]) * minimums.astype(np.float32)
    return (scale[:, :, None] * q.astype(np.float32) - minimum[:, :, None]).reshape(len(q), 256)


def decode_q4_k(blocks: Blocks) -> F32:
    n = len(blocks)
    return scale_and_shift(blocks, nibbles(blocks["qs"].reshape(n, 4, 32)).reshape(n, 8, 32))


LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])


def store_scales(out: Blocks, fit: Shifted) -> None:
    """`unpack_scales` undone: fills d, dmin and the packed scales of Q4_K or Q5_K blocks."""
    scales, minimums = bytes_of(fit.scales).T, bytes_of(fit.minimums).T
    out["d"], out["dmin"], packed = fit.d, fit.dmin, out["scales"]
    for word, value in ((packed[:, 0:4], scales), (packed[:, 4:8], minimums)):
        word[...] = value[:, :4] | (value[:, 4:] >> np.uint8(4)) << np.uint8(6)
    packed[:, 8:12] = (scales[:, 4:] & np.uint8(15)) | minimums[:, 4:] << np.uint8(4)


def encode_q4_k(batch: Batch) -> Blocks:
    fit = fit_shifted(batch, 32, 15, 63, (*trims(0, 0.45, 0.9), (0, -15 / 14)))
    out = np.zeros(batch.n, LAYOUT)
    store_scales(out, fit)
    out["qs"] = pack(bytes_of(fit.q).reshape(4, 2, 32, -1), 4).reshape(128, -1).T
    return out


Q4_K = Quant(GgmlType.Q4_K, LAYOUT, decode_q4_k, encode_q4_k)
