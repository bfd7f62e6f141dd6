"""A tiny target and tiny models that draft for it: itself, itself with a little noise, and one with a window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_config, tiny_module, write_tiny

from ds4py.engine import Engine, EngineOptions
from ds4py.gguf import GgmlType, open_gguf


def disturb(module: torch.nn.Module, amount: float, seed: int = 1) -> None:
    """Add noise of `amount` standard deviations to every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(p.std() * amount * torch.randn(p.shape, generator=generator))


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_file("llama", noise=0.05): the one model of an architecture, disturbed; each made once."""
    folder = tmp_path_factory.mktemp("drafters")

    def make(architecture: str = "llama", noise: float = 0.0, **changes: object) -> Path:
        path = folder / f"{architecture}-{noise}-{abs(hash(str(changes)))}.gguf"
        if not path.exists():
            module = tiny_module(tiny_config(architecture, **changes))
            if noise:
                disturb(module, noise)
            write_tiny(module, path, kind=GgmlType.Q8_0)
        return path

    return make


@pytest.fixture(scope="session")
def tiny_engine(tiny_file: Callable[..., Path]) -> Callable[..., Engine]:
    """tiny_engine("llama", n_ctx=256): an engine on one thread."""
    opened: dict[tuple[str, int], Engine] = {}

    def make(architecture: str = "llama", n_ctx: int = 400) -> Engine:
        if (architecture, n_ctx) not in opened:
            options = EngineOptions(n_ctx=n_ctx, threads=1, max_rows=32)
            opened[architecture, n_ctx] = Engine.open(open_gguf(tiny_file(architecture)), options)
        return opened[architecture, n_ctx]

    return make
