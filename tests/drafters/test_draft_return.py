"""A draft model that was given up is asked again, seldom and cheaply; and what it reads for that is bounded, by count.

The draft is the target itself with its logits turned by one place, so that it is always wrong; turned back it is always right.
The model is one layer with a window of 16, so that the last 16 tokens say all. The clock counts what is evaluated: a target
forward takes 1, every row after its first a tenth, every row of the draft a tenth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.drafters.draft_context import DraftContext
from ds4py.drafters.draft_simple import DraftSimple
from ds4py.engine import Engine, EngineOptions, Session, SessionOptions
from ds4py.engine.accept import Opportunistic
from ds4py.engine.cost import CostAware
from ds4py.engine.depth import Adaptive, FixedDepth
from ds4py.engine.speculation import target_of
from ds4py.gguf import open_gguf
from ds4py.protocols import DepthPolicy, SamplingParams, Span

PROMPT = [int(t) for t in np.random.default_rng(8).integers(0, 256, 37)]
GREEDY = SessionOptions(params=SamplingParams(0))


SHORT = {"architecture": "gemma3", "num_hidden_layers": 1, "sliding_window": 16, "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def short_file(tiny_file: Callable[..., Path]) -> Path:
    return tiny_file(**SHORT)


@pytest.fixture(scope="module")
def short_engine(short_file: Path) -> Engine:
    return Engine.open(open_gguf(short_file), EngineOptions(n_ctx=2048, threads=1, max_rows=32))


@dataclass
class Machine:
    """What was evaluated, and whether the draft is wrong."""

    seconds: float = 0.0
    n_draft_rows: int = 0
    wrong: bool = True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    fit = DraftContext._fit
    monkeypatch.setattr(DraftContext, "_fit", lambda self, row: np.roll(fit(self, row), 1 if found.wrong else 0))
    monkeypatch.setattr(sys.modules["ds4py.engine.generate"], "perf_counter", lambda: found.seconds)
    return found


def opened(
    engine: Engine, path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, policy: DepthPolicy, **changes: Any
) -> Session:
    """A session on its own draft model, both counted."""
    assert engine.gguf is not None
    drafters = open_drafters(SpecConfig(draft_model=path, draft_threads=2, depth="fixed"), target_of(engine, engine.gguf))
    session = engine.session(replace(GREEDY, drafter=drafters.new(opportunistic=True), depth=policy, **changes))
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    for model, first, further in ((engine.model, 1.0, 0.1), (drafter._draft.model, 0.1, 0.1)):
        monkeypatch.setattr(model, "forward", counted(model.forward, machine, first, further, model is not engine.model))
    return session


def counted(forward: Callable[..., Any], machine: Machine, first: float, further: float, is_draft: bool) -> Callable[..., Any]:
    def run(spans: Sequence[Span], *rest: Any, **more: Any) -> Any:
        n = len(spans[0].tokens)
        machine.seconds += first + further * (n - 1)
        machine.n_draft_rows += n * is_draft
        return forward(spans, *rest, **more)

    return run


def plain(engine: Engine, n: int) -> list[int]:
    session = engine.session(GREEDY)
    session.sync(PROMPT)
    for _ in session.generate(n):
        pass
    return session.tokens


def passes_until_it_drafts(session: Session, n: int) -> int | None:
    """Passes of at most n tokens until three in a row had an accepted token."""
    hits = passes = 0
    for done in session.generate(n):
        passes += 1
        hits = hits + 1 if done.accepted else 0
        if hits == 3:
            return passes
    return None


@pytest.mark.parametrize(("policy", "most"), [(CostAware(4), 400), (Adaptive(4), 400)], ids=["cost", "counts"])
def test_an_always_wrong_draft_model_costs_3_percent_and_returns(
    short_engine: Engine, short_file: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, policy: DepthPolicy, most: int
) -> None:
    engine = short_engine
    text = plain(engine, 1000)
    rule = {"rule": Opportunistic()} if isinstance(policy, Adaptive) else {}
    session = opened(engine, short_file, machine, monkeypatch, policy, **rule)
    session.sync(PROMPT)
    machine.seconds = 0.0
    for _ in session.generate(1000):
        pass
    stats, read = session.stats, machine.n_draft_rows - len(PROMPT)
    print(f"{stats.drafted} drafted, {read} draft rows after the prompt, {machine.seconds / 1000 - 1:.2%} more than plain")
    assert session.tokens == text and stats.accepted == 0
    assert 5 < stats.drafted < 30 and read < 0.3 * 1000, "by count: a draft row costs a tenth of a pass"
    assert machine.seconds - 0.1 * len(PROMPT) < 1.03 * 1000
    machine.wrong = False
    back = passes_until_it_drafts(session, 900)
    print(f"back after {back} passes")
    assert back is not None and back < most


def test_after_a_pause_it_reads_the_last_tokens_first_and_the_rest_when_that_has_paid(
    short_engine: Engine, short_file: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = short_engine
    machine.wrong = False
    session = opened(engine, short_file, machine, monkeypatch, FixedDepth(0))
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    session.sync(PROMPT)
    for _ in session.generate(100):
        pass
    assert machine.n_draft_rows == 0, "who is not asked reads nothing"
    session.depth = FixedDepth(1)
    missing = len(session.tokens) - 1
    fed: list[int] = []
    while not fed or drafter._glancing:
        before = machine.n_draft_rows
        for _ in session.generate(1 + (not fed)):  # a budget of one token makes no draft
            pass
        for _ in session.generate(2):
            pass
        fed.append(machine.n_draft_rows - before)
        assert len(fed) < 300
    assert 16 <= fed[0] <= 20 and max(fed[1:-1]) <= 5, fed
    grown = len(session.tokens) - 1 - missing
    assert missing <= grown <= missing + 6 and fed[-1] >= 2 * missing - 5
    assert drafter._whole.behind(drafter._tokens) <= 2


def test_a_glance_proposes_what_a_fresh_model_would_after_those_tokens(
    short_engine: Engine, short_file: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = short_engine
    machine.wrong = False
    session = opened(engine, short_file, machine, monkeypatch, FixedDepth(0))
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    session.sync(PROMPT)
    for _ in session.generate(60):
        pass
    proposed = session.drafter.propose(3, session.tokens[-1], session.sampler).tokens
    session.settle()
    fresh = engine.session(GREEDY)
    fresh.sync(session.tokens[-17:])
    for _ in fresh.generate(3):
        pass
    assert list(proposed) == fresh.tokens[17:]
    session.rewind(len(session.tokens) - 30)  # behind where the glance began: it begins anew, and goes on
    for _ in session.generate(5):
        pass
    again = session.drafter.propose(3, session.tokens[-1], session.sampler).tokens
    session.settle()
    assert len(again) == 3 and drafter._glancing is not None


def test_a_prompt_is_read_whole_while_drafting_pays(
    short_engine: Engine, short_file: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = short_engine
    machine.wrong = False
    session = opened(engine, short_file, machine, monkeypatch, FixedDepth(2))
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    for turn in range(3):
        session.sync([*session.tokens, *PROMPT[turn:], *PROMPT])
        for _ in session.generate(9):
            pass
        assert drafter._glance is None
    assert session.stats.drafted == session.stats.accepted > 10
