"""The promise where it counts: on every backend and architecture, drafting changes neither tokens nor logits nor caches, and a
session that went back, was edited or was interrupted goes on as a fresh one would. All comparisons are of bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scripted_drafters import EveryLength, Guess, Scripted, always_wrong, from_table, right_with
from toy_model import remembered

from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions, step
from ds4py.models import LoadedModel
from ds4py.protocols import F32, SamplingParams

PROMPT = np.random.default_rng(8).integers(0, 256, 37).tolist()
N_TOKENS = 56
SETTINGS = {
    "greedy": SessionOptions(params=SamplingParams(0), penalties=Penalties(1.2, 0.3, 2.0, last_n=24)),
    "sampled": SessionOptions(params=SamplingParams(0.7, top_k=40, top_p=0.95, min_p=0.02), seed=1),
    "hot": SessionOptions(params=SamplingParams(1.3), penalties=Penalties(1.1, 0.1, 0.1, last_n=-1), seed=2),
}


@pytest.fixture
def engine(model: LoadedModel) -> Engine:
    return Engine(model, model.kernels, n_ctx=160)


def opened_session(engine: Engine, ids: Sequence[int], options: SessionOptions) -> Session:
    session = engine.session(options)
    session.sync(ids)
    return session


def run(engine: Engine, options: SessionOptions, n: int = N_TOKENS) -> tuple[Session, list[F32]]:
    session = opened_session(engine, PROMPT, options)
    return session, [row.copy() for done in session.generate(n) for row in done.rows]


def assert_same(a: tuple[Session, list[F32]], b: tuple[Session, list[F32]]) -> None:
    assert a[0].tokens == b[0].tokens
    assert_array_equal(a[1], b[1])
    assert_same_state(a[0], b[0])


def assert_same_state(a: Session, b: Session) -> None:
    for x, y in zip(remembered(a.state), remembered(b.state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(x, y)


def drafted(plain: tuple[Session, list[F32]], options: SessionOptions, guess: Guess, depth: int) -> SessionOptions:
    return replace(options, drafter=Scripted(plain[0].tokens, guess, taps=(0, 2)), depth=FixedDepth(depth))


@pytest.mark.parametrize("setting", ["greedy", "sampled"])
def test_drafting_changes_nothing(engine: Engine, setting: str) -> None:
    options = SETTINGS[setting]
    plain = run(engine, options)
    second = {len(PROMPT) + i: int(row.argsort()[-2]) for i, row in enumerate(plain[1]) if i % 3 == 0}
    n_accepted = n_rejected = 0
    for guess, depth in ((right_with(0.6), 4), (EveryLength(4, 1), 4), (from_table(second), 7)):
        other = run(engine, drafted(plain, options, guess, depth))
        assert_same(plain, other)
        stats = other[0].stats
        assert stats.accepted + stats.passes == N_TOKENS
        n_accepted += stats.accepted
        n_rejected += stats.drafted - stats.accepted
    assert n_accepted >= 50 and n_rejected >= 50
    assert len(set(plain[0].tokens[len(PROMPT) :])) > 5, "a text that repeats one token shows nothing"
    if any(cache.window for cache in plain[0].state.caches):
        assert plain[0].state.pos > 5 * 16, "the window was never left"


def test_sessions_in_one_forward_are_what_they_are_alone(engine: Engine) -> None:
    solo = [run(engine, options, 30) for options in SETTINGS.values()]
    guesses: list[Guess | None] = [right_with(0.6), None, always_wrong]
    sessions, rows = [], list[list[F32]]()
    for options, plain, guess in zip(SETTINGS.values(), solo, guesses, strict=True):
        sessions.append(opened_session(engine, PROMPT, drafted(plain, options, guess, 3) if guess else options))
        sessions[-1].begin(30)
        rows.append([])
    while active := [i for i, session in enumerate(sessions) if session.finish is None]:
        for i, done in zip(active, step([sessions[i] for i in active]), strict=True):
            rows[i] += [row.copy() for row in done.rows]
    for plain, session, its_rows in zip(solo, sessions, rows, strict=True):
        assert_same(plain, (session, its_rows))
    assert sessions[0].stats.accepted > 5 and sessions[2].stats.drafted > 20


def test_edited_prompts_and_rewinds_equal_fresh_sessions(engine: Engine) -> None:
    """Histories without a generated part: every one of them must equal a cold read, except that below a ring's floor the tiles
    of the old prompt are obeyed; then it equals a replay by the paths that the record names."""
    options = SETTINGS["sampled"]
    long = [*PROMPT, *np.random.default_rng(9).integers(0, 256, 100).tolist()]
    edited = [*long[:60], (long[60] + 1) % 256, *long[61:]]
    warm = engine.session(options)
    for ids in (long, edited, long[:50] + edited[70:], long[:90]):
        warm.sync(ids)
        fresh = engine.session(options)
        fresh._evaluate(ids, warm.state.tiles, None)
        assert_same_state(warm, fresh)
        assert_array_equal(warm.next_logits(), fresh.next_logits())
        if not (engine.kernels.prefill_tile and any(cache.window for cache in warm.state.caches)):
            assert_array_equal(warm.next_logits(), opened_session(engine, ids, options).next_logits())
    warm.sync(long)
    for n in (110, 3):
        warm.rewind(n)
        fresh = engine.session(options)
        fresh._evaluate(long[:n], warm.state.tiles, None)
        assert_same_state(warm, fresh)
        assert_array_equal(warm.next_logits(), fresh.next_logits())


def test_a_rewound_answer_comes_again_and_a_regenerated_one_does_not(engine: Engine) -> None:
    session, rows = run(engine, SETTINGS["hot"], 30)
    text: list[Any] = list(session.tokens)
    session.rewind(len(PROMPT) + 11)
    again = [row.copy() for done in session.generate(19) for row in done.rows]
    assert session.tokens == text
    assert_array_equal(again, rows[11:])
    session.regenerate(len(PROMPT))
    for _ in session.generate(30):
        pass
    assert session.tokens != text
