"""Ctrl-C while the model works: the first one asks, the second one means it.

A KeyboardInterrupt may strike between any two lines of ours; here the first Ctrl-C only sets a flag, which the prefill progress
and the loop over steps look at, so that what was generated is kept and every state stays sound. Who cannot wait presses again,
and that is a KeyboardInterrupt as usual.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(Exception):
    """Raised by `check` at a safe point after Ctrl-C."""


class Interrupts:
    """`with Interrupts() as interrupts:` around work that can stop; `interrupts.check()` at its safe points."""

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        if self.asked:
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
