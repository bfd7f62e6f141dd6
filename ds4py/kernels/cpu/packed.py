"""The packed weight formats: how a quantised matrix lies in memory while it is multiplied.

Idea: one vector register holds the same four inputs (k .. k+3, one byte each) of 16 output rows, so a dot product needs no
horizontal sum: every lane is one output row, and the four activations are broadcast to all lanes. 16 rows form a *group*; a group
is a sequence of *pairs* of blocks of 32 inputs, and each pair lies in memory as it is read:

    [low plane of block 0][low plane of block 1][high plane 0][high plane 1][scales 0][scales 1]

low plane   4 bits: 4 vectors of 64 bytes; nibble i of byte b in lane r, vector j is input 4 (j + 4 i) + b of row r.
            2 bits: 2 vectors; bit pair i of vector k is input quad 4 k + i.   8 bits: 8 vectors, one per quad.
high plane  1 bit: 1 vector, bit j for quad j.   2 bits: 2 vectors like the 2-bit low plane.
scales      16 x f16 (or bf16) per sub-block of 32 or 16 inputs, then the minimums in the same form.

A file's type maps to one of these forms without loss of quants; products of two scales (K-quants) are rounded to f16. Sizes equal
the file's, except 5.0 bits for Q4_K (4.5 in the file), 6.0 for Q5_K (5.5), 7.0 for Q6_K (6.56), 4.0 for Q2_K (2.63), 4.0 for Q3_K
(3.44). Rows are padded to a multiple of 16 and inputs to a multiple of 64 with zeros.

Activations of many rows lie in tiles of 16 rows, in the order in which tiles.py reads them: for each pair of blocks, for each
tile, for each half of the pair (768 bytes)

    [int8 q: 16 rows x 32][f32 d: 16][f32 sums of 16 inputs: 16 x 2][f32 sums of 32 inputs: 16]      x = d q

The sums are of q: integers, kept in f32 where they are exact. Rows that fill up the last tile may hold anything. (A few rows
lie one after another: matmul.py.)

Rejected: multiplying from the file's own row-major blocks (one horizontal sum per block and row: 40 % of the bandwidth stayed
unused); f32 scales (one more bit per weight).
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4py.gguf.types import GgmlType

GROUP = 16  # output rows per group
BLOCK = 32  # inputs per block
PAIR = 2 * BLOCK
TILE = 16  # activation rows
SCALES, SUMS_16, SUMS_32 = TILE * BLOCK, TILE * (BLOCK + 4), TILE * (BLOCK + 12)  # offsets in a half of a tile's pair
HALF_BYTES = TILE * (BLOCK + 16)


@dataclass(frozen=True)
class Packed:
    """One packed form. A weight is scale * (q - offset), or scale * q + min, with q taken through `lut` if there is one."""

    name: str
    low: int  # bits per input in the low plane: 2, 4, 8
    high: int = 0  # bits in the high plane: 0, 1, 2
    subs: int = 1  # scales per block: 1 (32 inputs) or 2 (16 inputs)
    has_min: bool = False
    offset: int = 0
    lut: tuple[int, ...] | None = None
    signed: bool = False  # q (after lut) is a signed byte
    bf16: bool = False  # scales are bf16

    @property
    def low_bytes(self) -> int:
        return 64 * self.low

    @property
    def high_bytes(self) -> int:
        return 64 * self.high

    @property
    def scale_bytes(self) -> int:
        return 32 * self.subs * (2 if self.has_min else 1)

    @property
    def pair_bytes(self) -> int:
        return 2 * (self.low_bytes + self.high_bytes + self.scale_bytes)

    @property
    def q_max(self) -> int:
        """Largest magnitude of q: it decides how many products fit in 16 bits."""
        if self.lut:
            return max(abs(v) for v in self.lut)
        return 128 if self.signed else (1 << (self.low + self.high)) - 1

    def n_bytes(self, n_rows: int, row_len: int) -> int:
        return groups(n_rows) * pairs(row_len) * self.pair_bytes


def groups(n_rows: int) -> int:
    return -(-n_rows // GROUP)


def pairs(row_len: int) -> int:
    return -(-row_len // PAIR)


def tile_bytes(n_rows: int, n_blocks: int) -> int:
    """Memory of activations [n_rows, 32 n_blocks] in tiles; n_blocks is even."""
    return -(-n_rows // TILE) * n_blocks * HALF_BYTES


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# FP4 (E2M1) doubled so that it is integral, plus 12 so that it is unsigned.
FP4_VALUES = tuple(12 + s * v for s in (1, -1) for v in (0, 1, 2, 3, 4, 6, 8, 12))

P2 = Packed("p2", 2, subs=2, has_min=True)
P3 = Packed("p3", 2, high=1, subs=2, offset=4)
P4S = Packed("p4s", 4, offset=8)
P4M = Packed("p4m", 4, has_min=True)
P4L = Packed("p4l", 4, lut=IQ4_VALUES, signed=True)
P4X = Packed("p4x", 4, lut=FP4_VALUES, offset=12, bf16=True)
P5S = Packed("p5s", 4, high=1, offset=16)
P5M = Packed("p5m", 4, high=1, has_min=True)
P6 = Packed("p6", 4, high=2, subs=2, offset=32)
P8 = Packed("p8", 8, signed=True)

FORM_OF: dict[GgmlType, Packed] = {
    GgmlType.Q2_K: P2,
    GgmlType.Q3_K: P3,
    GgmlType.Q4_0: P4S,
    GgmlType.Q4_1: P4M,
    GgmlType.Q4_K: P4M,
    GgmlType.IQ4_NL: P4L,
    GgmlType.IQ4_XS: P4L,
    GgmlType.MXFP4: P4X,
    GgmlType.Q5_0: P5S,
    GgmlType.Q5_1: P5M,
    GgmlType.Q5_K: P5M,
    GgmlType.Q6_K: P6,
    GgmlType.Q8_0: P8,
}
