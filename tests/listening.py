"""A tiny target, a draft that listens to it, and a sampler that writes down what it is asked: for tests of drafts' numbers.

The residuals that references start from are transformers' hidden states, numbered as the draft's file numbers them; the drafter
gets the engine's taps. So a tap of a neighbouring layer shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_drafts import TinyDraft
from tiny_models import Tiny

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.engine import Engine
from ds4py.engine.speculation import target_of
from ds4py.gguf import open_gguf
from ds4py.models import load_model
from ds4py.protocols import F32, Draft, Drafter, Kernels, SamplingParams, Span


@dataclass
class Notes:
    """A SamplerView at temperature 0 that keeps the rows it was shown."""

    pos: int
    rows: list[F32] = field(default_factory=list)

    def params(self) -> SamplingParams:
        return SamplingParams(0)

    def propose(self, row: F32, warmth: float) -> int:
        self.rows.append(row.copy())
        return int(row.argmax())

    def draw(self, row: F32) -> int:
        return int(row.argmax())

    def push(self, token: int) -> None:
        self.pos += 1

    def truncate(self, pos: int) -> None:
        self.pos = pos


class Listening:
    """`drafter` follows `ids`, which the target evaluates; `features(n)` are transformers' residuals of the first n positions."""

    def __init__(self, tiny: Tiny, draft: TinyDraft, kernels: Kernels, n_ctx: int = 256, **settings: Any) -> None:
        self.tiny, self.draft = tiny, draft
        self._hf = deepcopy(tiny.hf).double()
        if hasattr(self._hf.config, "num_experts"):  # torch's grouped product knows no float64
            self._hf.config._experts_implementation = "eager"
        kv_dtype = "float32" if kernels.name.startswith("reference") else "float16"
        g = open_gguf(tiny.path)
        self.engine = Engine(load_model(g, kernels, kv_dtype), kernels, n_ctx, g)
        config = SpecConfig(draft_model=draft.path, accept="exact", **settings)
        self.drafters = open_drafters(config, target_of(self.engine, g))
        self.embedding = tiny.hf.get_input_embeddings().weight.detach().numpy()
        self.head = tiny.hf.get_output_embeddings().weight.detach().numpy()

    def new(self) -> Drafter:
        made = self.drafters.new(opportunistic=False)
        assert made is not None
        return made

    def features(self, ids: Sequence[int], layers: Sequence[int] | None = None) -> np.ndarray:
        """[n, F], by the file's layer numbers (or others)."""
        left: list[Any] = []
        hook = self._hf.model.layers[-1].register_forward_hook(lambda *call: left.append(call[2]))
        with torch.inference_mode():
            hidden = list(self._hf(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states)
        hook.remove()
        hidden[-1] = left[0][0] if isinstance(left[0], tuple) else left[0]  # transformers gives the last one normed
        return np.concatenate([hidden[i].reshape(len(ids), -1).numpy() for i in layers or self.draft.shape.layers], 1)

    def feed(self, drafter: Drafter, ids: Sequence[int], pieces: Sequence[int]) -> None:
        """Let the target evaluate `ids` in pieces of these lengths from the drafter's position on, and the drafter watch."""
        model = self.engine.model
        state = model.new_state(self.engine.n_ctx, 0)
        seen = drafter.pos
        for n in [seen, *pieces]:
            end = state.pos + n
            while state.pos < end:
                block = list(ids[state.pos : min(state.pos + 32, end)])
                out = model.forward([Span(state, block)], drafter.needs.taps)
                if state.pos > seen:
                    drafter.observe(block, out.taps)
        assert drafter.pos == state.pos

    def propose(self, drafter: Drafter, last: int, k: int) -> tuple[Draft, list[F32]]:
        """A draft behind `last`, and the rows it was chosen from."""
        notes = Notes(drafter.pos + 1)
        draft = drafter.propose(k, last, notes)
        return draft, notes.rows


def taken(draft: TinyDraft, row: F32) -> np.ndarray:
    """The draft's own rows [V_d] of a row over the target's vocabulary; what it cannot say must be ruled out there."""
    if draft.d2t is None:
        return row
    assert np.isneginf(np.delete(row, draft.d2t)).all()
    return row[draft.d2t]


def cpu_or_reference(name: str, max_rows: int = 32) -> Kernels:
    from ds4py.kernels.cpu import CpuKernels
    from ds4py.kernels.reference import ReferenceKernels

    return CpuKernels(1, max_rows) if name == "cpu" else ReferenceKernels("float64", max_rows=max_rows)


def tiny_pair(folder: Path, architecture: str, make: Any, **changes: Any) -> tuple[Tiny, TinyDraft]:
    """A float32 target and a draft for it."""
    from tiny_models import make_tiny

    tiny = make_tiny(architecture, folder / f"{architecture}.gguf")
    return tiny, make(folder / "draft.gguf", tiny.path, **changes)
