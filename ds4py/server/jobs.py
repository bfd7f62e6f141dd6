"""One request on its way through the server, and what the engine's thread tells about it.

The idea: the two threads that meet here share as little as possible. The engine's thread calls `tell` with notices; the event
loop's thread sets `cancelled`. Nothing else crosses. Whoever works on a job looks at `check` at every safe point.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ds4py.chat import Event
from ds4py.server.asked import Refusal
from ds4py.server.prompting import Prompt
from ds4py.server.results import Ended, Usage


class Cancelled(Exception):
    """Nobody waits for this answer any more."""


@dataclass(frozen=True)
class Started:
    """The prompt is about to be read; so much of it is there already."""

    usage: Usage


@dataclass(frozen=True)
class Progress:
    """So many of the prompt's tokens have been read, of those that are not cached."""

    done: int
    total: int


@dataclass(frozen=True)
class Events:
    """The next part of the reply."""

    events: Sequence[Event]


@dataclass(frozen=True)
class Failed:
    """There will be no more."""

    refusal: Refusal


Notice = Started | Progress | Events | Ended | Failed


@dataclass(eq=False)
class Job:
    """A prompt, and where its answer goes. `call_lead` is what this API puts before the ids of calls."""

    prompt: Prompt
    tell: Callable[[Notice], None]
    api: str = ""
    number: int = 0
    call_lead: str = "call_"
    received: float = field(default_factory=time.monotonic)
    state: str = "new"  # queued, running, done, cancelled, failed
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raises Cancelled if nobody waits."""
        if self._cancelled.is_set():
            raise Cancelled
