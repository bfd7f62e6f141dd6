"""A model folder as Hugging Face lays it out: config.json and one or many safetensors files, checked before anything is written.

The invariant: the list of tensors is complete or there is an error. With an index every tensor it names must be in the shard it
names; without one the shards must say `i-of-n` and all n must be there. Weight files that the index does not know are never
passed over in silence. Scales of FP8 and FP4 weights belong to their weight: they are not tensors of their own here, and an FP4
weight, whose bytes hold two values, has the shape of its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.convert.floats import E8M0, F32, check_scales, rows, scale_table, scaled
from ds4py.convert.packed import check_packed, is_packed, packed_blocks
from ds4py.convert.safetensors import Entry, parse_object, read_header
from ds4py.errors import FormatError, ResourceError, UnsupportedError, UsageError

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*?)-?(\d{1,6})-of-(\d{1,6})\.safetensors")
# What follows `weight` in the names of scales: DeepSeek V3's and Qwen's, compressed-tensors', and V4's, which is in its place.
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_SHOWN = 5
MAX_SHARDS = 10_000


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one folder. `block`: rows and columns that share a scale of an FP8 matrix."""

    folder: Path
    entries: Mapping[str, Entry]  # without scales
    scales: Mapping[str, Entry]  # weight name -> its scales
    block: tuple[int, int]
    dropped: tuple[str, ...] = ()  # files and tensors that were asked to be left out

    def is_packed(self, name: str) -> bool:
        """Whether a tensor is FP4, two values in a byte."""
        return name in self.scales and is_packed(self.entries[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor's values, rows first."""
        shape = self.entries[name].shape
        return (*shape[:-1], 2 * shape[-1]) if self.is_packed(name) else shape

    def is_exact_in_bf16(self, name: str) -> bool:
        """Whether an FP8 tensor's values are bfloat16 numbers: four bits of them, if the scales are powers of two."""
        return self.scales[name].dtype in E8M0

    def blocks(self, name: str, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Rows first..last of an FP4 tensor as GGUF's MXFP4 blocks, bit for bit the same values."""
        return packed_blocks(self.entries[name], self.scales[name], first, last)

    def read(self, name: str, first: int, last: int) -> F32:
        """Rows first..last of a tensor as float32, block scales applied. Not for FP4 tensors."""
        entry = self.entries[name]
        values = rows(entry, first, last)
        if name not in self.scales:
            return values
        scales = self.scales[name]
        table = scale_table(scales)
        if scales.shape == () or table.size == 1:
            return values * np.float32(table.reshape(-1)[0])
        return scaled(values, first, table, self.block)


def open_checkpoint(folder: Path, block: tuple[int, int] = (128, 128), drop: Sequence[str] = ()) -> Checkpoint:
    """Find and check the weight files of `folder`. `drop`: patterns of tensor and file names to leave out.
    Raises FormatError (missing or contradicting files), UnsupportedError (weights that are not safetensors)."""
    tensors: dict[str, Entry] = {}
    dropped = [path.name for path in sorted(folder.glob("*.safetensors")) if matches(path.name, drop)]
    for path in _files(folder, drop):
        for name, entry in read_header(path).items():
            if name in tensors:
                raise FormatError(f"{path}: tensor {name!r:.200} is also in {tensors[name].path.name}")
            tensors[name] = entry
    dropped += [name for name in tensors if matches(name, drop)]
    idle = [pattern for pattern in drop if not any(fnmatchcase(name, pattern) for name in dropped)]
    if idle:
        raise UsageError(f"--drop {idle[0]} matches no tensor and no weight file of {folder}")
    tensors = {name: entry for name, entry in tensors.items() if not matches(name, drop)}
    return Checkpoint(folder, tensors, _take_scales(folder, tensors, block), block, tuple(dropped))


def _take_scales(folder: Path, tensors: dict[str, Entry], block: tuple[int, int]) -> dict[str, Entry]:
    """The scales, taken out of `tensors`, by the name of their weight. FormatError for scales and weights that do not fit."""
    named = {name: weight for name in tensors if (weight := _scaled_weight(name)) is not None}
    of_weight = {name: weight for name, weight in named.items() if weight in tensors or not name.endswith(".scale")}
    orphans = [name for name, weight in of_weight.items() if weight not in tensors]
    if orphans:
        raise FormatError(f"{folder}: {listed(orphans)} are scales of weights that are not there")
    found = {weight: tensors.pop(name) for name, weight in of_weight.items()}
    for weight, entry in found.items():
        if is_packed(tensors[weight]):
            check_packed(tensors[weight], entry)
        elif entry.shape != () and prod(entry.shape) != 1:
            check_scales(tensors[weight], entry, block)
    bare = [name for name, entry in tensors.items() if entry.dtype == "F8_E4M3" and name not in found]
    if bare:
        raise FormatError(f"{folder}: {listed(bare)} are FP8 without the scales that give them their size")
    return found


def _scaled_weight(name: str) -> str | None:
    """The name of the weight that a tensor of this name scales, if it is one of scales."""
    head, dot, last = name.rpartition(".")
    return f"{head}{dot}weight" if last in _SCALES else None


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def listed(names: Sequence[str]) -> str:
    """At most five names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:120] for name in names[:_SHOWN]) + more


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of the folder; ResourceError if it cannot be read, FormatError if it is none."""
    try:
        return parse_object(path.read_bytes(), path, "the file")
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _files(folder: Path, drop: Sequence[str]) -> list[Path]:
    """The weight files, each exactly once, all there."""
    there = sorted(path for path in folder.glob("*.safetensors") if not matches(path.name, drop))
    index = folder / INDEX
    if index.exists():
        return _indexed(folder, _weight_map(index), there)
    if not there:
        other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if other:
            raise UnsupportedError(
                f"{folder}: the weights are pickles ({listed(other)}), which can run code when they are read; "
                "save them as safetensors"
            )
        raise FormatError(f"{folder}: there is no *.safetensors file here")
    if [path.name for path in there] == ["model.safetensors"] or (len(there) == 1 and not _SHARD.fullmatch(there[0].name)):
        return there
    return _numbered(folder, there)


def _weight_map(index: Path) -> dict[str, str]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise FormatError(f"{index}: it has no weight_map")
    for name, file in table.items():
        if not isinstance(file, str) or file != Path(file).name or not file.endswith(".safetensors"):
            raise FormatError(f"{index}: tensor {name!r:.100} is said to be in {file!r:.100}, which is no file of this folder")
    return table


def _indexed(folder: Path, where: Mapping[str, str], there: Sequence[Path]) -> list[Path]:
    """The files that an index names; every tensor must be in the file that it is said to be in."""
    by_file: dict[str, list[str]] = {}
    for name, file in where.items():
        by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        if not (folder / file).is_file():
            raise FormatError(f"{folder}: the shard {file} is missing; it holds {listed(names)}")
        lost = sorted(set(names) - read_header(folder / file).keys())
        if lost:
            raise FormatError(f"{folder / file}: the index says that it holds {listed(lost)}, and it does not")
    extra = [path.name for path in there if path.name not in by_file]
    if extra:
        raise FormatError(f"{folder}: {listed(extra)} is not in the index; leave it out with --drop {extra[0]}, or move it away")
    return [folder / file for file in sorted(by_file)]


def _numbered(folder: Path, there: Sequence[Path]) -> list[Path]:
    """Without an index: all of `i-of-n`, and nothing else."""
    found = [(path, _SHARD.fullmatch(path.name)) for path in there]
    odd = [path.name for path, match in found if match is None]
    if odd:
        raise FormatError(f"{folder}: there is no {INDEX}, and {listed(odd)} does not say which part it is")
    parts = [(match[1], int(match[2]), int(match[3]), path) for path, match in found if match is not None]
    stem, _, n, _ = parts[0]
    if any((part[0], part[2]) != (stem, n) for part in parts) or n > MAX_SHARDS:
        names = listed([path.name for path in there])
        raise FormatError(f"{folder}: there is no {INDEX}, and the weight files belong to different sets: {names}")
    missing = list(_absent({part[1] for part in parts}, n))
    if missing or len(parts) != n:
        raise FormatError(
            f"{folder}: there is no {INDEX}, and of {n} shards number {', '.join(map(str, missing[:_SHOWN])) or '?'} is missing"
        )
    return [path for _, _, _, path in parts]


def _absent(numbers: set[int], n: int) -> Iterator[int]:
    return (i for i in range(1, n + 1) if i not in numbers)
