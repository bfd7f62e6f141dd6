"""A model hub on 127.0.0.1 that misbehaves on request: listings, files, redirects to a second host, faults.

The idea: a test puts files on the shelf and hands in a list of faults; each request for bytes takes the next fault, and when the
list is empty the hub behaves. Every request is kept with its headers, so a test can ask who got the token. The listing has the
shape that the real hub gives to `huggingface_hub` (`siblings` with `lfs`), so the library's own parsing is in the loop.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Fault:
    """What goes wrong with one request for bytes. `cut`: the connection ends after so many bytes of the body, by a reset if
    `reset` (which may take bytes along that are still on their way)."""

    cut: int | None = None
    reset: bool = False
    stall: float | None = None  # seconds of silence after `cut` bytes (or at once)
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ignore_range: bool = False
    shift: int = 0  # 206 that begins so many bytes off
    length: int | None = None  # added to Content-Length
    content: bytes | None = None  # another body than the file
    refuse_range: bool = False  # 416 for any range
    clean: bool = False  # with cut: Content-Length says so too, a well-formed short answer
    wait: float = 0.0  # seconds between blocks of 64 KiB


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    port: int


@dataclass
class Hub:
    """Files by (repository, path); `faults` for requests for bytes, `listing_faults` for requests for listings."""

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    listing_faults: list[Fault] = field(default_factory=list)
    listed: dict[tuple[str, str], bytes] = field(default_factory=dict)  # what the listing claims, where it differs
    requests: list[Request] = field(default_factory=list)
    redirect: bool = False  # files come from the second host
    linked: bool = True  # X-Linked-Etag with every answer
    token: str | None = None  # what a request must carry
    on_bytes: Callable[[int], None] | None = None  # called with the number of each request for bytes
    lfs: bool = True
    endpoint: str = ""
    storage: str = ""
    served: int = 0

    def put(self, repo: str, path: str, content: bytes) -> None:
        self.files[repo, path] = content

    def bytes_requests(self) -> list[Request]:
        return [request for request in self.requests if "/resolve/" in request.path or request.path.startswith("/blob/")]

    def listing(self, repo: str) -> dict[str, object] | None:
        siblings: list[dict[str, object]] = []
        for (owner, path), stored in self.files.items():
            if owner == repo:
                content = self.listed.get((owner, path), stored)
                entry: dict[str, object] = {
                    "rfilename": path,
                    "size": len(content),
                    "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
                }
                if self.lfs:
                    entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
                siblings.append(entry)
        return {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings} if siblings else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: object) -> None:
        """Quiet."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            pass  # the client is gone, which is what many tests want

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        self.hub.requests.append(Request("GET", self.path, {k.lower(): v for k, v in self.headers.items()}, port))
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            self._list(path.removeprefix("/api/models/").partition("/revision/")[0])
        elif path.startswith("/blob/"):
            self._bytes(*path.removeprefix("/blob/").split("|", 1))
        elif "/resolve/" in path:
            repo, _, rest = path[1:].partition("/resolve/")
            self._resolve(repo, rest.partition("/")[2])
        else:
            self._plain(404)

    def _plain(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"<html>a page</html>") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _allowed(self) -> bool:
        if self.hub.token is None or self.headers.get("Authorization") == f"Bearer {self.hub.token}":
            return True
        self._plain(401, {"X-Error-Code": "RepoNotFound"})
        return False

    def _list(self, repo: str) -> None:
        if self.hub.listing_faults:
            fault = self.hub.listing_faults.pop(0)
            if fault.stall is not None:
                time.sleep(fault.stall)
            if fault.status is not None:
                self._plain(fault.status, fault.headers, fault.content if fault.content is not None else b"oh")
                return
        if not self._allowed():
            return
        listing = self.hub.listing(repo)
        if listing is None:
            self._plain(404, {"X-Error-Code": "RepoNotFound"})
        else:
            self._plain(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())

    def _resolve(self, repo: str, path: str) -> None:
        if not self._allowed():
            return
        if (repo, path) not in self.hub.files:
            self._plain(404, {"X-Error-Code": "EntryNotFound"})
        elif self.hub.redirect:
            signed = f"{self.hub.storage}/blob/{repo}|{path}?signature=secret-signature"
            self._plain(302, {"Location": signed, **self._linked(repo, path)})
        else:
            self._bytes(repo, path)

    def _linked(self, repo: str, path: str) -> dict[str, str]:
        content = self.hub.files[repo, path]
        tag = hashlib.sha256(content).hexdigest()
        return {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(len(content))} if self.hub.linked else {}

    def _bytes(self, repo: str, path: str) -> None:
        number, self.hub.served = self.hub.served, self.hub.served + 1
        if self.hub.on_bytes is not None:
            self.hub.on_bytes(number)
        fault = self.hub.faults.pop(0) if self.hub.faults else Fault()
        content = self.hub.files[repo, path] if fault.content is None else fault.content
        if fault.status is not None:
            self._plain(fault.status, fault.headers)
            return
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and not fault.ignore_range else 0
        if asked and not fault.ignore_range and (fault.refuse_range or start >= len(content)):
            self._plain(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        ranged = bool(asked) and not fault.ignore_range
        start = max(0, start + fault.shift) if ranged else 0
        body = content[start:]
        if fault.clean and fault.cut is not None:
            body = body[: fault.cut]
        self.send_response(206 if ranged else 200)
        if ranged and "Content-Range" not in fault.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        for name, value in {**self._linked(repo, path), **fault.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + (fault.length or 0)))
        self.end_headers()
        self._send(body, fault)

    def _send(self, body: bytes, fault: Fault) -> None:
        limit = len(body) if fault.cut is None else min(fault.cut, len(body))
        for at in range(0, limit, 1 << 16):
            self.wfile.write(body[at : min(limit, at + (1 << 16))])
            self.wfile.flush()
            if fault.wait:
                time.sleep(fault.wait)
        if fault.stall is not None:
            time.sleep(fault.stall)
        if (fault.cut is not None and not fault.clean) or fault.stall is not None or fault.length:
            self.close_connection = True
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            else:
                self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def running(hub: Hub | None = None) -> Iterator[Hub]:
    """The hub and its storage host, each on a port of its own, until the block ends."""
    hub = hub or Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
