"""The signature promise with every draftless drafter on the toy model: tokens, logits and state are those of plain decoding.

The toy's text is random, so a bias leaves it two tokens to say: then n-grams recur by chance, and drafts are both accepted and
rejected many times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from numpy.testing import assert_array_equal
from toy_model import N_VOCAB, remembered, toy_engine

from ds4py.drafters.chain import Chain
from ds4py.drafters.config import ModSizes, NgramSizes
from ds4py.drafters.ngram_cache import NgramCache
from ds4py.drafters.ngram_map_k import NgramMapK
from ds4py.drafters.ngram_map_k4v import NgramMapK4V
from ds4py.drafters.ngram_mod import NgramMod, NgramModPool
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions
from ds4py.protocols import F32, SamplingParams

PROMPT = [1, 2, 2, 1, 1, 2, 1, 1, 2, 1, 2, 2, 1, 2]
N_TOKENS = 400
BIAS = {token: -100.0 for token in range(N_VOCAB) if token not in (1, 2)}
SHAPE: dict[str, Any] = {"n_ctx": 512, "window": 9, "prefill_tile": 8, "max_rows": 16}
SETTINGS = {
    "greedy": SessionOptions(params=SamplingParams(0), bias=BIAS),
    "0.7": SessionOptions(params=SamplingParams(0.7, top_k=20), bias=BIAS, seed=1),
    "1.3": SessionOptions(params=SamplingParams(1.3, top_p=0.95, min_p=0.01), bias=BIAS, seed=2),
    "penalties": SessionOptions(params=SamplingParams(1.0), penalties=Penalties(1.5, 0.1, 0.1, 30), bias=BIAS, seed=3),
}
SMALL = NgramSizes(2, 4)
DRAFTERS: dict[str, Callable[[], Any]] = {
    "ngram-simple": lambda: NgramSimple(SMALL),
    "ngram-map-k": lambda: NgramMapK(NgramSizes(3, 6)),
    "ngram-map-k4v": lambda: NgramMapK4V(NgramSizes(7, 3)),
    "ngram-mod": lambda: NgramMod(ModSizes(5, 1, 6), NgramModPool(4096)),
    "ngram-cache": lambda: NgramCache(),
    "chain": lambda: Chain([NgramMapK4V(NgramSizes(3, 2)), NgramMod(ModSizes(3, 1, 6), NgramModPool(64)), NgramCache()]),
}


def run(engine: Engine, options: SessionOptions) -> tuple[Session, list[F32]]:
    session = engine.session(options)
    session.sync(PROMPT)
    return session, [row.copy() for done in session.generate(N_TOKENS) for row in done.rows]


def drafted(options: SessionOptions, name: str) -> SessionOptions:
    return replace(options, drafter=DRAFTERS[name](), depth=FixedDepth(4))


@pytest.fixture(scope="module")
def plain() -> dict[str, tuple[Session, list[F32]]]:
    return {name: run(toy_engine(**SHAPE), options) for name, options in SETTINGS.items()}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_logits_and_state_are_plain_decodings(name: str, setting: str, plain: Any, capsys: Any) -> None:
    engine, options = toy_engine(**SHAPE), SETTINGS[setting]
    session, rows = run(engine, drafted(options, name))
    assert session.tokens == plain[setting][0].tokens and len(session.tokens) == len(PROMPT) + N_TOKENS
    assert_array_equal(rows, plain[setting][1])
    for a, b in zip(remembered(session.state), remembered(plain[setting][0].state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(a, b)
    stats = session.stats
    print(f"{name} {setting}: drafted {stats.drafted}, accepted {stats.accepted}, rejected {stats.drafted - stats.accepted}")
    assert stats.accepted + stats.passes == N_TOKENS
    assert stats.drafted >= 50 and stats.accepted >= 50 and stats.drafted - stats.accepted >= 50
    assert session.drafter.pos == len(session.tokens) - 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_requests_that_follow_shrink_grow_and_stop_early(name: str) -> None:
    """A second request on the session with another history, a shorter one, budgets of 0 and 1, a prompt of one token."""
    engine, options = toy_engine(max_rows=16), SETTINGS["0.7"]
    sessions = [engine.session(options), engine.session(drafted(options, name))]
    requests = [(PROMPT, 60), (PROMPT[:9], 40), ([2], 30), (PROMPT + [3, 3, 1], 1), (PROMPT[:-1], 0), (PROMPT * 3, 50)]
    for prompt, budget in requests:
        for session in sessions:
            session.sync(prompt)
            before = session.stats.drafted
            list(session.generate(budget))
            assert budget > 1 or session.stats.drafted == before
        assert sessions[0].tokens == sessions[1].tokens and len(sessions[0].tokens) == len(prompt) + budget
    for session in sessions:
        session.rewind(30)
        session.regenerate(25)
        list(session.generate(40))
    assert sessions[0].tokens == sessions[1].tokens
    assert sessions[1].stats.accepted > 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_ctrl_c_in_a_verify(name: str, when: str, plain: Any) -> None:
    engine = toy_engine(**SHAPE)
    session = engine.session(drafted(SETTINGS["1.3"], name))
    session.sync(PROMPT)
    for interruption in range(4):
        engine.model.stop_at = (engine.model.n_forwards + 7, when)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            list(session.generate(N_TOKENS))
        assert session.drafter.pos == len(session.tokens) - 1, interruption
    list(session.generate(len(PROMPT) + N_TOKENS - len(session.tokens)))
    assert session.tokens == plain["1.3"][0].tokens


def test_a_fork_drafts_from_the_history_it_took_over(plain: Any) -> None:
    engine = toy_engine(max_rows=16)
    parent = engine.session(SETTINGS["greedy"])
    parent.sync(PROMPT)
    list(parent.generate(60))
    forks = [parent.fork(SETTINGS["greedy"]), parent.fork(drafted(SETTINGS["greedy"], "ngram-simple"))]
    for fork in forks:
        list(fork.generate(60))
    assert forks[0].tokens == forks[1].tokens and forks[1].stats.drafted > 0


def test_two_sessions_with_one_pool_give_their_plain_texts(plain: Any) -> None:
    engine, pool = toy_engine(**SHAPE), NgramModPool()
    drafted_tokens = []
    for _ in range(2):
        session, _rows = run(engine, replace(SETTINGS["0.7"], drafter=NgramMod(ModSizes(14, 1, 8), pool), depth=FixedDepth(8)))
        assert session.tokens == plain["0.7"][0].tokens
        drafted_tokens.append((session.stats.accepted, session.stats.passes))
    assert drafted_tokens[1][0] > drafted_tokens[0][0] + 100  # the second says what the pool has seen the first say
