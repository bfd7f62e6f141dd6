"""A draft model changes how many passes an answer takes and nothing else; and it aims well, cheaply and at the right model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from toy_model import remembered

from ds4py.drafters import Drafters, ModSizes, NgramSizes, SpecConfig, open_drafters
from ds4py.drafters.draft_context import DraftModel
from ds4py.drafters.draft_simple import DraftSimple
from ds4py.drafters.vocabulary import check_vocabulary
from ds4py.drafters.warmth import LEVELS, Warmth
from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions, step
from ds4py.engine.scoring import scored_generation
from ds4py.engine.speculation import speculating, target_of
from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.protocols import F32, SamplingParams, Span

PROMPT = [int(t) for t in np.random.default_rng(8).integers(0, 256, 37)]
N_TOKENS = 150
SETTINGS = {
    "greedy": SessionOptions(params=SamplingParams(0)),
    "0.7": SessionOptions(params=SamplingParams(0.7, top_k=40, top_p=0.95, min_p=0.02), seed=1),
    "1.3": SessionOptions(params=SamplingParams(1.3, top_k=200, top_p=0.98), seed=2),
    "greedy, repetition": SessionOptions(params=SamplingParams(0), penalties=Penalties(1.5)),
    "0.7, repetition": SessionOptions(params=SamplingParams(0.7, min_p=0.05), penalties=Penalties(1.5, 0.1, 0.1, -1), seed=3),
    "1.3, bias": SessionOptions(params=SamplingParams(1.3), bias={7: 4.0, 9: -100.0, 11: -3.0}, seed=4),
}
Result = tuple[Session, list[F32]]


def exact(engine: Engine, path: Path, **settings: Any) -> Drafters:
    config = SpecConfig(draft_model=path, accept="exact", **{"depth": "fixed", "n_max": 4, **settings})
    assert engine.gguf is not None
    return open_drafters(config, target_of(engine, engine.gguf))


def run(engine: Engine, options: SessionOptions, n: int = N_TOKENS) -> Result:
    session = engine.session(options)
    session.sync(PROMPT)
    return session, [row.copy() for done in session.generate(n) for row in done.rows]


def assert_same(a: Result, b: Result) -> None:
    assert a[0].tokens == b[0].tokens
    assert_array_equal(a[1], b[1])
    for x, y in zip(remembered(a[0].state), remembered(b[0].state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(x, y)


# --- the text is the same ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_text_logits_and_caches_are_those_of_plain_decoding(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], architecture: str, setting: str
) -> None:
    engine, options = tiny_engine(architecture), SETTINGS[setting]
    plain = run(engine, options)
    n_accepted = n_rejected = 0
    for noise, depth in ((0.04, 4), (0.15, 7), (0.5, 4)):
        drafters = exact(engine, tiny_file(architecture, noise), n_max=depth)
        other = run(engine, speculating(options, drafters))
        assert_same(plain, other)
        stats = other[0].stats
        assert stats.accepted + stats.passes == N_TOKENS
        n_accepted += stats.accepted
        n_rejected += stats.drafted - stats.accepted
    print(f"{architecture}, {setting}: accepted {n_accepted}, rejected {n_rejected}")
    assert n_accepted >= 50 and n_rejected >= 50
    assert len(set(plain[0].tokens[len(PROMPT) :])) > 5, "a text that repeats one token shows nothing"


def test_sessions_in_one_forward_keep_their_draft_states_apart(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]
) -> None:
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(noise=0.04))
    solo = [run(engine, speculating(SETTINGS[name], drafters), 60) for name in ("greedy", "0.7", "1.3")]
    together = [engine.session(speculating(SETTINGS[name], drafters)) for name in ("greedy", "0.7", "1.3")]
    for session in together:
        session.sync(PROMPT)
        session.begin(60)
    while active := [session for session in together if session.finish is None]:
        step(active)
    for (alone, _), session in zip(solo, together, strict=True):
        assert alone.tokens == session.tokens
        assert alone.stats.drafted == session.stats.drafted and alone.stats.accepted == session.stats.accepted


# --- it aims well ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["greedy", "0.7", "1.3", "0.7, repetition", "1.3, bias"])
def test_the_target_itself_is_always_right(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], setting: str
) -> None:
    """The same model with the same noise, penalties and bias proposes the very draw, also in later requests of a session."""
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(), n_max=3)
    session = engine.session(speculating(SETTINGS[setting], drafters))
    for request in range(3):
        session.sync([*PROMPT[: 30 - 3 * request], 99 + request])
        for _ in session.generate(41):
            pass
    assert session.stats.drafted == session.stats.accepted > 80


def test_shared_noise_beats_greedy_proposals_at_temperature_1(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]
) -> None:
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(noise=0.1))
    options = replace(SETTINGS["1.3"], params=SamplingParams(1.0))
    with_noise = speculating(options, drafters)
    greedy = replace(with_noise, drafter=drafters.new(opportunistic=True))
    rates = [s.stats.accepted / s.stats.drafted for s in (run(engine, with_noise)[0], run(engine, greedy)[0])]
    assert rates[0] > 1.5 * rates[1] > 0


def test_warmth_goes_to_the_level_that_would_have_been_right() -> None:
    for best in range(len(LEVELS)):
        warmth = Warmth()
        assert warmth.level == 1.0 and warmth.waiting is None
        changes = 0
        for pos in range(200):
            before = warmth.level
            warmth.guessed(pos, [5 if i == best else i for i in range(len(LEVELS))])
            assert warmth.waiting == pos
            warmth.learn(5)
            changes += warmth.level != before
        assert warmth.level == LEVELS[best] and changes <= 1
    warmth.guessed(300, [5] * len(LEVELS))
    warmth.forget(299)
    assert warmth.waiting is None


def test_warmth_does_not_follow_noise() -> None:
    """Levels that are equally right, at random, for 400 positions: changing between them would only cost."""
    changes = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        warmth, seen = Warmth(), [1.0]
        for pos in range(400):
            warmth.guessed(pos, rng.integers(4, 6, len(LEVELS)).tolist())
            warmth.learn(5)
            seen.append(warmth.level)
        changes.append(sum(a != b for a, b in itertools.pairwise(seen)))
    assert sum(changes) < 200, changes  # 349 with a quarter of the lead


def test_an_accepted_token_is_never_evaluated_twice(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(), n_max=4)
    session = engine.session(speculating(SETTINGS["0.7"], drafters))
    session.sync(PROMPT)
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    fed: list[int] = []
    model = drafter._draft.model
    forward = model.forward

    def counted(spans: Sequence[Span], *rest: Any, **more: Any) -> Any:
        fed.extend(spans[0].tokens)
        return forward(spans, *rest, **more)

    monkeypatch.setattr(model, "forward", counted)
    for _ in session.generate(41):
        pass
    assert session.stats.accepted == session.stats.drafted == 32
    # all tokens but those that a pass added of its own were evaluated as guesses already; the last guess of a block never is
    assert len(fed) == len(PROMPT) + 35 + 3
    assert fed == session.tokens[: len(fed)]


# --- where it stops ----------------------------------------------------------------------------------------------------------


def test_p_min_cuts_where_the_draft_model_is_unsure(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    engine, options = tiny_engine(), SETTINGS["greedy"]
    plain = run(engine, options)
    lengths = []
    for p_min in (0.0, 0.3, 1.01):
        session, rows = run(engine, speculating(options, exact(engine, tiny_file(noise=0.04), p_min=p_min)))
        assert_same(plain, (session, rows))
        lengths.append(session.stats.drafted)
    assert lengths[0] > lengths[1] > lengths[2] == 0


def test_confidence_is_the_top_probability_and_cuts_are_per_token(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]
) -> None:
    engine = tiny_engine()
    session = engine.session(speculating(SETTINGS["greedy"], exact(engine, tiny_file(), p_min=0.2, n_max=8)))
    plain = run(engine, SETTINGS["greedy"])
    tops = [float(1 / np.exp(row - row.max()).sum(dtype=np.float64)) for row in plain[1]]
    session.sync(PROMPT)
    at = 0
    for _ in range(12):
        session.sync([*plain[0].tokens[: len(PROMPT) + at]])
        draft = session.drafter.propose(8, session.tokens[-1], session.sampler)
        session.settle()
        n = next((i for i in range(8) if tops[at + i] < 0.2), 8)
        assert len(draft.tokens) == n
        assert_array_equal(np.float32(draft.confidence or ()), np.float32(tops[at : at + n]))
        at += 5


def test_a_draft_below_n_min_is_dropped(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    engine = tiny_engine()
    session, _ = run(engine, speculating(SETTINGS["greedy"], exact(engine, tiny_file(noise=0.04), n_min=4, n_max=4)))
    assert set(session.stats.passes_of_rows) == {1, 5}
    session, _ = run(engine, speculating(SETTINGS["greedy"], exact(engine, tiny_file(noise=0.04), n_min=5, n_max=3)))
    assert session.stats.drafted == 0


def test_a_smaller_draft_context_ends_drafting_with_one_sentence(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]
) -> None:
    engine, said = tiny_engine(), list[str]()
    path = tiny_file(noise=0.04, max_position_embeddings=64)
    assert engine.gguf is not None
    config = SpecConfig(draft_model=path, accept="exact", depth="fixed")
    drafters = open_drafters(config, target_of(engine, engine.gguf), said.append)
    other = run(engine, speculating(SETTINGS["0.7"], drafters))
    assert_same(run(engine, SETTINGS["0.7"]), other)
    assert said == ["the draft model's context of 64 tokens is full: drafting stops"]
    assert 0 < other[0].stats.drafted < 3 * 27
    other[0].rewind(40)  # there is room again
    before = other[0].stats.drafted
    for _ in other[0].generate(10):
        pass
    assert other[0].stats.drafted > before


@pytest.mark.parametrize("n_prompt", [58, 61, 62, 63, 64])
def test_a_block_shrinks_to_fit_the_context(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], n_prompt: int
) -> None:
    engine = tiny_engine(n_ctx=64)
    prompt = [int(t) for t in np.random.default_rng(1).integers(0, 256, n_prompt)]
    drafting = speculating(SETTINGS["0.7"], exact(engine, tiny_file(), n_max=5))
    sessions = [engine.session(SETTINGS["0.7"]), engine.session(drafting)]
    for session in sessions:
        session.sync(prompt)
        for _ in session.generate():
            pass
        assert session.finish == "context" and len(session.tokens) == 64
    assert sessions[0].tokens == sessions[1].tokens


# --- going back --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_after_a_rewind_or_an_edit_it_proposes_what_a_fresh_one_would(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], architecture: str
) -> None:
    engine = tiny_engine(architecture)
    drafters = exact(engine, tiny_file(architecture, 0.04))
    options = SETTINGS["1.3"]
    warm = engine.session(speculating(options, drafters))
    long = [int(t) for t in np.random.default_rng(2).integers(0, 256, 220)]
    for ids in (long, long[:215], [*long[:100], 3, *long[120:]], long[:20], long):
        warm.sync(ids)
        fresh = engine.session(speculating(options, drafters))
        fresh.sync(ids)
        proposals = [session.drafter.propose(4, ids[-1], session.sampler).tokens for session in (warm, fresh)]
        assert proposals[0] == proposals[1] and len(proposals[0]) == 4
        for session in (warm, fresh):
            session.settle()
        for _ in warm.generate(9):
            pass


def test_an_interrupted_draft_forward_is_forgotten(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(noise=0.04))
    plain = run(engine, SETTINGS["0.7"], 60)
    session = engine.session(speculating(SETTINGS["0.7"], drafters))
    session.sync(PROMPT)
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    forward, calls = drafter._draft.model.forward, [0]

    def interrupted(spans: Sequence[Span], *rest: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] % 11 == 5:
            raise KeyboardInterrupt
        out = forward(spans, *rest, **more)
        if calls[0] % 11 == 9:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(drafter._draft.model, "forward", interrupted)
    n_stops = 0
    while len(session.tokens) < len(PROMPT) + 60:
        try:
            for _ in session.generate(len(PROMPT) + 60 - len(session.tokens)):
                pass
        except KeyboardInterrupt:
            n_stops += 1
    assert n_stops > 5 and session.stats.accepted > 10
    assert session.tokens == plain[0].tokens


def test_edges_of_a_text(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    """Prompts of one and two tokens, an answer of one, an empty prompt, and log-probabilities of drafted tokens."""
    engine, drafters = tiny_engine(), exact(tiny_engine(), tiny_file(noise=0.04))
    for prompt in (PROMPT[:1], PROMPT[:2]):
        session, plain = engine.session(speculating(SETTINGS["1.3"], drafters)), engine.session(SETTINGS["1.3"])
        for one in (session, plain):
            with pytest.raises(UsageError, match="the prompt is empty"):
                one.sync([])
            one.sync(prompt)
            assert sum(len(done.tokens) for done in one.generate(1)) == 1
        assert session.stats.draft_calls == 0
        assert list(scored_generation(session, 40, 3)) == list(scored_generation(plain, 40, 3))
        assert session.tokens == plain.tokens and session.stats.drafted > 20


# --- saved sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_restored_session_goes_on_with_its_draft_state(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    engine = tiny_engine(architecture)
    drafters = exact(engine, tiny_file(architecture, 0.04))
    session, _ = run(engine, speculating(SETTINGS["0.7"], drafters), 50)
    engine.save_session(session, tmp_path / "s")
    again = engine.load_session(tmp_path / "s", speculating(SETTINGS["0.7"], drafters))
    drafter = again.drafter
    assert isinstance(drafter, DraftSimple) and drafter._whole.state.pos >= len(again.tokens) - 5, "nothing has to be fed again"
    before = (session.stats.drafted, session.stats.accepted)
    first = [row.copy() for done in session.generate(60) for row in done.rows]
    second = [row.copy() for done in again.generate(60) for row in done.rows]
    assert_same((session, first), (again, second))
    assert (again.stats.drafted, again.stats.accepted) == (session.stats.drafted - before[0], session.stats.accepted - before[1])


@pytest.mark.parametrize(
    "types",
    [
        ("ngram-simple",),
        ("ngram-map-k",),
        ("ngram-map-k4v",),
        ("ngram-mod",),
        ("ngram-cache",),
        ("ngram-simple", "ngram-cache", "draft-simple"),
    ],
    ids=" ".join,
)
def test_sessions_are_restored_for_every_drafter(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], tmp_path: Path, types: tuple[str, ...]
) -> None:
    """A text of four words, so that n-grams come again; the restored session has a new drafter with pools of its own."""
    engine = tiny_engine()
    options = SessionOptions(SamplingParams(0.7), bias={7: 100.0, 9: 100.0, 11: 100.0, 70: 100.0}, seed=4)
    sizes = {"ngram_simple": NgramSizes(2, 4), "ngram_map_k": NgramSizes(2, 4), "ngram_map_k4v": NgramSizes(2, 1)}

    def drafting() -> SessionOptions:
        mod = ModSizes(n_match=4, n_min=0, n_max=8)
        drafters = exact(engine, tiny_file(noise=0.04), types=types, ngram_mod=mod, **sizes)
        return speculating(options, drafters)

    plain = run(engine, options, 160)
    session, first = run(engine, drafting(), 100)
    assert session.tokens == plain[0].tokens[: len(session.tokens)]
    engine.save_session(session, tmp_path / "s")
    again = engine.load_session(tmp_path / "s", drafting())
    assert again.drafter.pos == session.drafter.pos
    second = [row.copy() for done in again.generate(60) for row in done.rows]
    assert_same(plain, (again, [*first, *second]))
    assert again.stats.drafted > again.stats.accepted > 0


def test_a_saved_draft_state_of_another_draft_model_is_not_used(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    engine = tiny_engine()
    session, _ = run(engine, speculating(SETTINGS["0.7"], exact(engine, tiny_file(noise=0.04))), 30)
    engine.save_session(session, tmp_path / "s")
    others = exact(engine, tiny_file(noise=0.15))
    again = engine.load_session(tmp_path / "s", speculating(SETTINGS["0.7"], others))
    assert isinstance(again.drafter, DraftSimple) and again.drafter._whole.state.pos == 0
    for _ in again.generate(30):
        pass
    assert again.tokens == run(engine, SETTINGS["0.7"], 60)[0].tokens
    payload = session.drafter.payload()  # type: ignore[attr-defined]
    with pytest.raises(FormatError):
        again.drafter.load({**payload, "fed": payload["fed"][:-1]})
    with pytest.raises(FormatError):
        again.drafter.load({})


def test_a_session_is_for_the_model_file_that_made_it(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    engine = tiny_engine()
    engine.save_session(run(engine, SETTINGS["0.7"], 5)[0], tmp_path / "s")
    finetuned = replace(engine, gguf=open_gguf(tiny_file(noise=0.04)))
    with pytest.raises(FormatError, match="another model"):
        finetuned.load_session(tmp_path / "s")


# --- a wrong or broken draft model -------------------------------------------------------------------------------------------


def relabelled(path: Path, out: Path, tokens: Callable[[list[str]], list[str]], **kv: Any) -> Path:
    g = open_gguf(path)
    names = tokens(list(g.kv["tokenizer.ggml.tokens"]))
    old = {key: g.kv[key] for key in g.kv if not key.startswith("tokenizer.ggml.token_type")}
    changed = {**old, "tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": [1] * len(names), **kv}
    write_gguf(out, changed, [NewTensor(t.name, t.shape, t.type, np.array(t.data)) for t in g.tensors.values()])
    return out


def swapped(at: int) -> Callable[[list[str]], list[str]]:
    return lambda names: [*names[:at], names[at + 1], names[at], *names[at + 2 :]]


@pytest.mark.parametrize(
    ("tokens", "kv", "complaint"),
    [
        (lambda names: names[::-1], {}, "its token 5 is"),
        (swapped(100), {}, "its token 100 is"),
        (swapped(5), {}, "its token 5 is"),
        (lambda names: names + [f"pad{i}" for i in range(129)], {}, "449 tokens, not 320"),
        (lambda names: names, {"tokenizer.ggml.model": "llama"}, "tokenizer is 'llama'"),
        (lambda names: names, {"tokenizer.ggml.add_bos_token": True}, "adds BOS"),
        (swapped(3), {}, None),
        (lambda names: names + [f"pad{i}" for i in range(64)], {}, None),
        (lambda names: names + [f"pad{i}" for i in range(128)], {}, None),
        (lambda names: names[:-64], {}, None),
    ],
)
def test_vocabularies_are_compared_by_text(
    tiny_file: Callable[..., Path], tmp_path: Path, tokens: Any, kv: dict[str, Any], complaint: str | None
) -> None:
    target = tiny_file()
    draft = relabelled(target, tmp_path / "d.gguf", tokens, **kv)
    if complaint is None:
        check_vocabulary(open_gguf(target), open_gguf(draft))
        return
    with pytest.raises(UnsupportedError, match=complaint):
        check_vocabulary(open_gguf(target), open_gguf(draft))


@pytest.mark.parametrize("n_vocab", [320 - 48, 320 + 64])
def test_a_padded_or_cut_vocabulary_drafts(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], n_vocab: int
) -> None:
    engine = tiny_engine()
    for setting in ("0.7, repetition", "1.3, bias"):
        drafters = exact(engine, tiny_file(vocab_size=n_vocab))
        other = run(engine, speculating(SETTINGS[setting], drafters), 40)
        assert_same(run(engine, SETTINGS[setting], 40), other)
        assert other[0].stats.drafted > 50


def test_a_broken_draft_model_drafts_nothing_and_the_target_goes_on(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(noise=0.04))
    session = engine.session(speculating(SETTINGS["0.7"], drafters))
    drafter = session.drafter
    assert isinstance(drafter, DraftSimple)
    monkeypatch.setattr(drafter._whole, "_fit", lambda row: np.full(320, np.nan, np.float32))
    session.sync(PROMPT)
    for _ in session.generate(20):
        pass
    assert session.stats.drafted == 0 and session.stats.draft_calls > 10
    assert session.tokens == run(engine, SETTINGS["0.7"], 20)[0].tokens


def test_own_kernels_and_direct_use(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    engine = tiny_engine()
    drafters = exact(engine, tiny_file(noise=0.04), draft_threads=2)
    other = run(engine, speculating(SETTINGS["0.7"], drafters), 40)
    assert_same(run(engine, SETTINGS["0.7"], 40), other)
    assert isinstance(other[0].drafter, DraftSimple)
    assert other[0].drafter._draft.model.kernels is not engine.kernels
    draft = DraftModel(other[0].drafter._draft.model, 400, 320)
    by_hand = replace(SETTINGS["0.7"], drafter=DraftSimple(draft, 4), depth=FixedDepth(4))
    assert run(engine, by_hand, 40)[0].tokens == other[0].tokens


def test_the_line_says_what_a_draft_model_was_taken_for(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]
) -> None:
    engine = tiny_engine()
    path = tiny_file(noise=0.04)
    assert f"draft-simple with {path.name}" in exact(engine, path).line and "was taken for one" in exact(engine, path).line
    assert "was taken" not in exact(engine, path, types=("draft-simple",)).line
    assert f"{path.name} is not used" in exact(engine, path, types=("ngram-simple",)).line
    assert engine.gguf is not None
    off = open_drafters(SpecConfig(), target_of(engine, engine.gguf))
    assert off.line.startswith("speculation: off") and off.new(False) is None
    assert speculating(SETTINGS["0.7"], off) is SETTINGS["0.7"]
