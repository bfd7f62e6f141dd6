"""A client of a running OpenAI-compatible server, as small as measuring needs: one streamed chat completion at a time.

Any server will do: usage and llama.cpp's `timings` are read where they are sent, and what a server does not say is measured from
outside, from the first piece of text to the last. Standard library only. A key is sent to the address it was given for and to no
other: redirects are not followed.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ds4py.errors import ResourceError, UsageError

_POSITION = re.compile(r'^llamacpp:spec_decode_num_accepted_tokens_per_pos_total\{position="(\d+)"\}\s+(\S+)', re.M)
_DRAFTS = re.compile(r"^llamacpp:spec_decode_num_drafts_total\s+(\S+)", re.M)
_SHOWN = 300  # characters of a server's complaint


class RequestFailed(Exception):
    """One request came to nothing; the text says why."""


@dataclass(frozen=True)
class Reply:
    """What a server answered. seconds: from the first piece of text to the last; first: from the request to the first piece."""

    text: str
    finish: str
    pieces: int
    first: float
    seconds: float
    usage: Mapping[str, Any]
    timings: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Of the answer: the server's count, or the pieces of text."""
        told = self.usage.get("completion_tokens", self.timings.get("predicted_n"))
        return int(told) if isinstance(told, (int, float)) else self.pieces

    @property
    def predicted_ms(self) -> float:
        """The server's word, or the time between the first and the last piece."""
        told = self.timings.get("predicted_ms")
        return float(told) if isinstance(told, (int, float)) else 1e3 * self.seconds

    @property
    def prompt_ms(self) -> float:
        told = self.timings.get("prompt_ms")
        return float(told) if isinstance(told, (int, float)) else 1e3 * self.first

    def count(self, key: str) -> int:
        told = self.timings.get(key)
        return int(told) if isinstance(told, (int, float)) else 0


@dataclass(frozen=True)
class DraftCounts:
    """llama.cpp's counters: drafts verified so far, and how many had their token 0, 1, ... accepted."""

    drafts: float = 0.0
    accepted_at: Sequence[float] = ()

    def since(self, before: DraftCounts) -> DraftCounts:
        earlier = [*before.accepted_at, *[0.0] * len(self.accepted_at)]
        return DraftCounts(
            self.drafts - before.drafts, [a - b for a, b in zip(self.accepted_at, earlier, strict=False)]
        )


@dataclass(frozen=True)
class Server:
    """Where to ask. `url` may leave out http:// and may end in /v1."""

    url: str
    key: str = ""
    timeout: float = 600.0

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.url!r} is no address of a server; give one such as http://127.0.0.1:8080")
        try:
            assert parts.port is None or parts.port > 0
        except (ValueError, AssertionError):
            raise UsageError(f"{self.url!r} has a port that is none") from None

    @property
    def _parts(self) -> Any:
        return urlsplit(self.url if "://" in self.url else f"http://{self.url}")

    def model(self) -> str:
        """The first model that the server lists, or "". ResourceError if nobody answers at all."""
        try:
            status, body = self._get("/v1/models")
        except (OSError, http.client.HTTPException) as error:
            raise ResourceError(f"no server answers at {self.url}: {_reason(error)}") from error
        try:
            return str(json.loads(body)["data"][0]["id"]) if status == 200 else ""
        except (ValueError, LookupError, TypeError):
            return ""

    def draft_counts(self) -> DraftCounts | None:
        """The counters of /metrics; None where there are none."""
        try:
            status, body = self._get("/metrics")
        except (OSError, http.client.HTTPException):
            return None
        found = {int(i): float(n) for i, n in _POSITION.findall(body)}
        drafts = _DRAFTS.search(body)
        if status != 200 or drafts is None:
            return None
        return DraftCounts(float(drafts[1]), [found.get(i, 0.0) for i in range(max(found, default=-1) + 1)])

    def chat(self, body: Mapping[str, Any]) -> Reply:
        """One streamed completion. Raises RequestFailed."""
        text = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        connection = self._connect()
        began = time.perf_counter()
        try:
            headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **self._authorization}
            connection.request("POST", f"{self._prefix}/v1/chat/completions", text, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RequestFailed(f"status {response.status}: {_complaint(response.read(1 << 16))}")
            return _read(_events(response), began)
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(_reason(error)) from error
        finally:
            connection.close()

    def _get(self, path: str) -> tuple[int, str]:
        connection = self._connect()
        try:
            connection.request("GET", self._prefix + path, headers=self._authorization)
            response = connection.getresponse()
            return response.status, response.read(1 << 22).decode("utf-8", "replace")
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        parts = self._parts
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=self.timeout)

    @property
    def _prefix(self) -> str:
        path: str = self._parts.path.rstrip("/")
        return path.removesuffix("/v1")

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def _events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """The JSON values of a stream of server-sent events, up to [DONE] or its end."""
    for raw in response:
        line = raw.decode("utf-8", "replace").strip()
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            yield json.loads(data)
        except ValueError:
            raise RequestFailed(f"the stream holds what is no JSON: {data[:_SHOWN]!r}") from None


def _read(events: Iterator[Any], began: float) -> Reply:
    parts: list[str] = []
    finish, first, last = "", 0.0, 0.0
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    for event in events:
        if not isinstance(event, dict):
            raise RequestFailed("the stream holds an event that is no object")
        if "error" in event:
            raise RequestFailed(_complaint(json.dumps(event).encode()))
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            words = "".join(part for key in ("reasoning_content", "content") if isinstance(part := delta.get(key), str))
            if words:
                last = time.perf_counter()
                first = first or last
                parts.append(words)
            finish = choice.get("finish_reason") or finish
    if not finish and not parts:
        raise RequestFailed("the stream ended before it began")
    return Reply("".join(parts), finish, len(parts), max(first - began, 0.0), last - first, usage, timings)


def _complaint(body: bytes) -> str:
    """A server's own words, out of the usual wrapping."""
    text = body.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        pass
    return " ".join(text.split())[:_SHOWN] or "no reason given"


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
