"""Importance matrices: how much each input column of each matrix matters, as collected on calibration text.

The idea: what counts is the mean of x^2 per column; an entry keeps the sums and the sample counts, from which two collections
can be added up. Experts of one tensor lie one after another, each with a count of its own; an expert that no token reached has
neutral importance 1. Two file formats hold the same thing: llama.cpp's legacy one (`.dat`, a flat stream) and its GGUF (pairs
of tensors `NAME.in_sum2` and `NAME.counts`). Which one a file is tells its first bytes.

The legacy format has one count per entry, so what is written there is `mean * calls`, and read back it is one run of columns
whose division into experts only the model knows; `Imatrix.importance` asks for it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ds4py.errors import FormatError, ResourceError
from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.gguf.atomic import replacing
from ds4py.protocols import F32

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_ENTRIES, _MAX_NAME, _MAX_BYTES = 1 << 16, 1 << 12, 4 << 30
CHUNK = 512  # tokens per chunk where a file does not tell


@dataclass(frozen=True, eq=False)
class Entry:
    """sums float32 [n]: sum of x^2 of each column, experts one after another; counts float32 [m]: samples of each of m runs."""

    sums: F32
    counts: F32

    def mean(self) -> F32:
        """Mean of x^2, float32 [n]; 1 where there are no samples."""
        counts = np.repeat(self.counts.astype(np.float64), len(self.sums) // len(self.counts))
        return np.where(counts > 0, self.sums / np.maximum(counts, 1e-30), 1.0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Imatrix:
    """Entries by tensor name, and where they come from. `path` is empty for a collection that is no file yet."""

    entries: Mapping[str, Entry]
    datasets: Sequence[str] = ()
    n_chunks: int = 0
    chunk_len: int = CHUNK
    path: str = ""

    def importance(self, name: str, n_mat: int, row_len: int) -> F32 | None:
        """float32 [n_mat, row_len] for a tensor of n_mat matrices, None if nothing was collected for it.

        FormatError if the entry is of another size: then it belongs to another model."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        if len(entry.sums) == row_len:  # collected over all experts together
            return np.broadcast_to(entry.mean(), (n_mat, row_len))
        if len(entry.sums) != n_mat * row_len:
            need = f"{n_mat} x {row_len}" if n_mat > 1 else str(row_len)
            raise FormatError(
                f"{self.path}: the entry of {name} has {len(entry.sums)} columns, the tensor needs {need}: "
                "the importance matrix was made for another model"
            )
        return entry.mean().reshape(n_mat, row_len)


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read either format. Raises FormatError for a damaged or foreign file, ResourceError for an unreadable one."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            n_bytes = os.fstat(file.fileno()).st_size
            if head != b"GGUF" and n_bytes <= _MAX_BYTES:
                return _read_legacy(head + file.read(), str(path))
    except OSError as error:
        raise ResourceError(f"{path}: cannot read the importance matrix: {error.strerror or error}") from error
    if head != b"GGUF":
        raise FormatError(f"{path}: {n_bytes:,} bytes are too many for an importance matrix")
    return _read_gguf(str(path))


def write_imatrix(path: str | os.PathLike[str], imatrix: Imatrix) -> None:
    """Write GGUF for a name that ends in .gguf, else the legacy format; whole or not at all."""
    if Path(path).suffix.lower() == ".gguf":
        _write_gguf(path, imatrix)
    else:
        _write_legacy(path, imatrix)


# --- legacy ----------------------------------------------------------------------------------------------------------------


class _Stream:
    """The bytes of a legacy file, taken from the front; whoever asks for more than there is gets a FormatError."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.pos = data, path, 0

    def take(self, n: int, what: str) -> bytes:
        if n > len(self.data) - self.pos:
            raise self.bad(f"it ends inside {what}")
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def number(self, what: str, least: int, most: int) -> int:
        """An int32 within bounds."""
        (value,) = struct.unpack("<i", self.take(4, what))
        if not least <= value <= most:
            raise self.bad(f"{what} is {value}")
        return int(value)

    def text(self, what: str, least: int, most: int) -> str:
        raw = self.take(self.number(f"the length of {what}", least, most), what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.bad(f"{what} is no text") from None

    def bad(self, why: str) -> FormatError:
        return FormatError(f"{self.path}: no importance matrix, or a damaged one: {why}")


def _read_legacy(data: bytes, path: str) -> Imatrix:
    stream = _Stream(data, path)
    entries: dict[str, Entry] = {}
    for _ in range(stream.number("the number of entries", 1, _MAX_ENTRIES)):
        name = stream.text("a name", 1, _MAX_NAME)
        calls = stream.number(f"the number of calls of {name}", 0, 2**31 - 1)
        n = stream.number(f"the number of values of {name}", 1, (len(data) - stream.pos) // 4)
        sums = np.frombuffer(stream.take(4 * n, f"the values of {name}"), "<f4").astype(np.float32)
        if name in entries:
            raise stream.bad(f"{name} is there twice")
        entries[name] = _entry(sums, np.array([max(calls, 1)], np.float32), name, path)
    n_chunks, dataset = 0, ""
    if stream.pos < len(data):  # older files end here
        n_chunks = stream.number("the number of chunks", 0, 2**31 - 1)
        dataset = stream.text("the name of the data set", 0, 1 << 16)
    if stream.pos != len(data):
        raise stream.bad(f"{len(data) - stream.pos} bytes follow its end")
    return Imatrix(entries, (dataset,) if dataset else (), n_chunks, path=path)


def _write_legacy(path: str | os.PathLike[str], imatrix: Imatrix) -> None:
    with replacing(path) as file:
        file.write(struct.pack("<i", len(imatrix.entries)))
        for name, entry in imatrix.entries.items():
            calls = max(1, round(float(entry.counts.max()) / max(1, imatrix.chunk_len)))
            raw = name.encode()
            file.write(struct.pack(f"<i{len(raw)}sii", len(raw), raw, calls, len(entry.sums)))
            file.write((entry.mean() * np.float32(calls)).astype("<f4").tobytes())
        dataset = ", ".join(imatrix.datasets).encode()
        file.write(struct.pack(f"<ii{len(dataset)}s", imatrix.n_chunks, len(dataset), dataset))


# --- GGUF ------------------------------------------------------------------------------------------------------------------


def _read_gguf(path: str) -> Imatrix:
    g = open_gguf(path)
    if g.kv.get("general.type", "imatrix") != "imatrix" or not any(name.endswith(_SUMS) for name in g.tensors):
        raise FormatError(f"{path}: a GGUF file, but no importance matrix")
    entries: dict[str, Entry] = {}
    for full_name, tensor in g.tensors.items():
        name = full_name.removesuffix(_SUMS)
        if name == full_name:
            if not full_name.endswith(_COUNTS) or full_name.removesuffix(_COUNTS) + _SUMS not in g.tensors:
                raise FormatError(f"{path}: the tensor {full_name} has no business in an importance matrix")
            continue
        counts = g.tensor(name + _COUNTS)
        if tensor.type is not GgmlType.F32 or counts.type is not GgmlType.F32 or tensor.n_values % counts.n_values:
            raise FormatError(f"{path}: the sums and counts of {name} do not fit together")
        entries[name] = _entry(tensor.data.view("<f4").copy(), counts.data.view("<f4").copy(), name, path)
    n_chunks, chunk_len = (g.kv.get(f"imatrix.{key}", 0) for key in ("chunk_count", "chunk_size"))
    datasets = g.kv.get("imatrix.datasets", ())
    if not isinstance(n_chunks, int) or not isinstance(chunk_len, int) or isinstance(datasets, (str, int, float)):
        raise FormatError(f"{path}: its imatrix.* keys have the wrong types")
    return Imatrix(entries, tuple(map(str, datasets)), n_chunks, chunk_len or CHUNK, path)


def _write_gguf(path: str | os.PathLike[str], imatrix: Imatrix) -> None:
    tensors = []
    for name, entry in sorted(imatrix.entries.items()):
        n_mat = len(entry.counts)
        tensors.append(NewTensor.of(name + _SUMS, entry.sums.reshape(n_mat, -1)))
        tensors.append(NewTensor.of(name + _COUNTS, entry.counts.reshape(n_mat, 1)))
    kv = {
        "general.type": "imatrix",
        "imatrix.datasets": list(imatrix.datasets or ("unknown",)),
        "imatrix.chunk_count": imatrix.n_chunks,
        "imatrix.chunk_size": imatrix.chunk_len,
    }
    write_gguf(path, kv, tensors)


def _entry(sums: F32, counts: F32, name: str, path: str) -> Entry:
    for what, values in (("a sum", sums), ("a count", counts)):
        if not (np.isfinite(values).all() and values.min() >= 0):
            raise FormatError(f"{path}: {what} of {name} is negative or not finite")
    return Entry(sums, counts)
