"""Listening: uvicorn with time limits for clients that send or read slowly, and an orderly end.

uvicorn bounds the size of a request's head but not the time it may take, and what waits to be read but not for how long. So its
protocol class gets two timers: a connection that has sent no whole head is closed after a while, and one whose client leaves
unread what was sent is cut, whatever the answer was; closing it would wait for the client again. Then the application is told
that the client has gone. When a signal asks the server to leave, the worker is closed first: streams end with an error of their
API instead of a torn connection, and the sockets follow.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ds4py.errors import ResourceError

_HEAD_SECONDS: Final = 10.0  # for a whole request head
_UNREAD_SECONDS: Final = 60.0  # that a client may leave unread more than the system takes for it
_MOST: Final = 1000  # connections
_HEAD_BYTES: Final = 64 << 10


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with time limits for the head of a request and for reading the answer."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self._deadline is not None and self.cycle is not before:
            self._deadline.cancel()
            self._deadline = None
        elif self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self._too_slow)  # the head of a next request has begun

    def _too_slow(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()


class _Server(uvicorn.Server):
    """Tells `leaving` when a signal asks it to go. Being asked is an orderly end, so unlike uvicorn's own it does not raise the
    signal again afterwards; asked twice, it waits for nobody."""

    leaving: Callable[[], None] = staticmethod(lambda: None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self.leaving()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ResourceError with the address if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(512)
    except OSError as error:
        made.close()
        raise ResourceError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made


def server_of(app: ASGIApp, leaving: Callable[[], None]) -> uvicorn.Server:
    """`server.run(sockets=[...])` serves until a signal, or until its `should_exit` is set. `leaving` is called at the signal."""
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_graceful_shutdown=3,
        proxy_headers=False,
    )
    server = _Server(config)
    server.leaving = leaving
    return server
