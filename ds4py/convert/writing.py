"""Carrying out a plan: one tensor at a time, a few rows at a time, into a file that appears when it is complete.

The memory needed is that of one piece, about 50 MB, whatever the size of the model: rows are read, changed, encoded and written
before the next ones are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from ds4py.convert.plan import Item, Plan
from ds4py.convert.stored import U8, stored_pieces
from ds4py.gguf import NewTensor, write_gguf

Progress = Callable[[int, int, str], None]  # bytes written, bytes in all, the tensor at hand


def write_plan(plan: Plan, path: str | os.PathLike[str], progress: Progress = lambda done, total, name: None) -> None:
    """Write the file. Raises FormatError for weights that are no numbers, ResourceError for disk trouble; no file is left then,
    nor when `progress` raises."""
    done = 0

    def pieces(item: Item) -> Iterator[U8]:
        nonlocal done
        progress(done, plan.nbytes, item.name)
        for piece in stored_pieces(plan, item):
            yield piece
            done += len(piece)
            progress(done, plan.nbytes, item.name)

    tensors = [NewTensor(item.name, item.shape[::-1], item.type, partial(pieces, item)) for item in plan.items]
    write_gguf(path, plan.kv, tensors)
    progress(done, plan.nbytes, "")
