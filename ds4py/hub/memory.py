"""Will it fit? Memory of this machine, and what a model is expected to need at its peak.

The estimate is the weights that stay in memory, plus keys and values at the given context, plus work buffers. Where the geometry
of a model is not known before its file is here, keys and values are taken as a tenth of the file, and the sentence says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ds4py.hub.targets import Family, Target

WORK_BYTES = 300_000_000  # activations, compiled kernels, Python
SYSTEM_BYTES = 2_000_000_000  # what the rest of the machine keeps
UNKNOWN_KV_SHARE = 0.1


@dataclass(frozen=True)
class Estimate:
    """Bytes at the peak; `known` tells whether `kv` follows from the model's geometry or is the general share."""

    weights: int
    kv: int
    known: bool

    @property
    def peak(self) -> int:
        return self.weights + self.kv + WORK_BYTES

    def words(self, n_ctx: int) -> str:
        how = f"keys and values at a context of {n_ctx}" if self.known else "a tenth of that for keys and values (estimated)"
        return f"{gb(self.peak)} of memory at the peak: {gb(self.weights)} of weights + {gb(self.kv)}: {how}"


def estimate(size: int, n_ctx: int, family: Family | None, on_disk: int = 0) -> Estimate:
    """The peak for a file of `size` bytes of which `on_disk` are never resident."""
    weights = max(0, size - on_disk)
    kv = family.kv_bytes(n_ctx) if family is not None else round(weights * UNKNOWN_KV_SHARE)
    return Estimate(weights, kv, family is not None)


def estimate_target(target: Target, n_ctx: int, size: int | None = None) -> Estimate | None:
    """The peak of a target, None if it is no model or no size is known."""
    total = size or target.size
    return estimate(total, n_ctx, target.family, target.on_disk) if target.model and total else None


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or less where a container limits it. 0 if unknown."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return total


def fits(needed: Estimate, memory: int) -> bool:
    """Whether the estimate leaves the system its share. An unknown memory (0) holds nothing back."""
    return memory == 0 or needed.peak <= memory - SYSTEM_BYTES


def gb(size: int) -> str:
    """Bytes for people: "81.0 GB", "98 MB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size} bytes"
