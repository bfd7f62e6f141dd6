"""Opening a model file, and what an engine tells about itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from toy_model import toy_engine

from ds4py.engine import Engine, EngineOptions, Penalties, SessionOptions
from ds4py.errors import ResourceError, UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import tiny_gguf

    return tiny_gguf("gemma3", tmp_path_factory.mktemp("engine") / "tiny.gguf")


def test_open_and_generate(tiny_path: Path) -> None:
    engine = Engine.open(open_gguf(tiny_path), EngineOptions(n_ctx=128, kernels="reference", max_rows=32))
    session = engine.session(SessionOptions(params=SamplingParams(0.8), seed=1))
    report = session.sync(list(range(40)))
    assert (report.reused, report.fed) == (0, 39)
    first = [token for done in session.generate(16) for token in done.tokens]
    assert len(first) == 16 and session.finish == "length"
    again = engine.session(SessionOptions(params=SamplingParams(0.8), seed=1))
    again.sync(list(range(40)))
    assert [token for done in again.generate(16) for token in done.tokens] == first


def test_info_and_default_context(tiny_path: Path) -> None:
    engine = Engine.open(open_gguf(tiny_path), EngineOptions(kernels="reference"))
    info = engine.info()
    assert info.n_ctx == info.n_ctx_train == 512  # the model's, which is less than the default
    assert info.vocab_size == 320 and info.n_layers == 7 and info.kernels.startswith("reference") and info.n_threads >= 1
    assert info.kv_bytes == engine.session().state.n_bytes > 0
    smaller = dataclasses.replace(engine, n_ctx=64).info()
    assert smaller.kv_bytes < info.kv_bytes


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(n_ctx=0),
        EngineOptions(threads=0),
        EngineOptions(max_rows=-1),
        EngineOptions(checkpoint_step=0),
        EngineOptions(kernels="cuda"),
    ],
)
def test_options_out_of_range_are_refused(tiny_path: Path, options: EngineOptions) -> None:
    with pytest.raises(UsageError):
        Engine.open(open_gguf(tiny_path), options)


@pytest.mark.parametrize(
    "options",
    [
        SessionOptions(params=SamplingParams(float("nan"))),
        SessionOptions(penalties=Penalties(repeat=-1)),
        SessionOptions(bias={10**9: 1.0}),
    ],
)
def test_session_settings_that_can_never_be_obeyed_are_refused_and_the_next_request_works(options: SessionOptions) -> None:
    engine = toy_engine()
    with pytest.raises(UsageError):
        engine.session(options)
    engine.session().sync([1, 2, 3])


def test_a_context_that_does_not_fit_memory_is_one_sentence() -> None:
    with pytest.raises(ResourceError, match=f"context of {10**15} tokens"):
        toy_engine(n_ctx=10**15).session()


def test_an_engine_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy_engine().n_ctx = 5  # type: ignore[misc]
