"""Proxies by the usual variables, in either case, around NO_PROXY; asked by real processes, since clients read them once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from download_bench import CONTENT, REPO, Bench

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Proxy:
    address: str = ""
    seen: list[str] = field(default_factory=list)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A forward proxy for http; of https it notes the CONNECT and refuses it."""
    told = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            told.seen.append(self.path)
            parts = urlsplit(self.path)
            upstream = HTTPConnection(parts.hostname or "", parts.port)
            upstream.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=dict(self.headers))
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_CONNECT(self) -> None:
            told.seen.append(self.path)
            self.send_error(403)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    told.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield told
    server.shutdown()
    server.server_close()


def fetch(bench: Bench, tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    merged = {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": bench.shelf.endpoint} | environ
    command = [sys.executable, "-m", "ds4py.cli.download", f"hf:{REPO}", "--gguf-dir", str(bench.folder), "--timeout", "5"]
    return subprocess.run(command, env=os.environ | merged, cwd=tmp_path, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_all_requests_go_through_it(bench: Bench, proxy: Proxy, tmp_path: Path, name: str) -> None:
    done = fetch(bench, tmp_path, **{name: proxy.address})
    assert done.returncode == 0, done.stderr
    assert bench.path.read_bytes() == CONTENT
    assert len(proxy.seen) == len(bench.shelf.requests) == 2 and all(url.startswith(bench.shelf.endpoint) for url in proxy.seen)


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_no_proxy_goes_around_it(bench: Bench, proxy: Proxy, tmp_path: Path, name: str) -> None:
    done = fetch(bench, tmp_path, HTTP_PROXY=proxy.address, **{name: "127.0.0.1"})
    assert done.returncode == 0 and proxy.seen == [] and bench.path.read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_https_asks_it_for_a_tunnel(bench: Bench, proxy: Proxy, tmp_path: Path, name: str) -> None:
    environ = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": "https://hub.invalid", name: proxy.address}
    command = [sys.executable, "-m", "ds4py.cli.download", f"hf:{REPO}"]
    run = subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    err = ""
    while "trying again" not in err and (line := run.stderr.readline()):  # the end, if it gives up
        err += line
    run.terminate()
    err += run.communicate(timeout=30)[1]
    assert run.returncode == 130 and set(proxy.seen) == {"hub.invalid:443"} and "Traceback" not in err
    assert "hub.invalid" in err and "trying again" in err
