"""A bounded cache of experts under whole models: logits, caches and sampled text are those of all experts in memory, with several
sessions, with blocks whose rows take more experts than the cache holds, and with rejected drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scripted_drafters import EveryLength, Scripted
from tiny_models import tiny_gguf
from tiny_v4 import make_tiny
from toy_model import remembered

from ds4py.engine import Engine, FixedDepth, SessionOptions
from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.streaming import Streaming
from ds4py.models import load_model
from ds4py.models.running import LoadedModel
from ds4py.protocols import F32, SamplingParams, Span

IDS = np.random.default_rng(3).integers(2, 256, 90).tolist()
OTHER = np.random.default_rng(4).integers(2, 256, 90).tolist()
Load = Callable[[int | None], LoadedModel]


@pytest.fixture(scope="module", params=["deepseek4", "qwen3moe"])
def load(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The model with so many seats for its experts, or (None) all of them in memory."""
    path = tmp_path_factory.mktemp("mixture") / "tiny.gguf"
    if request.param == "qwen3moe":
        tiny_gguf("qwen3moe", path)
    else:
        tiny = make_tiny(hca=24, hidden_size=256, moe_intermediate_size=256, compress_ratios=[0, 4, 128], num_hidden_layers=3)
        tiny.write(path, GgmlType.Q8_0, GgmlType.IQ2_XXS, GgmlType.Q2_K)

    def make(n_seats: int | None) -> LoadedModel:
        return load_model(open_gguf(path), CpuKernels(2, 16, streaming=Streaming(n_seats) if n_seats else None))

    return make


def taken(model: LoadedModel) -> tuple[int, int, int]:
    assert isinstance(model.kernels, CpuKernels)
    counts = model.kernels.expert_counts()
    assert counts is not None
    return counts.n_seats, counts.hits, counts.misses


def history(model: LoadedModel) -> tuple[list[F32], list[np.ndarray]]:
    """Two sessions in turn and together, single tokens, blocks of up to 16 rows, drafts taken back."""
    a, b = (model.new_state(100, 16) for _ in range(2))
    found = []

    def feed(*spans: tuple[object, Sequence[int]]) -> None:
        out = model.forward([Span(state, ids, n_logits=len(ids)) for state, ids in spans])  # type: ignore[arg-type]
        found.append(out.logits.copy())

    for n in (16, 1, 1, 5, 9, 1, 16, 2, 1):
        feed((a, IDS[a.pos : a.pos + n]))
        if n % 2:
            feed((b, OTHER[b.pos : b.pos + n]), (a, IDS[a.pos : a.pos + 3]))
        pos = a.pos
        feed((a, [IDS[pos], *OTHER[pos : pos + 7]]))
        a.truncate(pos + 1)
    return found, [*remembered(a), *remembered(b)]


def test_logits_and_caches_are_those_of_all_experts_in_memory(load: Load) -> None:
    logits, caches = history(load(None))
    for n_seats in (1, 2, 3, 4, 7, 12, 18, 30):
        model = load(n_seats)
        found, held = history(model)
        for i, (ours, want) in enumerate(zip(found, logits, strict=True)):
            assert_array_equal(ours, want, err_msg=f"{n_seats} seats, call {i}")
        for ours, want in zip(held, caches, strict=True):
            assert_array_equal(ours, want)
        n, hits, misses = taken(model)
        assert misses > 2 * n or n_seats >= 18, "nothing was ever driven out"
        assert n <= n_seats and hits + misses > 300 and (n_seats > 1 or hits < misses)


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_drafts_of_every_length_change_nothing(load: Load, temperature: float) -> None:
    options = SessionOptions(params=SamplingParams(temperature), seed=5)
    roomy = load(None)
    plain = Engine(roomy, roomy.kernels, n_ctx=100).session(options)
    plain.sync(IDS[:20])
    rows = [row.copy() for step in plain.generate(50) for row in step.rows]
    for n_seats in (1, 5, 11):
        model = load(n_seats)
        drafter = Scripted(plain.tokens, EveryLength(5))
        session = Engine(model, model.kernels, n_ctx=100).session(
            SessionOptions(params=SamplingParams(temperature), seed=5, drafter=drafter, depth=FixedDepth(5))
        )
        session.sync(IDS[:20])
        found, lengths = [], set()
        for step in session.generate(50):
            lengths.add(step.accepted)
            found += [row.copy() for row in step.rows]
        assert session.tokens == plain.tokens and lengths >= {0, 1, 2, 3, 4, 5}
        assert_array_equal(found, rows)
        assert taken(model)[2] > 100
