"""A checkpoint folder as if it were the GGUF file that an exact conversion of it would make.

The idea: whatever reads a model a piece at a time (the quantiser above all) need not know that there is no such file yet; what it
asks for is read from the folder and converted on the spot. So a large checkpoint is quantised in one run and without the disk
space of a file in between. Nothing is kept: bytes that are asked for twice are made twice.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from ds4py.convert.plan import Item, Options, Plan
from ds4py.convert.planning import make_plan, make_support_plan
from ds4py.convert.stored import U8, group_of, stored_rows
from ds4py.gguf import GgufFile, Metadata, Tensor, Value
from ds4py.gguf.encode import typed

_ALIGNMENT = 32


def as_gguf(plan: Plan) -> GgufFile:
    """The file that `write_plan` would make of `plan`."""
    values: dict[str, Value] = {key: typed(value) for key, value in plan.kv.items()}
    tensors = {
        item.name: Tensor(item.name, item.shape[::-1], item.type, item.nbytes, 0, _Made(plan, item)) for item in plan.items
    }
    files = sorted({entry.path for entry in plan.checkpoint.entries.values()}) if plan.checkpoint is not None else []
    return GgufFile(
        plan.folder, 3, Metadata(values), tensors, _ALIGNMENT, tuple(files), plan.nbytes, tuple(note for note in plan.notes)
    )


def open_folder(folder: Path, options: Options, support: bool = False) -> GgufFile:
    """The model in a checkpoint folder, or what drafts for it. Raises what making a plan raises."""
    return as_gguf(make_support_plan(folder, options) if support else make_plan(folder, options))


class _Made:
    """The `gguf.Storage` of one tensor."""

    def __init__(self, plan: Plan, item: Item) -> None:
        self._plan, self._item = plan, item
        self._n_rows = item.part_shape[0]
        self._row_bytes = item.type.nbytes(prod(item.part_shape)) // self._n_rows

    def read(self, start: int, n: int) -> U8:
        """Rows are made whole, and in whole groups; what was not asked for is cut off."""
        group = group_of(self._item)
        part_bytes = self._n_rows * self._row_bytes
        pieces: list[U8] = []
        while n > 0:
            part, at = divmod(start, part_bytes)
            stop = min(at + n, part_bytes)
            first = at // self._row_bytes // group * group
            last = min(-(-stop // (self._row_bytes * group)) * group, self._n_rows)
            made = stored_rows(self._plan, self._item, part, first, last)
            pieces.append(made[at - first * self._row_bytes : stop - first * self._row_bytes])
            start, n = start + stop - at, n - (stop - at)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def release(self, start: int, stop: int) -> None:
        """Nothing was kept."""
