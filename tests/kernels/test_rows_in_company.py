"""Bits of whole models on every path of this processor: 1 to 65 rows in a call, depths around every edge of attention's tiles and
of the rings, 1 to 4 threads, several sessions in a call, against one token at a time on one thread.

tests/scripts/company_long.py crosses all of them; here each number of rows meets an eighth of the depths, and threads take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from company import MOST_ROWS, Alone, calls, compare, edges, ring_capacities
from tiny_models import tiny_gguf
from tiny_v4 import make_tiny

from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.models import LoadedModel, load_model

THREADS = (1, 2, 3, 4)


def opener(file: Path, path: str) -> Callable[[int], LoadedModel]:
    made: dict[int, LoadedModel] = {}

    def open_model(threads: int) -> LoadedModel:
        if threads not in made:
            made[threads] = load_model(open_gguf(file), CpuKernels(threads, MOST_ROWS, path))
        return made[threads]

    return open_model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Float weights of a row meet other kernels than quantised ones; gemma3 has rings, qwen3moe experts, deepseek4 pools."""
    folder = tmp_path_factory.mktemp("company")
    made = {name: tiny_gguf(name, folder / f"{name}.gguf") for name in ("qwen3moe", "gemma3")}
    made["llama-f16"] = tiny_gguf("llama", folder / "llama.gguf", kind=GgmlType.F16)
    flash = make_tiny(hca=24, compress_ratios=[4, 128, 0], num_hidden_layers=3, hc_sinkhorn_iters=3)
    made["deepseek4"] = flash.write(folder / "deepseek4.gguf", GgmlType.Q8_0)
    return made


@pytest.mark.parametrize("path", host_paths())
@pytest.mark.parametrize("name", ["llama-f16", "qwen3moe", "gemma3", "deepseek4"])
def test_a_row_in_company_is_the_row_alone(name: str, path: str, files: dict[str, Path]) -> None:
    open_model = opener(files[name], path)
    rings = ring_capacities(open_model(1))
    n = max([2 * capacity + MOST_ROWS for capacity in rings], default=128)
    ids = np.random.default_rng(11).integers(0, 256, n).tolist()
    alone = Alone.decode(open_model(1), ids, edges(n, *rings))
    assert {rows for _, rows in calls(alone, 8)} == set(range(1, MOST_ROWS + 1))
    done = compare(alone, open_model, THREADS, every=8, n_parties=16)
    assert done.n_calls > 100 and done.n_rows > 2500
    if name in ("gemma3", "deepseek4"):
        assert rings and n > 2 * rings[-1], "no ring wrapped"


@pytest.mark.parametrize("path", host_paths())
def test_a_real_model_too(path: str, smollm2_path: Path) -> None:
    """Heads of 64 over nine times the width, and a head of 49,152 rows; lesser paths are slow, they see fewer calls."""
    open_model = opener(smollm2_path, path)
    ids = np.random.default_rng(12).integers(1000, 40000, 90).tolist()
    best = path == host_paths()[0]
    alone = Alone.decode(open_model(1), ids, [0, 15, 16, 17, 31, 32, 33] if best else [15, 17])
    done = compare(alone, open_model, (1, 2, 3), every=9 if best else 24, n_parties=3)
    assert done.n_calls >= (45 if best else 8) and done.n_rows > (1400 if best else 200)
