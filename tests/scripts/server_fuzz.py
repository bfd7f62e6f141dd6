"""Send a server on a script tens of thousands of requests, good, nearly good and hostile, and see that it is the same afterwards.

    python tests/scripts/server_fuzz.py [--requests 50000] [--clients 3] [--seed 1] [--options "--spec-type ngram-simple ..."]

What is sent is `tests/hostile_requests.py`: every endpoint, bodies that are cut, deep, huge or no text at all, wrong methods and
heads, streams and whole answers, clients that leave in each phase. Looked for: a status of 500 and more, an error that is not in
the form of its API, a stream that a strict client would not take, a connection that falls silent, a traceback in the log, an
engine that is not free between rounds (a plain request is asked and timed), and memory that grows.
A failure is shrunk by hypothesis and shown. Memory is that of the server's process, after a fifth and at the end: what the server
keeps on purpose (sessions, calls) is bounded tightly, and the tokenizer's cache of ten thousand words is filled before the first
request. Exit 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile_requests import BODY_LIMIT, N_CTX, SCRIPT, Request, complaint, exchange, requests
from hypothesis import HealthCheck, given, seed, settings
from scripted_server import chat_body

ROUND = 250  # requests of a client between two looks at the server
STANDSTILL = 8.0  # seconds after which the server may say that we were slow: the machine did something else
GROWTH = 0.10  # of memory, after a fifth


class Seen(Counter[str]):
    """Statuses by endpoint kind."""

    def note(self, request: Request, status: int) -> None:
        self["left early" if not request.is_whole else str(status)] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--options", type=shlex.split, default=[], help="more options of the server")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script, log = Path(folder, "script.json"), Path(folder, "log")
        script.write_text(json.dumps(SCRIPT))
        options = ["--scripted", str(script), "-c", str(N_CTX), "--port", "0", "--max-body-mb", str(BODY_LIMIT >> 20)]
        bounds = ["--max-queue", "8", "--tool-memory-max-ids", "200", "--cache-ram", "1"]
        with log.open("wb") as out:
            server = subprocess.Popen([sys.executable, "-m", "ds4py.cli.server", *options, *bounds, *asked.options], stderr=out)
        try:
            return _fuzz(asked, server.pid, _port(log), log)
        finally:
            server.terminate()
            server.wait()


def _port(log: Path) -> int:
    for _ in range(600):
        if found := re.search(r"listening at http://[\d.]+:(\d+)", log.read_text()):
            return int(found.group(1))
        time.sleep(0.1)
    raise SystemExit(log.read_text())


def _fuzz(asked: argparse.Namespace, pid: int, port: int, log: Path) -> int:
    n_rounds = -(-asked.requests // (ROUND * asked.clients))
    seen: Counter[str] = Counter()
    slowest, n_sent, began = 0.0, 0, time.monotonic()
    memory: list[float] = []  # after each round
    _fill_caches(port)
    with multiprocessing.Pool(asked.clients) as pool:
        for i in range(n_rounds):
            seeds = [asked.seed * 1_000_000 + i * asked.clients + k for k in range(asked.clients)]
            for counts, failure in pool.starmap(_round, [(port, number) for number in seeds]):
                seen.update(counts)
                n_sent += counts.total()
                if failure:
                    print(failure)
                    print(log.read_text()[-3000:])
                    return 1
            free, words = _is_free(port)
            slowest = max(slowest, free)
            if words or "Traceback" in log.read_text(errors="replace"):
                print(f"after {n_sent} requests: {words or 'a traceback in the log'}\n{log.read_text(errors='replace')[-3000:]}")
                return 1
            memory.append(_megabytes(pid))
            if i % max(1, n_rounds // 20) == 0 or i == n_rounds - 1:
                print(f"{n_sent} requests, {time.monotonic() - began:.0f} s, {memory[-1]:.1f} MB, {dict(seen)}", flush=True)
    fifth, end = memory[n_rounds // 5], memory[-1]
    grown = end / fifth - 1
    print(f"{n_sent} requests, statuses {dict(sorted(seen.items()))}")
    print(f"a plain request in between: at most {slowest:.3f} s")
    print(f"memory: {fifth:.1f} MB after a fifth, {end:.1f} MB at the end ({100 * grown:+.1f} %)")
    return 1 if grown > GROWTH else 0


def _fill_caches(port: int) -> None:
    """Send the tokenizer more words than it remembers."""
    rng = random.Random(0)
    for _ in range(40):
        words = " ".join(rng.randbytes(40).hex() for _ in range(1000))
        exchange(port, Request("POST", "/v1/completions", json.dumps({"prompt": words}).encode()))


def _round(port: int, number: int) -> tuple[Counter[str], str]:
    """(statuses, what is wrong, with the smallest request that shows it) of one client's requests."""
    seen = Seen()

    @seed(number)
    @settings(max_examples=ROUND, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests())
    def send(request: Request) -> None:
        began = time.monotonic()
        got = exchange(port, request)
        seen.note(request, got.status)
        if got.status == 408 and time.monotonic() - began > STANDSTILL:
            return
        wrong = complaint(request, got)
        assert wrong is None, wrong

    try:
        send()
    except Exception:
        return Counter(seen), f"seed {number}: {traceback.format_exc()[-3000:]}"
    return Counter(seen), ""


def _is_free(port: int) -> tuple[float, str]:
    """(seconds that a plain request took, what is wrong)."""
    began = time.monotonic()
    body = json.dumps(chat_body(max_tokens=2)).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        found: Any = json.load(answer)
    if "choices" not in found:
        return 0.0, f"a plain request got {found}"
    seconds = time.monotonic() - began
    for _ in range(50):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith("ds4_"))
        if lines["ds4_running"] == lines["ds4_queue_length"] == "0":
            return seconds, "" if seconds < 10 else f"a plain request took {seconds:.1f} s"
        time.sleep(0.1)  # an answer is told a moment before its place is free
    return seconds, f"the engine is not free: {lines}"


def _megabytes(pid: int) -> float:
    """Resident memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


if __name__ == "__main__":
    sys.exit(main())
