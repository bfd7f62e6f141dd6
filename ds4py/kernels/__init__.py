"""Backends: the only place with several implementations of one thing. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from ds4py.errors import UnsupportedError, UsageError
from ds4py.kernels.streaming import Streaming
from ds4py.protocols import Kernels

NAMES = ("auto", "cpu", "reference")


def open_kernels(
    name: str = "auto",
    threads: int | None = None,
    max_rows: int = 64,
    progress: Callable[[int, int], None] | None = None,
    streaming: Streaming | None = None,
) -> Kernels:
    """The backend `name`: "auto" takes the fastest one here; "cpu:avx2" forces a hardware path of the CPU backend.

    threads: None = physical cores. max_rows: most rows of one forward call. progress(done, total) reports kernels being
    compiled on a first start. streaming bounds the experts that compiled kernels hold; the reference holds none.
    UsageError for an unknown name, or a hardware path that this machine lacks.
    """
    kind, _, path = name.partition(":")
    if kind in ("auto", "cpu"):
        from ds4py.kernels.cpu import CpuKernels

        return CpuKernels(threads, max_rows, path or None, progress, streaming)
    if kind == "reference":
        try:
            from ds4py.kernels.reference import ReferenceKernels
        except ModuleNotFoundError as error:
            need = "the reference kernels need torch, which is not installed"
            raise UnsupportedError(f"{need}: pip install 'ds4py[reference]'") from error

        return ReferenceKernels(max_rows=max_rows)
    raise UsageError(f"unknown kernels {name!r}: choose one of {', '.join(NAMES)}, or cpu:PATH")
