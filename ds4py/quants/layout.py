"""What a quant type is: a block layout, a decoder of whole blocks and, for the types we write, an encoder.

The idea: a block's layout is a packed numpy structured dtype (little-endian, field names of the format), so decoders, encoders
and the generators of compiled kernels read the same description: a decoder takes `blocks["qs"]`, an encoder fills the fields
of `np.zeros(n, layout)`, and a kernel asks `quant.offset("qs")` for a byte offset. The arithmetic is float32 in one fixed order
of operations, because a decoded value is part of the format: readers must agree bit for bit.
Rejected: slicing byte columns in every decoder, which writes each offset down once per use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ds4py.gguf.types import GgmlType

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.void]  # [n_blocks] of a layout's dtype

LEAST_WEIGHT = np.float32(1e-7)  # of a block's largest: what has importance 0 gets this, and still sound values where all have

_ZERO = np.float32(0)


@dataclass(frozen=True)
class Batch:
    """Blocks to encode, one per column, so that numpy's inner loops run across blocks and not within one.

    x [block_len, n]: values over `unit`. w like x: weights of the squared errors in [LEAST_WEIGHT, 1]; None where all are equal.
    unit [n]: the power of two that brings each block's largest magnitude into [0.5, 1), so that squares neither overflow nor
    vanish.
    """

    x: F32
    w: F32 | None
    unit: F32

    @property
    def n(self) -> int:
        return int(self.x.shape[1])

    def groups(self, length: int) -> tuple[F32, F32 | None]:
        """x and w as [block_len / length, length, n]."""
        shape = (-1, length, self.n)
        return self.x.reshape(shape), None if self.w is None else self.w.reshape(shape)


@dataclass(frozen=True)
class Quant:
    """A quant type. decode: structured [n_blocks] -> float32 [n_blocks, block_len]; encode is the way back, where we have it."""

    type: GgmlType
    layout: np.dtype[np.void]
    decode: Callable[[Blocks], F32]
    encode: Callable[[Batch], Blocks] | None = None

    def __post_init__(self) -> None:
        assert self.layout.itemsize == self.block_bytes, f"{self.name}: layout has {self.layout.itemsize} bytes"

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def block_len(self) -> int:
        return self.type.block_len

    @property
    def block_bytes(self) -> int:
        return self.type.block_bytes

    def offset(self, field: str) -> int:
        """Byte position of `field` in a block; KeyError if the layout has no such field."""
        assert self.layout.fields is not None
        return int(self.layout.fields[field][1])

    def blocks(self, data: U8) -> Blocks:
        """Stored bytes [n_blocks * block_bytes] as structured blocks [n_blocks], without a copy if they are contiguous."""
        return np.ascontiguousarray(data).view(self.layout)


def f32(field: npt.NDArray[np.float16]) -> F32:
    """A per-block float16 field [n] as a float32 column [n, 1]."""
    return field.astype(np.float32)[:, None]


def nibbles(qs: U8) -> U8:
    """[..., b] bytes -> [..., 2b]: all low nibbles, then all high nibbles."""
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)


def bit_planes(field: U8, n_bits: int) -> U8:
    """[n, b] bytes of 8 // n_bits little fields each -> [n, 8 // n_bits, b]: plane i holds every byte's i-th field."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    return (field[:, None, :] >> shifts) & np.uint8((1 << n_bits) - 1)


def pack(planes: U8, n_bits: int) -> U8:
    """`bit_planes` undone, on columns: [..., 8 // n_bits, b, n] fields -> [..., b, n] bytes, field i at bit n_bits * i."""
    out: U8 = planes[..., 0, :, :].copy()
    for i in range(1, 8 // n_bits):
        out |= planes[..., i, :, :] << np.uint8(i * n_bits)
    return out


def half(value: F32, unit: F32) -> tuple[npt.NDArray[np.float16], F32]:
    """`value` [n] of normalised blocks as the float16 to store, and what that is in normalised terms.

    Cut at float16's largest magnitude: a stored infinity would make the whole block NaN.
    """
    with np.errstate(over="ignore", under="ignore"):
        stored = np.clip(value * unit, -65504, 65504).astype(np.float16)
    return stored, stored.astype(np.float32) / unit


def half_scale(value: F32, unit: F32, above: bool = False) -> tuple[npt.NDArray[np.float16], F32]:
    """`half` for a factor of levels: it only becomes 0 where the smallest float16 is beyond all values of the block.

    above: among the few float16 below 2^-14 it is rounded away from zero, because levels end somewhere: with a factor that is too
    small the largest values are lost, with one that is too large only some resolution.
    """
    stored, back = half(value, unit)
    with np.errstate(over="ignore", under="ignore"):
        steps = np.abs(value) * unit * np.float32(2**24)
    coarse = (steps < (1024 if above else 0.5)) & (value != 0)
    if coarse.any():
        whole_steps = np.maximum(np.ceil(steps - np.float32(0.02)), np.float32(1))  # what was a whole number of steps stays one
        away = np.copysign(np.where(unit > np.float32(2**-24), whole_steps, _ZERO) * np.float32(2**-24), value)
        stored = np.where(coarse, away, stored.astype(np.float32)).astype(np.float16)
        back = stored.astype(np.float32) / unit
    return stored, back
