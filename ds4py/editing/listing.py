"""Everything a GGUF file says about itself: every key with its stored type, every tensor with its place; for any architecture.

The idea: facts only, in file order, as plain data (`describe`), from which both the text and the JSON are printed. Nothing is
interpreted, so a file of an architecture that nobody here has heard of is listed as completely as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ds4py.gguf import GgufFile, Value

SHOWN_ITEMS = 6  # of an array
SHOWN_CHARS = 96  # of a text


def describe(g: GgufFile, all_items: bool = False) -> dict[str, Any]:
    """JSON-ready. Arrays are cut to their first items, and say so, unless `all_items`; numbers that JSON lacks become text."""
    keys = [_key(name, value, all_items) for name, value in g.kv.typed.items()]
    tensors = [
        {
            "name": tensor.name,
            "type": tensor.type.name,
            "shape": list(tensor.shape),
            "file": tensor.shard,
            "offset": tensor.start,
            "bytes": tensor.nbytes,
        }
        for tensor in g.tensors.values()
    ]
    return {
        "files": [str(path) for path in g.shards],
        "version": g.version,
        "alignment": g.alignment,
        "bytes": g.nbytes,
        "notes": list(g.notes),
        "metadata": keys,
        "tensors": tensors,
        "types": _totals(tensors),
    }


def lines(found: dict[str, Any], whole: bool = False) -> Iterator[str]:
    """`describe` as text; long values cut unless `whole`."""
    for number, path in enumerate(found["files"]):
        yield f"file {number}: {path}"
    counts = f"{len(found['metadata']):,} keys, {len(found['tensors']):,} tensors"
    yield f"GGUF version {found['version']}, alignment {found['alignment']}, {found['bytes']:,} bytes, {counts}"
    yield from (f"note: {note}" for note in found["notes"])
    yield "\nMetadata"
    width = max((len(item["key"]) for item in found["metadata"]), default=0)
    for item in found["metadata"]:
        yield f"  {item['key']:<{width}}  {item['type']:<24}  {_shown(item, whole)}"
    yield "\nTensors (shape: row length first; offset: in its file)"
    width = max((len(item["name"]) for item in found["tensors"]), default=0)
    for item in found["tensors"]:
        shape = " x ".join(map(str, item["shape"]))
        where = f"{item['offset']:>15,}" + (f" of file {item['file']}" if len(found["files"]) > 1 else "")
        yield f"  {item['name']:<{width}}  {item['type']:<8}  {shape:>24}  {item['bytes']:>15,}  {where}"
    yield "\nTypes"
    for item in found["types"]:
        yield f"  {item['type']:<8}  {item['tensors']:>6,} tensors  {item['values']:>18,} values  {item['bytes']:>18,} bytes"


def _key(name: str, value: Value, all_items: bool) -> dict[str, Any]:
    plain = value.plain()
    if value.element is None:
        return {"key": name, "type": value.type_name(), "value": _json(plain)}
    n = len(plain)
    items = plain if all_items else plain[:SHOWN_ITEMS]
    shown = {"key": name, "type": value.type_name(), "length": n, "value": [_json(item) for item in items]}
    return shown if len(items) == n else shown | {"cut": True}


def _json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json(item) for item in value]
    return value


def _totals(tensors: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per type, by bytes."""
    totals: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        row = totals.setdefault(tensor["type"], {"type": tensor["type"], "tensors": 0, "values": 0, "bytes": 0})
        row["tensors"] += 1
        row["values"] += math.prod(tensor["shape"])
        row["bytes"] += tensor["bytes"]
    return sorted(totals.values(), key=lambda row: -row["bytes"])


def _shown(item: dict[str, Any], whole: bool) -> str:
    value = item["value"]
    if not isinstance(value, list):
        return _short(value, whole)
    return "[" + ", ".join(_short(part, whole) for part in value) + (", ...]" if item.get("cut") else "]")


def _short(value: Any, whole: bool) -> str:
    if not isinstance(value, str):
        return str(value)
    text = repr(value)
    return text if whole or len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(value):,} characters)"
