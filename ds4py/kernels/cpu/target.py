"""Which instructions the kernels may use: the hardware path.

A path is chosen once, at start, from the CPU's own feature flags (never from its name: virtual machines mask and rename), and its
name is part of the numerics contract: same path, same bits. Each path can be forced, so that all of them are tested on whatever
machine runs the tests: a path is legal wherever the CPU has its features.

    avx512  16 lanes, vpdpbusd (AVX-512 VNNI)
    avx2     8 lanes, vpmaddubsw + vpmaddwd, FMA, F16C
    plain    4 lanes, no intrinsic at all: SSE2 on old x86, NEON on ARM

`amx` is avx512 with many rows multiplied by AMX tiles: the same bits, so it has the same name. choosing.py takes it where its
answers are right and faster on the machine itself, since its code has run on an emulated processor only.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, replace

import llvmlite.binding as llb

from ds4py.errors import UsageError

PATHS = ("avx512", "avx2", "plain")
_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt")
_NEEDS = {  # everything of the processors in `describe` that LLVM may use unasked
    "avx512": ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", *_AVX2),
    "avx2": _AVX2,
    "plain": (),
}
_NEEDS["amx"] = (*_NEEDS["avx512"], "amx-tile", "amx-int8")
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # Linux: ask once for the tile registers' room


@dataclass(frozen=True)
class Target:
    """How to compile: `lanes` f32 per vector, and which intrinsics exist."""

    path: str
    cpu: str
    features: str
    lanes: int
    fma: bool
    half: bool  # hardware f16 <-> f32
    x86: bool
    matrix: bool = False  # AMX
    triple: str = ""  # of the system that code is made for, as LLVM names it; "": this one

    @property
    def parts(self) -> int:
        """Vectors in a group of 16 output rows."""
        return 16 // self.lanes


def host_paths() -> tuple[str, ...]:
    """Paths that this CPU can run, best first; one for each set of bits, so without amx."""
    return tuple(p for p in PATHS if _has(p))


def candidates() -> tuple[str, ...]:
    """Paths that this CPU claims to run, fastest first, amx among them if the system lets this process use its tiles."""
    return (*(("amx",) if _has("amx") and _tiles_allowed() else ()), *host_paths())


def _has(path: str) -> bool:
    have = {name for name, on in llb.get_host_cpu_features().items() if on}
    return all(feature in have for feature in _NEEDS[path])


def _tiles_allowed() -> bool:
    """Whether the system lets this process use AMX; it must be asked before the first tile instruction."""
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def needs(path: str) -> tuple[str, ...]:
    """The processor's features that a path uses."""
    return _NEEDS[path]


def is_x86(triple: str = "") -> bool:
    return (triple or llb.get_process_triple()).startswith(("x86_64", "i686", "amd64"))


def target_for(path: str | None = None) -> Target:
    """The target of `path`, or of the best path here. UsageError when the CPU lacks it."""
    paths = host_paths()
    path = path or paths[0]
    if path not in _NEEDS:
        raise UsageError(f"unknown CPU path {path!r}: choose one of {', '.join(_NEEDS)}")
    if not _has(path) or (path == "amx" and not _tiles_allowed()):
        raise UsageError(
            f"CPU path {path!r} needs {', '.join(_NEEDS[path])}, which this processor lacks; it has: {', '.join(paths)}"
        )
    return describe(path)


def describe(path: str, triple: str = "") -> Target:
    """The target of `path`, whether or not this CPU can run it (code for another machine, also one of the system `triple`, can be
    emitted and inspected)."""
    if path == "amx":
        return replace(describe("avx512"), features="+amx-tile,+amx-int8", matrix=True)
    if path == "avx512":
        return Target(path, "cascadelake", "", 16, True, True, True)  # the first with VNNI: no later instruction may slip in
    if path == "avx2":
        return Target(path, "haswell", "", 8, True, True, True)
    x86 = is_x86(triple)
    return Target(path, "x86-64" if x86 else "generic", "", 4, not x86, not x86, x86, triple=triple)
