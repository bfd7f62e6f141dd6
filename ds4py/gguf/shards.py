"""Which files make up a model: shard names, folders, and the checks that the parts belong together.

The idea: whatever a user points at - the file, any of its shards, the folder - leads to one model or to a sentence that says what
to point at instead; nothing is guessed between candidates. Shard names follow `NAME-00002-of-00003.gguf`; the counts in the
metadata are believed, the name only tells where the siblings lie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ds4py.errors import FormatError, ResourceError

_SHARD = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class ShardName:
    """The parts of NAME-00002-of-00003.gguf; `no` counts from 1."""

    folder: Path
    stem: str
    no: int
    count: int
    suffix: str

    def sibling(self, no: int) -> Path:
        return self.folder / f"{self.stem}-{no:05d}-of-{self.count:05d}{self.suffix}"


def shard_name(path: Path) -> ShardName | None:
    """The parts of a shard's file name, None if it is not one."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return None
    no, count = int(match["no"]), int(match["count"])
    if not 1 <= no <= count:
        return None
    return ShardName(path.parent, match["stem"], no, count, path.suffix)


def first_shard(path: Path, split_count: int) -> Path:
    """The first shard of the set of `split_count` files that `path` belongs to. FormatError if its name cannot tell."""
    name = shard_name(path) or shard_name(path.resolve())  # a link may be called anything
    if name is None:
        raise FormatError(
            f"{path}: this is one of {split_count} parts, but its name is not like NAME-00001-of-{split_count:05d}.gguf, so the "
            "others cannot be found: give it its original name back"
        )
    if name.count != split_count:
        raise FormatError(f"{path}: its name speaks of {name.count} parts, its metadata (split.count) of {split_count}")
    return name.sibling(1)


def model_in_folder(folder: Path) -> Path:
    """The only model of a folder, its first shard if it is split. FormatError listing the candidates otherwise."""
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf" and not p.is_dir())
    except OSError as error:
        raise ResourceError(f"{folder}: cannot list the folder: {error.strerror}") from error
    candidates: dict[tuple[str, int], Path] = {}
    for path in files:
        name = shard_name(path)
        candidates.setdefault((name.stem, name.count) if name else (path.name, 0), path)
    # A vision encoder beside its model is never the model.
    models = [p for p in candidates.values() if not p.name.lower().startswith("mmproj")]
    if not models:
        raise FormatError(f"{folder}: there is no .gguf file in this folder")
    if len(models) > 1:
        names = ", ".join(p.name for p in models[:10]) + (", ..." if len(models) > 10 else "")
        raise FormatError(f"{folder}: {len(models)} models are in this folder, so name one of them: {names}")
    return models[0]
