"""A small model with two layers of experts, and its coarser twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4py.gguf import GgmlType, GgufFile, NewTensor, open_gguf, write_gguf

N_LAYERS = 4


def _write(path: Path, seed: int, experts: GgmlType, **keys: int) -> GgufFile:
    rng = np.random.default_rng(seed)
    counts = {"block_count": N_LAYERS, "embedding_length": 64, "expert_count": 3} | keys
    tensors = [NewTensor.of("token_embd.weight", rng.random((10, 64), np.float32))]
    for i in range(N_LAYERS):
        tensors.append(NewTensor.of(f"blk.{i}.attn_q.weight", rng.random((64, 64), np.float32)))
        for part in ("gate", "up", "down"):
            data = rng.integers(0, 256, experts.nbytes(3 * 8 * 64), np.uint8)
            tensors.append(NewTensor(f"blk.{i}.ffn_{part}_exps.weight", (64, 8, 3), experts, data))
    kv = {"general.architecture": "toy", "general.name": path.stem, "toy.words": ["a", "b\n", ""], "toy.numbers": list(range(40))}
    write_gguf(path, kv | {f"toy.{key}": value for key, value in counts.items()}, tensors)
    return open_gguf(path)


@pytest.fixture
def base(tmp_path: Path) -> GgufFile:
    return _write(tmp_path / "base.gguf", 0, GgmlType.Q4_0)


@pytest.fixture
def donor(tmp_path: Path) -> GgufFile:
    return _write(tmp_path / "donor.gguf", 1, GgmlType.Q8_0)


@pytest.fixture
def other(tmp_path: Path) -> GgufFile:
    """A file with another number of experts in its metadata."""
    return _write(tmp_path / "other.gguf", 2, GgmlType.Q8_0, expert_count=5)
