"""Operations that only draft graphs use: vectors that come with the rows, keys and values stored without a query, attention
inside a block, a first visible position. Checked against the formula in float64, and for independence of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiny_models import tiny_gguf

from ds4py.gguf import GgmlType, GgufFile, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.protocols import Buf, Kernels, Ops, Rows
from ds4py.state import FullCache, SlidingCache, State

H, G, D, WIDTH = 4, 2, 16, 64
N_CONTEXT, N_BLOCK = 39, 5
RNG = np.random.default_rng(3)
CONTEXT = RNG.normal(size=(N_CONTEXT, WIDTH)).astype(np.float32)
BLOCKS = RNG.normal(size=(3, N_BLOCK, WIDTH)).astype(np.float32)
BACKENDS = ["reference", "reference-rows", *(f"cpu-{path}" for path in host_paths())]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return open_gguf(tiny_gguf("llama", tmp_path_factory.mktemp("ops") / "tiny.gguf", kind=GgmlType.F32))


def kernels_of(name: str, threads: int = 2) -> Kernels:
    if name.startswith("reference"):
        return ReferenceKernels(row_by_row=name.endswith("rows"), max_rows=64)
    return CpuKernels(threads, 64, name.removeprefix("cpu-"))


class Graphs:
    """Keys and values of given vectors into cache 0; and a block over them, whose output is joined to half of its input."""

    def __init__(self, g: GgufFile, kernels: Kernels, block: bool = True) -> None:
        self.kernels, self.block = kernels, block
        self.q, self.k, self.v = (kernels.weight(g.tensors[f"blk.0.attn_{name}.weight"]) for name in "qkv")

    def put(self, ops: Ops) -> Buf:
        x = ops.given(WIDTH)
        ops.store(ops.linear(x, self.k), ops.linear(x, self.v), 0, G)
        return ops.pick(x)

    def mix(self, ops: Ops) -> Buf:
        x = ops.given(WIDTH)
        q, k, v = (ops.linear(x, weight) for weight in (self.q, self.k, self.v))
        mixed = ops.attend(q, k, v, 0, H, G, D**-0.5, block=self.block)
        return ops.pick(ops.concat(mixed, ops.scale(x, 0.5)))

    def run(self, which: str, states: list[State], given: list[np.ndarray], first: list[int] | None = None) -> np.ndarray:
        counts = [len(rows) for rows in given]
        n, spans = sum(counts), np.repeat(np.arange(len(states)), counts)
        pos = np.concatenate([state.pos + np.arange(count) for state, count in zip(states, counts, strict=True)])
        n_logits = n if which == "mix" else 0
        seen = None if first is None else np.array(first, np.int64)[spans]
        rows = Rows(np.zeros(n, np.int64), pos, states, spans, np.arange(n_logits), given=np.concatenate(given), first=seen)
        return np.array(self.kernels.run((self, which), getattr(self, which), rows, ()).logits)


def state_of(window: int = 0, slack: int = 16) -> State:
    cache: Any = SlidingCache(window, slack, G, D, D) if window else FullCache(96, G, D, D)
    return State([cache], 96)


def filled(graphs: Graphs, window: int = 0, slack: int = 16) -> State:
    state = state_of(window, slack)
    for at in range(0, N_CONTEXT, 13):
        graphs.run("put", [state], [CONTEXT[at : at + 13]])
        state.advance(len(CONTEXT[at : at + 13]), False)
    return state


def formula(graphs: Graphs, g: GgufFile, block: np.ndarray, window: int, first: int) -> np.ndarray:
    """The block after the context in float64, keys and values rounded to float16 as caches do: [B, H * D + WIDTH]."""
    wq, wk, wv = (g.tensors[f"blk.0.attn_{name}.weight"].data.view(np.float32).astype(np.float64) for name in "qkv")
    wq, wk, wv = (w.reshape(-1, WIDTH) for w in (wq, wk, wv))
    both = np.concatenate([CONTEXT, block]).astype(np.float64)
    keys, values = ((both @ w.T).astype(np.float16).astype(np.float64).reshape(-1, G, D) for w in (wk, wv))
    queries = (block @ wq.T).reshape(N_BLOCK, H, D)
    out = np.zeros((N_BLOCK, H, D))
    for i in range(N_BLOCK):
        pos = N_CONTEXT + i
        lo = max(first, pos - window + 1 if window else 0)
        hi = N_CONTEXT + N_BLOCK if graphs.block else pos + 1
        for h in range(H):
            scores = keys[lo:hi, h // (H // G)] @ queries[i, h] * D**-0.5
            weights = np.exp(scores - scores.max())
            out[i, h] = weights / weights.sum() @ values[lo:hi, h // (H // G)]
    return np.concatenate([out.reshape(N_BLOCK, -1), 0.5 * block], 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("window", "first"), [(0, 0), (0, 21), (24, 0), (24, 30)])
@pytest.mark.parametrize("block", [True, False])
def test_a_block_over_stored_context_is_the_formula(backend: str, window: int, first: int, block: bool, file: GgufFile) -> None:
    graphs = Graphs(file, kernels_of(backend), block)
    got = graphs.run("mix", [filled(graphs, window)], [BLOCKS[0]], [first])
    assert_allclose(got, formula(graphs, file, BLOCKS[0], window, first), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
def test_a_block_does_not_depend_on_other_blocks_threads_or_the_size_of_a_ring(backend: str, file: GgufFile) -> None:
    graphs = Graphs(file, kernels_of(backend))
    alone = [graphs.run("mix", [filled(graphs, 24)], [block], [3]) for block in BLOCKS]
    assert not np.array_equal(alone[0], alone[1])
    states = [filled(graphs, 24), filled(graphs, 24, slack=40), filled(graphs, 24)]
    together = graphs.run("mix", states, list(BLOCKS), [3, 3, 3])
    assert_array_equal(together, np.concatenate(alone))
    mixed = graphs.run("mix", [filled(graphs, 24), filled(graphs, 24)], [BLOCKS[1][:2], BLOCKS[2]], [3, 3])
    assert_array_equal(mixed[2:], alone[2])
    if backend.startswith("cpu"):
        other = Graphs(file, kernels_of(backend, threads=3))
        assert_array_equal(other.run("mix", [filled(other, 24)], [BLOCKS[0]], [3]), alone[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_of_one_graph_outlive_a_run_of_another(backend: str, file: GgufFile) -> None:
    """A drafter computes while the target's logits and taps are still being read."""
    kernels = kernels_of(backend)
    graphs, other = Graphs(file, kernels), Graphs(file, kernels)
    rows = Rows(np.zeros(N_BLOCK, np.int64), np.arange(N_BLOCK), [state_of()], np.zeros(N_BLOCK, np.int64), np.arange(N_BLOCK))
    out = kernels.run(graphs, graphs.mix, replace(rows, given=BLOCKS[0]), ())
    before = out.logits.copy()
    for block in BLOCKS:
        other.run("mix", [filled(other)], [block])
    assert_array_equal(out.logits, before)
