"""The CPU backend's other operations, on whole models: norms, rotary forms, attention, gates, biases, soft caps.

With float weights the CPU path rounds nothing but the f16 caches, so it must agree with the reference backend (itself tested
against transformers) to a few parts in ten thousand, on every hardware path that this machine can be forced to take.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import ARCHITECTURES, tiny_gguf

from ds4py.errors import UsageError
from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels import open_kernels
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.compile import Library
from ds4py.kernels.cpu.matmul import micro
from ds4py.kernels.cpu.packed import P4M, P8
from ds4py.kernels.cpu.target import describe, host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Span

IDS = np.random.default_rng(5).integers(0, 320, 90).tolist()
CHANGES: dict[str, dict[str, object]] = {"gemma3": {"final_logit_softcapping": 8.0}, "llama": {"attention_bias": True}}


def logits(model: object, ids: list[int], chunk: int) -> np.ndarray:
    state = model.new_state(128, 64)  # type: ignore[attr-defined]
    return np.concatenate(
        [
            model.forward([Span(state, ids[i : i + chunk], len(ids[i : i + chunk]))]).of(0).copy()
            for i in range(0, len(ids), chunk)
        ]
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", host_paths())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float_models_equal_the_reference_backend(architecture: str, path: str, tmp_path: Path) -> None:
    file = tiny_gguf(architecture, tmp_path / "tiny.gguf", kind=GgmlType.F32, **CHANGES.get(architecture, {}))
    want = logits(load_model(open_gguf(file), ReferenceKernels(max_rows=64)), IDS, 30)
    got = logits(load_model(open_gguf(file), CpuKernels(threads=2, path=path)), IDS, 30)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=1e-3)


def test_an_unknown_or_absent_path_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="choose one of"):
        open_kernels("cpu:sse9")
    for path in {"avx512", "avx2"} - set(host_paths()):
        with pytest.raises(UsageError, match="this processor lacks"):
            open_kernels(f"cpu:{path}")


@pytest.mark.parametrize(("path", "instruction"), [("avx512", "vpdpbusd"), ("avx2", "vpmaddubsw")])
def test_int8_products_use_the_dot_instructions(path: str, instruction: str, tmp_path: Path) -> None:
    """Code for a better machine can be read here even if it cannot run: a silent fallback to wide multiplies would show."""
    library = Library(describe(path), cache=tmp_path)
    if not library.target.x86:
        pytest.skip("not an x86 LLVM")
    for form in (P4M, P8):
        text = library.assembly(f"k_{form.name}", micro(form, 4, library.target))
        assert text.count(instruction) >= 32


def test_a_damaged_object_cache_is_compiled_again(tmp_path: Path) -> None:
    from ds4py.kernels.cpu.rowwise import pick

    first = Library(describe("plain"), cache=tmp_path)
    first.load({"pick": pick(first.target)})
    (file,) = tmp_path.rglob("*.o")
    file.write_bytes(file.read_bytes()[:-100] + bytes(100))
    again = Library(describe("plain"), cache=tmp_path)
    again.load({"pick": pick(again.target)})
    assert (first.n_compiled, again.n_compiled) == (1, 1)
    cached = Library(describe("plain"), cache=tmp_path)
    cached.load({"pick": pick(cached.target)})
    assert cached.n_compiled == 0


def test_workers_sleep_while_nobody_asks(tmp_path: Path) -> None:
    """A user who thinks must not pay for spinning cores: CPU time of an idle second is near zero."""
    import time

    model = load_model(open_gguf(tiny_gguf("llama", tmp_path / "tiny.gguf")), CpuKernels(threads=3))
    logits(model, IDS[:8], 4)
    time.sleep(0.3)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.1
    logits(model, IDS[:8], 4)  # and wake again


@pytest.mark.parametrize("path", host_paths())
def test_a_nan_key_reaches_the_logits(path: str, tmp_path: Path) -> None:
    """An exponential that clamps would turn it into a small weight, and wrong text would come out."""
    model = load_model(open_gguf(tiny_gguf("llama", tmp_path / "tiny.gguf")), CpuKernels(threads=2, path=path))
    state = model.new_state(64, 8)
    model.forward([Span(state, IDS[:20], 1)])
    state.caches[1].keys[0, 0, 3, 5] = np.nan
    assert np.isnan(model.forward([Span(state, IDS[20:21], 1)]).of(0)).all()


@pytest.mark.parametrize("name", ["smollm2_path", "qwen_path", "gemma_path"])
def test_memory_stays_near_the_file_and_nothing_is_dequantised(name: str, request: pytest.FixtureRequest) -> None:
    """Peak resident memory of a run <= 1.25 x file + 250 MB, mapped pages included; a dequantised copy would be 540 MB more.
    gemma's tied embedding, two thirds of the file, is packed and looked up: its pages have to go as they are packed."""
    path: Path = request.getfixturevalue(name)
    code = (
        "import sys, re\n"
        "from ds4py.gguf import open_gguf\n"
        "from ds4py.kernels import open_kernels\n"
        "from ds4py.models import load_model\n"
        "from ds4py.protocols import Span\n"
        "m = load_model(open_gguf(sys.argv[1]), open_kernels('cpu', 2))\n"
        "s = m.new_state(256, 64)\n"
        "m.forward([Span(s, list(range(1, 41)), 1)]); m.forward([Span(s, [5], 1)])\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1))\n"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    peak = int(done.stdout) * 1024
    assert peak <= 1.25 * path.stat().st_size + 250e6, f"{peak / 1e6:.0f} MB"


def test_an_upgrade_compiles_again_what_it_changed(tmp_path: Path) -> None:
    """An object belongs to the sources it was built from: the kernel's own file and what that imports, nothing else."""
    from ds4py.kernels.cpu.compile import _with_imports

    def sources(name: str) -> set[str]:
        return {path.stem for path in _with_imports(Path(micro.__code__.co_filename).with_name(f"{name}.py"))}

    assert sources("matmul") == {"matmul", "compile", "ir", "lanes", "packed", "target"}
    assert "matmul" not in sources("rowwise") and {"ir", "lanes"} <= sources("rowwise")
    assert {"recorder", "backend", "matmul"} <= sources("measure")  # also through `from ds4py.kernels.cpu import ...`
