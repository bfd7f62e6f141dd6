"""Requests as strangers send them: good, nearly good and hostile, for every endpoint, and what a server may answer.

`requests()` is a hypothesis strategy, used by `server/test_fuzz.py` in small and by `scripts/server_fuzz.py` in large. A
`Request` is bytes on a socket, with the place where the client stops sending or reading; `Exchange` is what came back;
`complaint` says what is wrong with that, and None is what everything should be.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import socket
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import api_accumulate
from hypothesis import strategies as st
from scripted_server import TOOLS, calls_of, chat_body, events_of, reply

from ds4py.server.results import Wire

SCRIPT = {
    "replies": [
        reply("tick ", endless=True, delay=0.002, when="#endless#"),
        reply("<think>", "a", "</think>", "b", *calls_of(("f", '{"a": "x"}')), "c", sharp=6.0),
    ]
}
BODY_LIMIT = 1 << 20  # bytes; what the server is started with
N_CTX = 2000
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **chat_body(max_tokens=6),
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "call_1", "content": "t"},
        ],
        "tools": TOOLS,
        "tool_choice": "auto",
        "temperature": 1,
        "top_p": 0.9,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "thinking": {"type": "enabled"},
    },
    "/v1/completions": {"prompt": "p", "max_tokens": 6, "stop": "x", "seed": 4},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "instructions": "i",
        "max_output_tokens": 6,
        "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "o"}]},
        ],
        "system": [{"type": "text", "text": "s"}],
        "max_tokens": 6,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
    },
}
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
MODELS = ("/v1/models", "/v1/models/scripted", "/v1/models/%2e%2e/x", "/v1/models/")
READ = ("/", "/health", "/metrics", *MODELS, "/v1/nothing", "/%ff", *BODIES)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
ODD_HEADERS = (
    ("Content-Type", "text/plain"),
    ("Content-Type", "application/xml; charset=utf-16"),
    ("Content-Type", ""),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "identity"),
    ("Expect", "100-continue"),
    ("Accept", "text/html;q=0.1"),
    ("Authorization", "Bearer \u00ff"),
    ("x-api-key", "x" * 3000),
    ("anthropic-beta", "a,b,c"),
    ("Origin", "http://evil.test"),
    ("Upgrade", "websocket"),
    ("Connection", "keep-alive, Upgrade"),
)


@dataclass(frozen=True)
class Request:
    """One request. `sent`: bytes of it that are sent (None: all); `read`: bytes of the answer that are waited for before the
    client goes away (None: all of it, 0: none); `abrupt`: it goes with a reset."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    chunked: bool = False
    sent: int | None = None
    read: int | None = None
    abrupt: bool = False
    head: bytes | None = None  # instead of the one that would be right

    @property
    def is_whole(self) -> bool:
        return self.sent is None and self.read is None and self.head is None

    def data(self) -> bytes:
        if self.head is not None:
            return self.head + self.body
        length = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {len(self.body)}"
        given = {name.lower() for name, _ in self.headers}
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", length]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += ["Connection: close"] if "connection" not in given else []
        body = self.body
        if self.chunked:
            halves = [half for half in (body[: len(body) // 2], body[len(body) // 2 :]) if half]
            body = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in halves) + b"0\r\n\r\n"
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@dataclass(frozen=True)
class Exchange:
    """What came back; status 0: nothing, for the connection was closed."""

    status: int
    body: bytes = b""
    kind: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def exchange(port: int, request: Request, seconds: float = 120.0) -> Exchange:
    """Send a request and read what it asks to be read. Raises TimeoutError if the server falls silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as made:
        data = request.data()
        try:
            made.sendall(data[: request.sent])
            if request.head is not None:
                made.shutdown(socket.SHUT_WR)  # else a head that is not whole is waited for
            if request.sent is None and request.read is None:
                return _whole(made, request.method)
            if request.read:
                made.settimeout(0.5)  # a client that goes has little patience
                with contextlib.suppress(TimeoutError):
                    made.recv(request.read)
        except ConnectionError:  # refused before it was sent, or read
            return Exchange(0)
        if request.abrupt:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return Exchange(0)


def _whole(made: socket.socket, method: str) -> Exchange:
    answer = http.client.HTTPResponse(made, method=method)
    try:
        answer.begin()
        body = answer.read()
    except (ConnectionError, http.client.BadStatusLine, http.client.IncompleteRead):
        return Exchange(0)
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Exchange(answer.status, body, headers.get("content-type", ""), headers)


def complaint(request: Request, got: Exchange) -> str | None:
    """What is wrong with an answer."""
    if not request.is_whole:
        return None  # the client did not look; what counts is that the server lives and its engine is free
    if got.status == 0:
        return None if len(request.body) > BODY_LIMIT else "the connection was closed without an answer"
    if got.status >= 500:
        return f"status {got.status}: {got.body[:300]!r}"
    if got.status in (204, 499) or request.method == "HEAD" or (got.status < 400 and request.path not in BODIES):
        return None
    if got.kind.startswith("text/event-stream"):
        return _stream_complaint(request, got.body)
    try:
        found = json.loads(got.body)
    except ValueError:
        return f"status {got.status}, and a body that is no JSON: {got.body[:300]!r}"
    return _error_complaint(request, got, found) if got.status >= 400 else None


def _error_complaint(request: Request, got: Exchange, found: Any) -> str | None:
    error = found.get("error") if isinstance(found, dict) else None
    shape = isinstance(error, dict) and isinstance(error.get("message"), str) and isinstance(error.get("type"), str)
    if request.path.startswith("/v1/messages"):
        shape = shape and found.get("type") == "error"
    else:
        shape = shape and "code" in error and "param" in error
    if got.status in (429, 503) and "retry-after" not in got.headers:
        return f"status {got.status} without Retry-After"
    return None if shape else f"status {got.status}, not in the form of its API: {got.body[:300]!r}"


def _stream_complaint(request: Request, body: bytes) -> str | None:
    try:
        wires = [Wire(name, data) for name, data in events_of(body) if name != "ping"]
        read = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}.get(request.path)
        if read is not None:
            getattr(api_accumulate, read)(wires)
    except Exception as error:
        return f"a stream that no client accepts: {error!r}: {body[-500:]!r}"
    return None


# --- strategies --------------------------------------------------------------------------------------------------------------

SCALARS: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "user", "tool", "text", "function", "none", "\ud83d", "<|im_end|>", "{", "high", "#endless#"]),
    st.sampled_from([0, -1, 1, 2, 1e300, 2**31, "", [], {}, [[]], "x" * 5000, {"type": "object", "properties": []}]),
)
JSON: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)
EXTRA = ("n", "stop", "seed", "top_k", "logprobs", "wild", "effort", "grammar", "json_schema", "response_format", "min_p")


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += paths_in(item, (*at, key))
    return found


@st.composite
def mutated(draw: Any, body: dict[str, Any]) -> dict[str, Any]:
    """`body` with a few places replaced, removed or added to."""
    made = copy.deepcopy(body)
    for _ in range(draw(st.integers(0, 3))):
        places = paths_in(made)
        if not places:
            break
        place = draw(st.sampled_from(places))
        inner: Any = made
        for key in place[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.booleans()):
            del inner[place[-1]]
        else:
            inner[place[-1]] = copy.deepcopy(draw(JSON))  # a later change must not reach the strategy
    if draw(st.booleans()):
        made[draw(st.sampled_from(EXTRA))] = draw(JSON)
    made["stream"] = draw(st.booleans())
    return made


@st.composite
def hostile_bodies(draw: Any, body: dict[str, Any]) -> bytes:
    """Bytes that are no request, or one that is large, deep or spelled by nobody."""
    text = json.dumps(body).encode()
    at = draw(st.integers(0, len(text)))
    n = draw(st.sampled_from([10, 300, 5000, 100_000]))
    return draw(
        st.one_of(
            st.binary(max_size=100),
            st.just(text[:at]),  # cut
            st.binary(min_size=1, max_size=3).map(lambda odd: text[:at] + odd + text[at:]),
            st.sampled_from(
                [
                    b"",
                    b" ",
                    b"null",
                    b"[]",
                    b"\xef\xbb\xbf" + text,
                    text.decode().encode("utf-16"),
                    b"[" * n,
                    b"[" * n + b"]" * n,
                    b'{"a":' * n + b"1" + b"}" * n,
                    text[:-1] + b', "metadata": ' + b"[" * n + b"]" * n + b"}",
                    text[:-1] + b', "tools": ' + b'[{"parameters": ' * min(n, 300) + b"{}" + b"}]" * min(n, 300) + b"}",
                    text[:-1] + b', "stop": "' + b"x" * n + b'"}',
                    text[:-1] + b', "max_tokens": ' + b"9" * n + b"}",
                    text[:-1] + b', "temperature": NaN}',
                    text[:-1] + b', "model": "\\ud83d"}',
                    text[:-1] + b', "model": "\xed\xa0\xbd"}',
                    text[:-1] + b', "stop": ["\\u0000", "\\udfff"]}',
                    text[:-1] + b', "a": 1, "a": 2' * min(n, 5000) + b"}",
                    json.dumps(body | {"messages": [{"role": "user", "content": "x"}] * min(n, 5000)}).encode(),
                    json.dumps(body | {"messages": chat_body("#" * n)["messages"], "input": "y" * n, "prompt": "z" * n}).encode(),
                    json.dumps(body | {"prompt": list(range(min(n, 3000)))}).encode(),
                    json.dumps(body | {"stop": [str(i) for i in range(min(n, 5000))]}).encode(),
                    b'{"model": "' + b"m" * (BODY_LIMIT + 10) + b'"}',
                ]
            ),
        )
    )


@st.composite
def requests(draw: Any) -> Request:
    """Any request; about a third are good or nearly so, and a third goes away early."""
    kind = draw(st.sampled_from(["body", "body", "hostile", "read", "gone", "gone", "protocol"]))
    path = draw(st.sampled_from(sorted(BODIES)))
    if kind == "read":
        query = draw(st.sampled_from(["", "?a=%zz"]))
        return Request(draw(st.sampled_from(METHODS)), draw(st.sampled_from(READ)) + query)
    if kind == "protocol":
        return draw(_protocol(path))
    if kind == "hostile":
        return Request("POST", path, draw(hostile_bodies(BODIES[path])), chunked=draw(st.booleans()))
    made = draw(mutated(BODIES[path]))
    if kind == "gone" and draw(st.booleans()):  # one that would never end by itself
        made |= {"messages": chat_body("#endless#")["messages"], "input": "#endless#", "prompt": "#endless#"}
    body = json.dumps(made).encode("utf-8", "surrogatepass")
    request = Request("POST", path, body, chunked=draw(st.booleans()))
    if kind == "body":
        return request
    sent = draw(st.none() | st.integers(0, len(request.data())))
    read = draw(st.sampled_from([0, 1, 100, 1000])) if sent is None else 0
    return replace(request, sent=sent, read=read, abrupt=draw(st.booleans()))


@st.composite
def _protocol(draw: Any, path: str) -> Request:
    """Odd headers with a good body, or a head that is none."""
    body = json.dumps(BODIES[path]).encode()
    if draw(st.booleans()):
        headers = tuple(draw(st.lists(st.sampled_from(ODD_HEADERS), max_size=3, unique_by=lambda header: header[0])))
        return Request(draw(st.sampled_from(METHODS)), path, body, headers, draw(st.booleans()))
    line = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    head = draw(
        st.sampled_from(
            [
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"GET\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"POST  " + path.encode() + b"\r\n\r\n",
                line + b"Content-Length: -1\r\n\r\n",
                line + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
                line + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                line + b"Content-Length: 99999999999999999999\r\n\r\n",
                line + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                line + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
                line + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
                line + b"X\x00Y: 1\r\n\r\n",
                line + b" folded: 1\r\n\r\n",
            ]
        )
        | st.binary(max_size=60)
    )
    return Request("POST", path, body if draw(st.booleans()) else b"", read=draw(st.sampled_from([0, 1, 4000])), head=head)
