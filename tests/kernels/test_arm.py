"""The plain path on 64-bit ARM: every kernel compiles, and, where qemu and a cross compiler are installed, gives known answers,
this machine's bits for every quantised type, and the reference backend's logits.

ARM fuses multiply-adds, so its quantised products are those of AVX2 and AVX-512 to the bit (see test_emulated_paths.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from arm import ArmLibrary, Runner, arm_kernels, missing_tools, undefined
from products import Case, write_case
from tiny_models import ARCHITECTURES, tiny_gguf
from tiny_v4 import make_tiny

from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels, selfcheck
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Kernels, Span

SOME = (GgmlType.Q4_K, GgmlType.Q5_0, GgmlType.Q8_0)  # all: tests/scripts/arm_long.py
IDS = np.random.default_rng(5).integers(0, 320, 40).tolist()
NO_RUNNER = missing_tools()
runs = pytest.mark.skipif(bool(NO_RUNNER), reason=NO_RUNNER)
LIBC = {"memcpy", "memset", "madvise", "sched_yield"}  # what a kernel may call


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


def model_files(folder: Path) -> Iterator[Path]:
    for name in ARCHITECTURES:
        yield tiny_gguf(name, folder / f"{name}.gguf")
    flash = make_tiny(hca=24, compress_ratios=[4, 128, 0], num_hidden_layers=3, hc_sinkhorn_iters=3)
    yield flash.write(folder / "deepseek4.gguf", GgmlType.Q8_0)


def logits(file: Path, kernels: Kernels, chunk: int) -> np.ndarray:
    model = load_model(open_gguf(file), kernels)
    state = model.new_state(64, 40)
    spans = [IDS[i : i + chunk] for i in range(0, len(IDS), chunk)]
    return np.concatenate([model.forward([Span(state, ids, len(ids))]).of(0).copy() for ids in spans])


def test_kernels_compile_for_arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Types of weights of every kind, one row and many; an instruction that ARM lacks would end LLVM, a helper of the compiler
    would show as a name that nobody has. (Everything: tests/scripts/arm_long.py.)"""
    kernels = arm_kernels(monkeypatch, None)
    for kind in (GgmlType.BF16, GgmlType.IQ2_XXS, GgmlType.Q2_K, GgmlType.Q4_K):
        write_case(tmp_path / "w.gguf", kind, 50, 256)
        case = Case(tmp_path / "w.gguf", kernels)
        for n in (1, 24):
            case.product(list(range(n)))
    logits(tiny_gguf("llama", tmp_path / "tiny.gguf"), kernels, 20)
    library = kernels.library
    assert isinstance(library, ArmLibrary)
    wanted = {name: undefined(code) for name, code in library.objects.items()}
    assert len(wanted) > 35
    strange = {name: names - LIBC for name, names in wanted.items() if names - LIBC}
    assert not strange


@runs
def test_known_answers(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert selfcheck.first_wrong(arm_kernels(monkeypatch, runner)) == ""
    assert runner.n_calls > 100


@runs
@pytest.mark.skipif(host_paths()[0] == "plain", reason="this machine has no fused multiply-add to compare with")
@pytest.mark.parametrize("kind", SOME, ids=lambda k: k.name)
def test_products_have_the_bits_of_this_machine(
    kind: GgmlType, runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_case(tmp_path / "w.gguf", kind, 50, 256)
    here = Case(tmp_path / "w.gguf", CpuKernels(threads=1, max_rows=65, path=host_paths()[0]))
    want = np.concatenate([here.product([i]) for i in range(24)])
    here.kernels.executor.close()  # type: ignore[attr-defined]
    case = Case(tmp_path / "w.gguf", arm_kernels(monkeypatch, runner))
    for n in (1, 3, 24):
        assert case.product(list(range(n))).tobytes() == want[:n].tobytes(), f"{n} rows"


@runs
@pytest.mark.parametrize("architecture", ["gemma3"])
def test_models_equal_the_reference_backend(
    architecture: str, runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tiny_gguf(architecture, tmp_path / "tiny.gguf", kind=GgmlType.F16)
    want = logits(file, ReferenceKernels(max_rows=64), 40)
    got = logits(file, arm_kernels(monkeypatch, runner), 40)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=1e-3)
    assert logits(file, arm_kernels(monkeypatch, runner, threads=1), 7).tobytes() == got.tobytes()
