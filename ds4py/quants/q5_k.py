"""Q5_K: Q4_K with a fifth bit per value: bit g of `qh` byte j is bit 4 of value j of group g."""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import trims
from ds4py.quants.layout import F32, Batch, Blocks, Quant, bit_planes, nibbles, pack
from ds4py.quants.q4_k import scale_and_shift, store_scales
from ds4py.quants.two_level import bytes_of, fit_shifted


def decode_q5_k(blocks: Blocks) -> F32:
    n = len(blocks)
    low = nibbles(blocks["qs"].reshape(n, 4, 32)).reshape(n, 8, 32)
    return scale_and_shift(blocks, low | (bit_planes(blocks["qh"], 1) << np.uint8(4)))


LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])


def encode_q5_k(batch: Batch) -> Blocks:
    fit = fit_shifted(batch, 32, 31, 63, (*trims(0, 0.45, 0.9), (0, -31 / 30)))
    q = bytes_of(fit.q)
    out = np.zeros(batch.n, LAYOUT)
    store_scales(out, fit)
    out["qs"] = pack((q & np.uint8(15)).reshape(4, 2, 32, -1), 4).reshape(128, -1).T
    out["qh"] = pack(q >> np.uint8(4), 1).T
    return out


Q5_K = Quant(GgmlType.Q5_K, LAYOUT, decode_q5_k, encode_q5_k)
