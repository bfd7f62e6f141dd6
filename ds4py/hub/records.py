"""What was checked stays checked: a hidden note beside each finished file, so that its hash is not computed at every start.

The note holds what the file is (the plan's identity, repository) and the size and modification time it had when its hash was
right. As long as the file still has both, the hash still holds; anything else means reading it again. The note also lets
`-hf REPO:QUANT` find the file without a network. Losing a note costs time, never correctness.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ds4py.hub.plan import Plan


@dataclass(frozen=True)
class Record:
    identity: str
    repo: str
    source: str  # path in the repository of its first piece
    size: int
    mtime_ns: int


def _place(path: Path) -> Path:
    return path.with_name(f".{path.name}.checked")


def remember(path: Path, plan: Plan) -> None:
    """Note that `path` is right, as it is now. A note that cannot be written is no failure."""
    with suppress(OSError):
        stat = path.stat()
        record = Record(plan.identity, plan.repo, plan.pieces[0].path, stat.st_size, stat.st_mtime_ns)
        fresh = path.with_name(f".{path.name[:200]}.{os.getpid()}.note")
        fresh.write_text(json.dumps(asdict(record)))
        os.replace(fresh, _place(path))


def recall(path: Path) -> Record | None:
    """The note of `path` if the file still is as it was noted."""
    with suppress(OSError, ValueError, TypeError):
        record = Record(**json.loads(_place(path).read_text()))
        stat = path.stat()
        if (record.size, record.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            return record
    return None


def recorded(folder: Path) -> Iterator[tuple[Path, Record]]:
    """Every file of a folder that has a valid note, in order of names."""
    with suppress(OSError):
        for note in sorted(folder.glob(".*.checked")):
            path = folder / note.name[1 : -len(".checked")]
            record = recall(path)
            if record is not None:
                yield path, record
