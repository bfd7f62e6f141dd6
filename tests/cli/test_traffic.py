"""What a token reads, from names and shapes: the real list of tensors by hand, and what a running mixture really brings."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_gguf

from ds4py.cli.inspect import inspect, size
from ds4py.cli.terminal import Terminal
from ds4py.cli.traffic import distinct, held_bytes, traffic
from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.streaming import Streaming
from ds4py.models import load_model
from ds4py.protocols import Span


def script(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_real_model_by_hand(tmp_path: Path) -> None:
    """IQ2_XXS as it lies in the file, Q2_K packed to 4 bits; 43 layers, 6 of 256 experts; 3 stages of a draft."""
    tables = script("v4_traffic")
    path, exact = tables.outline(tmp_path / "flash", tables.FLASH, draft="dspark"), tables.Options(outtype="exact")
    model, support = (tables.planned(tables.open_folder(path, exact, support=own), "DS4_Q2") for own in (False, True))
    matrix = 2048 * 4096
    expert = 2 * matrix * 66 // 256 + matrix * 4 // 8
    one = traffic(model, 6)
    assert one.experts == pytest.approx(43 * 6 * expert)
    always = sum(held_bytes(t) for t in model if "_exps" not in t.name and "token_embd" not in t.name and "tid2eid" not in t.name)
    assert one.others == pytest.approx(always + 4096 * 2 + 3 * 6 * 4)
    six = traffic(model, 6, 6)
    assert 5.5 < six.experts / one.experts < 6 and six.others == pytest.approx(one.others, rel=1e-4)
    assert tables.resident(model)[0] == 43 * 256 * expert and tables.resident(support)[0] == 3 * 256 * expert
    lines = tables.table(model, support, 8000)
    assert lines[0].startswith("files: 80.8 GiB, support 5.6 GiB") and "holds N of 11,776" in lines[-1]
    plain = next(line for line in lines if line.startswith("| plain"))
    assert plain.split("|")[2].strip() == f"{(one.total + tables.caches(8000)) / 1e8:.2f}"


def test_experts_that_rows_take_together() -> None:
    assert distinct(256, 6, 1) == pytest.approx(6) and distinct(8, 8, 3) == 8 and distinct(4, 9, 1) == 4
    rng = np.random.default_rng(0)
    counted = [len({e for _ in range(6) for e in rng.permutation(256)[:6].tolist()}) for _ in range(2000)]
    assert distinct(256, 6, 6) == pytest.approx(np.mean(counted), rel=0.005)


def test_a_running_mixture_brings_what_is_reckoned(tmp_path: Path) -> None:
    """With one seat every expert is read whenever a token takes it: bytes by the counter are those by shape."""
    path = tmp_path / "tiny.gguf"
    tiny_gguf("qwen3moe", path)
    g, kernels = open_gguf(path), CpuKernels(1, 4, streaming=Streaming(1))
    model = load_model(g, kernels)
    model.forward([Span(model.new_state(8, 4), [7], 1)])
    counts: Any = kernels.expert_counts()
    n_layers, n_experts, n_used = model.n_layers, g.get("expert_count"), g.get("expert_used_count")
    assert counts.misses == n_layers * n_used
    stacks = [t for t in g.tensors.values() if "_exps." in t.name]
    assert counts.bytes_read == sum(t.nbytes for t in stacks) * n_used // n_experts
    held = traffic(g.tensors.values(), n_used).experts
    assert held == pytest.approx(sum(held_bytes(t) for t in stacks) * n_used / n_experts)
    stream = io.StringIO()
    inspect(g, 64, Terminal(stream, False, False))
    assert f"of weights, {size(held)} of them experts: no less than" in stream.getvalue()
    assert counts.seat_bytes * n_layers * n_used == pytest.approx(held)
