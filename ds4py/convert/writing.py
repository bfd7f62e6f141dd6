"""Carrying out a plan: one tensor at a time, a few rows at a time, into a file that appears when it is complete.

The memory needed is that of one piece, about 50 MB, whatever the size of the model: rows are read, changed, encoded and written
before the next ones are read. A run that may be taken up again (`resume`) keeps what it has written (gguf/resume.py) and goes on
at the tensor it was in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ds4py.convert.plan import Item, Plan
from ds4py.convert.stored import U8, stored_pieces
from ds4py.gguf import NewTensor, is_written, write_gguf, write_resumable

Progress = Callable[[int, int, str], None]  # bytes written, bytes in all, the tensor at hand


def write_plan(
    plan: Plan,
    path: str | os.PathLike[str],
    progress: Progress = lambda done, total, name: None,
    resume: bool = False,
) -> None:
    """Write the file. Raises FormatError for weights that are no numbers, ResourceError for disk trouble; no file is left then,
    nor when `progress` raises. resume: what is done stays in that case, and is not done again."""
    starts = _starts(plan)

    def pieces(item: Item) -> Iterator[U8]:
        done = starts[item.name]
        progress(done, plan.nbytes, item.name)
        for piece in stored_pieces(plan, item):
            yield piece
            done += len(piece)
            progress(done, plan.nbytes, item.name)

    tensors = _tensors(plan, pieces)
    if resume:
        write_resumable(path, plan.kv, tensors, _identity(plan))
    else:
        write_gguf(path, plan.kv, tensors)
    progress(plan.nbytes, plan.nbytes, "")


def is_finished(plan: Plan, path: str | os.PathLike[str]) -> bool:
    """Whether an earlier run has written `path`, as far as its metadata, its list of tensors and its length tell."""
    return is_written(path, plan.kv, _tensors(plan, lambda item: iter(())))


def _tensors(plan: Plan, pieces: Callable[[Item], Iterator[U8]]) -> Sequence[NewTensor]:
    return [NewTensor(item.name, item.shape[::-1], item.type, partial(pieces, item)) for item in plan.items]


def _starts(plan: Plan) -> dict[str, int]:
    """Bytes of tensor data before each tensor."""
    starts, n = {}, 0
    for item in plan.items:
        starts[item.name] = n
        n += item.nbytes
    return starts


def _identity(plan: Plan) -> str:
    """What the weights come from, so that a run is only taken up with the same input."""
    entries = plan.checkpoint.entries.values() if plan.checkpoint is not None else ()
    paths = sorted({entry.path for entry in entries})
    return "\n".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in paths)
