"""The check before a path is first taken: known answers on every path; what follows from a wrong one, a crash, or no answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import Processor, emulated_kernels

from ds4py.kernels.cpu import CpuKernels, choosing, selfcheck
from ds4py.kernels.cpu.choosing import Verdict
from ds4py.kernels.cpu.target import candidates, describe, host_paths

VECTORS = [path for path in host_paths() if path != "plain"]
needs_vectors = pytest.mark.skipif(not VECTORS, reason="this processor has the plain path alone, which needs no check")


@pytest.mark.parametrize("path", host_paths())
def test_every_path_gives_the_known_answers(path: str) -> None:
    """Also the plain one: what the others are compared with is what it computes."""
    kernels = CpuKernels(2, selfcheck.N_ROWS, path)
    assert selfcheck.first_wrong(kernels) == ""
    assert len(list(selfcheck.cases(kernels))) == 10


def test_the_check_runs_the_tile_instructions_of_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Processor()
    assert selfcheck.first_wrong(emulated_kernels(monkeypatch, processor, "amx")) == ""
    assert processor.tiles.counts["tdpbssd"] > 500


@pytest.mark.parametrize("broken", range(10))
def test_one_wrong_bit_is_found_in_each_case(broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = CpuKernels(2, selfcheck.N_ROWS, "plain")
    real, seen = kernels.run, list[str]()

    def run(case: selfcheck.Case, *args: object) -> object:
        out = real(case, *args)  # type: ignore[arg-type]
        if case.name not in seen:
            seen.append(case.name)
        if len(seen) == broken + 1:
            out.logits.view(np.int32)[0, 0] ^= 1
        return out

    monkeypatch.setattr(kernels, "run", run)
    assert selfcheck.first_wrong(kernels) == seen[broken] and len(seen) == broken + 1


@needs_vectors
def test_a_path_that_computes_wrong_is_left_out_and_the_next_one_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def check(path: str) -> Verdict:
        asked.append(path)
        return Verdict("3 rows of Q8_0" if path in ("amx", VECTORS[0]) else "")

    monkeypatch.setattr(choosing, "check", check)
    begun: list[tuple[int, int]] = []
    choice = choosing.best(lambda *at: begun.append(at), tmp_path)
    assert choice.target.path == host_paths()[1] and begun == [(0, 0)] * len(asked)
    (note,) = (note for note in choice.notes if f"path {VECTORS[0]} " in note)
    assert "wrong values" in note and "3 rows of Q8_0" in note and f"--backend cpu:{VECTORS[0]}" in note
    n_asked = len(asked)
    assert choosing.best(None, tmp_path) == choice and len(asked) == n_asked, "the verdict is kept, and told at each start"
    monkeypatch.setattr(choosing, "processor", lambda: "another processor")
    choosing.best(None, tmp_path)
    assert len(asked) > n_asked, "another processor is asked again"


@needs_vectors
def test_a_crash_is_a_verdict_and_no_answer_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interpreter that ends with SIGILL stands for code that this processor cannot run; one that is not there for a machine
    without room for a process."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nkill -ILL $$\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(choosing.sys, "executable", str(interpreter))
    assert choosing.check(VECTORS[0]) == Verdict("the check ended with signal 4")
    interpreter.write_text("#!/bin/sh\necho nonsense\n")
    assert choosing.check(VECTORS[0]) is None
    interpreter.write_text("#!/bin/sh\nsleep 9\n")
    assert choosing.check(VECTORS[0], limit_s=0.2) is None
    monkeypatch.setattr(choosing.sys, "executable", str(tmp_path / "nothing"))
    choice = choosing.best(None, tmp_path / "cache")
    assert choice.target.path == VECTORS[0] and not choice.target.matrix and not choice.notes
    assert choosing.known(VECTORS[0], tmp_path / "cache") is None, "no answer is not kept"


@pytest.mark.parametrize(("gain", "taken"), [(1.6, True), (1.0, False)])
def test_matrix_units_are_taken_where_they_win(
    gain: float, taken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choosing, "candidates", lambda: ("amx", *host_paths()))
    monkeypatch.setattr(choosing, "check", lambda path: Verdict("", gain if path == "amx" else 0.0))
    monkeypatch.setattr(choosing, "target_for", describe)
    choice = choosing.best(None, tmp_path)
    assert choice.target == describe("amx" if taken else host_paths()[0]) and not choice.notes


@needs_vectors
def test_a_real_check_in_a_process_and_its_kept_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdict = choosing.check(host_paths()[0])
    assert verdict == Verdict("")
    choosing.keep(host_paths()[0], verdict)
    assert choosing.known(host_paths()[0]) == verdict
    (file,) = (tmp_path / "ds4py/kernels/checks").iterdir()
    for damage in (b"", b"{", b"[]", b'{"wrong": 3}', b'{"wrong": "", "gain": "much"}'):
        file.write_bytes(damage)
        assert choosing.known(host_paths()[0]) is None


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    (tmp_path / "checks").write_text("a file where the folder should be")
    choosing.keep("avx2", Verdict(""), tmp_path)
    assert choosing.known("avx2", tmp_path) is None


def test_the_amx_of_this_machine_is_asked_for_only_if_it_is_there() -> None:
    flags = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    assert ("amx" in candidates()) <= ("amx_int8" in flags)
    assert candidates()[-1] == "plain"
    code = "from ds4py.kernels.cpu import CpuKernels; print(CpuKernels(1).name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"cpu-{host_paths()[0]}"
