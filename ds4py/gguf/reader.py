"""Opening a model file: mmap, no copy, no torch.

The idea: a `GgufFile` is an immutable view of mapped files. Headers are checked when it is opened (header.py), so everything
that it hands out afterwards - values, arrays, tensor bytes - is known to lie inside the files, and costs nothing until it
is touched. There is no close(): the maps go when the last array over them goes, so a dangling pointer cannot be made.
Rejected: reading tensors with plain reads, which would hold every weight twice while a backend repacks it.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4py.errors import FormatError, ResourceError
from ds4py.gguf.cursor import shown
from ds4py.gguf.header import Header, read_header
from ds4py.gguf.shards import ShardName, first_shard, model_in_folder, shard_name
from ds4py.gguf.types import GgmlType
from ds4py.gguf.values import Metadata, describe


class Storage(Protocol):
    """Where tensors' bytes are: a mapped file, or something that makes them when they are asked for."""

    def read(self, start: int, n: int) -> npt.NDArray[np.uint8]:
        """`n` bytes from byte `start` on, read-only."""
        ...

    def release(self, start: int, stop: int) -> None:
        """Bytes start .. stop need not stay in memory."""
        ...


class Mapped:
    """A mapped file as `Storage`: what it gives are views. `fileno`: the same file, open for reading; it is closed with this."""

    def __init__(self, memory: mmap.mmap, fileno: int | None = None) -> None:
        self._map, self.fileno = memory, fileno
        if fileno is not None:
            weakref.finalize(self, os.close, fileno)

    def read(self, start: int, n: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._map, np.uint8, n, start)

    def release(self, start: int, stop: int) -> None:
        """Tell the system so about the pages wholly inside; they are read again if touched."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, stop // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a model. `shape` is in GGUF order: shape[0] is the row length, the fastest dimension."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    nbytes: int
    start: int  # byte position in its storage
    _storage: Storage = field(repr=False)
    shard: int = 0  # which of the model's files, from 0

    @property
    def row_len(self) -> int:
        return self.shape[0]

    @property
    def n_rows(self) -> int:
        return prod(self.shape[1:])

    @property
    def n_values(self) -> int:
        return prod(self.shape)

    @property
    def is_mapped(self) -> bool:
        """Whether `data` is a view of a mapped file, whose pages can be given back and come again."""
        return isinstance(self._storage, Mapped)

    @property
    def fileno(self) -> int | None:
        """The open file in which `start` counts; None if it is in none. It stays open as long as this tensor."""
        return self._storage.fileno if isinstance(self._storage, Mapped) else None

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored bytes [nbytes], read-only; of a mapped file a view, which costs nothing."""
        return self.read(0, self.nbytes)

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes start .. stop, cut at the tensor's end; for a tensor of any size, a piece at a time."""
        return self._storage.read(self.start + start, min(stop, self.nbytes) - start)

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Bytes start .. stop (all) need not stay in memory."""
        self._storage.release(self.start + start, self.start + (self.nbytes if stop is None else stop))


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A model file with all its shards. `path` is the (first) file; `notes` are sentences for the user about how it was found."""

    path: Path
    version: int
    kv: Metadata
    tensors: Mapping[str, Tensor]
    alignment: int
    shards: tuple[Path, ...]
    nbytes: int  # of all files
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """general.architecture; FormatError if the file does not tell."""
        return str(self._typed("general.architecture", str))

    def get(self, key: str, default: Any = None, kind: type | None = None) -> Any:
        """The value of `{architecture}.{key}`, or `default`; FormatError if it is there but no `kind` (int passes as float)."""
        full = f"{self.architecture}.{key}"
        return self._typed(full, kind) if full in self.kv else default

    def require(self, key: str, kind: type | None = None) -> Any:
        """Like `get`, but FormatError naming the key if it is not there."""
        return self._typed(f"{self.architecture}.{key}", kind)

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`; FormatError if the file has none."""
        if name not in self.tensors:
            raise FormatError(f"{self.path}: tensor {shown(name)} is missing")
        return self.tensors[name]

    def _typed(self, full_key: str, kind: type | None) -> Any:
        if full_key not in self.kv:
            raise FormatError(f"{self.path}: {describe(full_key)} is missing")
        value = self.kv[full_key]
        if kind is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        raise FormatError(f"{self.path}: {describe(full_key)} is {self.kv.typed[full_key].type_name()}, expected {kind.__name__}")


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Open a GGUF file, all shards of a split one (given any of them), or the only model in a folder.

    Raises FormatError (damaged, not GGUF, several candidates), UnsupportedError (a version, byte order or tensor type we do
    not read), ResourceError (missing, unreadable).
    """
    asked = Path(path)
    found = model_in_folder(asked) if os.path.isdir(asked) else asked
    opened = _Opened(found)
    if opened.split_count > 1:
        return _open_split(opened, asked)
    notes = () if found == asked else (f"using {found}, the only model in the folder",)
    return _assemble([opened], opened.tensors(), notes)


class _Opened:
    """One mapped file with its parsed header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.map, fileno = _map_file(path)
        self.storage = Mapped(self.map, fileno)
        self.nbytes = len(self.map)
        self.header: Header = read_header(memoryview(self.map), str(path))
        self.split_count = self._split_int("split.count", 0)
        self.split_no = self._split_int("split.no", 0)
        self.split_tensors = self._split_int("split.tensors.count", -1)

    def _split_int(self, key: str, default: int) -> int:
        value = self.header.kv.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise FormatError(f"{self.path}: {describe(key)} is {self.header.kv.typed[key].type_name()}, expected an integer")
        return value

    def tensors(self) -> dict[str, Tensor]:
        start = self.header.data_start
        infos = self.header.tensors.values()
        return {t.name: Tensor(t.name, t.shape, t.type, t.nbytes, start + t.start, self.storage, self.split_no) for t in infos}


def _map_file(path: Path) -> tuple[mmap.mmap, int]:
    """The map, and the open file itself for whoever wants to read a part of it."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # before open(): a pipe would wait for ever
            raise FormatError(f"{path}: not a regular file")
        if status.st_size == 0:
            raise FormatError(f"{path}: the file is empty")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), os.dup(file.fileno())
    except FileNotFoundError as error:
        raise ResourceError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or a file emptied in between
        reason = getattr(error, "strerror", None) or error
        raise ResourceError(f"{path}: cannot open the file: {reason}") from error


def _open_split(given: _Opened, asked: Path) -> GgufFile:
    """All shards of the set that `given` is one of, as one file: metadata of the first, tensors of all."""
    first_path = first_shard(given.path, given.split_count)
    name = shard_name(first_path)
    assert name is not None  # first_shard makes such names only
    first = given if first_path == given.path else _open_sibling(name, 1)
    tensors: dict[str, Tensor] = {}
    shards = [first, *(_open_sibling(name, no) for no in range(2, name.count + 1))]
    for no, shard in enumerate(shards, 1):
        _check_shard(shard, no, name.count, first)
        for tensor in shard.tensors().values():
            if tensor.name in tensors:
                raise FormatError(f"{shard.path}: tensor {shown(tensor.name)} is also in an earlier part of the model")
            tensors[tensor.name] = tensor
    if first.split_tensors not in (-1, len(tensors)):
        claim = f"{describe('split.tensors.count')} is {first.split_tensors:,}"
        raise FormatError(f"{first_path}: {claim}, but the parts have {len(tensors):,} tensors")
    notes = () if first_path == asked else (f"using {first_path} and the {name.count - 1} part(s) that follow it",)
    return _assemble(shards, tensors, notes)


def _assemble(shards: Sequence[_Opened], tensors: dict[str, Tensor], notes: tuple[str, ...]) -> GgufFile:
    first = shards[0]
    return GgufFile(
        first.path,
        first.header.version,
        first.header.kv,
        MappingProxyType(tensors),
        first.header.alignment,
        tuple(shard.path for shard in shards),
        sum(shard.nbytes for shard in shards),
        notes,
    )


def _open_sibling(name: ShardName, no: int) -> _Opened:
    path = name.sibling(no)
    if not path.exists():
        raise ResourceError(f"{path}: part {no} of {name.count} of the model is missing: fetch it into the same folder")
    return _Opened(path)


def _check_shard(shard: _Opened, no: int, count: int, first: _Opened) -> None:
    expected = [("split.count", shard.split_count, count), ("split.no", shard.split_no, no - 1)]
    if shard.split_tensors != -1:
        expected.append(("split.tensors.count", shard.split_tensors, first.split_tensors))
    for key, found, wanted in expected:
        if found != wanted:
            raise FormatError(f"{shard.path}: {describe(key)} is {found} in part {no} of {count}, expected {wanted}")
