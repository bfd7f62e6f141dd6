"""Dozens of clients stream from a server on a script, one behind the other for minutes: is every piece there, and at what memory?

    python tests/scripts/server_soak.py [--clients 64] [--seconds 600]

Each client asks, reads its stream to the end and asks again, with a text of its own that the script answers with its own numbered
pieces, by each API in turn, through one queue. Every piece of every stream must be there, once and in order, with a proper end.
Printed: streams, pieces, times to the first piece and of a whole stream (medians and worst), the longest silence on a connection,
memory of the server's process after a tenth of the time and at the end. Exit 1 if anything was lost or memory grew.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")
GROWTH = 0.10  # of memory, after a tenth of the time


@dataclass
class Tally:
    """What clients found; each writes under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    n_pieces: int = 0
    first: list[float] = field(default_factory=list)  # seconds to the first piece
    whole: list[float] = field(default_factory=list)  # seconds of a stream
    silence: float = 0.0  # longest, on a connection
    wrong: list[str] = field(default_factory=list)


def script(n_clients: int, n_pieces: int) -> dict[str, Any]:
    """A reply for each client, of pieces that nobody else has."""
    def reply(i: int) -> dict[str, Any]:
        return {"when": f"#{i}#", "pieces": [f"{i}.{k} " for k in range(n_pieces + i % 7)], "delay": 0.0005}

    return {"replies": [reply(i) for i in range(n_clients)]}


def soak(url: str, n_clients: int, n_pieces: int, seconds: float) -> Tally:
    """Run the clients for so long, each to the end of its last stream."""
    tally, end = Tally(), time.monotonic() + seconds
    threads = [threading.Thread(target=_client, args=(url, i, n_pieces + i % 7, end, tally)) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def _client(url: str, number: int, n_pieces: int, end: float, tally: Tally) -> None:
    want = "".join(f"{number}.{k} " for k in range(n_pieces))
    turn = number
    while time.monotonic() < end:
        path, turn = PATHS[turn % len(PATHS)], turn + 1
        try:
            began = time.monotonic()
            text, first, silence, ended = _stream(url, path, f"#{number}#")
            seconds = time.monotonic() - began
            right = text == want and ended
            wrong = "" if right else f"{path}: {text!r:.200}, {ended=}, instead of {want!r:.200}"
        except Exception as error:
            text, first, silence, seconds, wrong = "", 0.0, 0.0, 0.0, f"{path}: {error!r}"
        with tally.lock:
            tally.n_pieces += text.count(" ")
            tally.silence = max(tally.silence, silence)
            if wrong:
                tally.wrong.append(wrong)
            else:
                tally.first.append(first)
                tally.whole.append(seconds)


def _stream(url: str, path: str, word: str) -> tuple[str, float, float, bool]:
    """(text, seconds to its first piece, longest silence, whether it ended as its API says)."""
    body: dict[str, Any] = {"stream": True, "messages": [{"role": "user", "content": word}]}
    body = {"/v1/responses": {"stream": True, "input": word}, "/v1/completions": {"stream": True, "prompt": word}}.get(path, body)
    made = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    began = last = time.monotonic()
    texts, first, silence, ended = list[str](), 0.0, 0.0, False
    try:
        made.request("POST", path, json.dumps(body | {"temperature": 0}), {"Content-Type": "application/json"})
        answer = made.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.read(300)!r}")
        for line in answer:
            silence, last = max(silence, time.monotonic() - last), time.monotonic()
            if line.startswith(b"data: {"):
                told = json.loads(line[6:])
                text = _text(told)
                first = first or (time.monotonic() - began if text else 0.0)
                texts.append(text)
                ended = ended or told.get("type") in ("message_stop", "response.completed")
            ended = ended or line.startswith(b"data: [DONE]")
    finally:
        made.close()
    return "".join(texts), first, silence, ended


def _text(told: dict[str, Any]) -> str:
    """The piece of the answer in an event of any API."""
    if choices := told.get("choices"):
        return choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
    delta = told.get("delta")
    return delta if isinstance(delta, str) else (delta or {}).get("text", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pieces", type=int, default=60)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.json")
        path.write_text(json.dumps(script(asked.clients, asked.pieces)))
        command = [sys.executable, "-m", "ds4py.cli.server", "--scripted", str(path), "--nothink", "--port", "0", "-c", "4096"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            return _report(asked, server)
        finally:
            server.terminate()
            server.wait()


def _report(asked: argparse.Namespace, server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    url = next(found.group(1) for line in server.stderr if (found := re.search(r"listening at (http://\S+)", line)))
    threading.Thread(target=server.stderr.read, daemon=True).start()  # nobody reads the log, but it must not fill its pipe
    memory: list[float] = []
    timer = threading.Timer(asked.seconds / 10, lambda: memory.append(megabytes(server.pid)))
    timer.start()
    tally = soak(url, asked.clients, asked.pieces, asked.seconds)
    timer.join()
    memory.append(megabytes(server.pid))
    n_streams = len(tally.whole) + len(tally.wrong)
    print(f"{asked.clients} clients, {asked.seconds:.0f} s: {n_streams} streams, {len(tally.wrong)} of them wrong")
    print(f"{tally.n_pieces} pieces came")
    for wrong in tally.wrong[:5]:
        print(wrong)
    print(f"first piece after {median(tally.first):.2f} s, at most {max(tally.first):.2f} s (it waits for those in front)")
    print(f"a stream took {median(tally.whole):.2f} s, at most {max(tally.whole):.2f} s; longest silence {tally.silence:.2f} s")
    grown = memory[-1] / memory[0] - 1
    print(f"memory: {memory[0]:.1f} MB after a tenth, {memory[-1]:.1f} MB at the end ({100 * grown:+.1f} %)")
    return 1 if tally.wrong or grown > GROWTH else 0


def megabytes(pid: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


if __name__ == "__main__":
    sys.exit(main())
