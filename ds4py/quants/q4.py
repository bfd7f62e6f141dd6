"""Q4_0 and Q4_1: 32 values of 4 bits and one or two float16 numbers.

Value j < 16 is the low nibble of byte j, value 16 + j its high nibble. Q4_0: d * (q - 8). Q4_1: d * q + m.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import fit_affine, fit_scale, rounded, trims, whole
from ds4py.quants.layout import F32, U8, Batch, Blocks, Quant, f32, half, half_scale, nibbles, pack


def decode_q4_0(blocks: Blocks) -> F32:
    q = nibbles(blocks["qs"]).astype(np.float32) - np.float32(8)
    return f32(blocks["d"]) * q


def decode_q4_1(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * nibbles(blocks["qs"]).astype(np.float32) + f32(blocks["m"])


def levels(batch: Batch, d: F32, low: int, high: int) -> U8:
    """Levels low..high of d * q as unsigned numbers from 0 [block_len, n]."""
    return (rounded(batch.x, whole(low, high), d) - np.float32(low)).astype(np.uint8)


def shifted_levels(batch: Batch, d: F32, m: F32, high: int) -> U8:
    """Levels of d * q + m [block_len, n]."""
    return rounded(batch.x, whole(0, high), d, m).astype(np.uint8)


def encode_q4_0(batch: Batch) -> Blocks:
    out = np.zeros(batch.n, Q4_0.layout)
    out["d"], d = half_scale(fit_scale(batch.x, batch.w, whole(-8, 7), TARGETS), batch.unit)
    out["qs"] = pack(levels(batch, d, -8, 7).reshape(2, 16, -1), 4).T
    return out


def encode_q4_1(batch: Batch) -> Blocks:
    out = np.zeros(batch.n, Q4_1.layout)
    free_d, free_m = fit_affine(batch.x, batch.w, 15, TRIMS)
    (out["d"], d), (out["m"], m) = half_scale(free_d, batch.unit), half(free_m, batch.unit)
    out["qs"] = pack(shifted_levels(batch, d, m, 15).reshape(2, 16, -1), 4).T
    return out


TARGETS = (-8, -8.5, -9, -9.5, -7.5, -7, 6.5, 7, 7.5, 8)
TRIMS = (*trims(0, 0.45, 0.9), (0, -15 / 14))
Q4_0 = Quant(GgmlType.Q4_0, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), decode_q4_0, encode_q4_0)
Q4_1 = Quant(GgmlType.Q4_1, np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]), decode_q4_1, encode_q4_1)
