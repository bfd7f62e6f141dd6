"""Names and keys of split models: NAME-00002-of-00005.gguf, and the `split.*` keys by which the parts know each other.

The invariant: only the first shard has the model's metadata; all have number, count and the total of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds4py.gguf import GgufType, Value
from ds4py.gguf.shards import shard_name

_KEYS = ("split.no", "split.count", "split.tensors.count")


def shard_path(out: Path, no: int, count: int) -> Path:
    """The name of shard `no` (from 0). `out` may be a plain name or that of any shard."""
    name = shard_name(out)
    stem = name.stem if name is not None else out.name.removesuffix(".gguf")
    return out.with_name(f"{stem}-{no + 1:05d}-of-{count:05d}.gguf")


def shard_keys(kv: Mapping[str, Any], no: int, count: int, n_tensors: int) -> dict[str, Any]:
    """The metadata of shard `no` of a model with metadata `kv`."""
    kept = without_shards(kv) if no == 0 else {key: kv[key] for key in ("general.alignment",) if key in kv}
    return kept | {
        "split.no": Value(GgufType.UINT16, no),
        "split.count": Value(GgufType.UINT16, count),
        "split.tensors.count": Value(GgufType.INT32, n_tensors),
    }


def without_shards(kv: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kv.items() if key not in _KEYS}
