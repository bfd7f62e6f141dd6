"""What serving costs: a streamed token of `ds4-server` against one of `ds4`, the same text, turn about, on a quiet machine.

    python tests/scripts/server_overhead.py MODEL.gguf [--tokens 256] [--rounds 7] [--threads N] [--api chat ...]

Both are processes of their own and both are timed from outside of the engine: `ds4` by the line that it ends with, the server by
its client, from the first piece of text to the last one. The client reads what comes and does not parse it until the end. Prints
the time of a token, in milliseconds, for each round and as medians; the overhead is the median of the rounds' ratios. Exit 1 if
the texts differ, or over --limit percent.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from statistics import median
from typing import Any
from urllib.parse import urlsplit

PROMPT = "Tell a long story about a fox and a crow."
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--api", choices=PATHS, nargs="+", default=["chat"])
    parser.add_argument("--limit", type=float, default=3.0, help="percent")
    asked = parser.parse_args()
    common = ["-m", asked.model, "-c", "2048", *(["-t", str(asked.threads)] if asked.threads else [])]
    command = [sys.executable, "-m", "ds4py.cli.server", *common, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = _address(server)
        _stream(address, "chat", 16)  # compiles what is not compiled yet, and reads the prompt
        times: dict[str, list[float]] = {name: [] for name in ("ds4", *asked.api)}
        for i in range(asked.rounds):
            text, times_ds4 = _command(common, asked.tokens)
            times["ds4"].append(times_ds4)
            for api in asked.api:
                served, seconds = _stream(address, api, asked.tokens)
                if served.strip() != text.strip():
                    print(f"different texts:\n{text!r}\n{served!r}")
                    return 1
                times[api].append(seconds)
            print(f"round {i + 1}: " + ", ".join(f"{name} {1e3 * found[-1]:.3f} ms" for name, found in times.items()), flush=True)
    finally:
        server.terminate()
        server.wait()
    worst = 0.0
    print(f"ds4: {1e3 * median(times['ds4']):.3f} ms a token")
    for api in asked.api:
        ratios = [served / plain for served, plain in zip(times[api], times["ds4"], strict=True)]
        over = 100 * (median(ratios) - 1)
        worst = max(worst, over)
        spread = f"{100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f}"
        print(f"{api}: {1e3 * median(times[api]):.3f} ms a token, overhead {over:+.1f} % ({spread})")
    return 1 if worst > asked.limit else 0


def _address(server: subprocess.Popen[str]) -> tuple[str, int]:
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"listening at (http://\S+)", line):
            parts = urlsplit(found.group(1))
            assert parts.hostname and parts.port
            return parts.hostname, parts.port
    raise SystemExit("the server did not start")


def _command(common: list[str], n: int) -> tuple[str, float]:
    """(text, seconds a token) of ds4."""
    command = [sys.executable, "-m", "ds4py.cli.chat", *common, "-p", PROMPT, "--system", "", "--temp", "0", "-n", str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"generation: ([\d.]+) t/s", done.stderr)
    assert found is not None, done.stderr
    return done.stdout, 1 / float(found.group(1))


def _stream(address: tuple[str, int], api: str, n: int) -> tuple[str, float]:
    """(text, seconds between two tokens) of a streamed answer."""
    said: dict[str, Any] = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    if api == "responses":
        said |= {"input": PROMPT, "max_output_tokens": n}
    else:
        said |= {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": n}
    body = json.dumps(said).encode()
    head = f"POST {PATHS[api]} HTTP/1.1\r\nHost: {address[0]}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    parts: list[tuple[float, bytes]] = []
    with socket.create_connection(address) as made:
        made.sendall(head.encode() + body)
        while part := made.recv(65536):
            parts.append((time.perf_counter(), part))
    return _measured(parts)


def _measured(parts: list[tuple[float, bytes]]) -> tuple[str, float]:
    """The text in what came, and the seconds between its tokens. An event may come in two parts: it is there with the second."""
    raw, found, times = b"", list[str](), list[float]()
    n_generated = 0
    for at, part in parts:
        raw += part
        *events, raw = raw.split(b"\n\n")
        for event in events:
            data = event.rpartition(b"data: ")[2]
            if not data.startswith(b"{"):
                continue
            told = json.loads(data)
            if text := _text(told):
                found.append(text)
                times.append(at)
            usage = told.get("usage") or told.get("response", {}).get("usage") or {}
            n_generated = usage.get("completion_tokens", usage.get("output_tokens", n_generated))
    return "".join(found), (times[-1] - times[0]) / (n_generated - 1)


def _text(told: dict[str, Any]) -> str:
    choices = told.get("choices")
    if choices:
        return choices[0]["delta"].get("content") or ""
    delta = told.get("delta")
    return delta if isinstance(delta, str) else (delta or {}).get("text", "")


if __name__ == "__main__":
    sys.exit(main())
