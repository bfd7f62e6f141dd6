"""What to say when there is no model: how to get one, what lies here already, and what would fit this machine.

The invariant: every size and every name comes from the tables that download and load by, so the advice cannot promise what the
next command refuses.
"""

from __future__ import annotations

import os
from pathlib import Path

from ds4py.cli.demo import DEMO
from ds4py.cli.download import MAIN_LINK
from ds4py.hub.memory import SYSTEM_BYTES, estimate_target, gb, memory_bytes
from ds4py.hub.targets import TARGETS

# A model needs its file in memory, plus context and buffers; the system keeps a part for itself.
_OVERHEAD = 1.1
_SYSTEM_GB = SYSTEM_BYTES / 1e9
_N_CTX = 32768


def no_model() -> str:
    """Several lines for a user who started ds4 without any model at hand."""
    memory = memory_gb()
    largest = max(0.0, (memory - _SYSTEM_GB) / _OVERHEAD)
    return "\n".join([_reason(), "", *_ways(), "", *_fitting(memory, largest)])


def memory_gb() -> float:
    """Memory this process may use, in GB (10^9 bytes); 0 if unknown."""
    return memory_bytes() / 1e9


def _reason() -> str:
    link = Path(MAIN_LINK)
    if link.is_symlink():
        return f"{MAIN_LINK} points to {os.readlink(link)}, which is not there"
    return f"no model: there is no {MAIN_LINK} in this directory and no -m FILE was given"


def _ways() -> list[str]:
    lines = [
        "  ./download_model.sh demo      " + f"{DEMO.title}, {DEMO.size / 1e6:.0f} MB, {DEMO.licence}: answers on any machine"
    ]
    return lines + [f"  ds4 -m {path}      already here" for path in _here()]


def _here() -> list[Path]:
    """GGUF files that a user probably means, a few at most."""
    folders = [Path(os.environ.get("DS4_GGUF_DIR") or "gguf"), Path(".")]
    found: list[Path] = []
    for folder in folders:
        try:
            found += sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
        except OSError:
            continue
    return found[:5]


def _fitting(memory: float, largest: float) -> list[str]:
    from ds4py.models import SUPPORTED

    lines = [f"Any GGUF of these architectures runs: {', '.join(sorted(SUPPORTED))}."]
    if memory <= 0:
        return lines
    lines.append(f"This machine has {memory:.0f} GB of memory: files up to about {largest:.1f} GB fit.")
    return [*lines, _large(memory)]


def _large(memory: float) -> str:
    """Which of the large models would fit, and whether this build can run them."""
    from ds4py.models import SUPPORTED

    needed = {target.name: estimate_target(target, _N_CTX) for target in TARGETS if target.main and not target.note}
    peaks = sorted((peak.peak / 1e9, name) for name, peak in needed.items() if peak is not None)
    runs = any(target.family is not None and target.family.architecture in SUPPORTED for target in TARGETS)
    known = "Of the large models of `ds4-download --list`" + ("" if runs else " (which this build fetches but does not run yet)")
    fitting = [f"{name} ({peak:.0f} GB)" for peak, name in peaks if peak <= memory - _SYSTEM_GB]
    if fitting:
        return f"{known} these would fit, by memory at the peak: {', '.join(fitting)}."
    return f"{known} none would fit; the smallest, {peaks[0][1]}, needs {gb(round(peaks[0][0] * 1e9))} of memory."
