"""Q8_0 and Q8_K: signed bytes and one scale, d * q.

Q8_0 (32 values, float16 scale) stores weights. Q8_K (256 values, float32 scale) is what activations are brought to before they
meet K-quants: `bsums` holds the sums of 16 consecutive values for the types with minimums, and decoding does not need it.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import fit_scale, rounded, whole
from ds4py.quants.layout import F32, Batch, Blocks, Quant, f32, half_scale


def decode_q8_0(blocks: Blocks) -> F32:
    return blocks["qs"].astype(np.float32) * f32(blocks["d"])


def decode_q8_k(blocks: Blocks) -> F32:
    return blocks["d"][:, None] * blocks["qs"].astype(np.float32)


_LEVELS = whole(-128, 127)


def encode_q8_0(batch: Batch) -> Blocks:
    out = np.zeros(batch.n, Q8_0.layout)
    out["d"], d = half_scale(fit_scale(batch.x, batch.w, _LEVELS, (127, 127.5, 126.5, -128)), batch.unit)
    out["qs"] = rounded(batch.x, _LEVELS, d).T
    return out


Q8_0 = Quant(GgmlType.Q8_0, np.dtype([("d", "<f2"), ("qs", "i1", 32)]), decode_q8_0, encode_q8_0)
Q8_K = Quant(GgmlType.Q8_K, np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)]), decode_q8_k)
