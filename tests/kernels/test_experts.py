"""Mixtures of experts on the CPU backend: right values for every type, a row's bits in any company, experts packed when taken.

Through the public interface: a graph routes rows by their own logits, multiplies and gathers. The oracle is numpy on decoded
weights; whole models are compared with transformers and with the reference backend elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from products import NO_STATE, TYPES, int8_rows, random_blocks

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.protocols import F32, Router, Rows
from ds4py.quants import decode

N_TOKENS, K, N_FF, N_EXPERTS, TAKEN = 65, 256, 256, 9, 3
SOFTMAX = Router("softmax", TAKEN)
FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class Case:
    """y = sum over the experts taken of weight * down[e] @ (silu(gate[e] @ x) * (up[e] @ x)); x and the router's logits are rows
    of tables."""

    def __init__(self, path: Path, kernels: Any, router: Router = SOFTMAX, limit: float = 0.0):
        g = open_gguf(path)
        self.kernels, self.router, self.limit = kernels, router, limit
        self.x, self.logits, self.eye = (kernels.weight(g.tensors[name]) for name in ("x", "logits", "eye"))
        self.mats = [kernels.experts(g.tensors[name]) for name in ("gate", "up", "down")]
        self.tables = {name: decode(t.type, t.data, t.n_values).reshape(t.shape[::-1]) for name, t in g.tensors.items()}

    def graph(self, ops: Any) -> Any:
        routing = ops.route(ops.linear(ops.embed(self.logits), self.eye), self.router)
        return ops.experts(ops.embed(self.x), routing, *self.mats, "silu", self.limit)

    def run(self, tokens: list[int]) -> F32:
        ids = np.array(tokens, np.int64)
        rows = Rows(ids, np.zeros_like(ids), (NO_STATE,), np.zeros_like(ids), np.arange(len(ids)))
        return self.kernels.run(self, self.graph, rows, ()).logits.copy()

    def taken(self, r: int) -> tuple[list[int], npt.NDArray[np.float64]]:
        """The experts of row r in order, and all scores."""
        logits = self.tables["logits"][r, :N_EXPERTS].astype(np.float64)
        scores = {
            "softmax": lambda: np.exp(logits) / np.exp(logits).sum(),
            "sigmoid": lambda: 1 / (1 + np.exp(-logits)),
            "sqrtsoftplus": lambda: np.log1p(np.exp(logits)) ** 0.5,
        }[self.router.score]()
        if self.router.table is not None:
            return self.router.table[r].tolist(), scores
        chances = scores + (0 if self.router.bias is None else self.router.bias)
        return np.lexsort((np.arange(N_EXPERTS), -chances))[:TAKEN].tolist(), scores

    def expected(self, rounded: bool) -> npt.NDArray[np.float64]:
        def of(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return int8_rows(x[None].astype(np.float32))[0].astype(np.float64) if rounded else x

        gates, ups, downs = (self.tables[name].astype(np.float64) for name in ("gate", "up", "down"))
        out = np.zeros((N_TOKENS, K))
        for r in range(N_TOKENS):
            experts, scores = self.taken(r)
            x = of(self.tables["x"][r].astype(np.float64))
            total = scores[experts].sum() if self.router.normed else 1
            for e in experts:
                gate, up = gates[e] @ x, ups[e] @ x
                if self.limit:
                    gate, up = np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit)
                h = of(gate / (1 + np.exp(-np.clip(gate, -80, 80))) * up)
                out[r] += self.router.scale * scores[e] / total * (downs[e] @ h)
        return out


def write_case(path: Path, kind: GgmlType, logits: F32 | None = None) -> Path:
    """`logits` [65, 12], of which the first nine count: a product with part of the identity hands them to the router."""
    rng = np.random.default_rng(kind)
    x = (rng.standard_normal((N_TOKENS, K)) / 16).astype(np.float32)
    logits = (rng.standard_normal((N_TOKENS, 12)) * 2).astype(np.float32) if logits is None else logits
    eye = np.eye(N_EXPERTS, 12, dtype=np.float32)
    tensors = [
        NewTensor.of("x", x),
        NewTensor.of("logits", logits),
        NewTensor.of("eye", eye),
        *(
            NewTensor(name, shape, kind, random_blocks(kind, K * N_FF * N_EXPERTS, rng))
            for name, shape in (("gate", (K, N_FF, N_EXPERTS)), ("up", (K, N_FF, N_EXPERTS)), ("down", (N_FF, K, N_EXPERTS)))
        ),
    ]
    write_gguf(path, {"general.architecture": "test"}, tensors)
    return path


@pytest.fixture(scope="module", params=host_paths())
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", TYPES, ids=lambda k: k.name)
def test_values_of_every_type(kind: GgmlType, path: str, tmp_path: Path) -> None:
    case = Case(write_case(tmp_path / "w.gguf", kind), CpuKernels(threads=2, max_rows=65, path=path))
    want = case.expected(rounded=kind not in FLOATS)
    got = case.run(list(range(N_TOKENS)))
    # what lies between the products is rounded to int8 too, and numpy's float64 may round the other way
    assert np.abs(got - want).max() < (2e-5 if kind in FLOATS else 1e-2) * np.abs(want).max()


TABLE = np.random.default_rng(4).permuted(np.tile(np.arange(N_EXPERTS, dtype=np.int32), (N_TOKENS, 1)), axis=1)[:, :TAKEN]


@pytest.mark.parametrize(
    ("router", "limit"),
    [
        (Router("softmax", TAKEN, normed=False), 0.0),
        (Router("sigmoid", TAKEN, scale=2.5), 0.0),
        (Router("sigmoid", TAKEN, bias=np.linspace(0.9, -0.9, N_EXPERTS).astype(np.float32)), 0.5),
        (Router("softmax", TAKEN, bias=np.array([0, 0, 0, 0, 0, 0, 0, 5, 5], np.float32), normed=False, scale=0.5), 0.0),
        (Router("sqrtsoftplus", TAKEN, bias=np.linspace(-0.5, 0.5, N_EXPERTS).astype(np.float32), scale=1.5), 1.0),
        (Router("sqrtsoftplus", TAKEN, table=TABLE), 0.0),
    ],
    ids=["softmax", "sigmoid", "sigmoid-bias", "softmax-bias", "sqrtsoftplus-bias", "table"],
)
def test_router_forms(router: Router, limit: float, path: str, tmp_path: Path) -> None:
    file = write_case(tmp_path / "w.gguf", GgmlType.F32)
    for kernels in (CpuKernels(threads=2, max_rows=65, path=path), ReferenceKernels("float64")):
        case = Case(file, kernels, router, limit)
        want = case.expected(rounded=False)
        np.testing.assert_allclose(case.run(list(range(N_TOKENS))), want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", [GgmlType.Q8_0, GgmlType.Q4_K, GgmlType.IQ2_XXS, GgmlType.F16], ids=lambda k: k.name)
def test_a_row_has_the_same_bits_whatever_its_neighbours_take(kind: GgmlType, path: str, tmp_path: Path) -> None:
    file = write_case(tmp_path / "w.gguf", kind)
    alone = Case(file, CpuKernels(threads=1, max_rows=65, path=path))
    solo = np.concatenate([alone.run([i]) for i in range(N_TOKENS)])
    rng = np.random.default_rng(0)
    for threads in (1, 2, 3):
        case = Case(file, CpuKernels(threads=threads, max_rows=65, path=path))
        for n in (2, 3, 7, 8, 9, 33, 65):
            tokens = rng.permutation(N_TOKENS)[:n].tolist()
            assert case.run(tokens).tobytes() == solo[tokens].tobytes(), f"{n} rows, {threads} threads"
        assert case.run([4] * 20).tobytes() == np.repeat(solo[4:5], 20, 0).tobytes()  # one expert has all rows
        case.kernels.executor.close()


def test_prompts_take_the_kernels_for_many_rows(path: str, tmp_path: Path) -> None:
    """A fallback to a few rows at a time gives the same bits, and a prompt at a third of the speed."""
    case = Case(write_case(tmp_path / "w.gguf", GgmlType.Q8_0), CpuKernels(threads=1, max_rows=65, path=path))
    case.run([0])
    assert "by_rows" not in case.kernels.library.names.values()
    case.run(list(range(N_TOKENS)))
    assert {"by_rows", "tiles_p8", "quantize_each"} <= set(case.kernels.library.names.values())


def test_equal_scores_take_the_lower_experts(path: str, tmp_path: Path) -> None:
    """All experts equal, then one better: the order of adding is part of the bits, so ids are told by values."""
    logits = np.zeros((N_TOKENS, 12), np.float32)
    logits[1, 7] = 1.0
    logits[2, [3, 8]] = 1.0
    file = write_case(tmp_path / "w.gguf", GgmlType.F32, logits)
    case = Case(file, CpuKernels(threads=1, path=path))
    want = case.expected(rounded=False)  # numpy's stable order
    np.testing.assert_allclose(case.run([0, 1, 2]), want[:3], atol=2e-5 * np.abs(want).max())
    np.testing.assert_allclose(Case(file, ReferenceKernels()).run([0, 1, 2]), want[:3], atol=2e-5 * np.abs(want).max())


def test_broken_router_logits_reach_the_output_and_nothing_else(path: str, tmp_path: Path) -> None:
    logits = np.random.default_rng(1).standard_normal((N_TOKENS, 12)).astype(np.float32)
    sound = write_case(tmp_path / "sound.gguf", GgmlType.Q8_0, logits)
    logits = logits.copy()
    logits[1], logits[2, 4], logits[3, 2] = np.nan, np.nan, -1e30
    broken = write_case(tmp_path / "broken.gguf", GgmlType.Q8_0, logits)
    kernels = CpuKernels(threads=2, path=path)
    good, got = Case(sound, kernels).run([0, 1, 2, 3, 4]), Case(broken, kernels).run([0, 1, 2, 3, 4])
    assert np.isnan(got[1:3]).all() and np.isfinite(got[3]).all()
    assert got[[0, 4]].tobytes() == good[[0, 4]].tobytes()


def test_only_experts_that_were_taken_are_packed(path: str, tmp_path: Path) -> None:
    logits = np.full((N_TOKENS, 12), -50, np.float32)
    logits[0, [1, 2, 5]], logits[1, [1, 2, 8]] = 1.0, 1.0
    case = Case(write_case(tmp_path / "w.gguf", GgmlType.Q5_0, logits), CpuKernels(threads=2, path=path))
    case.run([0])
    for w in case.mats:
        assert w.counters.tolist() == [0, 2, 2, 0, 0, 2, 0, 0, 0]  # by both threads
        assert w.resident_bytes == 3 * w.stride
    first = case.run([0, 1])
    assert case.mats[2].counters.tolist() == [0, 2, 2, 0, 0, 2, 0, 0, 2]
    assert first.tobytes() == case.run([0, 1]).tobytes()
    want = case.expected(rounded=True)[:2]
    np.testing.assert_allclose(first, want, atol=1e-2 * np.abs(want).max())


def test_importance_is_noted_for_each_expert(tmp_path: Path) -> None:
    kernels = CpuKernels(threads=2, max_rows=65)
    case = Case(write_case(tmp_path / "w.gguf", GgmlType.Q4_0), kernels)
    sums = kernels.observe()
    case.run(list(range(40)))
    case.run(list(range(40, 65)))
    want = np.zeros((N_EXPERTS, K + 1))
    for r in range(N_TOKENS):
        for e in case.taken(r)[0]:
            want[e, :-1] += case.tables["x"][r].astype(np.float64) ** 2
            want[e, -1] += 1
    np.testing.assert_allclose(sums["gate"], want, rtol=1e-6)
    np.testing.assert_array_equal(sums["up"], sums["gate"])
    assert sums["down"].shape == (N_EXPERTS, N_FF + 1) and sums["eye"].shape == (13,)
    np.testing.assert_array_equal(sums["down"][:, -1], want[:, -1])


def test_experts_that_do_not_fit_their_router_are_refused(tmp_path: Path) -> None:
    file = write_case(tmp_path / "w.gguf", GgmlType.Q4_0)
    with pytest.raises(UnsupportedError, match="cannot take 10 of 9 experts"):
        Case(file, CpuKernels(threads=1), Router("softmax", 10)).run([0])
    case = Case(file, CpuKernels(threads=1))
    case.mats[1].n_experts = 8
    with pytest.raises(UnsupportedError, match="tensor up has 8 experts, the router chooses among 9"):
        case.run([0])
