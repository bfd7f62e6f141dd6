"""MXFP4: 32 values of the OCP microscaling format, 4-bit floats (E2M1) under one power of two (E8M0).

The 4-bit floats are 0, 0.5, 1, 1.5, 2, 3, 4, 6 with bit 3 the sign; like every reader of GGUF we keep them doubled, as integers,
and halve the scale: 2^(e - 128), which for e < 2 is a float32 subnormal. Nibbles lie as in Q4_0.
"""

from __future__ import annotations

import numpy as np

from ds4py.gguf.types import GgmlType
from ds4py.quants.layout import F32, U8, Blocks, Quant, nibbles

# The doubled E2M1 values; code 8 (minus zero) counts as plain zero.
LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
LEVELS.flags.writeable = False


def half_scale(exponent: U8) -> F32:
    """2^(e - 128) in float32, exactly; e = 255, NaN in the OCP text, counts as a power of two like the others."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 128)


def decode_mxfp4(blocks: Blocks) -> F32:
    return half_scale(blocks["e"])[:, None] * LEVELS[nibbles(blocks["qs"])]


MXFP4 = Quant(GgmlType.MXFP4, np.dtype([("e", "u1"), ("qs", "u1", 16)]), decode_mxfp4)
