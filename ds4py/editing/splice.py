"""Take the tensors of some layers from another file of the same model: a mix of precisions without a second loss.

The idea: the base gives metadata, order and everything not named; the donor gives the chosen tensors as they are stored. Both
must be the same network, so architecture, layer count and the shapes of what is exchanged are compared, and a tensor that only
one of them has is an error. What comes out is each file's own bytes, which is how the result is tested.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4py.editing.shards import without_shards
from ds4py.editing.together import OutFile, copied, write_together
from ds4py.errors import FormatError, UsageError
from ds4py.gguf import GgufFile, Tensor

ROUTED = r"_exps(\.|$)"  # the routed experts, which is what mixed files exchange
_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.(.+)$")


@dataclass(frozen=True, eq=False)
class Exchange:
    """A tensor of the base and the donor's in its place."""

    old: Tensor
    new: Tensor


def parse_layers(text: str) -> frozenset[int]:
    """Layer numbers of "37-42" or "0,3,37-42". UsageError for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"layers are numbers and ranges as in 0,3,37-42, not {text!r}")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def plan_splice(base: GgufFile, donor: GgufFile, layers: frozenset[int], pattern: str = ROUTED) -> list[Exchange]:
    """What changes: the tensors of `layers` whose names after `blk.N.` the regular expression is found in.

    Raises FormatError where the files are not the same network, UsageError where nothing is chosen."""
    _compare(base, donor)
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}") from None
    chosen = [tensor for tensor in base.tensors.values() if _is_chosen(tensor.name, layers, pattern)]
    missing = sorted(layers - {_layer(tensor.name) for tensor in chosen})
    if missing:
        named = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        raise UsageError(f"{base.path}: no tensor of layer(s) {named} matches {pattern!r}: choose others with --match")
    extra = [n for n in donor.tensors if _is_chosen(n, layers, pattern) and n not in base.tensors]
    if extra:
        raise FormatError(f"{donor.path}: tensor {extra[0]} is not in {base.path}: the files are not the same model")
    return [Exchange(old, _same_shape(old, donor)) for old in chosen]


def splice(base: GgufFile, donor: GgufFile, exchanges: Sequence[Exchange], out: Path) -> None:
    """Write the mix: the base's metadata and order. ResourceError for what the disk refuses; nothing is left then."""
    write_together([spliced(base, donor, exchanges, out)])


def spliced(base: GgufFile, donor: GgufFile, exchanges: Sequence[Exchange], out: Path) -> OutFile:
    """The file that `splice` writes."""
    new = {item.old.name: item.new for item in exchanges}
    kv = without_shards(base.kv.typed) | {
        "ds4.splice.base": base.path.name,
        "ds4.splice.donor": donor.path.name,
        "ds4.splice.tensors": [item.old.name for item in exchanges],
    }
    return out, kv, [copied(new.get(name, tensor)) for name, tensor in base.tensors.items()]


def _is_chosen(name: str, layers: frozenset[int], pattern: str) -> bool:
    match = _LAYER.search(name)
    return match is not None and int(match[1]) in layers and re.search(pattern, match[2]) is not None


def _layer(name: str) -> int:
    match = _LAYER.search(name)
    return int(match[1]) if match else -1


def _compare(base: GgufFile, donor: GgufFile) -> None:
    if base.architecture != donor.architecture:
        raise FormatError(f"{base.path} is {base.architecture}, {donor.path} is {donor.architecture}: not the same model")
    for key in ("block_count", "embedding_length", "expert_count"):
        ours, theirs = base.get(key), donor.get(key)
        if ours != theirs:
            raise FormatError(f"{base.path} has {key} {ours}, {donor.path} has {theirs}: not the same model")


def _same_shape(old: Tensor, donor: GgufFile) -> Tensor:
    new = donor.tensor(old.name)
    if new.shape != old.shape:
        raise FormatError(f"{donor.path}: tensor {old.name} has shape {list(new.shape)}, the base has {list(old.shape)}")
    return new
