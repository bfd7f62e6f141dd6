"""Every contract runs on every backend that promises it; a new backend is one line in `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_models import ARCHITECTURES, tiny_gguf
from tiny_v4 import make_tiny as make_tiny_v4

from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import LoadedModel, load_model
from ds4py.protocols import Kernels

ALL = (*ARCHITECTURES, "deepseek4")
MAX_ROWS = 80  # above the 65 rows that the promise is tested up to; whole tiles of 16


@dataclass(frozen=True)
class Backend:
    """How to open a backend that promises row invariance, the dtype of its attention caches, and what to run on it."""

    make: Callable[[int], Kernels]  # max_rows -> kernels
    kv_dtype: str = "float16"
    architectures: tuple[str, ...] = ALL


BACKENDS = {
    "reference": Backend(lambda rows: ReferenceKernels(row_by_row=True, max_rows=rows), kv_dtype="float32"),
    # a prefill path, float64 and float16 caches in the oracle; one architecture with everything is enough, it is slow
    "reference-tiles": Backend(
        lambda rows: ReferenceKernels("float64", row_by_row=True, prefill_tile=16, max_rows=rows), architectures=("gemma3",)
    ),
    "cpu": Backend(lambda rows: CpuKernels(threads=2, max_rows=rows)),
    # every lesser path that this processor can be forced to take, down to plain code: other vector widths, no fused
    # multiply-add, no half floats
    **{
        f"cpu-{path}": Backend(
            lambda rows, path=path: CpuKernels(threads=3, max_rows=rows, path=path),  # type: ignore[misc]
            architectures=("gemma3", "qwen3moe", "deepseek4"),
        )
        for path in host_paths()[1:]
    },
}


@pytest.fixture(scope="session")
def tiny_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small quantised file per architecture; gemma3's first and last of three layers have a window of 16."""
    folder = tmp_path_factory.mktemp("contracts")
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    changes = {"gemma3": {"num_hidden_layers": 3, "layer_types": kinds}}
    paths = {name: tiny_gguf(name, folder / f"{name}.gguf", **changes.get(name, {})) for name in ARCHITECTURES}
    # both kinds of pools and none, groups that close a few times in 66 tokens, a table of experts in the first layer
    flash = make_tiny_v4(hca=24, compress_ratios=[4, 128, 0], num_hidden_layers=3, hc_sinkhorn_iters=3)
    return {**paths, "deepseek4": flash.write(folder / "deepseek4.gguf", GgmlType.Q8_0)}


@pytest.fixture(scope="session")
def opened(tiny_paths: dict[str, Path]) -> Any:
    """(backend, architecture, max_rows) -> model, each opened once."""
    models: dict[tuple[str, str, int], LoadedModel] = {}

    def get(backend: str, architecture: str, max_rows: int = MAX_ROWS) -> LoadedModel:
        key = backend, architecture, max_rows
        if key not in models:
            spec = BACKENDS[backend]
            models[key] = load_model(open_gguf(tiny_paths[architecture]), spec.make(max_rows), spec.kv_dtype)
        return models[key]

    return get


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[f"{name}/{architecture}" for name, spec in BACKENDS.items() for architecture in spec.architectures])
def model(request: pytest.FixtureRequest, opened: Any) -> LoadedModel:
    """An architecture's tiny model on a backend."""
    return opened(*request.param.split("/"))
