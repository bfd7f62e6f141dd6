"""One file's header: magic, version, metadata, tensor table; everything checked, nothing decoded that is not needed.

The order of the checks is the point: magic, then version and byte order, then counts against the bytes that are left, and only
then the things counted. Sizes are Python integers, so no product can overflow. A tensor's extent is compared with the file's
real size here, because later a read of a missing page would be a signal, not an exception.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter

from ds4py.errors import UnsupportedError
from ds4py.gguf.cursor import Cursor, shown
from ds4py.gguf.types import WITHDRAWN_TYPES, GgmlType
from ds4py.gguf.values import Metadata, Value, describe, read_value

DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 15
_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # key length, a one-byte key, type, a one-byte value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, a one-byte name, number of dims, one dim, type, offset

# Files that people hand us by mistake, by their first bytes.
_OTHER_KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself: fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive (or a PyTorch checkpoint)"),
    (b"\x80\x02", "a Python pickle"),
    (b"<", "a web page, perhaps an error message saved under the model's name"),
    (b"lmgg", "an old GGML file of before August 2023, which must be converted again"),
    (b"tjgg", "an old GGML file of before August 2023, which must be converted again"),
    (b"FUGG", "a GGUF file with its bytes swapped"),
)


@dataclass(frozen=True)
class TensorInfo:
    """A row of the tensor table; `start` counts from where the tensor data begins, shape[0] is the row length."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    start: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.start + self.nbytes


@dataclass(frozen=True)
class Header:
    version: int
    kv: Metadata
    tensors: Mapping[str, TensorInfo]
    data_start: int  # where the tensor data begins in the file
    alignment: int


def read_header(buf: memoryview, path: str) -> Header:
    """Parse and check the header of the file whose bytes are `buf`. Raises FormatError, UnsupportedError."""
    cursor = Cursor(buf, path)
    version = _read_version(cursor)
    n_tensors = _read_count(cursor, "tensors", MAX_TENSORS, _MIN_TENSOR_BYTES)
    n_keys = _read_count(cursor, "metadata keys", MAX_KEYS, _MIN_KEY_BYTES)
    if n_tensors * _MIN_TENSOR_BYTES + n_keys * _MIN_KEY_BYTES > cursor.size - cursor.pos:
        cursor.fail(f"{n_tensors:,} tensors and {n_keys:,} metadata keys do not fit into {cursor.size:,} bytes")
    kv: dict[str, Value] = {}
    for index in range(n_keys):
        cursor.subject = f"metadata key {index + 1} of {n_keys}"
        key = cursor.name("key")
        cursor.subject = describe(key)
        if key in kv:
            cursor.fail("it is there twice, and readers differ in which one they use")
        kv[key] = read_value(cursor)
    alignment = _alignment(cursor, kv)
    tensors = _read_tensors(cursor, n_tensors, alignment)
    data_start = -(-cursor.pos // alignment) * alignment
    _check_extents(cursor, tensors, data_start)
    return Header(version, Metadata(kv), tensors, data_start, alignment)


def _read_version(cursor: Cursor) -> int:
    magic = bytes(cursor.buf[:4])
    if magic != b"GGUF":
        head = bytes(cursor.buf[:32])
        kind = next((kind for first, kind in _OTHER_KINDS if head.startswith(first)), "")
        cursor.fail(f"not a GGUF file but {kind}" if kind else f"not a GGUF file (it begins with {magic!r}, not b'GGUF')")
    cursor.take(4, "the magic number")
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 1 <= swapped <= 0xFFFF:
        raise UnsupportedError(
            f"{cursor.path}: a big-endian GGUF file (version {swapped} with its bytes in the other order): only little-endian "
            "files are supported, so take a little-endian one or swap it with gguf-py's gguf_convert_endian.py"
        )
    if version == 0:
        cursor.fail("GGUF version 0 does not exist, so the file is damaged")
    advice = "convert the model again" if version == 1 else "it is damaged or newer than this program"
    raise UnsupportedError(f"{cursor.path}: GGUF version {version}, but only 2 and 3 are supported: {advice}")


def _read_count(cursor: Cursor, what: str, limit: int, min_bytes: int) -> int:
    n = cursor.u64(f"the number of {what}")
    if n > limit or n * min_bytes > cursor.size:
        most = min(limit, cursor.size // min_bytes)
        cursor.fail(f"it claims {n:,} {what}, but a file of {cursor.size:,} bytes can have at most {most:,}")
    return n


def _alignment(cursor: Cursor, kv: dict[str, Value]) -> int:
    """general.alignment, in whatever integer width it was stored."""
    value = kv.get("general.alignment")
    if value is None:
        return DEFAULT_ALIGNMENT
    cursor.subject = describe("general.alignment")
    alignment = value.data
    if not isinstance(alignment, int) or isinstance(alignment, bool):
        cursor.fail(f"it must be an integer, not {value.type_name()}")
    if alignment <= 0 or alignment % 8:
        cursor.fail(f"{alignment} is not a positive multiple of 8")
    return alignment


def _read_tensors(cursor: Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    """The tensor table; each row is checked by itself."""
    tensors: dict[str, TensorInfo] = {}
    for index in range(n_tensors):
        cursor.subject = f"tensor {index + 1} of {n_tensors}"
        name = cursor.name("name")
        cursor.subject = f"tensor {shown(name)}"
        if name in tensors:
            cursor.fail("it is there twice")
        tensors[name] = _read_tensor(cursor, name, alignment)
    return tensors


def _check_extents(cursor: Cursor, tensors: dict[str, TensorInfo], data_start: int) -> None:
    """Every tensor's data lies inside the file and on no other's."""
    ordered = sorted(tensors.values(), key=attrgetter("start"))
    if ordered and (last := max(ordered, key=attrgetter("end"))).end > cursor.size - data_start:
        cursor.subject = f"tensor {shown(last.name)}"
        needed = data_start + last.end
        cursor.fail(f"its data ends at byte {needed:,} but the file has {cursor.size:,} bytes: it is cut short or damaged")
    for before, after in zip(ordered, ordered[1:], strict=False):
        if after.start < before.end:
            cursor.subject = f"tensor {shown(after.name)}"
            cursor.fail(f"its data overlaps that of tensor {shown(before.name)}")


def _read_tensor(cursor: Cursor, name: str, alignment: int) -> TensorInfo:
    """One row of the table. Raises UnsupportedError for a withdrawn type."""
    n_dims = cursor.u32("the number of dimensions")
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"it claims {n_dims:,} dimensions, but a tensor has 1 to {MAX_DIMS}")
    shape = struct.unpack_from(f"<{n_dims}Q", cursor.buf, cursor.take(8 * n_dims, "its shape"))
    if min(shape) == 0:
        cursor.fail(f"shape {list(shape)} has a zero dimension")
    number = cursor.u32("the type")
    if number in WITHDRAWN_TYPES:
        old = f"type {number} ({WITHDRAWN_TYPES[number]})"
        raise UnsupportedError(f"{cursor.path}: {cursor.subject}: {old} was withdrawn from the format: convert the model again")
    try:
        kind = GgmlType(number)
    except ValueError:
        cursor.fail(f"type {number:,} is unknown: the file is damaged or newer than this program")
    if shape[0] % kind.block_len:
        cursor.fail(f"rows of {shape[0]:,} values are not whole blocks of {kind.block_len} ({kind.name})")
    start = cursor.u64("the offset")
    if start % alignment:
        cursor.fail(f"its offset {start:,} is not a multiple of the alignment {alignment}")
    return TensorInfo(name, shape, kind, start, kind.nbytes(prod(shape)))
