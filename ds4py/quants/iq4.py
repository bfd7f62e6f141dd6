"""IQ4_NL and IQ4_XS: 4-bit indices into a fixed codebook of 16 unevenly spaced levels.

IQ4_NL: 32 values, d * LEVELS[q]. IQ4_XS: 256 values in 8 groups of 32, (d * (scale - 32)) * LEVELS[q] with 6-bit scales: low
nibble from `scales_l` (group 2 i in the low half of byte i), upper two bits from bit pair g of the 16-bit `scales_h`. Nibbles
lie as in Q4_0, 16 bytes per group.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import fit_scale, ratio
from ds4py.quants.layout import F32, U8, Batch, Blocks, Quant, f32, half_scale, nibbles, pack

# The levels are constants of the format, as float32 so that a lookup is also the conversion.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
LEVELS.flags.writeable = False
# The code nearest to each interval [i / 2, (i + 1) / 2) from -128 on: midpoints between levels are multiples of 1/2, so none lies
# inside.
NEAREST = np.abs((np.arange(512) / 2 - 127.75)[:, None] - LEVELS).argmin(axis=1).astype(np.uint8)
_NEAREST_LEVEL = LEVELS[NEAREST]
NEAREST.flags.writeable = _NEAREST_LEVEL.flags.writeable = False


def decode_iq4_nl(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * LEVELS[nibbles(blocks["qs"])]


def decode_iq4_xs(blocks: Blocks) -> F32:
    n = len(blocks)
    low = nibbles(blocks["scales_l"][:, :, None]).reshape(n, 8)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scale = f32(blocks["d"]) * ((low | (high << 4)).astype(np.float32) - np.float32(32))
    levels = LEVELS[nibbles(blocks["qs"].reshape(n, 8, 16))]
    return (scale[:, :, None] * levels).reshape(n, 256)


def _interval(scaled: F32) -> npt.NDArray[np.intp]:
    """The index into NEAREST of each value, which is overwritten."""
    scaled *= np.float32(2)
    scaled += np.float32(256)
    return np.clip(scaled, np.float32(0), np.float32(511), out=scaled).astype(np.intp)


def nearest_level(scaled: F32) -> F32:
    """The codebook as `fit.Rounding`."""
    found: F32 = _NEAREST_LEVEL.take(_interval(scaled))
    return found


def encode_iq4_nl(batch: Batch) -> Blocks:
    out = np.zeros(batch.n, IQ4_NL.layout)
    out["d"], d = half_scale(fit_scale(batch.x, batch.w, nearest_level, TARGETS), batch.unit)
    codes: U8 = NEAREST.take(_interval(batch.x * ratio(np.float32(1), d)))
    out["qs"] = pack(codes.reshape(2, 16, -1), 4).T
    return out


TARGETS = (-127, -116, -137, -148, -104, 95, 104, 113, 122, 132)
IQ4_NL = Quant(GgmlType.IQ4_NL, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), decode_iq4_nl, encode_iq4_nl)
IQ4_XS = Quant(
    GgmlType.IQ4_XS, np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]), decode_iq4_xs
)
