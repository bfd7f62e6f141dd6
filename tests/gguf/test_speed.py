"""Large vocabularies: opening costs a small part of what the `gguf` package needs, measured in the same run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import gguf as oracle
import numpy as np

from ds4py.gguf import GgufType, Value, open_gguf, write_gguf


def _vocabulary(n: int) -> list[str]:
    return [f"▁tok{i:x}" if i % 3 else f"{i * i}" for i in range(n)]


def test_a_vocabulary_of_262144_opens_in_a_tenth_of_the_gguf_packages_time(tmp_path: Path) -> None:
    words = _vocabulary(1 << 18)
    path = tmp_path / "a.gguf"
    write_gguf(path, {"general.architecture": "gemma3", "tokenizer.ggml.tokens": words})
    start = time.process_time()
    g = open_gguf(path)
    ours = time.process_time() - start
    start = time.process_time()
    theirs = oracle.GGUFReader(path)
    package = time.process_time() - start
    print(f"open: {ours:.3f} s of CPU time, gguf package {package:.2f} s")
    assert g.kv["tokenizer.ggml.tokens"].tolist() == words
    assert theirs.fields["tokenizer.ggml.tokens"].data[-1] is not None  # the package has really read them
    assert ours <= package / 10
    assert ours < 0.5


def test_fc04_very_large_vocab_metadata_is_not_slow(tmp_path: Path) -> None:
    words = _vocabulary(300_000)
    kv = {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": np.arange(300_000, dtype=np.float32),
        "tokenizer.ggml.token_type": Value(GgufType.ARRAY, [1] * 300_000, GgufType.INT32),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in zip(words, words[::-1], strict=True)],
    }
    write_gguf(tmp_path / "a.gguf", kv)
    start = time.process_time()
    g = open_gguf(tmp_path / "a.gguf")
    opened = time.process_time() - start
    merges = g.kv["tokenizer.ggml.merges"].tolist()
    decoded = time.process_time() - start - opened
    print(f"open: {opened:.3f} s, decode 300,000 merges: {decoded:.3f} s of CPU time")
    assert merges == kv["tokenizer.ggml.merges"]
    assert opened < 0.5 and decoded < 0.5


def test_reading_needs_neither_torch_nor_the_gguf_package() -> None:
    code = "import sys, ds4py.gguf, ds4py.quants; print([m for m in ('torch', 'gguf', 'llvmlite') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
