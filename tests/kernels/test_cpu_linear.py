"""Quantised products of the CPU backend: right values for every type, and the same bits for a row in any company.

The oracle of values is our decoder (itself bit-equal to the gguf package) times activations rounded to int8 in numpy by the
documented rule. The row-invariance tests compare bits and know nothing of how the product is made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from products import N_TOKENS, TYPES, Case, int8_rows, random_blocks, write_case

from ds4py.gguf import GgmlType, NewTensor, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths


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
    many = case.product(list(range(3, 22)))  # 19 rows: padded in every direction
    assert many[2:5].tobytes() == got.tobytes()


@pytest.mark.parametrize("path", host_paths())
@pytest.mark.parametrize("kind", TYPES, ids=lambda k: k.name)
def test_a_row_has_the_same_bits_in_any_number_of_rows_and_threads(kind: GgmlType, path: str, tmp_path: Path) -> None:
    write_case(tmp_path / "w.gguf", kind, 112, 768)
    alone = Case(tmp_path / "w.gguf", CpuKernels(threads=1, max_rows=65, path=path))
    solo = np.concatenate([alone.product([i]) for i in range(N_TOKENS)])
    for threads in (1, 2, 3, 4):
        case = Case(tmp_path / "w.gguf", CpuKernels(threads=threads, max_rows=65, path=path))
        for n in range(1, N_TOKENS + 1):
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
    for n in (4, 40):  # kernels for few rows, and for many
        got = Case(tmp_path / "w.gguf", kernels).product(list(range(n)))
        assert np.isfinite(got[[0, *range(3, n)]]).all()
        assert not np.isfinite(got[[1, 2]]).any()
