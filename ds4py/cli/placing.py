"""From --cpu-mask, --cpu-range, --cpu-strict and --prio to where and how urgently this process runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ds4py.cli.parsing import Values
from ds4py.drafters.placement import Cpus, running_on, spread
from ds4py.errors import ResourceError, UsageError

_MOST_CPUS: Final = 512
_NICE: Final = {"-1": 5, "1": -5, "2": -10, "3": -20}  # llama.cpp's numbers


def cpus_of(values: Values, mask: str, span: str) -> Cpus | None:
    """The processors that a mask option and a range option name together; None without either. UsageError for what is none."""
    found: set[int] = set()
    for option, read in ((mask, _mask), (span, _range)):
        key = option.lstrip("-").replace("-", "_")
        if values.has(key):
            found |= read(values.text(key), option)
    return frozenset(found) or None


def processors() -> int:
    """How many this program may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def placed(values: Values) -> Iterator[None]:
    """Run the block on the processors and with the priority that were asked for."""
    cpus = cpus_of(values, "--cpu-mask", "--cpu-range")
    prio = values.text("prio") if values.has("prio") else "0"
    with running_on(cpus):
        if prio in _NICE:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, _NICE[prio])
            except (OSError, AttributeError) as error:
                raise ResourceError(f"the system does not let this program have --prio {prio}: it needs more rights") from error
        yield


@contextmanager
def spreading(values: Values) -> Iterator[None]:
    """With --cpu-strict 1, give each thread that is started in the block a processor of its own."""
    before = set(threading.enumerate())
    yield
    if values.has("cpu_strict") and values.text("cpu_strict") == "1":
        cpus = cpus_of(values, "--cpu-mask", "--cpu-range") or frozenset(os.sched_getaffinity(0))
        started = [thread for thread in threading.enumerate() if thread not in before]
        spread(cpus, sorted(started, key=lambda thread: thread.native_id or 0))


def _mask(text: str, option: str) -> set[int]:
    try:
        bits = int(text, 16)
    except ValueError:
        bits = 0
    if not 0 < bits < 1 << _MOST_CPUS or "_" in text:
        raise UsageError(f"{option} takes a mask in hexadecimal with a bit for each processor, such as 0x3, not {text!r}")
    return {i for i in range(_MOST_CPUS) if bits >> i & 1}


def _range(text: str, option: str) -> set[int]:
    low, dash, high = text.partition("-")
    sound = dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high) < _MOST_CPUS
    if not sound:
        raise UsageError(f"{option} takes processors from the first to the last, such as 0-3, not {text!r}")
    return set(range(int(low), int(high) + 1))
