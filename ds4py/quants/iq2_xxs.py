"""IQ2_XXS: 256 values, 2.06 bits each, as points of a fixed lattice code.

The block is a float16 scale and, for each of 8 groups of 32 values, two 32-bit words. The four bytes of the first word choose
four rows of an 8-value grid; the second word has four 7-bit sign sets and, in its top 4 bits, the group's scale s.
Value = d * (s + 0.5) / 4 * grid value, with its sign. A set holds the signs of seven values; the eighth makes their number even.

The grid (256 rows of 8 values out of 8, 25 and 43) was found by search when the format was made and follows from no rule, so it
is a constant of the format: each row below is a 16-bit little-endian number whose bit pair i is value i (0, 1, 2 for 8, 25, 43).
The test suite compares it with the `gguf` package's table.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from ds4py.gguf.types import GgmlType
from ds4py.quants.fit import ratio
from ds4py.quants.iq2_fit import Lattice, octets_of
from ds4py.quants.layout import F32, Batch, Blocks, Quant, f32, half_scale

_GRID_CODES = (
    "AAACAAUACAAKABEAFAAgACIAKAAqAEEARABQAFgAYQBkAIAAggCKAKIAAQEEARABFQFAAYQBmAEAAgICIgKCAgEEBAQQBCEEJARABEIESARgBIEEhA"
    "SQBKQEAAUCBQgFIAVGBWkFgAWRBQkGEAZABoQGpAYACAUICAgUCCgIQQhECFAIUgiICAQJQAkCChQKARAEEBAQIRBAEGAQhBCQEJUQABEIESARUBFa"
    "EYARJBJFEgAUCBQgFCUUSRSAFBgVYhUAFhYWARgEGBAYQBiBGAAZBRmgGVEaACACIAogRCBhIIAggiApIUghACICIgEkBCQQJEAkViQAJUElZCWQJg"
    "goICiUKEQqAUAEQBBAGEAhQCRAQEBIQFZAYECBQIRAkEAAQSBBYUGAQYVBAUIQQkhCVkJoQgBECEQgRIBEmUQSRSRFAEYBSARIEEhASEVIAElYSWFJ"
    "gklFSpBKAFAIUBFQGVAgUIBQiFAEUUJRpFGRUpBUklQKVQFWVFYAWBFYGVhkWEBZCFoEYBBgQGBoYABhVWEYYmBiAGQFZBBlEmWEZUJoAIACgAqAQY"
    "CCgASBGIFAgRGCAYQEhBCEFYRAhGCEAIVGhZSFCYZAhmCGAogEiRGKBJAQkCSQQJChkBaRgJFFkgCUIpRElFGVgZggmQKgUKCFoAmhAKIYpFCoBKk="
)


def _grid() -> F32:
    """The code's 256 rows [256, 8]."""
    codes = np.frombuffer(base64.b64decode(_GRID_CODES), "<u2")
    pairs = (codes[:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    values: F32 = np.array([8, 25, 43], np.float32)[pairs]
    return values


def _signs() -> F32:
    """Factors of each 7-bit sign set [128, 8]: -1 where the bit is set, the eighth by even parity."""
    bits = np.unpackbits(np.arange(128, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    bits[:, 7] = bits[:, :7].sum(axis=1) % 2
    return np.float32(1) - np.float32(2) * bits.astype(np.float32)


GRID: npt.NDArray[np.float32] = _grid()
SIGNS: npt.NDArray[np.float32] = _signs()
GRID.flags.writeable = SIGNS.flags.writeable = False


def decode_iq2_xxs(blocks: Blocks) -> F32:
    n = len(blocks)
    words = blocks["words"]
    rows = GRID[words[:, :, 0:1].copy().view(np.uint8)]
    sets = (words[:, :, 1:2] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
    step = (words[:, :, 1] >> 28).astype(np.float32) + np.float32(0.5)
    scale = f32(blocks["d"]) * step * np.float32(0.25)
    values: F32 = scale[:, :, None, None] * rows * SIGNS[sets]
    return values.reshape(n, 256)


_LATTICE = Lattice(GRID)


def encode_iq2_xxs(batch: Batch) -> Blocks:
    octets, signs = octets_of(batch.x, batch.w)
    free = _LATTICE.fit(octets, (8, 32, 40, 48, 57), polish=2)
    top_step, four = np.float32(15.5), np.float32(4)
    d, d_value = half_scale(free.max(axis=0) * four / top_step, batch.unit)
    steps: F32 = np.clip(np.rint(free * ratio(four, d_value) - np.float32(0.5)), np.float32(0), top_step - np.float32(0.5))
    factor = (steps + np.float32(0.5)) / four
    cross, square = _LATTICE.sums(octets, _LATTICE.nearest(octets, ratio(np.float32(1), d_value * factor)))
    solved = ratio((factor * cross).sum(axis=0), (factor * factor * square).sum(axis=0))
    d, d_value = half_scale(np.where(solved > 0, solved, d_value), batch.unit)
    points = _LATTICE.nearest(octets, ratio(np.float32(1), d_value * factor))
    return _store(d, steps, points, signs)


def _store(d: npt.NDArray[np.float16], steps: F32, points: npt.NDArray[np.uint8], signs: npt.NDArray[np.uint8]) -> Blocks:
    n = len(d)
    out = np.zeros(n, IQ2_XXS.layout)
    out["d"] = d
    chosen = np.ascontiguousarray(points.reshape(8, 4, n).transpose(2, 0, 1))
    out["words"][:, :, 0] = chosen.view("<u4")[:, :, 0]
    sets = signs.reshape(8, 4, n).astype(np.uint32) << np.array([0, 7, 14, 21], np.uint32)[:, None]
    out["words"][:, :, 1] = (np.bitwise_or.reduce(sets, axis=1) | steps.astype(np.uint32) << np.uint32(28)).T
    return out


IQ2_XXS = Quant(GgmlType.IQ2_XXS, np.dtype([("d", "<f2"), ("words", "<u4", (8, 2))]), decode_iq2_xxs, encode_iq2_xxs)
