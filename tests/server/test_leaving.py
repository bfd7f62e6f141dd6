"""Clients that leave at the places where it is easy to forget them, and clients that stay and do not read (FC-29, FC-74)."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_server import TOOLS, Scripted, chat_body, reply, serving

LONG_CALL = ["<tool_call>", '{"name": "f", ', '"arguments": {"a": "', *["x "] * 2000]
SCRIPT = {
    "replies": [
        reply(*LONG_CALL, delay=0.01, when="#call#"),
        reply("y" * 100_000, endless=True, when="#much#"),
        reply("z" * 100_000, endless=True, delay=0.01, when="#steadily#"),  # 40 seconds until the context is full
        reply("so ", "it ", "is"),
    ]
}
PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"]


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with serving(SCRIPT, n_ctx=4000) as found:
        yield found


def body_for(path: str, text: str, **fields: Any) -> dict[str, Any]:
    inner = {"/v1/responses": {"input": text}, "/v1/completions": {"prompt": text}}.get(path, chat_body(text))
    return {**inner, **fields}


def leave(made: socket.socket, abruptly: bool) -> None:
    if abruptly:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


def all_is_well(server: Scripted, n_lines: int, idle: bool = True) -> None:
    """The engine is free (if it is to be idle), a plain request is answered, and nothing broke since the log had n_lines."""
    if idle:
        server.until(lambda: server.running == 0 and server.queued == 0)
    assert server.ask("/v1/completions", {"prompt": "p"}).json["choices"][0]["text"] == "so it is"
    assert not any("Traceback" in line for line in server.lines[n_lines:]), server.lines[n_lines:]


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("path", [*PATHS, "/v1/messages/count_tokens"])
def test_while_the_body_is_sent(server: Scripted, path: str, abruptly: bool) -> None:
    n_lines, n_prompts = len(server.lines), len(server.prompts)
    data = json.dumps(body_for(path, "hi", stream=True)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    for n in (0, 1, len(data) // 2, len(data) - 1):
        made = socket.create_connection(("127.0.0.1", server.port))
        made.sendall(head + data[:n])
        leave(made, abruptly)
    all_is_well(server, n_lines)
    assert len(server.prompts) == n_prompts + 1


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS[:3])
def test_within_a_call(server: Scripted, path: str, stream: bool, abruptly: bool) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    claude = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
    tools = {"/v1/responses": flat, "/v1/messages": claude}.get(path, TOOLS)
    n_lines = len(server.lines)
    made = server.open(path, body_for(path, "#call#", tools=tools, stream=stream))
    if stream:
        found = b""
        while found.count(b"x ") < 3:
            found += made.recv(65536)
    else:
        server.until(lambda: server.running == 1)
    leave(made, abruptly)
    server.until(lambda: server.running == 0)
    server.until(lambda: any("cancelled, " in line for line in server.lines[n_lines:]))  # told a moment later
    all_is_well(server, n_lines)


@pytest.mark.parametrize("path", PATHS)
def test_about_the_last_token(server: Scripted, path: str) -> None:
    """The end is read in part, or not at all, or the client leaves just when the end is written."""
    n_lines = len(server.lines)
    finish = b"response.completed" if path == "/v1/responses" else b"stop"
    ends: list[Callable[[bytes], bool]] = [lambda found: b"is" in found, lambda found: finish in found, bool]
    for k in range(12):
        made = server.open(path, body_for(path, f"turn {k}", stream=True))
        found = b""
        while not ends[k % 3](found) and (part := made.recv(65536)):
            found += part
        leave(made, k % 2 == 0)
    all_is_well(server, n_lines)


def stalled(server: Scripted, body: dict[str, Any], room: int = 2048) -> socket.socket:
    """A client that asks and then reads nothing, with little room for what comes."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.settimeout(20)
    made.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    made.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_reads_nothing_is_cut_off_and_others_go_on(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("ds4py.server.listening._UNREAD_SECONDS", 0.5)
    n_lines = len(server.lines)
    made = stalled(server, chat_body("#much#", stream=stream, **({} if stream else {"max_tokens": 200})))
    server.until(lambda: server.running == 1)
    assert server.ask("/health").json == {"status": "ok"}
    all_is_well(server, n_lines)  # the plain request waits in the queue until the client is given up, or the answer is whole
    n = 0
    with contextlib.suppress(ConnectionResetError):
        time.sleep(1.0)
        while part := made.recv(1 << 20):
            n += len(part)
    assert n < 15_000_000  # of the 20 MB or more that there were: the connection was cut
    made.close()


def test_a_client_that_reads_nothing_gives_way_to_those_who_wait(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it may take its time; with others behind it, it loses its place long before it is cut off, and is told so."""
    monkeypatch.setattr("ds4py.server.streaming._UNREAD", 0.2)
    monkeypatch.setattr("ds4py.server.streaming._AGAIN", 0.1)
    n_lines = len(server.lines)
    made = stalled(server, chat_body("#steadily#", stream=True), 1 << 17)
    server.until(lambda: server.running == 1)
    time.sleep(1.0)  # far longer than what is granted with others behind it
    assert server.running == 1
    all_is_well(server, n_lines, idle=False)
    server.until(lambda: any("cancelled, " in line for line in server.lines[n_lines:]))  # told a moment later
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        part = made.recv(1 << 17)
        assert part, found[-200:]
        found = found[-1000:] + part
    made.close()
    assert b"this answer was given up" in found[-1000:]


def test_a_client_that_reads_slowly_gets_everything(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4py.server.listening._UNREAD_SECONDS", 5.0)
    made = stalled(server, chat_body("#much#", stream=True, max_tokens=80), 1 << 17)
    found = b""
    while b"data: [DONE]" not in found[-100:]:
        found += made.recv(1 << 17)
        time.sleep(0.002)
    made.close()
    assert found.count(b"y") >= 80 * 100_000
