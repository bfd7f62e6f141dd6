"""Sessions that draft with a file made for the target: second requests, edits, saved and forked ones, several at once, Ctrl-C.

Two things hold everywhere. The text is plain decoding's; and what is proposed is what a fresh session would propose, so that
nothing of an earlier text is left and nothing that could be kept is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from listening import Notes
from numpy.testing import assert_array_equal
from tiny_drafts import KINDS, random_draft
from tiny_models import tiny_gguf

from ds4py.drafters import NgramSizes, SpecConfig, open_drafters
from ds4py.drafters.chain import Chain
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.engine import Engine, EngineOptions, FixedDepth, Session, SessionOptions, step
from ds4py.engine.scoring import scored_generation
from ds4py.engine.speculation import target_of
from ds4py.errors import FormatError, UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import F32, SamplingParams

FEW = (3, 11, 19, 40, 77)
OPTIONS = SessionOptions(SamplingParams(1.0), bias=dict.fromkeys(FEW, 100.0), seed=5)
RNG = np.random.default_rng(6)
LONG, SHORT, LONGER = (RNG.choice(256, n).tolist() for n in (150, 40, 800))
WINDOWED = "draft-dspark with a window"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS},
    WINDOWED: ("draft-dspark", {"window": 20, "windowed": (True, False)}),
    "few tokens": ("draft-dspark", {"draft_vocab": 128}),
}
Make = Callable[[str], tuple[Engine, Callable[..., SessionOptions]]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """opened(form) -> the engine, and options(**changes) of a session that drafts in that form."""
    folder = tmp_path_factory.mktemp("sessions")
    target = tiny_gguf("llama", folder / "target.gguf")
    g = open_gguf(target)
    engine = Engine.open(g, EngineOptions(n_ctx=1000, threads=1, max_rows=32))
    made: dict[str, Any] = {}

    def get(form: str) -> tuple[Engine, Callable[..., SessionOptions]]:
        if form not in made:
            kind, shape = FORMS[form]
            path = random_draft(kind, target, folder / f"{len(made)}.gguf", **shape)
            made[form] = open_drafters(SpecConfig(draft_model=path, n_max=4, accept="exact"), target_of(engine, g))

        def options(base: SessionOptions = OPTIONS) -> SessionOptions:
            return replace(base, drafter=made[form].new(False), depth=FixedDepth(4))

        return engine, options

    return get


def answer(session: Session, prompt: Sequence[int], n: int) -> list[int]:
    session.sync(prompt)
    for _ in session.generate(n):
        pass
    return list(session.tokens)


def proposed(session: Session) -> list[F32]:
    """The rows that a draft behind the session's last token is chosen from."""
    notes = Notes(session.drafter.pos + 1)
    session.drafter.propose(4, session.tokens[-1], notes)
    assert len(notes.rows) == 4
    return notes.rows


def assert_proposes_like_fresh(engine: Engine, session: Session, options: Callable[..., SessionOptions]) -> None:
    fresh = engine.session(options())
    fresh.sync(session.tokens)
    for mine, other in zip(proposed(session), proposed(fresh), strict=True):
        assert_array_equal(mine, other)


@pytest.mark.parametrize("form", FORMS)
def test_second_requests_shorter_edited_and_rewound(form: str, opened: Make) -> None:
    engine, options = opened(form)
    session = engine.session(options())
    first = answer(session, LONG, 60)
    edited = [*first[:100], 9, *first[101:130]]
    for prompt in (SHORT, [*SHORT, *LONG[:9]], LONG[:130], edited, SHORT[:2]):
        text = answer(session, prompt, 40)
        assert text == answer(engine.session(OPTIONS), prompt, 40)
        assert_proposes_like_fresh(engine, session, options)
    for n in (30, 7):
        session.rewind(n)
        assert_proposes_like_fresh(engine, session, options)
    session.regenerate(7)
    for _ in session.generate(40):
        pass
    assert_proposes_like_fresh(engine, session, options)
    assert session.stats.accepted > 20 and session.stats.drafted - session.stats.accepted > 200


def test_a_window_that_was_lost_makes_shorter_contexts(opened: Make) -> None:
    """Back into the middle of a long text, further than a ring holds: drafts are made of what is left of it."""
    engine, options = opened(WINDOWED)
    session, edited = engine.session(options()), [*LONGER[:245], 9]
    session.sync(LONGER)
    session.sync(edited)
    assert session.drafter.pos == 245 and 230 < session.drafter.context.first < 245  # type: ignore[attr-defined]
    fresh = engine.session(options())
    fresh.sync(edited)
    assert not np.array_equal(proposed(session), proposed(fresh)), "some of the window is gone"
    assert answer(session, edited, 60) == answer(engine.session(OPTIONS), edited, 60)
    assert 230 < session.drafter.context.first < 245  # type: ignore[attr-defined]
    session.sync(LONGER)
    session.sync([*LONGER[:20], 9])
    assert session.drafter.context.first == 20, "nothing is left"  # type: ignore[attr-defined]
    assert answer(session, session.tokens, 40) == answer(engine.session(OPTIONS), [*LONGER[:20], 9], 40)


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_session_drafts_on_as_if_it_had_never_been_away(form: str, opened: Make, tmp_path: Path) -> None:
    engine, options = opened(form)
    session = engine.session(options())
    answer(session, LONG[:70], 30)
    engine.save_session(session, tmp_path / "s")
    loaded = engine.load_session(tmp_path / "s", options())
    assert loaded.tokens == session.tokens and loaded.drafter.pos == session.drafter.pos
    for mine, other in zip(proposed(loaded), proposed(session), strict=True):
        assert_array_equal(mine, other)
    before = replace(session.stats)
    for one in (session, loaded):
        for _ in one.generate(50):
            pass
    assert loaded.tokens == session.tokens
    assert loaded.stats.passes == session.stats.passes - before.passes
    assert loaded.stats.accepted == session.stats.accepted - before.accepted
    for other in KINDS:  # with another drafter the text is the same, from what it sees from now on
        foreign = engine.load_session(tmp_path / "s", opened(other)[1]())
        for _ in foreign.generate(50):
            pass
        assert foreign.tokens == session.tokens and foreign.stats.drafted > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_fork_takes_over_what_is_known(form: str, opened: Make) -> None:
    engine, options = opened(form)
    session = engine.session(options())
    session.sync(LONG[:70])
    fork, short = session.fork(options()), engine.session(OPTIONS)
    for mine, other in zip(proposed(fork), proposed(session), strict=True):
        assert_array_equal(mine, other)
    short.sync(LONG[:70])
    late = short.fork(options())  # the other session had no drafter: there is nothing to take over
    plain = short.fork(OPTIONS)
    for one in (fork, late, plain):
        for _ in one.generate(40):
            pass
    assert fork.tokens == late.tokens == plain.tokens
    assert late.stats.drafted > 20, "it drafts from what it sees"


def test_members_of_a_chain_are_handed_over(opened: Make) -> None:
    engine, options = opened("draft-dflash")
    chained, heir = (
        replace(options(), drafter=Chain([drafter, other]))
        for drafter, other in ((options().drafter, opened("draft-eagle3")[1]().drafter) for _ in range(2))
        if drafter is not None and other is not None
    )
    session = engine.session(chained)
    session.sync(LONG[:50])
    assert_array_equal(proposed(session.fork(heir)), proposed(session))


def test_sessions_in_one_forward_keep_their_contexts_apart(opened: Make) -> None:
    kinds = [*FORMS, "draft-eagle3", "draft-dspark"]
    engine = opened(kinds[0])[0]
    prompts = [LONG[i : i + 20 + 9 * i] for i in range(len(kinds))]
    alone = []
    for kind, prompt in zip(kinds, prompts, strict=True):
        alone.append(engine.session(replace(opened(kind)[1](), depth=FixedDepth(2))))
        answer(alone[-1], prompt, 30)
    together = [engine.session(replace(opened(kind)[1](), depth=FixedDepth(2))) for kind in kinds]
    for session, prompt in zip(together, prompts, strict=True):
        session.sync(prompt)
        session.begin(30)
    while active := [session for session in together if session.finish is None]:
        step(active)
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        assert (one.stats.drafted, one.stats.accepted) == (other.stats.drafted, other.stats.accepted)
        assert_array_equal(proposed(one), proposed(other))
    assert sum(session.stats.accepted for session in together) > 30


@pytest.mark.parametrize("form", FORMS)
def test_bans_hold_in_proposals(form: str, opened: Make) -> None:
    """Bias leaves five tokens; penalties and the draft's own vocabulary take some of them away."""
    engine, options = opened(form)
    session = engine.session(options(replace(OPTIONS, bias={**dict.fromkeys(FEW, 100.0), 19: -np.inf})))
    seen: set[int] = set()
    session.sync(SHORT)
    plain = answer(engine.session(replace(OPTIONS, bias={**dict.fromkeys(FEW, 100.0), 19: -np.inf})), SHORT, 60)
    propose = session.drafter.propose

    def watched(k: int, last: int, view: Any) -> Any:
        draft = propose(k, last, view)
        seen.update(draft.tokens)
        return draft

    session.drafter.propose = watched  # type: ignore[method-assign]
    for _ in session.generate(60):
        pass
    assert session.tokens == plain and seen <= set(FEW) - {19} and seen


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_draft_costs_nothing_but_the_draft(form: str, opened: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in each of the forwards of a pass, of the target and of the draft; the session goes on as if nothing had been."""
    engine, options = opened(form)
    plain = answer(engine.session(OPTIONS), LONG[:70], 50)
    run = engine.kernels.run
    n_interrupted = 0
    for at in (0, 1, 2, 3, 4, 6, 9):
        session = engine.session(options())
        session.sync(LONG[:70])
        calls = 0

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at + 1:  # noqa: B023
                raise KeyboardInterrupt
            return run(*args, **kwargs)

        monkeypatch.setattr(engine.kernels, "run", interrupted)
        try:
            for _ in session.generate(50):
                pass
        except KeyboardInterrupt:
            n_interrupted += 1
        monkeypatch.setattr(engine.kernels, "run", run)
        for _ in session.generate(50 - (len(session.tokens) - 70)):
            pass
        assert session.tokens == plain
        assert_proposes_like_fresh(engine, session, options)
    assert n_interrupted >= 5


@pytest.mark.parametrize("form", FORMS)
def test_edges_of_a_text(form: str, opened: Make) -> None:
    """Prompts of one and two tokens, an answer of one, an empty prompt, and log-probabilities of drafted tokens."""
    engine, options = opened(form)
    for prompt in (LONG[:1], LONG[:2], LONG[:9]):
        session, plain = engine.session(options()), engine.session(OPTIONS)
        with pytest.raises(UsageError, match="the prompt is empty"):
            session.sync([])
        assert answer(session, prompt, 1) == answer(plain, prompt, 1)
        assert session.stats.draft_calls == 0
        scores = [list(scored_generation(one, 40, 3)) for one in (session, plain)]
        assert scores[0] == scores[1] and session.tokens == plain.tokens
        assert session.stats.drafted > 20


@pytest.mark.parametrize("form", KINDS)
def test_a_saved_chain_drafts_on_as_if_it_had_never_been_away(form: str, opened: Make, tmp_path: Path) -> None:
    """N-grams before a draft that listens: one is told the tokens, the other gets its context back, in its place."""
    engine, options = opened(form)

    def chained() -> SessionOptions:
        made = options()
        assert made.drafter is not None
        return replace(made, drafter=Chain([NgramSimple(NgramSizes(3, 3, 1)), made.drafter]))

    session = engine.session(chained())
    answer(session, LONG[:70], 40)
    engine.save_session(session, tmp_path / "s")
    loaded = engine.load_session(tmp_path / "s", chained())
    before = {name: (source.drafted, source.accepted) for name, source in session.stats.sources.items()}
    for one in (session, loaded):
        for _ in one.generate(60):
            pass
    assert loaded.tokens == session.tokens and set(loaded.stats.sources) == {"ngram-simple", form}
    for name, source in loaded.stats.sources.items():
        whole, (drafted, accepted) = session.stats.sources[name], before.get(name, (0, 0))
        assert (source.drafted, source.accepted) == (whole.drafted - drafted, whole.accepted - accepted)


@pytest.mark.parametrize("form", FORMS)
def test_no_damaged_part_of_a_saved_draft_is_taken(form: str, opened: Make, tmp_path: Path) -> None:
    """Its checksum fits, as in a file that somebody made; what is refused leaves the drafter as it was."""
    engine, options = opened(form)
    session = engine.session(options())
    answer(session, LONG[:70], 10)
    payload, before = session.drafter.payload(), proposed(session)  # type: ignore[attr-defined]
    n_refused = 0
    for name, array in payload.items():
        rest = {key: value for key, value in payload.items() if key != name}
        spoiled = [rest, {**rest, name: array.astype(np.float64)}, {**rest, name: np.zeros((3, 1), array.dtype)}]
        cut = array[..., :-1] if array.ndim else array - 10**6
        for broken in (*spoiled, {**rest, name: cut}):
            with pytest.raises(FormatError) as caught:
                session.drafter.load(broken)  # type: ignore[attr-defined]
            assert "\n" not in str(caught.value)
            n_refused += 1
            for mine, other in zip(proposed(session), before, strict=True):
                assert_array_equal(mine, other)
    assert n_refused >= 8
    session.drafter.load(payload)  # type: ignore[attr-defined]
