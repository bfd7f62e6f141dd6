"""Reading a request's body from a stranger: bounded in size and in time.

A length that is announced is believed only in so far as it is refused at once when it is too large; what arrives is counted as it
comes, so a body without a length is bounded too. A client that sends slower than a trickle is told so after a while. Compressed
bodies are not taken: a small one may unpack to anything.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request

from ds4py.server.asked import Refusal

_SLOWEST: Final = 1024  # bytes a second, on average


async def read_body(request: Request, limit: int, patience: float) -> bytes:
    """The body. patience: seconds for the next byte, and before slowness is held against a client.

    Raises Refusal: 413 too large, 408 too slow, 415 compressed, 400 cut off."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise Refusal(415, f"Content-Encoding {encoding!r:.40} is not taken; send the body as it is")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    n, began = 0, asyncio.get_running_loop().time()
    while True:
        try:
            message = await asyncio.wait_for(request.receive(), patience)
        except TimeoutError:
            raise Refusal(408, f"no byte of the request body came for {patience:.0f} seconds") from None
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the connection was closed within the request body")
        parts.append(message.get("body", b""))
        n += len(parts[-1])
        if n > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(parts)
        seconds = asyncio.get_running_loop().time() - began
        if seconds > patience and n < _SLOWEST * (seconds - patience):
            raise Refusal(408, "the request body comes too slowly")


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request body is larger than {limit >> 20} MiB; --max-body-mb allows more")
