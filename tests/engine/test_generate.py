"""Where generation ends, what is counted, and what happens to broken logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scripted_drafters import Scripted, always_right, right_with
from toy_model import N_VOCAB, toy_engine

from ds4py.engine import Engine, FixedDepth, Session, SessionOptions, step
from ds4py.errors import NumericError, UsageError
from ds4py.protocols import F32, Draft, Needs, SamplerView, SamplingParams

GREEDY = SamplingParams(0)
PROMPT = list(range(1, 41))


def started(engine: Engine, **options: Any) -> Session:
    session = engine.session(SessionOptions(params=GREEDY, **options))
    session.sync(PROMPT)
    return session


def finished(session: Session, n: int | None) -> list[int]:
    return [token for done in session.generate(n) for token in done.tokens]


def truth(engine: Engine, n: int = 100) -> list[int]:
    session = started(engine)
    finished(session, n)
    return session.tokens


def scripted(right: Sequence[int], depth: int = 5, **options: Any) -> dict[str, Any]:
    return {"drafter": Scripted(right, options.pop("guess", always_right)), "depth": FixedDepth(depth), **options}


# --- the budget and the counters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 6, 7])
def test_no_block_runs_over_the_budget(n: int) -> None:
    engine = toy_engine()
    right = truth(engine)
    session = started(engine, **scripted(right))
    assert finished(session, n) == right[40 : 40 + n]
    stats = session.stats
    assert session.finish == "length"
    assert stats.accepted + stats.passes == n and stats.accepted <= stats.drafted
    assert stats.drafted <= max(0, n - 1), "a budget of one token makes no draft"
    assert session.state.pos == len(session.tokens) - 1


def test_a_second_call_goes_on_and_counts_on() -> None:
    engine = toy_engine()
    right = truth(engine)
    session = started(engine, **scripted(right, guess=right_with(0.5)))
    assert finished(session, 10) + finished(session, 20) == right[40:70]
    assert session.stats.accepted + session.stats.passes == 30
    assert session.stats.verify_seconds > 0 and session.stats.draft_seconds > 0


def test_steps_count_what_they_commit() -> None:
    engine = toy_engine()
    session = started(engine, **scripted(truth(engine), guess=right_with(0.5)))
    for done in session.generate(50):
        assert done.accepted == len(done.tokens) - 1 <= done.drafted
        assert done.rows.shape == (len(done.tokens), N_VOCAB)
        assert [int(row.argmax()) for row in done.rows] == list(done.tokens)


@pytest.mark.parametrize("place", range(6))
def test_a_stop_token_ends_the_walk_wherever_it_stands_in_a_block(place: int) -> None:
    engine = toy_engine()
    right = truth(engine)
    at = next(i for i in range(40 + place, 80) if right[i] not in right[40:i])  # its first time
    start = at - place  # the block that begins here has the stop token at `place`
    session = engine.session(SessionOptions(params=GREEDY, stop_ids=frozenset({right[at]}), **scripted(right)))
    session.sync(right[:start])
    assert finished(session, 50) == right[start : at + 1]
    assert session.finish == "stop"
    assert session.stats.accepted + session.stats.passes == at + 1 - start
    assert session.state.pos == session.drafter.pos == len(session.tokens) - 1
    assert session.sampler.pos == len(session.tokens)


# --- the context -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [None, 100, 24])
def test_a_full_context_ends_generation(n: int | None) -> None:
    session = started(toy_engine(n_ctx=64))
    assert len(finished(session, n)) == 24
    assert session.finish == ("length" if n == 24 else "context")
    assert len(session.tokens) == 64


@pytest.mark.parametrize("length", [58, 59, 60, 61, 62, 63, 64])
@pytest.mark.parametrize("shape", [{}, {"window": 5, "max_rows": 8}])
def test_a_block_shrinks_to_fit_the_context(length: int, shape: dict[str, Any]) -> None:
    right = truth(toy_engine(**shape), 60)
    engine = toy_engine(n_ctx=64, **shape)
    session = engine.session(SessionOptions(params=GREEDY, **scripted(right)))
    session.sync(right[:length])
    assert finished(session, None) == right[length:64]
    assert session.finish == "context"
    assert finished(session, None) == [] and session.finish == "context"


class ShortSighted:
    """A drafter with a context of its own, smaller than the target's: past it, it proposes nothing."""

    def __init__(self, right: Sequence[int], n_ctx: int) -> None:
        self.needs, self.right, self.n_ctx, self.pos, self.floor = Needs(), list(right), n_ctx, 0, 0

    def truncate(self, pos: int) -> None:
        self.pos = pos

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self.pos += len(tokens)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        return Draft(self.right[view.pos : min(view.pos + k, self.n_ctx)])


def test_a_drafter_with_a_smaller_context_stops_drafting_and_the_text_goes_on() -> None:
    right = truth(toy_engine())
    session = started(toy_engine(n_ctx=64), drafter=ShortSighted(right, 50), depth=FixedDepth(5))
    assert finished(session, None) == right[40:64]
    assert 0 < session.stats.drafted <= 10


# --- drafts that break the rules ---------------------------------------------------------------------------------------------


class Reckless(ShortSighted):
    """Proposes more than it may, and ids that do not exist."""

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        good = self.right[view.pos : view.pos + 2]
        return Draft([*good, N_VOCAB + 3, -1, *self.right[:100]], [0.5] * (104 + len(good)))


def test_a_reckless_draft_is_cut_and_changes_nothing() -> None:
    engine = toy_engine()
    right = truth(engine)
    session = started(engine, drafter=Reckless(right, 0), depth=FixedDepth(6))
    assert finished(session, 60) == right[40:100]
    assert session.stats.accepted >= 30


# --- broken logits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5])
def test_broken_logits_stop_the_request_after_the_tokens_before_them(value: float, depth: int) -> None:
    right = truth(toy_engine())
    session = started(toy_engine(faults={45: value}), **scripted(right, depth))
    tokens = []
    with pytest.raises(NumericError, match="position 46"):
        for done in session.generate(50):
            tokens += done.tokens
    assert tokens == right[40:46] and session.finish == "error"
    assert session.state.pos == session.drafter.pos == len(session.tokens) - 1 == 45
    assert session.stats.accepted + session.stats.passes == 6
    session.rewind(44)
    assert finished(session, 2) == right[44:46]


def test_broken_logits_of_a_rejected_row_are_never_looked_at() -> None:
    right = truth(toy_engine())
    engine = toy_engine()
    wrong_at_44 = dict(enumerate(right)) | {44: (right[44] + 1) % N_VOCAB}
    session = started(engine, **scripted(right, 3, guess=lambda pos, token, call: wrong_at_44[pos]))
    model: Any = engine.model
    tokens = []
    for done in session.generate(4):  # 41..43 are drafted after the first token; 44 is drafted wrongly in the next block
        tokens += done.tokens
    model.faults = {44: math.nan}  # what is computed at 44 in the next pass follows a wrong token
    session.begin(1 + 3)
    (done,) = step([session])
    assert list(done.tokens) == [right[44]] and session.finish is None
    model.faults = {}
    assert finished(session, 10) == right[45:55]


def test_one_broken_session_does_not_stop_the_others() -> None:
    engine = toy_engine()
    right = truth(engine)
    good, bad = started(engine), engine.session(SessionOptions(params=GREEDY))
    bad.sync(PROMPT[:10])
    model: Any = engine.model
    model.faults = {13: math.nan}
    for session in (good, bad):
        session.begin(20)
    while active := [session for session in (good, bad) if session.finish is None]:
        step(active)
    assert good.tokens == right[:60] and good.finish == "length"
    assert bad.finish == "error" and isinstance(bad.error, NumericError) and len(bad.tokens) == 14


# --- calls that make no sense --------------------------------------------------------------------------------------------------


def test_senseless_calls_are_errors() -> None:
    engine = toy_engine(max_rows=2)
    with pytest.raises(ValueError, match="sync"):
        finished(engine.session(), 5)
    with pytest.raises(ValueError, match="sync"):
        engine.session().next_logits()
    with pytest.raises(ValueError, match="sync"):
        next(engine.session().force([1]))
    with pytest.raises(UsageError, match="budget"):
        finished(started(engine), -1)
    with pytest.raises(UsageError, match="depth"):
        FixedDepth(-1)
    sessions = [started(engine) for _ in range(3)]
    with pytest.raises(ValueError, match="1 to 2 sessions"):
        step(sessions)
    done = started(engine)
    finished(done, 1)
    with pytest.raises(ValueError, match="not finished"):
        step([done])


def test_sessions_share_the_rows_of_a_forward() -> None:
    engine = toy_engine(max_rows=8)
    right = truth(engine)
    sessions = [started(engine, **scripted(right, 20)) for _ in range(3)]
    for session in sessions:
        session.begin(30)
    model: Any = engine.model
    while sessions[0].finish is None:
        step(sessions)
        assert model.calls[-1][1] == [2, 2, 2] or sessions[0].finish
    assert all(session.tokens == right[:70] for session in sessions)
