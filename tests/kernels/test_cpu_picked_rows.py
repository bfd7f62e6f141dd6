"""Asking for the logits of some rows of a call gives what asking for all gives: two threads' shares of picked rows are no shares
of the rows they are picked from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_gguf

from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels, rowwise
from ds4py.models import load_model
from ds4py.protocols import Span

N_ROWS = 64


@pytest.mark.parametrize("n_logits", [1, 13, 29, 40])
def test_picked_rows_are_read_after_a_barrier(n_logits: int, tmp_path: Path) -> None:
    """The record after which the picked rows exist must wait, and so must the first one that reads them."""
    kernels = CpuKernels(threads=2)
    model = load_model(open_gguf(tiny_gguf("llama", tmp_path / "tiny.gguf")), kernels)
    ids = np.random.default_rng(0).integers(0, 320, N_ROWS).tolist()
    every = model.forward([Span(model.new_state(N_ROWS, 0), ids, N_ROWS)]).of(0).copy()
    for _ in range(20):
        some = model.forward([Span(model.new_state(N_ROWS, 0), ids, n_logits)]).of(0)
        assert (some == every[N_ROWS - n_logits :]).all()
    at = kernels.kernel("pick", rowwise.pick)
    (program,) = [p for p in kernels._programs.values() if (p.ops[:, 0] == at).any()]
    (i,) = np.flatnonzero(program.ops[:, 0] == at)
    assert program.ops[i, 1] == 1 and program.ops[i + 1, 1] == 1
