"""Q5_0 and Q5_1: like Q4_0 and Q4_1 with a fifth bit per value.

Bit j of the 32-bit `qh` is bit 4 of value j. Q5_0: d * (q - 16). Q5_1: d * q + m.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import fit_affine, fit_scale, trims, whole
from ds4py.quants.layout import F32, U8, Batch, Blocks, Quant, f32, half, half_scale, nibbles, pack
from ds4py.quants.q4 import levels, shifted_levels


def _q(blocks: Blocks) -> U8:
    """The 5-bit values [n, 32]; `qh` is kept as bytes, whose bits in little order are the word's."""
    high = np.unpackbits(np.ascontiguousarray(blocks["qh"]), axis=1, bitorder="little")
    return nibbles(blocks["qs"]) | (high << np.uint8(4))


def decode_q5_0(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * (_q(blocks).astype(np.float32) - np.float32(16))


def decode_q5_1(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * _q(blocks).astype(np.float32) + f32(blocks["m"])


def _fill(out: Blocks, q: U8) -> Blocks:
    """Stores the levels [32, n]."""
    out["qs"] = pack((q & np.uint8(15)).reshape(2, 16, -1), 4).T
    out["qh"] = np.packbits((q >> np.uint8(4)).T, axis=1, bitorder="little")
    return out


def encode_q5_0(batch: Batch) -> Blocks:
    out = np.zeros(batch.n, Q5_0.layout)
    out["d"], d = half_scale(fit_scale(batch.x, batch.w, whole(-16, 15), TARGETS), batch.unit)
    return _fill(out, levels(batch, d, -16, 15))


def encode_q5_1(batch: Batch) -> Blocks:
    out = np.zeros(batch.n, Q5_1.layout)
    free_d, free_m = fit_affine(batch.x, batch.w, 31, TRIMS)
    (out["d"], d), (out["m"], m) = half_scale(free_d, batch.unit), half(free_m, batch.unit)
    return _fill(out, shifted_levels(batch, d, m, 31))


TARGETS = (-16, -16.5, -17, -17.5, -15.5, -15, 14.5, 15, 15.5, 16)
TRIMS = (*trims(0, 0.45, 0.9), (0, -31 / 30))
Q5_0 = Quant(GgmlType.Q5_0, np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), decode_q5_0, encode_q5_0)
Q5_1 = Quant(GgmlType.Q5_1, np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), decode_q5_1, encode_q5_1)
