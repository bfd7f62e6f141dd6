"""The bytes of one tensor of a plan, a few rows at a time: read from the checkpoint, changed, and in the form they are stored in.

Four ways lead there. Floats are read as float32, changed and encoded. FP4 weights that stay FP4 only have their nibbles moved.
FP4 weights that become something else are decoded from that form. Tables of ids are whole numbers. A stack of experts
is one after another, so rows are counted within a part, which is what one tensor of the checkpoint becomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import numpy.typing as npt

from ds4py.convert.floats import F32
from ds4py.convert.plan import Item, Plan
from ds4py.convert.safetensors import ITEM_BYTES, read_bytes
from ds4py.errors import FormatError
from ds4py.gguf import GgmlType
from ds4py.quants import decode, encode

U8 = npt.NDArray[np.uint8]
PIECE_VALUES = 1 << 21


def stored_pieces(plan: Plan, item: Item) -> Iterator[U8]:
    """All bytes of a tensor in order."""
    for part in range(max(1, len(item.sources))):
        for first, last in row_ranges(item):
            yield stored_rows(plan, item, part, first, last)


def row_ranges(item: Item) -> Iterator[tuple[int, int]]:
    """Half-open ranges of a part's rows, each of whole groups, and no larger than a piece unless one group is."""
    group = group_of(item)
    n_rows, *rest = item.part_shape
    if n_rows % group:
        raise ValueError(f"{item.name}: {n_rows} rows are no whole groups of {group}")
    step = max(group, PIECE_VALUES // prod(rest) // group * group)
    return ((first, min(first + step, n_rows)) for first in range(0, n_rows, step))


def group_of(item: Item) -> int:
    """Rows that can only be made together."""
    change = item.wanted.change if item.wanted is not None else None
    return change.group if change is not None else 1


def stored_rows(plan: Plan, item: Item, part: int, first: int, last: int) -> U8:
    """Rows first..last of a part, which lie on the bounds of its change's groups. FormatError for values that are no numbers and
    for those that the type cannot hold."""
    if item.values is not None and item.type is GgmlType.I64:
        return np.ascontiguousarray(item.values[first:last], "<i8").view(np.uint8)
    if item.values is None and plan.checkpoint is not None:
        if item.type is GgmlType.I32:
            return _ids(plan, item.sources[part], first, last)
        if item.type is GgmlType.MXFP4 and plan.checkpoint.is_packed(item.sources[part]):
            return plan.checkpoint.blocks(item.sources[part], first, last)
    values = read_rows(plan, item, part, first, last)
    return encode(item.type, np.ascontiguousarray(values).reshape(-1, values.shape[-1]))


def read_rows(plan: Plan, item: Item, part: int, first: int, last: int) -> F32:
    """The same rows as float32 [last - first, ...], before they are encoded."""
    if item.values is not None:
        return item.values[first:last].astype(np.float32, copy=False)
    assert plan.checkpoint is not None and item.wanted is not None
    source = item.sources[part]
    if plan.checkpoint.is_packed(source):
        width = item.part_shape[-1]
        values = decode(GgmlType.MXFP4, plan.checkpoint.blocks(source, first, last), (last - first) * width).reshape(-1, width)
    else:
        values = plan.checkpoint.read(source, first, last)
    if item.wanted.change is not None:
        values = item.wanted.change.apply(values)
    largest = np.abs(values).max()
    if not np.isfinite(largest):
        raise FormatError(f"{plan.folder}: tensor {source} has NaN or infinite values between rows {first} and {last}")
    if item.type is GgmlType.F16 and largest > np.finfo(np.float16).max:
        raise FormatError(
            f"{plan.folder}: tensor {source} has values up to {largest:.3g}, more than F16 holds; use --outtype bf16"
        )
    return values


def _ids(plan: Plan, source: str, first: int, last: int) -> U8:
    """Rows of a table of ids as int32. FormatError for a number that 32 bits do not hold."""
    assert plan.checkpoint is not None
    entry = plan.checkpoint.entries[source]
    raw = read_bytes(entry, first * entry.row_bytes, (last - first) * entry.row_bytes)
    ids = np.frombuffer(raw, f"<i{ITEM_BYTES[entry.dtype]}")
    if not -(2**31) <= ids.min() <= ids.max() < 2**31:
        raise FormatError(f"{entry.path}: tensor {source} has a number that does not fit 32 bits")
    return ids.astype("<i4").view(np.uint8)
