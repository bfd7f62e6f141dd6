"""The plain path on 64-bit ARM under qemu: quantised types with the bits of this machine (IQ2_XXS, whose sums lie otherwise in
narrow vectors, to a few parts in 100,000), every architecture with the logits of the reference backend.

    python tests/scripts/arm_long.py

Needs qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross (Debian's names), and a processor with AVX2 to compare bits with.
tests/arm.py does the running; the suite's share is tests/kernels/test_arm.py. Minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pytest
from arm import Runner, arm_kernels, missing_tools
from kernels.test_arm import logits, model_files
from products import TYPES, Case, write_case

from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels


def main() -> int:
    if missing_tools():
        print(missing_tools(), file=sys.stderr)
        return 1
    here = CpuKernels(threads=1, max_rows=65, path=host_paths()[0])
    runner = Runner()
    patch = pytest.MonkeyPatch()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in TYPES:
            if kind.name in ("F32", "F16", "BF16"):
                continue
            write_case(folder / "w.gguf", kind, 50, 256)
            want = Case(folder / "w.gguf", here).product(list(range(65)))
            case = Case(folder / "w.gguf", arm_kernels(patch, runner))
            got = case.product(list(range(65)))
            company = all(case.product(list(range(n))).tobytes() == got[:n].tobytes() for n in (1, 2, 3, 4, 5, 8, 9, 24))
            near = kind.name == "IQ2_XXS" and np.allclose(got, want, rtol=3e-5, atol=3e-5 * np.abs(want).max())
            right = company and (near or got.tobytes() == want.tobytes())
            wrong += not right
            verdict = "OTHER BITS" if not right else "close" if near else "the bits of this machine"
            print(f"{kind.name}: {verdict}", flush=True)
        for file in model_files(folder):
            want = logits(file, ReferenceKernels(max_rows=64), 40)
            got = logits(file, arm_kernels(patch, runner), 40)
            alone = logits(file, arm_kernels(patch, runner, threads=1), 1)
            same = got.tobytes() == alone.tobytes()
            wrong += not same
            rows = "same bits for 40 rows and for one" if same else "OTHER BITS for one row"
            print(f"{file.stem}: {rows}; largest distance from the reference {np.abs(got - want).max():.4f}", flush=True)
    runner.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
