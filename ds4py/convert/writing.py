"""Carrying out a plan: one tensor at a time, a few rows at a time, into a file that appears when it is complete.

The memory needed is that of one piece, about 50 MB, whatever the size of the model: rows are read, changed, encoded and written
before the next ones are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from ds4py.convert.plan import Item, Plan, read_rows
from ds4py.gguf import GgmlType, NewTensor, write_gguf
from ds4py.quants import encode

_PIECE_VALUES = 1 << 21
Progress = Callable[[int, int, str], None]  # bytes written, bytes in all, the tensor at hand


def write_plan(plan: Plan, path: str | os.PathLike[str], progress: Progress = lambda done, total, name: None) -> None:
    """Write the file. Raises FormatError for weights that are no numbers, ResourceError for disk trouble; no file is left then,
    nor when `progress` raises."""
    done = 0

    def pieces(item: Item) -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal done
        for first, last in row_ranges(item):
            progress(done, plan.nbytes, item.name)
            stored = _stored(plan, item, first, last)
            done += len(stored)
            yield stored

    tensors = [NewTensor(item.name, item.shape[::-1], item.type, partial(pieces, item)) for item in plan.items]
    write_gguf(path, plan.kv, tensors)
    progress(done, plan.nbytes, "")


def _stored(plan: Plan, item: Item, first: int, last: int) -> npt.NDArray[np.uint8]:
    """Rows first..last as bytes of the file. Ids stay whole numbers."""
    if item.type is GgmlType.I64:
        assert item.values is not None
        return np.ascontiguousarray(item.values[first:last], "<i8").view(np.uint8)
    values = read_rows(plan, item, first, last)
    return encode(item.type, np.ascontiguousarray(values).reshape(-1, item.shape[-1]))


def row_ranges(item: Item) -> Iterator[tuple[int, int]]:
    """Half-open ranges of rows, each of whole groups, and no larger than a piece unless one group is."""
    change = item.wanted.change if item.wanted is not None else None
    group = change.group if change is not None else 1
    n_rows = item.shape[0]
    if n_rows % group:
        raise ValueError(f"{item.name}: {n_rows} rows are no whole groups of {group}")
    row_len = prod(item.shape[1:])
    step = max(group, _PIECE_VALUES // row_len // group * group)
    return ((first, min(first + step, n_rows)) for first in range(0, n_rows, step))
