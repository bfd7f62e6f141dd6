"""Symptoms that users of other engines reported, each as a small run that shows it is not ours.

Most of them have their test beside the part that is concerned: statistics of a former request (drafters/test_ngram_cache.py),
histories that shrank (drafters/test_ngram_timeline.py), tokens after a stop token and log-probabilities of drafted tokens
(e2e/test_speculation.py), second requests (drafters/test_draft_sessions.py), vocabularies (drafters/test_draft_simple.py), values
of options (cli/test_documented_options.py). Here are those that belong to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from identity import cache_hashes
from scripted_drafters import EveryLength, Scripted, always_right, always_wrong, right_with
from toy_model import ToyModel, toy_engine

from ds4py.drafters import NgramSizes
from ds4py.drafters.chain import Chain
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions, step
from ds4py.engine.cost import CostAware
from ds4py.engine.schedule import FixedSchedule
from ds4py.protocols import Draft, Out, SamplerView, SamplingParams, Span
from ds4py.state import State

OPTIONS = SessionOptions(SamplingParams(1.0), seed=5)
PROMPT = [3, 11, 19, 40, 3, 11]


def answer(session: Session, n: int | None) -> list[int]:
    session.sync(PROMPT)
    for _ in session.generate(n):
        pass
    return session.tokens


def plain(engine: Engine, n: int | None, options: SessionOptions = OPTIONS) -> Session:
    session = engine.session(options)
    answer(session, n)
    return session


@dataclass
class Flipping(ToyModel):
    """A target that breaks the promise: its logits depend on how many rows are in the call."""

    def forward(self, spans: Sequence[Span], taps: Sequence[int] = (), path: str = "row") -> Out:
        out = super().forward(spans, taps, path)
        n = sum(len(span.tokens) for span in spans)
        return replace(out, logits=np.roll(out.logits, n, axis=1))


@pytest.mark.parametrize("guess", [always_right, always_wrong])
def test_ties_that_flip_in_a_batch_cannot_make_it_replay_for_ever(guess: Any) -> None:
    """Where a rejected block is replayed, a tie that flips between one row and several ends in an endless loop without output."""
    toy = Flipping()
    engine = Engine(toy, toy, 256)  # type: ignore[arg-type]  # a toy loads no weights
    right = plain(engine, 60).tokens
    session = engine.session(replace(OPTIONS, drafter=Scripted(right, guess), depth=FixedDepth(3)))
    answer(session, 60)
    assert len(session.tokens) == len(PROMPT) + 60 and session.stats.passes <= 60, "each pass commits a token"


@pytest.mark.parametrize("n_sessions", [1, 2, 4])
def test_a_verify_is_never_split_over_two_forwards(n_sessions: int) -> None:
    """Drafts of 8 where a forward takes 4 rows: they are cut, also when several sessions share it."""
    engine = toy_engine(max_rows=4)
    texts = [plain(engine, 30, replace(OPTIONS, seed=i)) for i in range(n_sessions)]
    sessions = [
        engine.session(replace(OPTIONS, seed=i, drafter=Scripted(text.tokens, right_with(0.7)), depth=FixedDepth(8)))
        for i, text in enumerate(texts)
    ]
    for session in sessions:
        session.sync(PROMPT)
        session.begin(30)
    n_forwards, n_passes = engine.model.n_forwards, 0  # type: ignore[attr-defined]
    while running := [session for session in sessions if session.finish is None]:
        step(running)
        n_passes += 1
    assert engine.model.n_forwards - n_forwards == n_passes  # type: ignore[attr-defined]
    for session, text in zip(sessions, texts, strict=True):
        assert session.tokens == text.tokens and cache_hashes(session) == cache_hashes(text)
        assert max(session.stats.passes_of_rows) >= 4 // n_sessions, "it drafts as far as a forward goes"


class Silent(Scripted):
    """Has an answer every other time."""

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self.calls += 1
        return super().propose(k, last, view) if self.calls % 4 < 2 else Draft()


@pytest.mark.parametrize("guess", [always_right, always_wrong, EveryLength(4)])
def test_empty_drafts_between_others_leave_nothing_behind(guess: Any) -> None:
    engine = toy_engine()
    text = plain(engine, 80)
    session = engine.session(replace(OPTIONS, drafter=Silent(text.tokens, guess), depth=FixedDepth(4)))
    answer(session, 80)
    assert session.tokens == text.tokens and cache_hashes(session) == cache_hashes(text)
    assert session.stats.drafts > 8 and session.stats.passes_of_rows[1] > 8


def test_drafting_goes_on_after_a_short_or_failed_draft() -> None:
    """Every pass that has room for a draft asks for one."""
    engine = toy_engine()
    text = plain(engine, 60)
    session = engine.session(replace(OPTIONS, drafter=Silent(text.tokens, EveryLength(4)), depth=FixedDepth(4)))
    session.sync(PROMPT)
    n_before, with_room = len(session.tokens), 0
    for done in session.generate(60):
        with_room += session.limit - n_before > 1
        n_before += len(done.tokens)
    assert session.stats.draft_calls == with_room > 20


@pytest.mark.parametrize("depth", [FixedDepth(4), CostAware(4)], ids=["fixed", "cost"])
def test_positions_are_contiguous_after_every_pass(depth: Any) -> None:
    """The state, the drafters and the sampler stand where the tokens end, whatever was rejected."""
    engine = toy_engine()
    text = plain(engine, 80)
    drafter = Chain([NgramSimple(NgramSizes(2, 4, 1)), Scripted(text.tokens, EveryLength(4))])
    session = engine.session(replace(OPTIONS, drafter=drafter, depth=depth))
    session.sync(PROMPT)
    for _ in session.generate(80):
        n = len(session.tokens)
        assert session.state.pos == session.drafter.pos == n - 1 and session.sampler.pos == n
        assert [member.pos for member in drafter.members] == [n - 1] * 2
    assert session.tokens == text.tokens


def test_drafting_saves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the state before each verify costs more than drafting brings: copies are taken at turns and on the way only."""
    taken: list[int] = []
    checkpoint = State.checkpoint
    monkeypatch.setattr(State, "checkpoint", lambda self: taken.append(self.pos) or checkpoint(self))
    engine = toy_engine(window=8)
    text = plain(engine, 120)
    n_plain, taken[:] = len(taken), []
    session = engine.session(replace(OPTIONS, drafter=Scripted(text.tokens, EveryLength(4)), depth=FixedDepth(4)))
    answer(session, 120)
    assert session.tokens == text.tokens and len(taken) == n_plain <= 3


def test_a_correction_is_not_an_accepted_draft() -> None:
    engine = toy_engine()
    text = plain(engine, 60)
    session = engine.session(replace(OPTIONS, drafter=Scripted(text.tokens, EveryLength(4)), depth=FixedDepth(4)))
    session.sync(PROMPT)
    for done in session.generate(60):
        assert len(done.tokens) == len(done.rows) == done.accepted + 1
    assert session.stats.accepted + session.stats.passes == 60 and session.stats.drafted > session.stats.accepted > 10


@pytest.mark.parametrize("which", range(1, 8))
def test_nothing_is_evaluated_after_the_end(which: int) -> None:
    """An answer that ended inside a block was followed by reading the whole prompt again."""
    engine = toy_engine()
    text = plain(engine, 40).tokens
    stop = frozenset([text[len(PROMPT) + which]])
    session = engine.session(replace(OPTIONS, stop_ids=stop, drafter=Scripted(text, always_right), depth=FixedDepth(8)))
    session.sync(PROMPT)
    before = engine.model.n_rows  # type: ignore[attr-defined]
    for _ in session.generate(40):
        pass
    after = engine.model.n_rows  # type: ignore[attr-defined]
    assert session.finish == "stop" and after - before == session.stats.rows
    session.settle()
    session.sync(session.tokens)
    assert engine.model.n_rows == after, "the next turn finds all of it there"  # type: ignore[attr-defined]


class Flip(FixedSchedule):
    """Greedy before a position, hot from there on: as where tool syntax begins or ends."""

    def __init__(self, at: int) -> None:
        super().__init__(SamplingParams(0), Penalties(), {}, 48)
        self.at = at

    def params(self) -> SamplingParams:
        return SamplingParams(0 if self.pos < self.at else 1.3)


@pytest.mark.parametrize("at", range(len(PROMPT) + 8, len(PROMPT) + 16))
def test_settings_that_change_at_any_row_of_a_block_cost_no_evaluation(at: int) -> None:
    """It was answered by a replay of the block, or of the whole text where no copy of the state fitted."""
    engine = toy_engine()
    text = plain(engine, 40, replace(OPTIONS, schedule=Flip(at)))
    assert text.tokens != plain(engine, 40, replace(OPTIONS, schedule=Flip(99))).tokens
    drafting = replace(OPTIONS, schedule=Flip(at), drafter=Scripted(text.tokens, always_right), depth=FixedDepth(7))
    session = engine.session(drafting)
    session.sync(PROMPT)
    before = engine.model.n_rows  # type: ignore[attr-defined]
    for _ in session.generate(40):
        pass
    assert session.tokens == text.tokens and session.stats.passes == 5
    assert engine.model.n_rows - before == 40 == session.stats.rows  # type: ignore[attr-defined]


def test_a_rewind_into_a_block_finds_the_logits_of_its_place() -> None:
    """They were those of the block's end."""
    engine = toy_engine(window=8)
    text = plain(engine, 40)
    session = engine.session(replace(OPTIONS, drafter=Scripted(text.tokens, EveryLength(5)), depth=FixedDepth(5)))
    answer(session, 40)
    for n in (44, 43, 40, 39, 20, len(PROMPT)):
        session.rewind(n)
        fresh = engine.session(OPTIONS)
        fresh.sync(text.tokens[:n])
        assert np.array_equal(session.next_logits(), fresh.next_logits())
