"""From a job's notices to bytes on a connection.

The idea: the response is written by one coroutine that waits for the next notice, a client that goes away, or the moment when
something must be said so that nobody along the way gives up: only so many seconds pass without a byte, in the queue, while the
prompt is read and while a call is held back alike. The engine does not wait for a client that reads slowly; one that has read
nothing for a while loses its place if others wait for it, and is told so when it reads again. Whatever ends the coroutine, the
job is cancelled if it has not ended by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

from ds4py.chat import Event, joined
from ds4py.server.asked import Refusal
from ds4py.server.jobs import Events, Failed, Job, Progress, Started
from ds4py.server.notices import Notices
from ds4py.server.results import Ended, Usage, Wire
from ds4py.server.sse import comment, encode

_SHOWN: Final = 1.0  # seconds between two words about the prompt
_UNREAD: Final = 10.0  # seconds without room for what is to be sent, before others may have the place
_AGAIN: Final = 1.0  # seconds between two looks at whether others wait


class Translator(Protocol):
    """A reply's events as an API's; one for each reply."""

    def begin(self) -> list[Wire]: ...

    def started(self, cost: Usage) -> list[Wire]: ...

    def feed(self, event: Event) -> list[Wire]: ...

    def end(self, ended: Ended) -> list[Wire]: ...

    def fail(self, refusal: Refusal) -> list[Wire]: ...


async def watch(receive: Receive, notices: Notices) -> None:
    """Ends when the client goes away, and says so."""
    while (await receive())["type"] != "http.disconnect":
        pass
    notices.gone()


class StreamAnswer:
    """An ASGI response that streams a job."""

    def __init__(
        self,
        job: Job,
        notices: Notices,
        translator: Translator,
        keepalive: Wire | None,
        cancel: Callable[[Job], None],
        give_way: Callable[[Job], bool],
        seconds: float,
    ) -> None:
        """keepalive: the event that this API has for it; None: comments, with the progress of the prompt. give_way: cancels the
        job if others wait, and tells whether it did. At most `seconds` pass without a byte."""
        self._job, self._notices, self._translator, self._cancel = job, notices, translator, cancel
        self._keepalive, self._give_way, self._seconds = keepalive, give_way, seconds
        self._unread: asyncio.TimerHandle | None = None
        self._last = 0.0  # when something was sent
        self._read: Progress | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(watch(receive, self._notices))
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # proxies must not collect it
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send(send, self._alive() + b"".join(map(encode, self._translator.begin())))
            while not await self._step(send):
                pass
            await self._send(send, b"", more=False)
        finally:
            watching.cancel()
            if self._job.state in ("queued", "running"):
                self._cancel(self._job)

    async def _step(self, send: Send) -> bool:
        """Wait for notices and send what they mean; True if the last was among them."""
        due = min(_SHOWN, self._seconds) if self._read is not None and self._keepalive is None else self._seconds
        try:
            notices = await self._notices.next(max(self._last + due - time.monotonic(), 0.01))
        except TimeoutError:
            await self._send(send, self._alive())
            return False
        wires: list[Wire] = []
        parts: list[Event] = []
        end: Ended | Failed | None = None
        for notice in notices:
            match notice:
                case None:
                    return True
                case Started(usage):
                    wires += self._translator.started(usage)
                case Progress():
                    self._read = notice if notice.done < notice.total else None
                case Events(events):
                    self._read = None
                    parts += events
                case Ended() | Failed():
                    end = notice
                    break  # an engine that was interrupted may have told more
        wires += self._fed(parts)
        match end:
            case Ended():
                wires += self._translator.end(end)
            case Failed(refusal):
                wires += self._translator.fail(refusal)
        if wires:
            await self._send(send, b"".join(map(encode, wires)))
        elif time.monotonic() - self._last >= due:
            await self._send(send, self._alive())
        return end is not None

    def _fed(self, parts: Sequence[Event]) -> list[Wire]:
        """Parts of the reply as events of the API, as few as they can be."""
        return [wire for event in joined(parts) for wire in self._translator.feed(event)]

    def _alive(self) -> bytes:
        if self._keepalive is not None:
            return encode(self._keepalive)
        read = self._read
        return comment(f"prefill {read.done}/{read.total}" if read is not None else "waiting")

    async def _send(self, send: Send, data: bytes, more: bool = True) -> None:
        self._wait_for_reader(_UNREAD)
        try:
            await send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            if self._unread is not None:
                self._unread.cancel()
        self._last = time.monotonic()

    def _wait_for_reader(self, seconds: float) -> None:
        self._unread = asyncio.get_running_loop().call_later(seconds, self._is_unread)

    def _is_unread(self) -> None:
        if self._give_way(self._job):
            self._notices.tell(Failed(Refusal(408, "this answer was given up: it was not read, and others were waiting")))
        else:
            self._wait_for_reader(_AGAIN)


async def gathered(
    job: Job, notices: Notices, receive: Receive, cancel: Callable[[Job], None]
) -> tuple[Sequence[Event], Ended] | None:
    """All events of a job and its end; None if the client went away. Raises Refusal if it failed."""
    watching = asyncio.create_task(watch(receive, notices))
    found: list[Event] = []
    try:
        while True:
            for notice in await notices.next(24 * 3600.0):
                match notice:
                    case None:
                        return None
                    case Events(events):
                        found += events
                    case Ended() as ended:
                        return found, ended
                    case Failed(refusal):
                        raise refusal
    finally:
        watching.cancel()
        if job.state in ("queued", "running"):
            cancel(job)
