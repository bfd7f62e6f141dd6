"""--ssd-streaming and its sisters: how many experts of a mixture stay in memory.

Nothing asked: a model whose experts fit is opened as always, each expert staying once it was taken. One that does not fit is
streamed without being asked, with a line that says so: results are the same, and the alternative is a process that the system
ends. Room for experts, where no size is given, is what memory is free after the other weights, less what a session and the
system need.
"""

from __future__ import annotations

import re
from pathlib import Path

from ds4py.cli.parsing import Values
from ds4py.cli.terminal import Terminal
from ds4py.engine import Engine
from ds4py.errors import UsageError
from ds4py.gguf import GgufFile
from ds4py.kernels.streaming import Streaming

_FLAGS = ("cache-experts", "full-layers", "preload-experts", "cold")
_SIZE = re.compile(r"(\d{1,9})|(\d{1,6}(?:\.\d{1,6})?)G(?:i?B)?", re.IGNORECASE)
_RESERVE = 2 << 30  # bytes for caches, activations, the program and the system
_GROWTH = 1.5  # the most that packing makes of a file's experts (Q2_K: 4 bits for 2.63)


def streaming_of(values: Values, g: GgufFile, log: Terminal) -> Streaming | None:
    """What the options ask for, or what the machine needs; None for neither, and for a model without experts.

    UsageError for a size that is no number, or with the reference backend."""
    asked = values.flag("ssd_streaming") or any(values.was_given(f"--ssd-streaming-{name}") for name in _FLAGS)
    experts, others = expert_bytes(g)
    compiled = values.flag("cpu") or values.text("backend") != "reference"
    if asked and not compiled:
        raise UsageError("--ssd-streaming is for the compiled kernels: --backend reference reads experts from the file as it is")
    if not experts:
        if asked:
            log.say(f"ds4: --ssd-streaming changes nothing: {g.path.name} has no experts")
        return None
    free = free_bytes()
    room = max(free - others - _RESERVE, round(_GROWTH * experts / _most(g)))  # at least an expert for each layer
    if not asked:
        if not compiled or not free or experts * _GROWTH + others + _RESERVE <= free:
            return None
        log.say(f"ds4: experts of {experts / 1e9:.1f} GB do not fit in the {free / 1e9:.1f} GB that are free: --ssd-streaming")
    n_experts, n_bytes = _size(values)
    if n_experts is None and n_bytes is None:
        n_bytes = room if free else None
    elif free:
        n_experts, n_bytes = _within(room, n_experts, n_bytes, _count(g), round(_GROWTH * experts), log)
    preload = 0 if values.flag("ssd_streaming_cold") else values.integer("ssd_streaming_preload_experts")
    return Streaming(n_experts, n_bytes, values.integer("ssd_streaming_full_layers"), preload)


def preloaded(engine: Engine, log: Terminal) -> None:
    """Read what is to be read before the first token, and say what the cache of experts is. Model and drafts are open."""
    counts = engine.preload()
    if counts is not None:
        ready = f", {counts.preloaded:,} read" if counts.preloaded else ""
        log.say(f"ds4: experts: {counts.room()}{ready}")


def expert_bytes(g: GgufFile) -> tuple[int, int]:
    """(bytes of routed experts, of everything else)."""
    experts = sum(tensor.nbytes for name, tensor in g.tensors.items() if "_exps." in name)
    return experts, sum(tensor.nbytes for tensor in g.tensors.values()) - experts


def free_bytes() -> int:
    """Memory that can be had without taking it from others: the system's estimate, or less where a container limits it; 0 if
    unknown."""
    from ds4py.hub.memory import memory_bytes

    try:
        line = next(row for row in Path("/proc/meminfo").read_text().splitlines() if row.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0
    return min(int(line.split()[1]) << 10, memory_bytes())


def _within(
    room: int, n_experts: int | None, n_bytes: int | None, n_all: int, all_bytes: int, log: Terminal
) -> tuple[int | None, int | None]:
    """What is asked, or less with a note if memory does not hold it. The model has n_all experts, which take all_bytes at most; a
    draft may have more, for which there is room if all of the model's fit."""
    if n_bytes is not None and n_bytes > room:
        log.say(f"ds4: {n_bytes / 1e9:.1f} GB for experts are more than is free; using {room / 1e9:.1f} GB")
        return None, room
    if n_experts is not None and min(n_experts, n_all) * all_bytes > room * n_all:
        fitting = max(1, room * n_all // all_bytes)
        log.say(f"ds4: {n_experts:,} experts are more than free memory holds; using {fitting:,}")
        return fitting, None
    return n_experts, n_bytes


def _most(g: GgufFile) -> int:
    """Experts of the layer that has most."""
    return max((tensor.shape[2] for name, tensor in g.tensors.items() if "_exps." in name and len(tensor.shape) == 3), default=1)


def _count(g: GgufFile) -> int:
    """Experts of all layers."""
    return sum(tensor.shape[2] for name, tensor in g.tensors.items() if "_down_exps." in name and len(tensor.shape) == 3) or 1


def _size(values: Values) -> tuple[int | None, int | None]:
    """--ssd-streaming-cache-experts as (experts, bytes)."""
    if not values.has("ssd_streaming_cache_experts"):
        return None, None
    text = values.text("ssd_streaming_cache_experts")
    match = _SIZE.fullmatch(text)
    if match is None or not any(digit in text for digit in "123456789"):
        raise UsageError(f"--ssd-streaming-cache-experts takes a number of experts or of GiB (2000, 24GB), not {text!r}")
    return (int(match[1]), None) if match[1] else (None, round(float(match[2]) * (1 << 30)))
