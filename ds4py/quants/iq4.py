"""IQ4_NL and IQ4_XS: 4-bit indices into a fixed codebook of 16 unevenly spaced levels.

IQ4_NL: 32 values, d * LEVELS[q]. IQ4_XS: 256 values in 8 groups of 32, (d * (scale - 32)) * LEVELS[q] with 6-bit scales: low
nibble from `scales_l` (group 2 i in the low half of byte i), upper two bits from bit pair g of the 16-bit `scales_h`. Nibbles
lie as in Q4_0, 16 bytes per group.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, Blocks, Quant, f32, nibbles

# The levels are constants of the format, as float32 so that a lookup is also the conversion.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
LEVELS.flags.writeable = False


def decode_iq4_nl(blocks: Blocks) -> F32:
    return f32(blocks["d"]) * LEVELS[nibbles(blocks["qs"])]


def decode_iq4_xs(blocks: Blocks) -> F32:
    n = len(blocks)
    low = nibbles(blocks["scales_l"][:, :, None]).reshape(n, 8)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scale = f32(blocks["d"]) * ((low | (high << 4)).astype(np.float32) - np.float32(32))
    levels = LEVELS[nibbles(blocks["qs"].reshape(n, 8, 16))]
    return (scale[:, :, None] * levels).reshape(n, 256)


IQ4_NL = Quant(GgmlType.IQ4_NL, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), decode_iq4_nl)
IQ4_XS = Quant(
    GgmlType.IQ4_XS, np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]), decode_iq4_xs
)
