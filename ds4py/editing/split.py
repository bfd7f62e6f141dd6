"""Split a model into shards and merge shards into one file, without touching a weight.

The idea: a split is the source's tensors cut into consecutive runs, by count or by bytes; a merge is the reader's view of all
shards written as one file. So merging what was split gives the original back, apart from the order in which a file happened to
store its bytes. A tensor is never divided: one that is larger than the limit has a shard to itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4py.editing.shards import shard_keys, shard_path, without_shards
from ds4py.editing.together import OutFile, copied, write_together
from ds4py.errors import UsageError
from ds4py.gguf import GgufFile, Tensor, gguf_size

MAX_SHARDS = 99_999  # five digits in the name
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Limit:
    """Most tensors, or most bytes of tensor data, in one shard. `first_bare`: the first shard holds metadata only."""

    tensors: int = 0
    nbytes: int = 0
    first_bare: bool = False


def parse_size(text: str) -> int:
    """Bytes of "500M" or "2G" (powers of ten). UsageError for anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if match is None or not int(match[1]):
        raise UsageError(f"a size is a whole number with M or G, as in 500M or 2G, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def plan_split(g: GgufFile, out: Path, limit: Limit) -> Sequence[OutFile]:
    """The shards that `split` would write. UsageError where one file would hold everything or the names run out."""
    groups = _groups(list(g.tensors.values()), limit)
    if limit.first_bare:
        groups.insert(0, [])
    if len(groups) < 2:
        raise UsageError(f"{g.path}: all of it fits into one shard, so there is nothing to split; choose a smaller limit")
    if len(groups) > MAX_SHARDS:
        raise UsageError(
            f"{g.path}: {len(groups):,} shards are more than names can count ({MAX_SHARDS:,}); choose a larger limit"
        )
    n, n_tensors = len(groups), len(g.tensors)
    return [
        (shard_path(out, no, n), shard_keys(g.kv.typed, no, n, n_tensors), [copied(tensor) for tensor in group])
        for no, group in enumerate(groups)
    ]


def split(g: GgufFile, out: Path, limit: Limit) -> Sequence[Path]:
    """Write the shards and return their paths. ResourceError for what the disk refuses; nothing is left then."""
    return write_together(plan_split(g, out, limit))


def merge(g: GgufFile, out: Path) -> Path:
    """Write all tensors of a split model as one file. UsageError for a model that is one file already."""
    if len(g.shards) < 2:
        raise UsageError(f"{g.path} is one file already: give the first part of a split model")
    write_together([(out, without_shards(g.kv.typed), [copied(tensor) for tensor in g.tensors.values()])])
    return out


def sizes(files: Sequence[OutFile]) -> list[tuple[Path, int, int]]:
    """(path, tensors, bytes) of files to be written."""
    return [(path, len(tensors), gguf_size(kv, tensors)) for path, kv, tensors in files]


def _groups(tensors: Sequence[Tensor], limit: Limit) -> list[list[Tensor]]:
    groups: list[list[Tensor]] = []
    n_bytes = 0
    for tensor in tensors:
        full = bool(groups) and (
            (limit.tensors and len(groups[-1]) >= limit.tensors) or (limit.nbytes and n_bytes + tensor.nbytes > limit.nbytes)
        )
        if full or not groups:
            groups.append([])
            n_bytes = 0
        groups[-1].append(tensor)
        n_bytes += tensor.nbytes
    return groups
