"""The HTTP side on a scripted model: routes, keys and origins, hostile bodies, sizes (FC-28, FC-70, FC-73)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from scripted_server import TOOLS, Scripted, chat_body, events_of, reply, serving

from ds4py.server.app import Settings
from ds4py.server.guard import Access

HELLO = {"replies": [reply("Hel", "lo")]}


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with serving(HELLO) as found:
        yield found


def test_every_route(server: Scripted) -> None:
    assert server.ask("/health").json == {"status": "ok"}
    assert server.ask("/", method="HEAD").status == 200 and server.ask("/?x=1").json["n_ctx"] == 20_000
    (card,) = server.ask("/v1/models").json["data"]
    assert card["id"] == "scripted" and card["context_length"] == 20_000 and card["object"] == "model"
    assert server.ask("/v1/models/scripted").json == card and server.ask("/v1/models/other").status == 404
    assert server.ask("/v1/chat/completions?beta=true", chat_body()).json["choices"][0]["message"]["content"] == "Hello"
    assert server.ask("/v1/completions", {"prompt": "x"}).json["choices"][0]["text"] == "Hello"
    assert server.ask("/v1/responses", {"input": "x"}).json["output"][0]["content"][0]["text"] == "Hello"
    message = server.ask("/v1/messages?beta=true", {**chat_body(), "max_tokens": 9}).json
    assert message["content"] == [{"type": "text", "text": "Hello"}] and message["model"] == "m"
    counted = server.ask("/v1/messages/count_tokens", {**chat_body(), "tools": []}).json["input_tokens"]
    usage = message["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    metrics = server.ask("/metrics").body.decode()
    assert 'ds4_requests_total{api="messages",outcome="stop"} 1' in metrics and "ds4_accepted_tokens_total 0" in metrics
    assert 'speculation="speculation: off"' in metrics


def test_wrong_paths_say_what_was_meant(server: Scripted) -> None:
    missing = server.ask("/chat/completions", chat_body())
    assert missing.status == 404 and "/v1/chat/completions" in missing.json["error"]["message"]
    assert server.ask("/v1/chat/completions").status == 405
    assert server.ask("/v1/nothing").json["error"]["type"] == "not_found_error"
    assert server.ask("/v1/messages/nothing", {}).json["type"] == "error"


def test_errors_in_each_form(server: Scripted) -> None:
    openai = server.ask("/v1/chat/completions", chat_body(n=2))
    assert openai.status == 400 and openai.json["error"]["param"] == "n"
    anthropic = server.ask("/v1/messages", {"messages": []})
    assert anthropic.status == 400 and anthropic.json["error"]["type"] == "invalid_request_error"
    bias = server.ask("/v1/chat/completions", chat_body(logit_bias={"999999": 5}))
    assert bias.status == 400 and "999999" in bias.json["error"]["message"]
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}
    assert server.ask("/v1/chat/completions", chat_body(response_format=schema)).status == 400
    assert server.ask("/v1/chat/completions", chat_body()).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_is_refused_before_a_stream_with_both_numbers(server: Scripted, stream: bool) -> None:
    long = "x" * 20_000
    for path, body in (
        ("/v1/chat/completions", chat_body(long, stream=stream)),
        ("/v1/responses", {"input": long, "stream": stream}),
        ("/v1/completions", {"prompt": long, "stream": stream}),
    ):
        error = server.ask(path, body)
        found = error.json["error"]
        assert error.status == 400 and found["code"] == "context_length_exceeded"
        assert found["n_ctx"] == 20_000 and found["n_prompt_tokens"] >= 20_000
        assert str(found["n_prompt_tokens"]) in found["message"] and "20000" in found["message"]
    told = server.ask("/v1/messages", chat_body(long, stream=stream)).json["error"]["message"]
    assert told.startswith("prompt is too long: 20") and told.endswith(" tokens > 20000 maximum")
    assert server.ask("/v1/messages/count_tokens", chat_body(long)).json["input_tokens"] > 20_000


def test_hosts_and_origins_of_strangers_are_refused(server: Scripted) -> None:
    for headers in ({"Host": "evil.test"}, {"Origin": "http://evil.test"}, {"Origin": "null"}):
        refused = server.ask("/v1/chat/completions", chat_body(), {**headers, "Content-Type": "text/plain"})
        assert refused.status == 403 and "access-control-allow-origin" not in refused.headers
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    for headers in (own, {"Host": f"localhost:{server.port}"}, {"Host": "[::1]:1"}, {"Content-Type": "text/plain"}):
        assert server.ask("/v1/chat/completions", chat_body(), headers).status == 200
    options = server.ask("/v1/chat/completions", method="OPTIONS")
    assert options.status == 204 and "access-control-allow-origin" not in options.headers


def test_keys_and_pages() -> None:
    with serving(HELLO, settings=Settings(Access(keys=("secret", "other", "gr\u00fcn"), cors=True))) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "secre"}, {"Authorization": "Basic secret"}):
            openai = server.ask("/v1/chat/completions", chat_body(), headers)
            assert openai.status == 401 and openai.json["error"]["code"] == "invalid_api_key"
            anthropic = server.ask("/v1/messages", chat_body(), headers)
            assert anthropic.status == 401 and anthropic.json["error"]["type"] == "authentication_error"
        for headers in (
            {"Authorization": "Bearer secret"},
            {"x-api-key": "other"},
            {"authorization": "bearer  secret"},
            {"Authorization": "Bearer any", "x-api-key": "secret"},
            {"x-api-key": "gr\u00fcn".encode().decode("latin-1")},
        ):
            good = server.ask("/v1/chat/completions", chat_body(), {**headers, "Origin": "http://page.test"})
            assert good.status == 200 and good.headers["access-control-allow-origin"] == "*"
        assert server.ask("/health").status == 200 and server.ask("/metrics").status == 401
        options = server.ask("/x", method="OPTIONS").headers
        assert options["access-control-allow-methods"] == "GET, POST, OPTIONS"
        assert "Authorization" in options["access-control-allow-headers"]
        assert server.ask("/v1/chat/completions", chat_body(), {"x-api-key": "\xff"}).status == 401


def test_too_many_requests_at_a_time_are_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4py.server.guard._MOST", 2)
    with serving({"replies": [reply("tick ", endless=True, delay=0.02, when="#slow#"), reply("ok")]}) as server:
        slow = [server.open(path, chat_body("#slow#", stream=True)) for path in ("/v1/chat/completions", "/v1/messages")]
        server.until(lambda: server.running + server.queued == 2)
        openai, anthropic = (server.ask(path, chat_body()) for path in ("/v1/chat/completions", "/v1/messages"))
        assert openai.status == anthropic.status == 503 and int(openai.headers["retry-after"]) > 0
        assert openai.json["error"]["type"] == "server_error" and anthropic.json["error"]["type"] == "overloaded_error"
        assert server.ask("/health").status == 200
        for made in slow:
            made.close()
        server.until(lambda: server.running + server.queued == 0)
        server.until(lambda: server.ask("/v1/chat/completions", chat_body()).status == 200)


def raw(server: Scripted, data: bytes, seconds: float = 20.0) -> bytes:
    """What the server answers to these bytes before it closes or falls silent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as made:
        made.sendall(data)
        found = b""
        try:
            while part := made.recv(65536):
                found += part
                if b"\r\n\r\n" in found and b"content-length: 0" in found.lower():
                    break
        except (TimeoutError, ConnectionResetError):
            pass
        return found


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 1000000000000\r\n\r\n", b"413"),
        (b"Content-Length: -1\r\n\r\n", b"400"),
        (b"Content-Length: abc\r\n\r\n", b"400"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
        (b"X: " + b"y" * 70_000 + b"\r\n\r\n", b"400"),
        (b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", b"415"),
        (b"Content-Length: 2\r\n\r\n{]", b"400"),
        (b"Content-Length: 0\r\n\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n", b"400"),
    ],
)
def test_hostile_heads_and_bodies(server: Scripted, head: bytes, status: bytes) -> None:
    assert raw(server, HEAD + head).split(b" ", 2)[1] == status
    assert server.ask("/health").status == 200


def test_bodies_are_bounded_however_they_come() -> None:
    with serving(HELLO, settings=Settings(max_body_bytes=1 << 20, patience_seconds=0.3)) as server:
        assert server.ask("/v1/chat/completions", chat_body("x" * 1_100_000)).status == 413
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as made:
            made.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            try:
                for _ in range(40):
                    made.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                answer = made.recv(100)
            except OSError:
                answer = b"HTTP/1.1 413"  # it answered and closed while we were still sending
            assert b"413" in answer
        assert server.ask("/v1/chat/completions", b"[" * 100_000).status == 400
        assert b"408" in raw(server, HEAD + b"Content-Length: 9\r\n\r\n{")  # and nothing more
        many = [{"role": "user", "content": "x"}] * 1000
        assert server.ask("/v1/chat/completions", {"messages": many}).status in (200, 400)


def test_a_head_that_never_ends_is_closed(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4py.server.listening._HEAD_SECONDS", 0.2)
    assert b"408" in raw(server, HEAD) and b"408" in raw(server, b"")
    two = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2
    assert raw(server, two, 1.0).count(b'{"status":"ok"}') == 2  # pipelined


def test_a_stream_names_its_kind_and_proxies_leave_it_alone(server: Scripted) -> None:
    answer = server.ask("/v1/chat/completions", chat_body(stream=True, stream_options={"include_usage": True}))
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.headers["cache-control"] == "no-cache"
    events = events_of(answer.body)
    assert events[-1] == (None, "[DONE]") and events[-2][1]["usage"]["completion_tokens"] == 3
    assert events[-3][1]["timings"]["predicted_n"] == 3


def test_unknown_things_are_ignored_with_one_line(server: Scripted) -> None:
    before = len(server.lines)
    body = chat_body(wild=1, user="x", metadata={"a": 1}, tools=[*TOOLS, {"type": "web_search"}])
    assert server.ask("/v1/chat/completions", body).status == 200
    told = [line for line in server.lines[before:] if "ignored" in line]
    assert told == ["/v1/chat/completions: ignored wild, tools[2].type 'web_search'"]
