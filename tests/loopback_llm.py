"""A server on 127.0.0.1 that streams chat completions as llama-server does, with scripted texts and timings.

    with LoopbackServer(speed=100, accept=2) as server: ...    # server.url, server.seen: the requests' bodies

The answer to a prompt is as long as asked, a function of the prompt alone, and of its seed above temperature 0. Speeds are told
in `timings` and not lived through. `accept`: of 3 drafted tokens a pass so many are accepted, unless a request says
"speculative": false.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np

DRAFTED = 3


class LoopbackServer:
    def __init__(
        self,
        speed: float = 100.0,
        accept: int = 0,
        told: bool = True,
        faults: Mapping[str, str] | None = None,
        answers: Mapping[str, str] | None = None,
    ) -> None:
        """told: timings and /metrics are sent. faults: word in a prompt -> "status", "cut", "nonsense", "error" or "loop".
        answers: word in a prompt -> the reply to it."""
        self.speed, self.accept, self.told, self.faults, self.answers = speed, accept, told, faults or {}, answers or {}
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.drafts, self.accepted_at = 0, [0] * accept
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._get(self)

            def do_POST(self) -> None:
                outer._post(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LoopbackServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        if request.path == "/v1/models":
            self._send(request, 200, json.dumps({"data": [{"id": "loopback"}]}))
        elif request.path == "/metrics" and self.told and self.accept:
            lines = [f"llamacpp:spec_decode_num_drafts_total {self.drafts}"]
            name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{position="{i}"}} {n}' for i, n in enumerate(self.accepted_at)]
            self._send(request, 200, "\n".join(lines) + "\n")
        else:
            self._send(request, 404, "")

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        prompt = body["messages"][-1]["content"]
        fault = next((kind for word, kind in self.faults.items() if word in prompt), "")
        if fault == "status":
            self._send(request, 503, json.dumps({"error": {"message": "the model is still being loaded"}}))
            return
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        for event in self._events(body, prompt, fault):
            request.wfile.write(f"data: {event}\n\n".encode())
            request.wfile.flush()
        request.close_connection = True

    def _events(self, body: Mapping[str, Any], prompt: str, fault: str) -> list[str]:
        n = body["max_tokens"]
        seed = body["seed"] if body["temperature"] else 0
        words = np.random.default_rng([seed, *prompt.encode()]).integers(0, 10**6, n)
        text = [f"w{0 if fault == 'loop' else word} " for word in words]
        scripted = next((reply for word, reply in self.answers.items() if word in prompt), None)
        if scripted is not None:
            text = scripted.split(" ")
            text[:-1] = [word + " " for word in text[:-1]]
        events = [json.dumps({"choices": [{"delta": {"content": word}, "finish_reason": None}]}) for word in text]
        if fault == "cut":
            return []
        if fault == "nonsense":
            return [*events[:2], "{broken"]
        if fault == "error":
            return [*events[:2], json.dumps({"error": {"message": "out of memory"}})]
        end: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length" if scripted is None else "stop"}]}
        end["usage"] = {"prompt_tokens": len(prompt.split()), "completion_tokens": n}
        if self.told:
            end["timings"] = self._timings(n, body.get("speculative", True))
        return [*events, json.dumps(end), "[DONE]"]

    def _timings(self, n: int, drafting: bool) -> dict[str, float]:
        """Plain decoding takes 1/100 s a token, and drafting runs `speed` of them a second."""
        on = drafting and self.accept > 0
        timings = {"prompt_n": 5, "prompt_ms": 20.0, "predicted_n": n, "predicted_ms": 1e3 * n / (self.speed if on else 100.0)}
        if on:
            passes = n // (self.accept + 1)
            self.drafts += passes
            self.accepted_at = [count + passes for count in self.accepted_at]
            timings |= {"draft_n": DRAFTED * passes, "draft_n_accepted": self.accept * passes}
        return timings

    def _send(self, request: BaseHTTPRequestHandler, status: int, text: str) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(text.encode())))
        request.end_headers()
        request.wfile.write(text.encode())
