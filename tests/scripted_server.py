"""A server on a scripted model, in this process: real sockets, real engine, made-up logits.

`serving({...})` is a context manager; `Scripted` holds what tests look at: the base URL, worker, log, every prompt. Requests
go through the standard library, so that a test can close a socket wherever it likes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ds4py.chat import open_format
from ds4py.drafters import NgramSizes
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.engine import FixedDepth, SessionOptions
from ds4py.protocols import SamplingParams
from ds4py.server.app import Settings, build
from ds4py.server.listening import bind, server_of
from ds4py.server.prompting import Defaults, Prompting
from ds4py.server.replays import Replays
from ds4py.server.scripted import Script, read_script
from ds4py.server.worker import Served, Worker


@dataclass
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Scripted:
    """A running server."""

    port: int
    worker: Worker
    script: Script
    lines: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers or {}))
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    def open(self, path: str, body: Any) -> socket.socket:
        """A socket on which the request has been sent and nothing has been read."""
        data = json.dumps(body).encode()
        made = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        made.sendall(head.encode() + data)
        return made

    def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until `holds()`. Fails after `seconds`, which only a server that hangs needs, however busy the machine."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.lines[-5:]
            time.sleep(0.005)

    @property
    def running(self) -> int:
        return int(self.worker.gauges()["ds4_running"])

    @property
    def queued(self) -> int:
        return int(self.worker.gauges()["ds4_queue_length"])


def plain(options: SessionOptions) -> SessionOptions:
    """Equips sessions with nothing."""
    return options


@contextlib.contextmanager
def serving(
    script: Mapping[str, Any],
    *,
    n_ctx: int = 20_000,
    defaults: Defaults | None = None,
    settings: Settings | None = None,
    equip: Callable[[SessionOptions], SessionOptions] = plain,
    cache_bytes: int = 1 << 30,
    max_queue: int = 0,
    max_ids: int = 1000,
) -> Iterator[Scripted]:
    made = read_script(script, "test", n_ctx)
    chat = open_format(made.file, made.tokenizer)
    defaults = defaults or Defaults(params=SamplingParams(0.0), strict=False)
    prompting = Prompting(made.tokenizer, chat, n_ctx, made.model.vocab_size, Replays(max_ids), defaults)
    prompts: list[str] = []

    def begin(state: Any, prompt: str, n_prompt: int, check: Callable[[], None]) -> None:
        prompts.append(prompt)
        made.begin(state, prompt, n_prompt, check)

    lines: list[str] = []
    served = Served(made.engine, prompting, "scripted", equip=equip, begin=begin)
    worker = Worker(served, cache_bytes, max_queue, lines.append)
    worker.start()
    at = bind("127.0.0.1", 0)
    server = server_of(build(worker, settings or Settings(), lines.append), lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
    thread.start()
    found = Scripted(at.getsockname()[1], worker, made, lines, prompts)
    try:
        found.until(lambda: server.started)
        yield found
    finally:
        worker.close(5.0)
        server.should_exit = True
        thread.join(10)
        at.close()


def copying(rule: Any = None) -> Callable[[SessionOptions], SessionOptions]:
    """Equips sessions with a drafter that copies what came before."""

    def equip(options: SessionOptions) -> SessionOptions:
        made = replace(options, drafter=NgramSimple(NgramSizes(2, 6, 1)), depth=FixedDepth(6))
        return made if rule is None else replace(made, rule=rule)

    return equip


def events_of(body: bytes) -> list[tuple[str | None, Any]]:
    """Server-sent events in a body: (event name, data)."""
    found: list[tuple[str | None, Any]] = []
    for block in body.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name = next((line[7:] for line in lines if line.startswith("event: ")), None)
        data = next(line[6:] for line in lines if line.startswith("data: "))
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def reply(*pieces: Any, **fields: Any) -> dict[str, Any]:
    return {"pieces": list(pieces), **fields}


def calls_of(*calls: tuple[str, str]) -> Sequence[str]:
    """Pieces of a reply that makes these calls (name, arguments)."""
    found: list[str] = []
    for name, arguments in calls:
        found += ["<tool_call>", "\n", f'{{"name": "{name}", ', f'"arguments": {arguments}}}', "\n", "</tool_call>"]
    return found


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    for name in ("f", "g")
]
