"""Quantised products of the CPU backend: right values for every type, and the same bits for a row in any company.

The oracle of values is our decoder (itself bit-equal to the gguf package) times activations rounded to int8 in numpy by the
documented rule. The row-invariance tests compare bits and know nothing of how the product is made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.protocols import Rows
from ds4py.quants import QUANTS, decode

TYPES = [
    GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q5_1, GgmlType.Q8_0,
    GgmlType.Q2_K, GgmlType.Q3_K, GgmlType.Q4_K, GgmlType.Q5_K, GgmlType.Q6_K, GgmlType.IQ2_XXS, GgmlType.IQ4_NL, GgmlType.IQ4_XS,
    GgmlType.MXFP4,
]  # fmt: skip
N_TOKENS = 65
HALF_SCALES = {  # byte offsets of the f16 scales of a block, which random bytes would make infinite
    GgmlType.Q4_0: [0], GgmlType.Q4_1: [0, 2], GgmlType.Q5_0: [0], GgmlType.Q5_1: [0, 2], GgmlType.Q8_0: [0],
    GgmlType.IQ4_NL: [0],
    GgmlType.Q2_K: [80, 82], GgmlType.Q3_K: [108], GgmlType.Q4_K: [0, 2], GgmlType.Q5_K: [0, 2], GgmlType.Q6_K: [208],
    GgmlType.IQ2_XXS: [0], GgmlType.IQ4_XS: [0],
}  # fmt: skip


def random_blocks(kind: GgmlType, n_values: int, rng: np.random.Generator) -> bytes:
    """Random quants with scales of ordinary size."""
    if kind in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
        x = rng.standard_normal(n_values).astype(np.float32)
        return (
            x
            if kind == GgmlType.F32
            else x.astype(np.float16)
            if kind == GgmlType.F16
            else (x.view(np.uint32) >> 16).astype(np.uint16)
        ).tobytes()
    spec = QUANTS[kind]
    blocks = rng.integers(0, 256, (n_values // spec.block_len, spec.block_bytes), dtype=np.uint8)
    for at in HALF_SCALES.get(kind, []):
        blocks[:, at : at + 2] = rng.uniform(0.01, 0.2, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    if kind == GgmlType.MXFP4:
        blocks[:, 0] = rng.integers(118, 130, len(blocks))
    return blocks.tobytes()


def write_case(path: Path, kind: GgmlType, n_out: int, row_len: int) -> None:
    rng = np.random.default_rng(row_len)
    x = rng.standard_normal((N_TOKENS, row_len)).astype(np.float32)
    x[3, :40] = 0.0  # a block of zeros
    x[4] *= 1e4
    tensors = [
        NewTensor("x", (row_len, N_TOKENS), GgmlType.F32, x.tobytes()),
        NewTensor("w", (row_len, n_out), kind, random_blocks(kind, n_out * row_len, rng)),
    ]
    write_gguf(path, {"general.architecture": "test"}, tensors)


class Case:
    """y = x[tokens] @ w.T through the public interface of the backend."""

    def __init__(self, path: Path, kernels: CpuKernels):
        g = open_gguf(path)
        self.kernels = kernels
        self.x, self.w = kernels.weight(g.tensors["x"]), kernels.weight(g.tensors["w"])
        t = g.tensors["w"]
        self.dense = decode(t.type, t.data, t.n_values).reshape(t.n_rows, t.row_len)
        t = g.tensors["x"]
        self.rows = decode(t.type, t.data, t.n_values).reshape(t.n_rows, t.row_len)

    def product(self, tokens: list[int]) -> np.ndarray:
        ids = np.array(tokens, np.int64)
        rows = Rows(ids, np.zeros_like(ids), (NO_STATE,), np.zeros_like(ids), np.arange(len(ids)))
        return self.kernels.run(self, lambda ops: ops.linear(ops.embed(self.x), self.w), rows, ()).logits.copy()


class NoState:
    caches = ()
    table = np.zeros((0, 4), np.int64)


NO_STATE = NoState()


def int8_rows(x: np.ndarray) -> np.ndarray:
    """Activations as the row path sees them: blocks of 32, scale max|x| / 127, nearest even."""
    b = x.reshape(-1, 32)
    d = np.abs(b).max(1, keepdims=True) / np.float32(127)
    inv = np.where(d > 0, np.float32(127) / np.maximum(np.abs(b).max(1, keepdims=True), np.float32(1e-30)), 0)
    return (np.rint(b * inv.astype(np.float32)) * d).reshape(x.shape)


@pytest.fixture(scope="module", params=host_paths())
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return CpuKernels(threads=2, max_rows=65, path=request.param)


@pytest.mark.parametrize("kind", TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(50, 768), (176, 1280)], ids=str)
def test_products_equal_decoded_weights_times_rounded_activations(
    kind: GgmlType, shape: tuple[int, int], kernels: CpuKernels, tmp_path: Path
) -> None:
    write_case(tmp_path / "w.gguf", kind, *shape)
    case = Case(tmp_path / "w.gguf", kernels)
    is_float = kind in (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
    x = case.rows if is_float else int8_rows(case.rows)
    want = x.astype(np.float64) @ case.dense.astype(np.float64).T
    got = case.product(list(range(N_TOKENS)))
    scale = np.abs(x).astype(np.float64) @ np.abs(case.dense).astype(np.float64).T + 1e-30
    # products of two scales are rounded to f16 (2^-11); everything else is float32
    assert (np.abs(got - want) / scale).max() < (4e-4 if "_K" in kind.name or kind == GgmlType.IQ4_XS else 3e-6)


@pytest.mark.parametrize(
    "kind", [GgmlType.Q4_0, GgmlType.Q5_1, GgmlType.Q8_0, GgmlType.MXFP4, GgmlType.F16], ids=lambda k: k.name
)
@pytest.mark.parametrize("shape", [(1, 32), (17, 96), (33, 64)], ids=str)
def test_odd_shapes_are_padded(kind: GgmlType, shape: tuple[int, int], kernels: CpuKernels, tmp_path: Path) -> None:
    write_case(tmp_path / "w.gguf", kind, *shape)
    case = Case(tmp_path / "w.gguf", kernels)
    x = case.rows if kind == GgmlType.F16 else int8_rows(case.rows)
    got = case.product([5, 6, 7])
    assert got.shape == (3, shape[0])
    np.testing.assert_allclose(
        got, x[5:8] @ case.dense.T, rtol=1e-4, atol=1e-4 * np.abs(x[5:8]).max() * np.abs(case.dense).max() * 32
    )


@pytest.mark.parametrize("path", host_paths())
@pytest.mark.parametrize("kind", TYPES, ids=lambda k: k.name)
def test_a_row_has_the_same_bits_in_any_number_of_rows_and_threads(kind: GgmlType, path: str, tmp_path: Path) -> None:
    write_case(tmp_path / "w.gguf", kind, 112, 768)
    alone = Case(tmp_path / "w.gguf", CpuKernels(threads=1, max_rows=65, path=path))
    solo = np.concatenate([alone.product([i]) for i in range(N_TOKENS)])
    for threads in (1, 2, 3):
        case = Case(tmp_path / "w.gguf", CpuKernels(threads=threads, max_rows=65, path=path))
        for n in (2, 3, 5, 7, 8, 9, 12, 31, 64, 65):
            first = (7 * n) % (N_TOKENS - n + 1)
            got = case.product(list(range(first, first + n)))
            assert got.tobytes() == solo[first : first + n].tobytes(), f"{n} rows, {threads} threads"
        case.kernels.executor.close()
    alone.kernels.executor.close()


def test_a_nan_activation_reaches_the_output(kernels: CpuKernels, tmp_path: Path) -> None:
    """A maximum that drops NaN would hide it, and id 0 would be generated for ever."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N_TOKENS, 256)).astype(np.float32)
    x[1, 77], x[2, 100] = np.nan, np.inf
    w = NewTensor("w", (256, 48), GgmlType.Q8_0, random_blocks(GgmlType.Q8_0, 48 * 256, rng))
    write_gguf(
        tmp_path / "w.gguf", {"general.architecture": "test"}, [NewTensor("x", (256, N_TOKENS), GgmlType.F32, x.tobytes()), w]
    )
    got = Case(tmp_path / "w.gguf", kernels).product([0, 1, 2, 3])
    assert np.isfinite(got[[0, 3]]).all()
    assert not np.isfinite(got[[1, 2]]).any()
