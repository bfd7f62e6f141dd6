"""Clients that go away, in every phase, and queues that are full (FC-28, FC-29, FC-74)."""

from __future__ import annotations

import re
import socket
import threading
import time
from typing import Any

import pytest
from scripted_server import TOOLS, Scripted, calls_of, chat_body, events_of, reply, serving

from ds4py.server.app import Settings

SLOW = {
    "replies": [
        reply("never", prefill=3600.0, when="#prefill#"),
        reply("a", "b", endless=True, delay=0.02, when="#decode#"),
        reply(*calls_of(("f", '{"a": "x"}')), delay=0.05, when="#call#"),
        reply("<tool_call>", *"          ", delay=0.5, endless=True, when="#held#"),
        reply("quick"),
    ]
}
SETTINGS = Settings(keepalive_seconds=0.1)


@pytest.fixture
def server() -> Any:
    with serving(SLOW, settings=SETTINGS) as found:
        yield found


def quick(server: Scripted) -> None:
    """A small request is answered: it would time out behind one that nobody waits for."""
    assert server.ask("/v1/chat/completions", chat_body()).json["choices"][0]["message"]["content"] == "quick"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_client_that_goes_away_frees_the_engine(server: Scripted, path: str, stream: bool, phase: str) -> None:
    text = f"#{phase}# " + "x" * 500
    body = {"/v1/responses": {"input": text}, "/v1/completions": {"prompt": text}}.get(path, chat_body(text))
    made = server.open(path, {**body, "stream": stream})
    server.until(lambda: server.running == 1)
    time.sleep(0.15)
    made.close()
    server.until(lambda: server.running == 0)
    quick(server)
    assert f'outcome="cancelled"}} {1}' in server.ask("/metrics").body.decode()


def test_first_come_first_served(server: Scripted) -> None:
    """Whatever the API, and whether it streams: requests run in the order in which they were queued."""
    paths = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"] * 3
    with server.open("/v1/chat/completions", chat_body("#decode#", stream=True)):
        server.until(lambda: server.running == 1)
        waiting = []
        for i, path in enumerate(paths):
            body = {"/v1/responses": {"input": f"turn {i}."}, "/v1/completions": {"prompt": f"turn {i}."}}.get(path)
            waiting.append(server.open(path, {**(body or chat_body(f"turn {i}.")), "stream": i % 2 == 0}))
            server.until(lambda: server.queued == len(waiting))
    for made in waiting:
        found = b""
        while b"quick" not in found:
            found += made.recv(65536)
        made.close()
    turns = [prompt.partition("turn ")[2].partition(".")[0] for prompt in server.prompts if "turn " in prompt]
    assert turns == [str(i) for i in range(len(paths))]


def test_a_request_that_is_dead_in_the_queue_never_runs(server: Scripted) -> None:
    first = server.open("/v1/chat/completions", chat_body("#decode#", stream=True))
    server.until(lambda: server.running == 1)
    waiting = [server.open("/v1/chat/completions", chat_body(f"dead {i}", stream=i % 2 == 0)) for i in range(3)]
    server.until(lambda: server.queued == 3)
    for made in waiting:
        made.close()
    server.until(lambda: server.queued == 0)
    first.close()
    quick(server)
    assert not any("dead" in prompt for prompt in server.prompts)


def test_what_was_read_is_kept_for_the_next_try() -> None:
    script = {"replies": [reply("never", prefill=3.0, once=True), reply("quick")]}
    with serving(script, settings=SETTINGS) as server:
        text = "y" * 3000
        made = server.open("/v1/chat/completions", chat_body(text, stream=True))
        server.until(lambda: server.running == 1)
        time.sleep(1.0)
        made.close()
        server.until(lambda: server.running == 0)
        usage = server.ask("/v1/chat/completions", chat_body(text)).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 300


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving(SLOW, settings=SETTINGS, max_queue=2) as server:
        first = server.open("/v1/chat/completions", chat_body("#decode#", stream=True))
        server.until(lambda: server.running == 1)
        waiting = [server.open("/v1/chat/completions", chat_body(f"w{i}")) for i in range(2)]
        server.until(lambda: server.queued == 2)
        refused = server.ask("/v1/chat/completions", chat_body(stream=True))
        assert refused.status == 429 and int(refused.headers["retry-after"]) > 0
        assert server.ask("/v1/messages", chat_body()).json["error"]["type"] == "rate_limit_error"
        waiting[0].close()
        server.until(lambda: server.queued == 1)  # a dead request gives its place back
        last = server.open("/v1/chat/completions", chat_body("w3"))
        server.until(lambda: server.queued == 2)
        first.close()
        for made in (waiting[1], last):
            made.settimeout(5)
            found = b""
            while b"quick" not in found:  # head and body may come apart
                found += made.recv(65536)


def heard(server: Scripted, path: str, body: dict[str, Any], enough: bytes, n: int) -> bytes:
    """What came of a stream until `enough` had come n times; silence of 20 seconds fails."""
    with server.open(path, {**body, "stream": True}) as made:
        found = b""
        while found.count(enough) < n:
            part = made.recv(65536)
            assert part, found
            found += part
    return found


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
def test_something_is_said_in_every_phase(server: Scripted, path: str) -> None:
    """The prompt takes an hour; the stream says so from the first moment, again and again, with how far it has come."""

    def body(text: str) -> dict[str, Any]:
        return {"/v1/responses": {"input": text}, "/v1/completions": {"prompt": text}}.get(path, chat_body(text))

    alive = b"event: ping" if path == "/v1/messages" else b": prefill "
    heard(server, path, body("#prefill#" + "z" * 2000), alive, 4)
    server.until(lambda: server.running == 0)
    with server.open("/v1/chat/completions", chat_body("#decode#", stream=True)):
        server.until(lambda: server.running == 1)
        heard(server, path, body("waits"), b"event: ping" if path == "/v1/messages" else b": waiting", 4)


def test_the_progress_of_a_prompt_is_told_and_rises() -> None:
    with serving({"replies": [reply("ok", prefill=2.0)]}, settings=SETTINGS) as server:
        body = server.ask("/v1/chat/completions", chat_body("z" * 3000, stream=True)).body.decode()
    told = [tuple(map(int, found)) for found in re.findall(r"^: prefill (\d+)/(\d+)$", body, re.MULTILINE)]
    assert len(set(told)) > 1 and told == sorted(told), told
    assert len({total for _, total in told}) == 1 and all(done < total > 3000 for done, total in told)
    assert "ok" in body


def test_a_held_back_call_is_no_silence(server: Scripted) -> None:
    """There is nothing to show for the first pieces of a call, and still something is said."""
    found = heard(server, "/v1/chat/completions", chat_body("#held#", tools=TOOLS), b": waiting", 5)
    assert b"tool_calls" not in found


def test_comments_do_not_disturb_events(server: Scripted) -> None:
    made = server.ask("/v1/chat/completions", chat_body("#call#", tools=TOOLS, stream=True))
    events = events_of(made.body)
    assert events[-1][1] == "[DONE]" and events[-2][1]["choices"][0]["finish_reason"] == "tool_calls"


def test_idle_and_slow_connections_do_not_hold_up_others(server: Scripted) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for made in idle[:50]:
        made.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
    unread = server.open("/v1/chat/completions", chat_body("#decode#", stream=True))  # never reads
    server.until(lambda: server.running == 1)
    unread.close()
    quick(server)
    for made in idle:
        made.close()


def test_closing_ends_streams_with_an_error_of_their_api() -> None:
    with serving(SLOW, settings=SETTINGS) as server:
        made = server.open("/v1/messages", chat_body("#decode#", stream=True))
        server.until(lambda: server.running == 1)
        threading.Timer(0.2, lambda: server.worker.close(5.0)).start()
        found = b""
        made.settimeout(5)
        while part := made.recv(65536):
            found += part
            if b"event: error" in found:
                break
        assert b"overloaded_error" in found
        assert server.ask("/v1/chat/completions", chat_body()).status == 503 and server.ask("/health").status == 503
