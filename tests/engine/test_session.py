"""Sync, rewind, regenerate, fork: however a session came to its tokens, it goes on as a fresh one with that history would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scripted_drafters import Scripted, always_right, right_with
from toy_model import N_VOCAB, remembered, toy_engine

from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions
from ds4py.errors import ContextError, UsageError
from ds4py.protocols import SamplingParams

WARM = SessionOptions(params=SamplingParams(0.9), penalties=Penalties(1.2, last_n=30), seed=6)
SHAPES: list[dict[str, Any]] = [
    {},
    {"window": 5, "max_rows": 8},
    {"prefill_tile": 8, "max_rows": 16},
    {"window": 5, "prefill_tile": 8, "max_rows": 16},
]


def prompt(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


def opened(engine: Engine, ids: Sequence[int], options: SessionOptions = WARM) -> Session:
    session = engine.session(options)
    session.sync(ids)
    return session


def more(session: Session, n: int) -> list[int]:
    before = len(session.tokens)
    for _ in session.generate(n):
        pass
    return session.tokens[before:]


def assert_consistent(session: Session) -> None:
    assert session.state.pos == max(len(session.tokens) - 1, 0) == session.drafter.pos
    assert session.sampler.pos == len(session.tokens)


def assert_equal_sessions(a: Session, b: Session) -> None:
    assert a.tokens == b.tokens
    for x, y in zip(remembered(a.state), remembered(b.state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(x, y)
    assert_array_equal(a.next_logits(), b.next_logits())
    assert more(a, 10) == more(b, 10)


# --- sync ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_edited_warm_equal_the_same_prompts_read_cold(shape: dict[str, Any]) -> None:
    """The prompts of an editor: a word changed, the end cut off, something added, and the first one again."""
    engine = toy_engine(**shape)
    a = prompt(60)
    changed = [*a[:30], (a[30] + 1) % N_VOCAB, *a[31:]]
    warm = engine.session(WARM)
    for ids in (a, changed, a[:41], a[:41] + prompt(50, seed=1), a, a, [*a, 7], a[:1], a):
        common = next(
            (i for i, (x, y) in enumerate(zip(warm.tokens, ids, strict=False)) if x != y), min(len(warm.tokens), len(ids))
        )
        report = warm.sync(ids)
        assert report.reused <= common and report.reused + report.fed == len(ids) - 1
        assert_consistent(warm)
        cold = opened(engine, ids)
        assert warm.tokens == ids
        if not ("window" in shape and "prefill_tile" in shape):  # below a ring's floor the record of the old paths is obeyed
            assert_equal_sessions(warm, cold)
            warm.rewind(len(ids))


def test_sync_evaluates_only_what_is_new() -> None:
    engine = toy_engine()
    session = opened(engine, prompt(40))
    answer = more(session, 20)
    model: Any = engine.model
    before = model.n_rows
    report = session.sync([*prompt(40), *answer, 1, 2, 3])
    assert (report.reused, report.fed) == (59, 3)
    assert model.n_rows - before == 3
    assert session.sync(session.tokens).fed == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_session_may_be_asked_for_its_own_tokens(shape: dict[str, Any]) -> None:
    """The list that is handed over is the one that is cut."""
    session = opened(toy_engine(**shape), prompt(40))
    more(session, 20)
    ids = list(session.tokens)
    session.sync(session.tokens)
    assert session.tokens == ids
    assert_consistent(session)


def test_prompts_take_whole_tiles_and_ragged_rows() -> None:
    engine = toy_engine(prefill_tile=8, max_rows=20)
    session = opened(engine, prompt(62))
    model: Any = engine.model
    assert model.calls == [("prefill", [16])] * 3 + [("prefill", [8]), ("row", [5])]
    assert model.n_logits == 0 and session.state.tiles == ((0, 56),)
    model.calls.clear()
    assert session.sync(prompt(62) + prompt(30)).reused == 56  # its ragged tail becomes part of a tile
    assert [path for path, _ in model.calls] == ["prefill", "prefill", "row"]


def test_progress_counts_up_to_the_total() -> None:
    seen: list[tuple[int, int]] = []
    toy_engine(max_rows=8).session().sync(prompt(30), lambda done, total: seen.append((done, total)))
    assert seen == [(0, 29), (8, 29), (16, 29), (24, 29), (29, 29)]


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([], UsageError, "empty"),
        (prompt(257), ContextError, "257 .* 256"),
        ([1, N_VOCAB, 3], UsageError, f"token {N_VOCAB} at position 1"),
        ([1, 2, -1], UsageError, "token -1 at position 2"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused_before_anything_is_evaluated(ids: list[int], error: type, words: str) -> None:
    engine = toy_engine()
    session = opened(engine, prompt(20))
    model: Any = engine.model
    before = model.n_rows
    with pytest.raises(error, match=words):
        session.sync(ids)
    assert model.n_rows == before and session.tokens == prompt(20)
    assert_equal_sessions(session, opened(engine, prompt(20)))


# --- going back ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 3, 29, 59, 60, 61, 77, 100])
def test_a_rewind_repeats_the_text_it_took_back(shape: dict[str, Any], n: int) -> None:
    engine = toy_engine(**shape)
    session = opened(engine, prompt(60))
    more(session, 40)
    text = list(session.tokens)
    record, kept = session.state.tiles, remembered(opened(engine, text[:n]).state)  # type: ignore[arg-type]
    session.rewind(n)
    assert_consistent(session)
    assert session.tokens == text[:n] and session.finish is None
    assert session.state.tiles == tuple((lo, min(hi, n - 1)) for lo, hi in record if lo < n - 1)
    if "prefill_tile" not in shape:
        for x, y in zip(remembered(session.state), kept, strict=True):  # type: ignore[arg-type]
            assert_array_equal(x, y)
    if n >= 60:  # what follows was generated, so it comes again
        more(session, 100 - n)
        assert session.tokens == text


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.tuples(st.integers(1, 120), st.integers(0, 25)), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_any_walk_of_rewinds_and_answers_leaves_a_state_that_its_record_explains(
    shape: dict[str, Any], walk: list[tuple[int, int]], n_checkpoints: int
) -> None:
    """Replaying the tokens of the end from nothing, by the paths that the record names, gives the same caches and logits."""
    engine = toy_engine(**shape)
    options = SessionOptions(params=SamplingParams(0.9), seed=6, checkpoint_bytes=n_checkpoints * 400)
    session = opened(engine, prompt(90), options)
    for n, answer in walk:
        session.rewind(min(n, len(session.tokens)))
        more(session, answer)
        assert_consistent(session)
    replayed = engine.session(options)
    replayed._evaluate(session.tokens, session.state.tiles, None)
    assert_equal_sessions(session, replayed)


def test_below_the_floor_the_nearest_checkpoint_is_restored() -> None:
    engine = toy_engine(window=5, max_rows=8)
    session = opened(engine, prompt(100))
    more(session, 40)
    model: Any = engine.model
    assert session.state.floor > 110
    before = model.n_rows
    session.rewind(105)  # the end of the prompt, position 99, is a checkpoint
    assert model.n_rows - before == 104 - 99
    session.rewind(50)  # nothing is kept below: from the start
    assert model.n_rows - before == 5 + 49
    assert_equal_sessions(session, opened(engine, prompt(100)[:50]))


def test_more_checkpoints_make_the_way_back_shorter() -> None:
    """--checkpoint-min-step: from 50 positions past the last checkpoint to at most 16."""
    engine = replace(toy_engine(window=5, max_rows=8), checkpoint_step=16)
    session = opened(engine, prompt(100))
    more(session, 60)
    model: Any = engine.model
    before = model.n_rows
    session.rewind(140)
    assert 0 < model.n_rows - before <= 16
    assert_equal_sessions(session, opened(engine, session.tokens))


def test_a_replay_takes_the_paths_that_made_the_positions() -> None:
    """Tiles of the old prompt are made as tiles again, the answer's rows as rows, the new part by the plan of a new prompt."""
    engine = toy_engine(window=5, prefill_tile=8, max_rows=16)
    session = opened(engine, prompt(100))
    more(session, 40)
    assert session.state.floor > 110
    ids = prompt(100)[:50] + prompt(30, seed=1)
    assert session.sync(ids).reused == 0
    assert session.state.tiles == ((0, 72),)
    assert_equal_sessions(session, opened(engine, ids))
    session.sync(prompt(30))
    more(session, 60)
    ids = session.tokens[:70] + prompt(30, seed=1)
    session.sync(ids)
    assert session.state.tiles == ((0, 24), (64, 96))


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupted_push_is_forgotten(seed: int) -> None:
    options = SessionOptions(params=SamplingParams(1.5), seed=seed)
    text = more(opened(toy_engine(), prompt(20), options), 30)
    session = opened(toy_engine(), prompt(20), options)
    session.sampler.push(3)
    assert more(session, 10) == text[:10]
    session.sampler.push(3)
    session.rewind(25)
    assert more(session, 25) == text[5:]
    session.sampler.push(3)
    session.sync(session.tokens[:35])
    assert more(session, 15) == text[15:] and session.sampler.pos == 50


def test_regenerate_gives_another_text_and_rewind_the_same() -> None:
    engine = toy_engine()
    session = opened(engine, prompt(20))
    first = more(session, 30)
    session.rewind(20)
    assert more(session, 30) == first
    session.regenerate(20)
    second = more(session, 30)
    assert second != first and session.sampler.noise.epoch == 1
    options = SessionOptions(params=WARM.params, penalties=WARM.penalties, seed=6, epoch=1)
    assert more(opened(engine, prompt(20), options), 30) == second


def test_same_seed_same_text_other_seed_or_choice_other_text() -> None:
    def text(**changes: Any) -> list[int]:
        return more(opened(toy_engine(), prompt(20), SessionOptions(params=SamplingParams(1.0), **changes)), 30)

    assert text(seed=1) == text(seed=1)
    assert len({tuple(text(seed=1)), tuple(text(seed=2)), tuple(text(seed=1, choice=1)), tuple(text(seed=0))}) == 4


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fork_stands_where_its_parent_stands_and_draws_differently(shape: dict[str, Any]) -> None:
    engine = toy_engine(**shape)
    parent = opened(engine, prompt(50))
    more(parent, 10)
    drafter = Scripted(parent.tokens, always_right, taps=(0,))
    child = parent.fork(SessionOptions(params=WARM.params, penalties=WARM.penalties, seed=6, drafter=drafter))
    assert_consistent(child)
    assert child.sampler.noise.epoch == 1 and child.tokens == parent.tokens
    assert_array_equal(child.next_logits(), parent.next_logits())
    n = len(parent.tokens)
    assert more(child, 20) != more(parent, 20)
    child.rewind(n)
    parent.rewind(n)
    assert_array_equal(child.next_logits(), parent.next_logits())


# --- interruptions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["renew", "twin"])
def test_a_session_under_new_settings_goes_on_as_a_fresh_one_with_them(shape: dict[str, Any], way: str) -> None:
    """The server answers one request after another on a session that is there already."""
    engine = toy_engine(**shape)
    ids = prompt(30, 1)
    warm = opened(engine, ids, SessionOptions(SamplingParams(0.4), seed=9))
    if "prefill_tile" not in shape:  # a fresh session reads by tiles what this one wrote row by row
        more(warm, 7)
    session = warm if way == "renew" else warm.twin()
    held = list(warm.tokens)
    drafter = Scripted(opened_text(engine, held), always_right)
    session.renew(SessionOptions(WARM.params, WARM.penalties, seed=WARM.seed, drafter=drafter, depth=FixedDepth(3)))
    assert session.stats.passes == 0 and session.tokens == held
    assert_consistent(session)
    fresh = opened(toy_engine(**shape), held)
    assert more(session, 12) == more(fresh, 12) and session.stats.accepted > 0
    assert_consistent(session)


def opened_text(engine: Engine, ids: Sequence[int]) -> list[int]:
    """`ids` and what plain decoding under WARM makes of them."""
    session = opened(engine, ids)
    more(session, 12)
    return session.tokens


def test_every_way_to_other_settings_keeps_the_compiled_draws() -> None:
    """A renewed session drew by the slow form, a millisecond a token on large vocabularies."""
    calls = []

    class Counted:
        def draw(self, row: Any, params: SamplingParams, key: int) -> int:
            calls.append(key)
            return int(row.argmax())

    engine = toy_engine()
    first = opened(engine, prompt(5))
    first.limits = replace(first.limits, compiled=Counted())
    for session in (first, first.twin()):
        session.renew(WARM)
        calls.clear()
        more(session, 3)
        assert len(calls) == 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("forward", [0, 2])
def test_ctrl_c_in_a_prefill_leaves_the_finished_part(shape: dict[str, Any], when: str, forward: int) -> None:
    engine = toy_engine(**shape)
    model: Any = engine.model
    session = engine.session(WARM)
    ids = prompt(200)
    model.stop_at = (forward, when)
    with pytest.raises(KeyboardInterrupt):
        session.sync(ids)
    assert_consistent(session)
    done = len(session.tokens) - 1
    assert session.tokens == ids[: done + 1] and (done > 0) == (forward > 0)
    assert session.sync(ids).reused == done
    assert_equal_sessions(session, opened(engine, ids))


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_a_pass_leaves_the_tokens_before_it(when: str) -> None:
    engine = toy_engine(window=5, max_rows=8)
    model: Any = engine.model
    whole = more(opened(engine, prompt(30)), 40)
    drafter = Scripted(prompt(30) + whole, right_with(0.6))
    options = SessionOptions(params=WARM.params, penalties=WARM.penalties, seed=6, drafter=drafter, depth=FixedDepth(4))
    session = opened(engine, prompt(30), options)
    model.stop_at = (model.n_forwards + 5, when)
    with pytest.raises(KeyboardInterrupt):
        more(session, 40)
    assert_consistent(session)
    assert 5 <= len(session.tokens) - 30 < 40
    more(session, 70 - len(session.tokens))
    assert session.tokens == prompt(30) + whole


def test_a_progress_callback_that_raises_leaves_the_finished_part() -> None:
    session = toy_engine(max_rows=8).session()

    def stop(done: int, total: int) -> None:
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.sync(prompt(50), stop)
    assert_consistent(session)
    assert len(session.tokens) == 17


def test_next_logits_leave_the_session_as_it_is() -> None:
    session = opened(toy_engine(window=5, max_rows=8), prompt(40))
    row = session.next_logits()
    assert_consistent(session)
    (step,) = session.generate(1)
    assert_array_equal(step.rows[0], row)
