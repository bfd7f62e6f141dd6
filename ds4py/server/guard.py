"""Who may talk to the server: keys, hosts and origins, checked before anything else looks at a request.

On a loopback address everything on the machine may ask, but a web page in its browser may not: it could reach the port by a name
that it makes point here (so a foreign Host is refused) or by sending to it from elsewhere (so a foreign Origin is refused, unless
--cors says that pages may). A key is compared in constant time and may come as Bearer or x-api-key. /health stays open for those
who watch. Refusals are in the form of the API that was asked.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ds4py.server import chat_completions, messages
from ds4py.server.asked import Refusal
from ds4py.server.sse import to_json

_MOST: Final = 900  # requests at a time, a little fewer than connections: beyond those uvicorn answers, in no API's form
_RETRY_SECONDS: Final = 5
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "*, Authorization",  # the star does not stand for this one
}


@dataclass(frozen=True)
class Access:
    """Who may ask. host: the address the server listens on; keys: any of them will do, none asks for none."""

    host: str = "127.0.0.1"
    keys: tuple[str, ...] = ()
    cors: bool = False

    @property
    def is_local(self) -> bool:
        return self.host in _LOOPBACK or self.host.startswith("127.")


class Guard:
    """ASGI middleware; see the head of this file."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._n_active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        send = self._with_cors(send) if self._access.cors else send
        if scope["method"] == "OPTIONS":
            await Response(status_code=204)(scope, receive, send)
            return
        refusal = self._refused(headers, scope["path"]) or self._crowded(scope["path"])
        if refusal is not None:
            await error_response(scope["path"], refusal)(scope, receive, send)
            return
        self._n_active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._n_active -= 1

    def _crowded(self, path: str) -> Refusal | None:
        if self._n_active < _MOST or path == "/health":
            return None
        refusal = Refusal(503, f"{self._n_active} requests are waiting or being answered; try again later")
        refusal.retry_after = _RETRY_SECONDS
        return refusal

    def _refused(self, headers: Mapping[str, str], path: str) -> Refusal | None:
        host = headers.get("host", "")
        if self._access.is_local and host and _name_of(host) not in (*_LOOPBACK, self._access.host):
            return Refusal(403, f"the host {host!r:.80} is not this server's; it answers as 127.0.0.1 and localhost")
        origin = headers.get("origin", "")
        if origin and not self._access.cors and origin.partition("://")[2] != host:
            return Refusal(403, f"pages of {origin!r:.80} may not use this server; --cors lets them")
        if not self._access.keys or path in ("/health", "/"):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        pairs = [(text.encode("latin-1"), key.encode()) for text in sent for key in self._access.keys]  # as bytes of the header
        if any([hmac.compare_digest(*pair) for pair in pairs]):  # all are compared: which one fits takes no other time
            return None
        return Refusal(401, "the API key is missing or wrong", code="invalid_api_key")

    def _with_cors(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in _CORS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        return sending


def error_response(path: str, refusal: Refusal) -> Response:
    """A refusal in the form of the API at `path`."""
    form: Callable[[Refusal], Any] = messages.error if path.startswith("/v1/messages") else chat_completions.error
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after is not None else None
    return Response(to_json(form(refusal)), refusal.status, headers, "application/json")


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
