"""The signature promise on the toy model: with any drafter the tokens, the logits and the state are those of plain decoding,
bit for bit, greedy and sampled, with filters, penalties and bias; and a forward of several sessions gives each what it gets
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from numpy.testing import assert_array_equal
from scripted_drafters import EveryLength, Guess, Scripted, always_right, always_wrong, from_table, right_with
from toy_model import remembered, toy_engine

from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions, step
from ds4py.protocols import F32, Draft, Needs, SamplerView, SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 9, 32, 3, 8, 46]
N_TOKENS = 160
SETTINGS = {
    "greedy": SessionOptions(params=SamplingParams(0)),
    "warm": SessionOptions(params=SamplingParams(0.7, top_k=20), seed=1),
    "hot": SessionOptions(params=SamplingParams(1.3, top_p=0.9), seed=2),
    "min-p": SessionOptions(params=SamplingParams(1.0, min_p=0.05), seed=3, choice=2),
    "penalties": SessionOptions(params=SamplingParams(1.0), penalties=Penalties(1.3, 0.2, 0.1, last_n=20), seed=4),
    "greedy penalties": SessionOptions(params=SamplingParams(0), penalties=Penalties(1.1, 0.3, 0.5, last_n=-1)),
    "bias": SessionOptions(params=SamplingParams(0.9), bias={5: -100.0, 9: 3.0, 11: -2.5}, seed=5),
}
SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "ring": {"window": 9, "max_rows": 8},
    "tiles": {"prefill_tile": 8},
    "both": {"window": 9, "prefill_tile": 8, "max_rows": 16},
}


def run(engine: Engine, options: SessionOptions) -> tuple[Session, list[F32]]:
    session = engine.session(options)
    session.sync(PROMPT)
    rows = [row.copy() for done in session.generate(N_TOKENS) for row in done.rows]
    return session, rows


def drafted(options: SessionOptions, right: list[int], guess: Guess, depth: int) -> SessionOptions:
    return replace(options, drafter=Scripted(right, guess, taps=(0, 1)), depth=FixedDepth(depth))


def assert_same(plain: tuple[Session, list[F32]], other: tuple[Session, list[F32]]) -> None:
    assert other[0].tokens == plain[0].tokens
    assert_array_equal(other[1], plain[1])
    for a, b in zip(remembered(plain[0].state), remembered(other[0].state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(a, b)


def second_choices(plain: tuple[Session, list[F32]]) -> dict[int, int]:
    return {len(PROMPT) + i: int(row.argsort()[-2]) for i, row in enumerate(plain[1])}


@pytest.mark.parametrize(("setting", "shape"), [*((s, "both") for s in SETTINGS), *(("warm", s) for s in SHAPES if s != "both")])
def test_every_drafter_gives_the_plain_text_logits_and_state(setting: str, shape: str) -> None:
    engine, options = toy_engine(**SHAPES[shape]), SETTINGS[setting]
    plain = run(engine, options)
    right = plain[0].tokens
    assert len(right) == len(PROMPT) + N_TOKENS
    guesses = [always_right, always_wrong, right_with(0.7), from_table(second_choices(plain)), EveryLength(4), EveryLength(4, 2)]
    n_accepted = n_rejected = 0
    for guess in guesses:
        other = run(engine, drafted(options, right, guess, 4))
        assert_same(plain, other)
        stats = other[0].stats
        assert stats.accepted + stats.passes == N_TOKENS and stats.accepted <= stats.drafted
        assert stats.rows == stats.passes + stats.drafted
        n_accepted += stats.accepted
        n_rejected += stats.drafted - stats.accepted
    assert n_accepted >= 50 and n_rejected >= 50
    if "window" in SHAPES[shape]:
        assert plain[0].state.floor > 0, "the ring never wrapped"


def test_every_accepted_length_at_every_alignment() -> None:
    engine, options = toy_engine(window=5, max_rows=8), SETTINGS["warm"]
    plain = run(engine, options)
    met: set[tuple[int, int]] = set()
    for depth in (1, 2, 3, 5, 7):
        for first in range(depth + 1):
            session = engine.session(drafted(options, plain[0].tokens, EveryLength(depth, first), depth))
            session.sync(PROMPT)
            for done in session.generate(N_TOKENS):
                met.add(((len(session.tokens) - len(done.tokens)) % 16, done.accepted))
            assert session.tokens == plain[0].tokens
    assert met >= {(start, n) for start in range(16) for n in range(8)}


class SameRows:
    """Has the target's own rows and draws from them through the view, as a drafter that has logits does."""

    def __init__(self, rows: list[F32]) -> None:
        self.needs, self.rows, self.pos, self.floor = Needs(), rows, 0, 0

    def truncate(self, pos: int) -> None:
        self.pos = pos

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self.pos += len(tokens)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        tokens = []
        for row in self.rows[view.pos - len(PROMPT) :][:k]:
            tokens.append(view.draw(row))
            view.push(tokens[-1])
        return Draft(tokens)


@pytest.mark.parametrize("setting", ["greedy", "warm", "penalties"])
def test_a_drafter_that_draws_with_the_targets_noise_is_right_where_its_logits_are(setting: str) -> None:
    engine, options = toy_engine(), SETTINGS[setting]
    plain = run(engine, options)
    other = run(engine, replace(options, drafter=SameRows(plain[1]), depth=FixedDepth(3)))
    assert_same(plain, other)
    assert other[0].stats.accepted == other[0].stats.drafted >= 100


def test_taps_belong_to_the_tokens_whatever_was_drafted() -> None:
    engine, options = toy_engine(prefill_tile=8, max_rows=16), SETTINGS["hot"]
    right = run(engine, options)[0].tokens
    sessions = [run(engine, drafted(options, right, guess, 3))[0] for guess in (always_right, always_wrong, right_with(0.5))]
    expected = sessions[0].drafter
    assert isinstance(expected, Scripted) and expected.seen == right[:-1]
    for session in sessions[1:]:
        drafter = session.drafter
        assert isinstance(drafter, Scripted) and drafter.seen == expected.seen
        for a, b in zip(drafter.tapped, expected.tapped, strict=True):
            assert a.keys() == b.keys() == {0, 1}
            assert all(a[layer] == b[layer] for layer in a)


def test_several_sessions_in_one_forward_equal_their_solo_runs() -> None:
    engine = toy_engine(window=9, max_rows=24)
    names = ["greedy", "warm", "penalties", "bias"]
    solo = [run(engine, SETTINGS[name]) for name in names]
    guesses: list[Guess | None] = [right_with(0.6), None, EveryLength(5), always_wrong]
    sessions, session_options = [], {}
    for name, plain, guess in zip(names, solo, guesses, strict=True):
        options = drafted(SETTINGS[name], plain[0].tokens, guess, 5) if guess else SETTINGS[name]
        session = engine.session(options)
        session.sync(PROMPT)
        session.begin(N_TOKENS)
        sessions.append(session)
        session_options[session] = SETTINGS[name]
    rows: list[list[F32]] = [[] for _ in sessions]
    model = engine.model
    before = model.n_forwards  # type: ignore[attr-defined]
    n_passes = 0
    while active := [i for i, session in enumerate(sessions) if session.finish is None]:
        for i, done in zip(active, step([sessions[i] for i in active]), strict=True):
            rows[i] += [row.copy() for row in done.rows]
        n_passes += 1
    assert model.n_forwards - before == n_passes  # type: ignore[attr-defined]
    for plain, session, its_rows in zip(solo, sessions, rows, strict=True):
        assert_same(plain, (session, its_rows))
        alone = run(engine, drafted(session_options[session], plain[0].tokens, always_right, 1))[0].drafter
        if isinstance(session.drafter, Scripted) and isinstance(alone, Scripted):
            assert session.drafter.tapped == alone.tapped
    assert sum(session.stats.accepted for session in sessions) >= 50
    assert sum(session.stats.drafted - session.stats.accepted for session in sessions) >= 50
