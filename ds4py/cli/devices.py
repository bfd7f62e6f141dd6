"""--list-devices: what a model can compute on here."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path


def device_lines() -> Iterator[str]:
    """llama.cpp's heading, then a line for each device; the CPU is the only one."""
    from ds4py.kernels.cpu.executor import physical_cores
    from ds4py.kernels.cpu.target import host_paths

    yield "Available devices:"
    yield f"  cpu: {_processor()}, {physical_cores()} cores for this process, instructions {', '.join(host_paths())}"


def _processor() -> str:
    """The processor's own name, or its architecture where that is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
