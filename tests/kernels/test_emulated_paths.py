"""Kernels for processors that this machine is not, run on an emulated one: the same bits as here, for every type and row count.

Products of quantised weights are the same sequence of operations on every path with fused multiply-adds, whatever the number of
lanes; so AVX-512 VNNI and AMX are compared bit for bit with the path that this machine runs. Where lanes do show (float weights,
norms, attention) whole models are compared with the reference backend, and rows with themselves in other company.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated import Processor, emulated_kernels
from products import TYPES, Case, write_case
from tiny_models import ARCHITECTURES, tiny_gguf

from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Span

FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
AMX_TYPES = (GgmlType.Q4_K, GgmlType.Q5_0, GgmlType.Q8_0, GgmlType.Q6_K, GgmlType.Q2_K)
IDS = np.random.default_rng(5).integers(0, 320, 40).tolist()


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor()


@pytest.mark.skipif(host_paths()[0] == "plain", reason="this machine has no fused multiply-add to compare with")
@pytest.mark.parametrize("kind", [k for k in TYPES if k not in FLOATS], ids=lambda k: k.name)
def test_products_have_the_bits_of_this_machine(
    kind: GgmlType, processor: Processor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_case(tmp_path / "w.gguf", kind, 50, 256)
    here = Case(tmp_path / "w.gguf", CpuKernels(threads=1, max_rows=65))
    want = np.concatenate([here.product([i]) for i in range(24)])
    here.kernels.executor.close()  # type: ignore[attr-defined]
    case = Case(tmp_path / "w.gguf", emulated_kernels(monkeypatch, processor, "avx512"))
    for n in (1, 2, 3, 4, 8, 24):
        assert case.product(list(range(n))).tobytes() == want[:n].tobytes(), f"{n} rows"


@pytest.mark.skipif(host_paths()[0] == "plain", reason="this machine has no fused multiply-add to compare with")
@pytest.mark.parametrize("kind", AMX_TYPES, ids=lambda k: k.name)
def test_amx_tiles_have_the_bits_of_this_machine(
    kind: GgmlType, processor: Processor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_case(tmp_path / "w.gguf", kind, 50, 256)
    here = Case(tmp_path / "w.gguf", CpuKernels(threads=1, max_rows=65))
    want = np.concatenate([here.product([i]) for i in range(21)])
    here.kernels.executor.close()  # type: ignore[attr-defined]
    case = Case(tmp_path / "w.gguf", emulated_kernels(monkeypatch, processor, "amx"))
    processor.tiles.counts.clear()
    assert case.product(list(range(21))).tobytes() == want.tobytes()
    assert processor.tiles.counts["tdpbssd"] > 0 and processor.tiles.counts["tilerelease"] == 2  # one for each thread


@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: k.name)
def test_float_products_are_the_same_in_any_company(
    kind: GgmlType, processor: Processor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_case(tmp_path / "w.gguf", kind, 17, 96)
    case = Case(tmp_path / "w.gguf", emulated_kernels(monkeypatch, processor, "avx512"))
    got = case.product(list(range(9)))
    np.testing.assert_allclose(got, case.rows[:9] @ case.dense.T, rtol=1e-3, atol=1e-4 * np.abs(got).max())
    for i in range(9):
        assert case.product([i]).tobytes() == got[i : i + 1].tobytes()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_equal_the_reference_backend(
    architecture: str, processor: Processor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Float weights round nothing but the caches; quantised ones are in the products' test."""
    file = tiny_gguf(architecture, tmp_path / "tiny.gguf", kind=GgmlType.F32)

    def logits(kernels: object, chunk: int) -> np.ndarray:
        model = load_model(open_gguf(file), kernels)  # type: ignore[arg-type]
        state = model.new_state(64, 40)
        return np.concatenate(
            [
                model.forward([Span(state, IDS[i : i + chunk], len(IDS[i : i + chunk]))]).of(0).copy()
                for i in range(0, len(IDS), chunk)
            ]
        )

    want = logits(ReferenceKernels(max_rows=64), 40)
    got = logits(emulated_kernels(monkeypatch, processor, "avx512"), 40)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=1e-3)
    assert logits(emulated_kernels(monkeypatch, processor, "avx512", threads=1), 7).tobytes() == got.tobytes()
