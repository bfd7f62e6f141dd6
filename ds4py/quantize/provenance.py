"""The metadata of a quantised file: that of its source, true labels, and where it comes from.

The keys under `ds4.quantize.` say what was done, so that a file found years later explains itself; those under
`quantize.imatrix.` are llama.cpp's. Nothing about the machine is written: names without folders, no dates, so the same input
makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds4py import __version__
from ds4py.errors import UsageError
from ds4py.gguf import GgufFile, GgufType, Value
from ds4py.quantize.imatrix import Imatrix
from ds4py.quantize.plan import Plan

_QUANTIZATION_VERSION = 2  # of the block formats, as llama.cpp counts
_OVERRIDES = {
    "int": (GgufType.INT32, int), "float": (GgufType.FLOAT32, float), "bool": (GgufType.BOOL, None), "str": (GgufType.STRING, str)
}  # fmt: skip


def metadata(g: GgufFile, plan: Plan, imatrix: Imatrix | None, overrides: Mapping[str, Value]) -> dict[str, Any]:
    """Keys in the source's order, changed and new ones after them."""
    old = ("quantize.imatrix.", "ds4.quantize.")
    kv: dict[str, Any] = {key: value for key, value in g.kv.typed.items() if not key.startswith(old)}
    options = plan.options
    new: dict[str, Any] = {
        "general.quantization_version": Value(GgufType.UINT32, _QUANTIZATION_VERSION),
        "ds4.quantize.version": __version__,
        "ds4.quantize.source": g.path.name,
        "ds4.quantize.source_bytes": Value(GgufType.UINT64, g.nbytes),
        "ds4.quantize.recipe": options.recipe.name + (" (pure)" if options.pure else ""),
        "ds4.quantize.fallbacks": Value(GgufType.UINT32, len(plan.fallbacks)),
    }
    if options.rules:
        new["ds4.quantize.rules"] = [str(rule) for rule in options.rules]
    if imatrix is not None:
        new["quantize.imatrix.file"] = Path(imatrix.path).name
        new["quantize.imatrix.dataset"] = ", ".join(imatrix.datasets)
        new["quantize.imatrix.entries_count"] = Value(GgufType.INT32, len(imatrix.entries))
        new["quantize.imatrix.chunks_count"] = Value(GgufType.INT32, imatrix.n_chunks)
    kv.pop("general.file_type", None)
    if plan.file_type is not None:
        new["general.file_type"] = Value(GgufType.UINT32, plan.file_type)
    return kv | new | dict(overrides)


def override(text: str) -> tuple[str, Value]:
    """`KEY=TYPE:VALUE` of --override-kv, TYPE one of int, float, bool, str. UsageError for anything else."""
    key, _, typed = text.partition("=")
    name, colon, value = typed.partition(":")
    kind, convert = _OVERRIDES.get(name, (None, None))
    if not key or not colon or kind is None:
        raise UsageError(f"--override-kv must be KEY=TYPE:VALUE with TYPE int, float, bool or str, not {text!r}")
    if key.startswith("split.") or key in ("general.alignment", "general.file_type", "general.quantization_version"):
        raise UsageError(f"--override-kv {key}: this key follows from what is written and cannot be chosen")
    try:
        data = {"true": True, "false": False}[value] if convert is None else convert(value)
    except (ValueError, KeyError):
        raise UsageError(f"--override-kv {key}: {value!r} is no {name}") from None
    return key, Value(kind, data)
