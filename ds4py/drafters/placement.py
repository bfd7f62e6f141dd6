"""Which processors a thread may run on, where the system lets a program choose (Linux).

A thread hands its processors to the threads that it starts. So nothing in the kernels has to know: whoever opens them inside
`running_on` has their threads where they belong. What the system refuses, or silently makes smaller (a processor that is not
there, or outside of the container's share), is an error: a run that is elsewhere than it was told measures something else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ds4py.errors import ResourceError, UnsupportedError

Cpus = frozenset[int]


@contextmanager
def running_on(cpus: Cpus | None) -> Iterator[None]:
    """Run the block's thread, and threads started in it, on `cpus`; None: where it runs anyway. ResourceError if refused."""
    if cpus is None:
        yield
        return
    before = _affinity()
    bind(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spread(cpus: Cpus, threads: list[threading.Thread]) -> None:
    """One processor for each of `threads`, the second of `cpus` first, around again if there are too few. The calling thread,
    which works with them, stays free: what it starts later would inherit its only processor."""
    order = sorted(cpus)
    for i, thread in enumerate(threads, start=1):
        if thread.native_id is not None:
            bind(thread.native_id, frozenset({order[i % len(order)]}))


def bind(thread: int, cpus: Cpus) -> None:
    """Let the thread with that number (0: the calling one) run on `cpus` alone. ResourceError if that is not to be had."""
    before = _affinity()
    try:
        os.sched_setaffinity(thread, cpus)
        missing = cpus - os.sched_getaffinity(thread)
    except (OSError, ValueError, OverflowError):
        missing = cpus - before
    if missing:
        os.sched_setaffinity(thread, before)
        names = ", ".join(map(str, sorted(missing)))
        some = ", ".join(map(str, sorted(before)))
        raise ResourceError(f"the system gives this program no processor {names}: it may run on {some}")


def _affinity() -> Cpus:
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedError("this system does not let a program choose its processors: leave the CPU masks out")
    return frozenset(os.sched_getaffinity(0))
