"""One safetensors file, read with suspicion: an 8-byte header length, that many bytes of JSON, then tensor data.

The idea: a checkpoint comes from a stranger, so everything that the JSON claims is checked when the file is opened: types,
shapes, ranges inside the file, sizes that match type and shape, no two tensors on the same bytes. After that, reading cannot go
wrong but for the disk. Data is read by position into fresh memory, a few rows at a time.
Rejected: mapping the file. A file cut while it is mapped ends the process with a signal instead of a sentence, and mapped pages
count as resident memory, which a conversion must bound.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ds4py.errors import FormatError, ResourceError

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
        "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
    }
)  # fmt: skip
MAX_HEADER_BYTES = 100_000_000  # what the format's own library accepts
MAX_DIMS = 8


@dataclass(frozen=True)
class Entry:
    """One tensor: where its bytes lie. `shape` is in checkpoint order, rows first; () is a single number."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    nbytes: int
    path: Path

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first dimension."""
        return self.nbytes // self.shape[0] if self.shape and self.shape[0] else self.nbytes


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of `path` by name. Raises FormatError for anything that is not as the format says, ResourceError if the system
    refuses to read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if head == b"version ":
                raise FormatError(f"{path}: this is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
            if len(head) < 8 or not 2 <= length <= size - 8:
                raise FormatError(
                    f"{path}: the header claims {length:,} bytes and the file has {size:,}: it is cut short or no safetensors"
                )
            if length > MAX_HEADER_BYTES:
                raise FormatError(f"{path}: a header of {length:,} bytes is more than the {MAX_HEADER_BYTES:,} that are allowed")
            text = file.read(length)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    table = parse_object(text, path, "its header")
    table.pop("__metadata__", None)
    entries = {name: _entry(path, name, raw, 8 + length, size) for name, raw in table.items()}
    _check_overlaps(path, entries)
    return entries


def parse_object(text: bytes | str, path: Path, what: str) -> dict[str, Any]:
    """JSON that must be an object; FormatError names `path` and `what` otherwise, also for a key that stands twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise FormatError(f"{path}: {what} has the key {max(names, key=names.count)!r} twice")
        return found

    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {what} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: {what} is not a JSON object")
    return value


def _entry(path: Path, name: str, raw: Any, start: int, size: int) -> Entry:
    def fail(problem: str) -> FormatError:
        return FormatError(f"{path}: tensor {name!r:.200} {problem}")

    if not isinstance(raw, dict):
        raise fail("is not described by a JSON object")
    dtype, shape, span = raw.get("dtype"), _counts(raw.get("shape")), _counts(raw.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise fail(f"has the unknown type {dtype!r:.40}")
    if shape is None or len(shape) > MAX_DIMS:
        raise fail(f"has the impossible shape {raw.get('shape')!r:.80}")
    if span is None or len(span) != 2 or span[0] > span[1]:
        raise fail(f"has the impossible data_offsets {raw.get('data_offsets')!r:.80}")
    begin, end = span
    if start + end > size:
        raise fail(f"ends at byte {start + end:,}, but the file has only {size:,}; it is cut short")
    if prod(shape) * ITEM_BYTES[dtype] != end - begin:
        raise fail(f"has {end - begin:,} bytes, but {list(shape)} of {dtype} take {prod(shape) * ITEM_BYTES[dtype]:,}")
    return Entry(name, dtype, tuple(shape), start + begin, end - begin, path)


def _counts(value: Any) -> list[int] | None:
    """`value` if it is a list of whole numbers, else None."""
    good = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 60 for n in value)
    return list(value) if good else None


def _check_overlaps(path: Path, entries: Mapping[str, Entry]) -> None:
    """No byte belongs to two tensors. Gaps are harmless, and so are offsets that are not multiples of 8."""
    in_order = sorted((entry for entry in entries.values() if entry.nbytes), key=lambda entry: entry.offset)
    for before, after in zip(in_order, in_order[1:], strict=False):
        if before.offset + before.nbytes > after.offset:
            raise FormatError(f"{path}: the tensors {before.name!r:.100} and {after.name!r:.100} lie on the same bytes")


def read_bytes(entry: Entry, begin: int, n_bytes: int) -> bytes:
    """`n_bytes` of a tensor's data from its byte `begin` on. ResourceError if the file has changed or cannot be read."""
    if not 0 <= begin <= begin + n_bytes <= entry.nbytes:
        raise ValueError(f"bytes {begin}..{begin + n_bytes} of a tensor of {entry.nbytes}")
    try:
        with entry.path.open("rb") as file:
            file.seek(entry.offset + begin)
            data = file.read(n_bytes)
    except OSError as error:
        raise ResourceError(f"{entry.path}: cannot be read: {error.strerror or error}") from error
    if len(data) != n_bytes:
        raise ResourceError(f"{entry.path}: the file became shorter while it was read")
    return data
