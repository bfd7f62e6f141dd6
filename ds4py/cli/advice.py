"""What to say when there is no model: how to get one, what lies here already, and what would fit this machine.

The invariant: every size and every name comes from the tables that download and load by, so the advice cannot promise what the
next command refuses.
"""

from __future__ import annotations

import os
from pathlib import Path

from ds4py.cli.demo import DEMO
from ds4py.cli.download import LATER, MAIN_LINK

# A model needs its file in memory, plus context and buffers; the system keeps a part for itself.
_OVERHEAD = 1.1
_SYSTEM_GB = 2.0


def no_model() -> str:
    """Several lines for a user who started ds4 without any model at hand."""
    memory = memory_gb()
    largest = max(0.0, (memory - _SYSTEM_GB) / _OVERHEAD)
    return "\n".join([_reason(), "", *_ways(), "", *_fitting(memory, largest)])


def memory_gb() -> float:
    """Memory this process may use, in GB (10^9 bytes): the machine's, or less where a container limits it. 0 if unknown."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0.0
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return total / 1e9


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
    sizes = [(float(target.size.split()[0]), target.name) for target in LATER if target.size.endswith(" GB")]
    whole = [pair for pair in sorted(sizes) if "dspark" not in pair[1]]
    fitting = [f"{name} ({size:.0f} GB)" for size, name in whole if size <= largest]
    known = "Of the large models that `ds4-download --list` names (not in this build yet)"
    if fitting:
        lines.append(f"{known} these would fit: {', '.join(fitting)}.")
    elif whole:
        lines.append(f"{known} none would fit; the smallest, {whole[0][1]}, has {whole[0][0]:.0f} GB.")
    return lines
