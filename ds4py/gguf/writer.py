"""Writing a GGUF file: version 3, little-endian, atomically, with tensor data streamed.

The idea: the tensor table comes before the data and needs only names, shapes and types, so a tensor's bytes may be made when
their turn comes: `NewTensor.data` is bytes or a function that yields them in pieces, and a conversion of any size runs in the
memory of one piece. The file takes its name only when it is complete (atomic.py). What a caller gets wrong (a duplicate name, too
few bytes) is a ValueError, what the system refuses a ResourceError; either way no file is left.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedRandom, BufferedWriter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.errors import ResourceError
from ds4py.gguf.atomic import replacing
from ds4py.gguf.cursor import MAX_NAME_BYTES, shown
from ds4py.gguf.encode import encode, encode_text, typed
from ds4py.gguf.header import DEFAULT_ALIGNMENT, MAX_DIMS
from ds4py.gguf.types import GgmlType

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]
Writable = BufferedWriter | BufferedRandom


@dataclass(frozen=True, eq=False)
class NewTensor:
    """A tensor to write. `shape` is in GGUF order (row length first); `data` is its stored bytes, or yields them in pieces.
    `tail` yields them from a given byte on, where that is cheaper than making all of them and dropping the first."""

    name: str
    shape: Sequence[int]
    type: GgmlType
    data: Bytes | Callable[[], Iterable[Bytes]]
    tail: Callable[[int], Iterable[Bytes]] | None = None

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> NewTensor:
        """A numpy array [.., row] stored as it is (float32, float16, float64, int8 ... int64)."""
        kind = getattr(GgmlType, f"{array.dtype.kind.upper()}{array.dtype.itemsize * 8}", None)
        if kind is None:
            raise ValueError(f"tensor {shown(name)}: no GGUF type stores {array.dtype}")
        return cls(name, array.shape[::-1], kind, array)

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(prod(self.shape))

    def pieces(self, start: int = 0) -> Iterator[memoryview]:
        """The bytes from byte `start` on."""
        if start and self.tail is not None:
            yield from map(_raw, self.tail(start))
            return
        for piece in self.data() if callable(self.data) else (self.data,):
            raw = _raw(piece)
            if start < raw.nbytes:
                yield raw[start:]
            start = max(0, start - raw.nbytes)


def write_gguf(path: str | os.PathLike[str], kv: Mapping[str, Any], tensors: Iterable[NewTensor] = ()) -> None:
    """Write a file of metadata (`Value` or plain Python, see encode.py) and tensors; general.alignment is obeyed if given.

    Raises ValueError (metadata or tensors that no file can hold) and ResourceError (disk, permission).
    """
    table = list(tensors)
    header, alignment = header_bytes(kv, table)
    check_space(Path(path), gguf_size(kv, table))
    with replacing(path) as file:
        file.write(header)
        for tensor in table:
            write_tensor(file, tensor, alignment)


def header_bytes(kv: Mapping[str, Any], table: Sequence[NewTensor]) -> tuple[bytes, int]:
    """(everything before the tensor data, the alignment of what follows)."""
    alignment = _alignment(kv)
    return _header(kv, table, alignment), alignment


def gguf_size(kv: Mapping[str, Any], tensors: Iterable[NewTensor] = ()) -> int:
    """Bytes of the file that `write_gguf` would make; no tensor data is asked for."""
    table = list(tensors)
    alignment = _alignment(kv)
    return len(_header(kv, table, alignment)) + sum(t.nbytes + -t.nbytes % alignment for t in table)


def _alignment(kv: Mapping[str, Any]) -> int:
    value = typed(kv.get("general.alignment", DEFAULT_ALIGNMENT)).data
    if not isinstance(value, int) or value <= 0 or value % 8:
        raise ValueError(f"general.alignment must be a positive multiple of 8, not {value!r}")
    return value


def _header(kv: Mapping[str, Any], table: Sequence[NewTensor], alignment: int) -> bytes:
    """Everything before the tensor data, padded to where the data begins."""
    names = [tensor.name for tensor in table]
    if len(set(names)) < len(names):
        raise ValueError(f"tensor {shown(max(names, key=names.count))} is given twice")
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(table), len(kv))]
    for key, value in kv.items():
        try:
            parts += [_name(key), encode(typed(value))]
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"metadata key {shown(key)}: {error}") from error
    offset = 0
    for tensor in table:
        _check_shape(tensor)
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [_name(tensor.name), dims, struct.pack("<IQ", tensor.type, offset)]
        offset += tensor.nbytes + -tensor.nbytes % alignment
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment)


def _name(name: str) -> bytes:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or "\0" in name:
        raise ValueError(f"{shown(name)} is no name: 1 to {MAX_NAME_BYTES:,} bytes without NUL")
    return encode_text(name)


def _check_shape(tensor: NewTensor) -> None:
    shape = list(tensor.shape)
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1 or shape[0] % tensor.type.block_len:
        raise ValueError(f"tensor {shown(tensor.name)}: shape {shape} cannot be stored as {tensor.type.name}")


def check_space(target: Path, n_bytes: int) -> None:
    """Refuse early what cannot fit; a conversion may otherwise run for an hour before the disk is full."""
    try:
        disk = shutil.disk_usage(target.parent)
    except OSError:
        return  # the folder is missing or unreadable: writing will say so
    if disk.free < n_bytes and disk.total:  # some virtual disks report no size at all
        raise ResourceError(f"{target}: {n_bytes:,} bytes are needed, but the disk has {disk.free:,} free")


def write_tensor(
    file: Writable,
    tensor: NewTensor,
    alignment: int,
    start: int = 0,
    after_piece: Callable[[Any], None] = lambda file: None,
) -> None:
    """The bytes of `tensor` from byte `start` on (it may lie in the padding), and the padding."""
    written = min(start, tensor.nbytes)
    for raw in tensor.pieces(written) if written < tensor.nbytes else ():
        written += raw.nbytes
        if written > tensor.nbytes:
            break
        file.write(raw)
        after_piece(file)
    if written != tensor.nbytes:
        least = "at least " if written > tensor.nbytes else ""
        raise ValueError(f"tensor {shown(tensor.name)}: its data has {least}{written:,} bytes, its shape needs {tensor.nbytes:,}")
    file.write(bytes(tensor.nbytes + -tensor.nbytes % alignment - max(start, tensor.nbytes)))


def _raw(piece: Bytes) -> memoryview:
    """`piece` as bytes."""
    if isinstance(piece, np.ndarray):
        return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
    return memoryview(piece)
