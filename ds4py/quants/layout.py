"""What a quant type is: a block layout and a decoder of whole blocks.

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


@dataclass(frozen=True)
class Quant:
    """A quant type that can be decoded. decode: structured [n_blocks] -> float32 [n_blocks, block_len]."""

    type: GgmlType
    layout: np.dtype[np.void]
    decode: Callable[[Blocks], F32]

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
