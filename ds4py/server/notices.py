"""A job's notices on their way from the engine's thread to the event loop.

The idea: waking the loop for every token costs more than the token's text is worth. On a small model it is a tenth of the time
that the token took, since the loop needs the interpreter and a core that the engine wants too. So what is told while the loop has
not looked yet is one batch, and after each batch with parts of a reply the loop rests: for a moment, parts gather and do not wake
it. The rest is shorter than what an eye sees, so of a model slower than that every token still goes out at once, and so does the
first one. Everything else, the end above all, ends the rest.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Final

from ds4py.server.jobs import Events, Notice

REST_SECONDS: Final = 0.03


class Notices:
    """`tell` may be called from any thread, the rest from the event loop in which this was made."""

    def __init__(self, rest_seconds: float = REST_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._rest_seconds = rest_seconds
        self._lock = Lock()
        self._told: list[Notice | None] = []
        self._woken = False  # the loop has been told that something is there
        self._resting = False
        self._rest_end = 0.0
        self._ready = asyncio.Event()

    def tell(self, notice: Notice) -> None:
        with self._lock:
            self._told.append(notice)
            if self._woken or (self._resting and isinstance(notice, Events)):
                return
            self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is closed: nobody listens any more
            return

    def gone(self) -> None:
        """The client has gone away."""
        with self._lock:
            self._told.append(None)
            self._woken = True
        self._ready.set()

    async def next(self, seconds: float) -> list[Notice | None]:
        """What has been told since the last time, at least one; None among it: the client has gone. TimeoutError after
        `seconds`."""
        end = self._loop.time() + seconds
        if self._resting and not await self._wait(min(self._rest_end, end)):
            with self._lock:
                self._resting = False
                gathered = bool(self._told)
            if gathered:
                return self._take()
        if not await self._wait(end):
            raise TimeoutError
        return self._take()

    async def _wait(self, end: float) -> bool:
        """Whether something that wakes the loop was told before `end`."""
        if not self._ready.is_set():
            try:
                async with asyncio.timeout_at(end):
                    await self._ready.wait()
            except TimeoutError:
                return False
        return True

    def _take(self) -> list[Notice | None]:
        with self._lock:
            found, self._told = self._told, []
            self._woken = False
            self._ready.clear()
            self._resting = any(isinstance(notice, Events) for notice in found)
        self._rest_end = self._loop.time() + self._rest_seconds
        return found
