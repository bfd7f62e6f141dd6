"""ds4-server as a process, for tests: `with started("-m", path) as (process, url, said): ask(url + "/v1/...", {...})`."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ds4py.cli.server", *arguments]


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """(the process, its address, what it said so far)."""
    process = subprocess.Popen(command("--port", "0", *arguments), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"listening at (http://\S+)", line):
                yield process, found.group(1), said
                break
        else:
            pytest.fail("".join(said))
    finally:
        process.kill()
        process.wait()


def ask(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)
