"""Attention over more positions than one chunk holds: right values, and the same bits for a row in any company.

Chunks lie at absolute multiples of 128 positions. Depths here stand before, on and after such edges, windows reach back across
them, and rings wrap inside them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_gguf

from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.attention import CHUNK
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Model, Span, StateView

IDS = np.random.default_rng(5).integers(0, 320, 3 * CHUNK + 40).tolist()
HEADS: dict[str, dict[str, object]] = {"llama": {}, "gemma3": {"sliding_window": 150}}


def state_of(model: Model, n: int) -> StateView:
    """A session that has read the first n tokens."""
    state = model.new_state(len(IDS) + 8, 64)
    for i in range(0, n, 64):
        model.forward([Span(state, IDS[i : min(i + 64, n)], 1)])
    return state


def logits(model: Model, state: StateView, n: int) -> np.ndarray:
    """Of the next n tokens, evaluated in one call; the state is as before."""
    pos = state.pos
    out = model.forward([Span(state, IDS[pos : pos + n], n)]).of(0).copy()
    state.truncate(pos)
    return out


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize("path", host_paths())
def test_a_deep_context_gives_the_reference_backends_logits(architecture: str, path: str, tmp_path: Path) -> None:
    file = tiny_gguf(architecture, tmp_path / "tiny.gguf", kind=GgmlType.F32, **HEADS[architecture])
    depth = 3 * CHUNK - 5
    model = load_model(open_gguf(file), ReferenceKernels(max_rows=64))
    want = logits(model, state_of(model, depth), 20)
    model = load_model(open_gguf(file), CpuKernels(threads=2, path=path))
    got = logits(model, state_of(model, depth), 20)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=3e-3, rtol=1e-3)


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize("path", host_paths())
def test_a_row_attends_alike_in_any_company_at_the_edges_of_chunks(architecture: str, path: str, tmp_path: Path) -> None:
    file = tiny_gguf(architecture, tmp_path / "tiny.gguf", kind=GgmlType.F32, **HEADS[architecture])
    for depth in (CHUNK - 9, 2 * CHUNK - 1, 3 * CHUNK - 20):
        want: np.ndarray | None = None
        for threads in (1, 2, 3):
            kernels = CpuKernels(threads=threads, path=path)
            model = load_model(open_gguf(file), kernels)
            state = state_of(model, depth)
            for n in (1, 2, 9, 17, 40):
                got = logits(model, state, n)
                if want is None:
                    want = logits(model, state, 40)
                assert got.tobytes() == want[:n].tobytes(), f"{n} rows at {depth}, {threads} threads"
            kernels.executor.close()
