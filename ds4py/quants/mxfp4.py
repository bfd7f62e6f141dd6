"""MXFP4: 32 values of the OCP microscaling format, 4-bit floats (E2M1) under one power of two (E8M0).

The 4-bit floats are 0, 0.5, 1, 1.5, 2, 3, 4, 6 with bit 3 the sign; like every reader of GGUF we keep them doubled, as integers,
and halve the scale: 2^(e - 128), which for e < 2 is a float32 subnormal. Nibbles lie as in Q4_0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import dot
from ds4py.quants.layout import F32, U8, Batch, Blocks, Quant, nibbles, pack

# The doubled E2M1 values; code 8 (minus zero) counts as plain zero.
LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
LEVELS.flags.writeable = False
# The code nearest to each interval [i / 2, (i + 1) / 2) from -12.5 on: midpoints between levels are multiples of 1/2, so none
# lies inside.
_NEAREST = np.abs((np.arange(50) / 2 - 12.25)[:, None] - LEVELS).argmin(axis=1).astype(np.uint8)
_NEAREST_LEVEL = LEVELS[_NEAREST]
_NEAREST.flags.writeable = _NEAREST_LEVEL.flags.writeable = False


def half_scale(exponent: U8) -> F32:
    """2^(e - 128) in float32, exactly; e = 255, NaN in the OCP text, counts as a power of two like the others."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 128)


def decode_mxfp4(blocks: Blocks) -> F32:
    return half_scale(blocks["e"])[:, None] * LEVELS[nibbles(blocks["qs"])]


def _interval(scaled: F32) -> npt.NDArray[np.intp]:
    """The index into _NEAREST of each value, which is overwritten."""
    scaled *= np.float32(2)
    scaled += np.float32(25)
    return np.clip(scaled, np.float32(0), np.float32(49), out=scaled).astype(np.intp)


def encode_mxfp4(batch: Batch) -> Blocks:
    """The best of three exponents: the largest magnitude is then 2 to 4 (in E2M1), 4 to 8, where 6 is the end, or always cut."""
    x, w = batch.x, batch.w
    exponent_of_unit = np.frexp(batch.unit)[1] - 1
    start = np.frexp(np.abs(x).max(axis=0))[1] - 3
    # e = 2 is the first half scale that is no subnormal, e = 252 the last with which no level is infinite
    least, most = 2 - 128 - exponent_of_unit, 252 - 128 - exponent_of_unit
    best, power, codes = np.full(batch.n, np.inf, np.float32), least, np.zeros(x.shape, np.uint8)
    for below in (0, 1, 2):
        tried = np.clip(start - below, least, most)
        at = _interval(x * np.ldexp(np.float32(1), -tried))
        off = _NEAREST_LEVEL.take(at)
        off *= np.ldexp(np.float32(1), tried)
        off -= x
        error = dot(off, off if w is None else w * off)
        better = error < best
        np.copyto(best, error, where=better)
        power = np.where(better, tried, power)
        np.copyto(codes, _NEAREST.take(at), where=better)
    out = np.zeros(batch.n, MXFP4.layout)
    out["e"] = np.where(x.any(axis=0), power + exponent_of_unit + 128, 0)
    out["qs"] = pack(codes.reshape(2, 16, -1), 4).T
    return out


MXFP4 = Quant(GgmlType.MXFP4, np.dtype([("e", "u1"), ("qs", "u1", 16)]), decode_mxfp4, encode_mxfp4)
