"""A misbehaving hub on this machine, and an environment in which no other hub, proxy, token or cache exists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import loopback_hub
import pytest
from download_bench import CONTENT, FILE, REPO, Bench


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variables of this process that would lead a download elsewhere are gone, and the home of the hub is empty."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(("HF_", "HUGGINGFACE", "DS4_GGUF", "TRANSFORMERS_OFFLINE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))


@pytest.fixture
def shelf() -> Iterator[loopback_hub.Hub]:
    with loopback_hub.running() as hub:
        hub.put(REPO, FILE, CONTENT)
        yield hub


@pytest.fixture
def bench(shelf: loopback_hub.Hub, tmp_path: Path) -> Bench:
    return Bench(shelf, tmp_path / "gguf")
