"""Which hardware path a start takes when nobody says which: the best one that computes what it must on this very machine.

Features are what a processor claims. Before a path is first taken here, its kernels answer a few products whose results are
known to the bit (selfcheck.py), in a process of their own, so that an illegal instruction is an answer too. The verdict is kept
beside the compiled kernels, by processor and version; a path that failed is left out with one sentence, and the next one is
tried. Matrix units (AMX) give the bits of the vector units, so they are a matter of speed alone: the check also times both, and
they are taken where they win.

A check that could not be made (no process, no time) is no verdict: it is not kept. Vector paths are then taken, as their features
say; matrix units are not. A path that is asked for by name is taken as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llb

from ds4py.kernels.cpu.compile import cache_root, write_whole
from ds4py.kernels.cpu.target import Target, candidates, describe, target_for

WORTH = 1.1  # times as fast as the vector units: below that the matrix units are not worth their code
LIMIT_S = 60.0  # of a check: seconds are usual


@dataclass(frozen=True)
class Choice:
    """A target, and sentences about the paths that were left out."""

    target: Target
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Of a check. `wrong`: what the path computes wrongly, "" for nothing; `gain`: its speed over that of the vector units."""

    wrong: str
    gain: float = 0.0


def best(progress: Callable[[int, int], None] | None = None, cache: Path | None = None) -> Choice:
    """The best path whose check passed. progress(0, 0): a check begins."""
    notes: list[str] = []
    for path in candidates():
        if path == "plain":  # what the others are measured by
            break
        verdict = known(path, cache)
        if verdict is None:
            if progress:
                progress(0, 0)
            verdict = check(path)
            if verdict is not None:
                keep(path, verdict, cache)
        if verdict is not None and verdict.wrong:
            notes.append(
                f"the CPU path {path} computes wrong values on this machine ({verdict.wrong}) and is left out; "
                f"--backend cpu:{path} takes it all the same"
            )
        elif path != "amx" or (verdict is not None and verdict.gain >= WORTH):
            return Choice(target_for(path), tuple(notes))
    return Choice(target_for("plain"), tuple(notes))


def check(path: str, limit_s: float = LIMIT_S) -> Verdict | None:
    """Run the check in a process of its own. None if that came to nothing."""
    call = f"from ds4py.kernels.cpu.selfcheck import main; main({path!r}, {'avx512' if path == 'amx' else ''!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", call], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if done.returncode < 0:
        return Verdict(f"the check ended with signal {-done.returncode}")
    with contextlib.suppress(ValueError):
        return _parsed(done.stdout) if done.returncode == 0 else None
    return None


def known(path: str, cache: Path | None = None) -> Verdict | None:
    """The kept verdict; None if there is none or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return _parsed(_file(path, cache).read_bytes())
    return None


def keep(path: str, verdict: Verdict, cache: Path | None = None) -> None:
    """Write the verdict down; where that is not possible the check is made again at the next start."""
    write_whole(_file(path, cache), json.dumps({"wrong": verdict.wrong, "gain": verdict.gain}).encode())


def _parsed(text: bytes) -> Verdict:
    """ValueError for anything but a verdict."""
    found = json.loads(text)
    if not isinstance(found, dict) or not isinstance(found.get("wrong"), str):
        raise ValueError("not a verdict")
    return Verdict(found["wrong"], float(found.get("gain", 0.0)))


def _file(path: str, cache: Path | None) -> Path:
    return (cache or cache_root()) / "checks" / f"{path}-{_fingerprint(path)}.json"


def _fingerprint(path: str) -> str:
    """Processor, target, LLVM, and this package's kernels as they lie on the disk: when one of them changes, paths are checked
    again."""
    kernels = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(Path(__file__).parent))
    sources = [entry for entry in kernels if entry[0].endswith(".py")]
    versions = llvmlite.__version__, llb.llvm_version_info
    parts = describe(path), processor(), sorted(llb.get_host_cpu_features().items()), versions, sources
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def processor() -> str:
    """What tells this processor from another, microcode included where the system says."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "hypervisor")
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        return "; ".join(line for line in first.splitlines() if line.split("\t")[0].strip() in wanted)
    return f"{platform.machine()} {platform.processor()}"
