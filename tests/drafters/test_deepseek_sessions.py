"""Sessions of DeepSeek V4 with its DSpark and MTP drafts, where such drafts are known to go wrong: what is kept of a text that
was left, edited, saved, forked or only paused on; what is evaluated when an answer has ended; what memory depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepseek4_reference import mtp_weights, spark_weights
from listening import Notes
from numpy.testing import assert_array_equal
from scripted_drafters import Scripted, always_right
from tiny_v4 import make_tiny, spark_keys, write_support
from toy_model import remembered

from ds4py.drafters import Drafters, SpecConfig, open_drafters
from ds4py.engine import Engine, FixedDepth, Session, SessionOptions
from ds4py.engine.ds4_depth import Ds4Depth
from ds4py.engine.speculation import target_of
from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.models import load_model
from ds4py.protocols import F32, SamplingParams

RNG = np.random.default_rng(12)
LONG, SHORT, OTHER = (RNG.integers(2, 319, n).tolist() for n in (90, 31, 90))
KINDS = ("draft-dspark", "draft-mtp")


@dataclass(frozen=True)
class Opened:
    """An engine on a tiny V4, and one kind of draft."""

    engine: Engine
    drafters: Drafters

    def session(self, **changes: Any) -> Session:
        options = {"params": SamplingParams(0), "depth": FixedDepth(4), "drafter": self.drafters.new(False)}
        return self.engine.session(SessionOptions(**(options | changes)))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Opened]:
    folder = tmp_path_factory.mktemp("sessions")
    tiny = make_tiny(hca=24, compress_ratios=[0, 4, 128], num_hidden_layers=3)
    g = open_gguf(tiny.write(folder / "tiny.gguf"))
    kernels = CpuKernels(2, 16)
    model = load_model(g, kernels)
    c, keys = tiny.config, spark_keys([0, 1, 2], 16, 319)
    files = {
        "draft-dspark": write_support(folder / "s.gguf", spark_weights(c, 16, 3), c, keys),
        "draft-mtp": write_support(folder / "m.gguf", mtp_weights(c), c, {"general.architecture": "deepseek4-mtp"}),
    }

    def get(kind: str, n_ctx: int = 400) -> Opened:
        engine = Engine(model, kernels, n_ctx, g)
        config = SpecConfig(draft_model=files[kind], n_max=4, conf_min=0.0, accept="exact")
        return Opened(engine, open_drafters(config, target_of(engine, g)))

    return get


def answer(session: Session, prompt: Sequence[int], n: int = 30) -> list[int]:
    session.sync(prompt)
    for _ in session.generate(n):
        pass
    return session.tokens


def proposed(session: Session) -> list[F32]:
    """The rows that a draft behind the session's last token is chosen from."""
    notes = Notes(session.drafter.pos + 1)
    session.drafter.propose(4, session.tokens[-1], notes)
    assert len(notes.rows) == 4
    return notes.rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_that_are_shared_are_the_target_s_own(kind: str, make: Callable[..., Opened]) -> None:
    one = make(kind)
    drafter: Any = one.drafters.new(False)
    network = (drafter.context.draft if kind == "draft-dspark" else drafter._draft).network
    target: Any = one.engine.model.network  # type: ignore[attr-defined]
    assert network.token_embd is target.token_embd and network.output is target.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_s_caches_do_not_grow_with_the_context(kind: str, make: Callable[..., Opened]) -> None:
    states = []
    for n_ctx in (2000, 9000):
        drafter: Any = make(kind, n_ctx).drafters.new(False)
        states.append((drafter.context._state if kind == "draft-dspark" else drafter._state).n_bytes)
    assert states[0] == states[1] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_was_left_drafts_are_those_of_a_fresh_session(kind: str, make: Callable[..., Opened], tmp_path: Path) -> None:
    """A second request, shorter, edited, rewound and regenerated; a file, a fork; and every text is that of plain decoding."""
    one = make(kind)
    session, plain = one.session(), one.session(drafter=None)

    def check(session: Session) -> None:
        fresh = one.session()
        fresh.sync(session.tokens)
        for mine, its in zip(proposed(session), proposed(fresh), strict=True):
            assert_array_equal(mine, its)

    for prompt in (LONG, SHORT, [*SHORT, *OTHER[:40]], [*LONG[:50], *OTHER[50:]], LONG):
        assert answer(session, prompt) == answer(plain, prompt)
        check(session)
    session.rewind(len(LONG) + 7)
    check(session)
    one.engine.save_session(session, tmp_path / "s")
    loaded = one.engine.load_session(tmp_path / "s", SessionOptions(SamplingParams(0), drafter=one.drafters.new(False)))
    forked = session.fork(SessionOptions(SamplingParams(0), drafter=one.drafters.new(False)))
    for other in (loaded, forked):
        check(other)
        assert answer(other, other.tokens) == answer(plain, session.tokens)
        check(other)


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_drafts_and_pauses_do_not_starve_the_context(kind: str, make: Callable[..., Opened]) -> None:
    """By ds4's schedule, on guesses that are hardly ever right: after pauses a draft is the one that never paused would make."""
    one = make(kind)
    session, plain = one.session(depth=Ds4Depth(4)), one.session(drafter=None)
    assert answer(session, LONG, 90) == answer(plain, LONG, 90)
    stats = session.stats
    assert stats.drafted - stats.accepted > 40 and 5 < stats.draft_calls < 0.7 * stats.passes, "there were pauses"
    fresh = one.session()
    fresh.sync(session.tokens)
    for mine, its in zip(proposed(session), proposed(fresh), strict=True):
        assert_array_equal(mine, its)
    for a, b in zip(remembered(session.state), remembered(plain.state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(a, b)


@pytest.mark.parametrize("place", range(6))
def test_nothing_is_evaluated_when_an_answer_has_ended_inside_a_block(
    place: int, make: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop token at every place of a verified block: no row after it, and the next turn reads what is new alone."""
    one = make("draft-mtp")
    text = list(answer(one.session(drafter=None), SHORT, 40))
    stop = next(i for i in range(len(SHORT) + 2 + place, len(text)) if text[i] not in text[:i])
    calls: list[int] = []
    forward = one.engine.model.forward

    def counted(spans: Any, *more: Any, **options: Any) -> Any:
        calls.append(sum(len(span.tokens) for span in spans))
        return forward(spans, *more, **options)

    monkeypatch.setattr(one.engine.model, "forward", counted)
    session = one.session(drafter=Scripted(text, always_right), depth=FixedDepth(5), stop_ids=frozenset({text[stop]}))
    session.sync(SHORT)
    calls.clear()
    for _ in session.generate(100):
        pass
    assert session.finish == "stop" and session.tokens == text[: stop + 1]
    n_made = stop + 1 - len(SHORT)
    assert len(calls) == -(-n_made // 6), "not a forward more than passes of six tokens need"
    calls.clear()
    session.sync([*session.tokens, *OTHER[:9]])
    assert sum(calls) == 9, "the stop token and eight of the nine that are new"
