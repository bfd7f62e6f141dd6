"""One request for bytes: redirects followed by hand, the token shown to the hub alone, every failure sorted.

The session is huggingface_hub's own, so that proxies, certificates, a client factory the user has set, offline mode and the
debug log are what every other tool of the hub has. What is not used is its `hf_hub_download`: it checks a length but never a
hash, takes a 206 for the range it asked for, keeps its partial files in a cache of its own, and cannot be told how long to wait.
Redirects are followed by hand because the rule about the token must not depend on a client's idea of "the same host".

The invariant: `Authorization` leaves only for the scheme, host and port of the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

from ds4py.errors import FormatError, ResourceError
from ds4py.hub.place import Hub, host_of
from ds4py.hub.plan import Piece
from ds4py.hub.refusals import AgainError, RangeError, StaleError, refused, storage_refused

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_HOPS = 8


@dataclass(frozen=True)
class Bytes:
    """An open answer: `start` is the position in the piece of its first byte."""

    start: int
    chunks: Iterator[bytes]


def transport_error() -> type[Exception]:
    """The base of what the session raises. The library has changed its HTTP client before; its own error derives from whatever
    client it uses now."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def session(hub: Hub) -> Any:
    """The library's session, which by itself would wait for ever."""
    try:
        from huggingface_hub import get_session
    except ImportError as error:
        raise ResourceError(
            f"downloading from a hub needs the package huggingface-hub 1.0 or newer ({error}); install ds4py with pip"
        ) from error
    if hub.offline:
        raise ResourceError("HF_HUB_OFFLINE is set, so nothing is downloaded; unset it first")
    client = get_session()
    client.timeout = hub.patience.timeout
    return client


@contextmanager
def open_bytes(hub: Hub, piece: Piece, start: int, what: str) -> Iterator[Bytes]:
    """Ask for a piece from byte `start` on (0: all of it, without a Range). Raises AgainError, RangeError, StaleError, or a
    Ds4Error when asking again is pointless."""
    client = session(hub)
    failed = transport_error()
    wished = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response, here = _follow(client, hub, piece.url, wished, partial(_compare, piece))
        try:
            status = response.status_code
            if status not in (200, 206):
                raise (
                    refused(status, response.headers, hub, what)
                    if here
                    else storage_refused(status, response.headers, host_of(str(response.url)))
                )
            yield Bytes(_first_byte(response, piece, start), response.iter_raw())
        finally:
            response.close()
    except failed as error:
        raise AgainError(_words(error, hub)) from error


def ask(hub: Hub, path: str) -> tuple[int, Mapping[str, str], bytes]:
    """(status, headers, body) of a page of the hub's API. AgainError when no answer comes."""
    client = session(hub)
    try:
        response, _ = _follow(client, hub, f"{hub.endpoint}/{path}", {}, lambda response: None)
        try:
            return response.status_code, response.headers, response.read()
        finally:
            response.close()
    except transport_error() as error:
        raise AgainError(_words(error, hub)) from error


def _follow(client: Any, hub: Hub, url: str, extra: Mapping[str, str], look: Callable[[Any], None]) -> tuple[Any, bool]:
    """(the answer at the end of the redirects, whether the hub itself gave it). `look` sees every answer of the hub."""
    bare = {"User-Agent": "ds4py", **extra}
    known = bare | ({"Authorization": f"Bearer {hub.token}"} if hub.token else {})
    for _ in range(_MAX_HOPS):
        here = _origin(url) == _origin(hub.endpoint)
        request = client.build_request("GET", url, headers=known if here else bare)
        response = client.send(request, stream=True, follow_redirects=False)
        if here:
            look(response)
        if response.status_code not in _REDIRECTS:
            return response, here
        response.close()
        url = _moved(url, response.headers.get("location", ""), client, hub)
    raise FormatError(f"{hub.host} redirects in a circle; check HF_ENDPOINT")


def _moved(url: str, location: str, client: Any, hub: Hub) -> str:
    """Where a redirect leads. FormatError for anything that is no web address."""
    try:
        url = urljoin(url, location)
        if location and _origin(url)[0] in ("http", "https") and _origin(url)[1]:
            client.build_request("GET", url)
            return url
    except Exception as error:  # ValueError, or whatever class the client has for an address it cannot read
        raise FormatError(f"{hub.host} redirects to something that is no web address; nothing was downloaded") from error
    raise FormatError(f"{hub.host} redirects to something that is no web address; nothing was downloaded")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _compare(piece: Piece, response: Any) -> None:
    """The hub says with each answer which file it means; StaleError if it is another than the one that was planned."""
    tag = response.headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
    size = response.headers.get("x-linked-size", "")
    digest = piece.digest
    other = digest is not None and digest.kind == "sha256" and len(tag) == 64 and tag != digest.value
    if other or (size.isdigit() and int(size) != piece.size):
        response.close()
        raise StaleError(f"{piece.path} has changed on the hub")


def _first_byte(response: Any, piece: Piece, start: int) -> int:
    """Where the answer begins. RangeError for a range that is not the one asked for and would leave a gap, AgainError for another
    length than the listing's: the log-in page of a network answers 200 to everything, and its bytes must not begin a part."""
    if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise FormatError(f"{host_of(str(response.url))} sends {piece.path} compressed although it was asked not to")
    if response.status_code == 200:
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) != piece.size:
            raise AgainError(f"{host_of(str(response.url))} offers {length} bytes as {piece.path}, which has {piece.size}")
        return 0
    unit, _, span = response.headers.get("content-range", "").partition(" ")
    first, total = span.partition("-")[0].strip(), span.rpartition("/")[2].strip()
    if unit.lower() != "bytes" or not first.isdigit() or int(first) > start or total not in ("*", str(piece.size)):
        raise RangeError(f"{host_of(str(response.url))} sent another range than bytes={start}-")
    return int(first)


def _words(error: Exception, hub: Hub) -> str:
    """A transport failure in words: what kind it was, and no address (a signed one is a secret)."""
    name = type(error).__name__
    if "Timeout" in name:
        return f"no byte came from {hub.host} for {hub.patience.timeout:g} s"
    if "Connect" in name:
        return f"{hub.host} cannot be reached ({name})"
    return f"the connection to {hub.host} broke ({name})"
