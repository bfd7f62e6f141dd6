"""Where a draft may end, and what may happen meanwhile: every edge gives what plain decoding gives, with drafts on.

The engine's part runs on a toy whose logits change completely with one wrong row; every draftless drafter and two scripted ones
go through it. Texts are made of four tokens, so that n-grams come again and drafts are right and wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from identity import cache_hashes
from numpy.testing import assert_array_equal
from scripted_drafters import Scripted, always_right, right_with
from toy_model import ToyModel, toy_engine

from ds4py.cli.chat import main
from ds4py.drafters import Drafters, ModSizes, NgramSizes, SpecConfig, Target, open_drafters
from ds4py.engine import Engine, FixedDepth, Session, SessionOptions, step
from ds4py.engine.scoring import scored_generation
from ds4py.errors import UsageError
from ds4py.protocols import SamplingParams

FEW = (3, 11, 19, 40)
OPTIONS = SessionOptions(SamplingParams(1.0), bias=dict.fromkeys(FEW, 100.0), seed=5)
PROMPT = [FEW[(i * i + i // 3) % 4] for i in range(24)]
TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
CHAIN = ",".join(TYPES)


def drafters_for(engine: Engine, types: str) -> Drafters:
    sizes = NgramSizes(key=2, value=4)
    config = SpecConfig(
        types=tuple(types.split(",")),
        ngram_simple=sizes,
        ngram_map_k=sizes,
        ngram_map_k4v=NgramSizes(key=3, value=3),
        ngram_mod=ModSizes(n_match=2, n_min=1, n_max=4),
        accept="exact",
    )
    return open_drafters(config, Target(None, engine.model.vocab_size, engine.n_ctx, engine.kernels))  # type: ignore[arg-type]


def speculative(engine: Engine, types: str, options: SessionOptions = OPTIONS, depth: int = 4) -> Session:
    drafter = drafters_for(engine, types).new(opportunistic=False)
    assert drafter is not None
    return engine.session(replace(options, drafter=drafter, depth=FixedDepth(depth)))


def scripted(engine: Engine, right: Sequence[int], options: SessionOptions = OPTIONS, depth: int = 4) -> Session:
    return engine.session(replace(options, drafter=Scripted(right, always_right), depth=FixedDepth(depth)))


def answer(session: Session, prompt: Sequence[int], n: int | None) -> list[int]:
    session.sync(prompt)
    for _ in session.generate(n):
        pass
    return list(session.tokens)


def plain(engine: Engine, prompt: Sequence[int], n: int | None, options: SessionOptions = OPTIONS) -> Session:
    session = engine.session(options)
    answer(session, prompt, n)
    return session


def assert_same(a: Session, b: Session) -> None:
    """Same tokens, end and caches."""
    assert a.tokens == b.tokens and a.finish == b.finish
    assert cache_hashes(a) == cache_hashes(b)


# --- where a block ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(1, 6))
def test_a_stop_token_inside_a_block_ends_it(which: int) -> None:
    """EOS and any other stop token are one rule. All tokens of the draft are right, also those after the stop."""
    engine = toy_engine()
    right = plain(engine, PROMPT, 40)
    at = len(PROMPT) + which
    stop = right.tokens[at]
    options = replace(OPTIONS, stop_ids=frozenset([stop]))
    first = next(i for i in range(len(PROMPT), 60) if right.tokens[i] == stop)
    session = scripted(engine, right.tokens, options, depth=8)
    answer(session, PROMPT, 40)
    assert session.finish == "stop" and session.tokens == right.tokens[: first + 1]
    assert session.state.pos == first and session.stats.accepted + session.stats.passes == first + 1 - len(PROMPT)
    assert_same(session, plain(engine, PROMPT, 40, options))


@pytest.mark.parametrize("budget", range(0, 12))
def test_a_budget_ends_inside_a_block(budget: int) -> None:
    engine = toy_engine()
    right = plain(engine, PROMPT, 40)
    session = scripted(engine, right.tokens)
    answer(session, PROMPT, budget)
    assert session.tokens == right.tokens[: len(PROMPT) + budget] and session.finish == "length"
    assert session.stats.accepted == session.stats.drafted, "nothing is drafted beyond the budget"
    assert session.stats.rows == budget, "nothing is evaluated that could not be committed"


def test_n_predict_1_drafts_nothing() -> None:
    engine = toy_engine()
    for types in (*TYPES, CHAIN):
        session = speculative(engine, types)
        answer(session, PROMPT, 1)
        assert_same(session, plain(engine, PROMPT, 1))
        assert session.stats.draft_calls == session.stats.drafted == 0 and session.stats.passes == 1


@pytest.mark.parametrize("room", range(1, 10))
def test_the_context_ends_inside_a_block(room: int) -> None:
    engine = toy_engine(n_ctx=len(PROMPT) + room)
    right = plain(toy_engine(), PROMPT, 40)
    session = scripted(engine, right.tokens)
    answer(session, PROMPT, None)
    assert session.finish == "context" and session.tokens == right.tokens[: len(PROMPT) + room]
    assert_same(session, plain(engine, PROMPT, None))


# --- what the history is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [*TYPES, CHAIN])
def test_a_history_shorter_than_an_n_gram(types: str) -> None:
    engine = toy_engine()
    for n in (1, 2, 3):
        session = speculative(engine, types)
        answer(session, PROMPT[:n], 60)
        assert_same(session, plain(engine, PROMPT[:n], 60))
        assert session.stats.drafted > 0, "drafting starts as soon as there is something to find"


@pytest.mark.parametrize("types", [*TYPES, CHAIN])
def test_second_requests_and_histories_that_shrank(types: str) -> None:
    """One session: an answer, a follow-up, an edited prompt, a much shorter one, and a longer one again."""
    engine = toy_engine()
    session = speculative(engine, types)
    first = answer(session, PROMPT, 50)
    edited = [*first[:30], FEW[(FEW.index(first[30]) + 1) % 4], *first[31:45]]
    for prompt in ([*first, *PROMPT[:5]], edited, PROMPT[:4], [*PROMPT, *PROMPT]):
        answer(session, prompt, 50)
        assert_same(session, plain(engine, prompt, 50))
    assert session.stats.accepted >= 4 and session.stats.drafted - session.stats.accepted >= 20


@pytest.mark.parametrize("types", [*TYPES, CHAIN])
def test_a_rewound_answer_comes_again(types: str) -> None:
    engine = toy_engine()
    session = speculative(engine, types)
    text = answer(session, PROMPT, 50)
    for keep in (len(PROMPT) + 20, len(PROMPT)):
        session.rewind(keep)
        for _ in session.generate(len(text) - keep):
            pass
        assert session.tokens == text


def test_an_empty_prompt_is_refused_with_drafts_as_without() -> None:
    engine = toy_engine()
    for session in (engine.session(OPTIONS), speculative(engine, CHAIN)):
        with pytest.raises(UsageError, match="the prompt is empty"):
            session.sync([])
        assert_same_text(answer(session, PROMPT, 20), plain(engine, PROMPT, 20).tokens)


def assert_same_text(a: Sequence[int], b: Sequence[int]) -> None:
    assert list(a) == list(b)


# --- interruptions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [*TYPES, CHAIN])
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_a_verify(types: str, when: str) -> None:
    """The interrupt comes in a forward with a draft, before or after the state moved; the session goes on as if it had not."""
    engine = toy_engine()
    right = plain(engine, PROMPT, 60)
    session = speculative(engine, types)
    session.sync(PROMPT)
    toy = engine.model
    assert isinstance(toy, ToyModel)
    interrupted = 0
    begun = len(PROMPT) + 60
    while len(session.tokens) < begun:
        toy.stop_at = (toy.n_forwards + 3, when)
        try:
            for _ in session.generate(begun - len(session.tokens)):
                pass
        except KeyboardInterrupt:
            interrupted += 1
            n = len(session.tokens)
            assert session.state.pos == n - 1 and session.sampler.pos == n and session.drafter.pos <= n - 1
            assert session.tokens == right.tokens[:n]
        toy.stop_at = None
    assert interrupted >= 5
    assert session.tokens == right.tokens and cache_hashes(session) == cache_hashes(right)


def test_an_abandoned_generation_can_go_on() -> None:
    """The caller leaves the loop in the middle, as after a stop string or a client that hung up."""
    engine = toy_engine()
    right = plain(engine, PROMPT, 60)
    session = speculative(engine, CHAIN)
    session.sync(PROMPT)
    while len(session.tokens) < len(right.tokens):
        for n_steps, _ in enumerate(session.generate(len(right.tokens) - len(session.tokens))):
            if n_steps == 2:
                break
    assert session.tokens == right.tokens and cache_hashes(session) == cache_hashes(right)


# --- scores and many sessions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [*TYPES, CHAIN])
def test_logprobs_of_drafted_tokens(types: str) -> None:
    engine = toy_engine()

    def scores(session: Session) -> list[Any]:
        session.sync(PROMPT)
        return list(scored_generation(session, 60, 4))

    drafted = speculative(engine, types)
    assert scores(drafted) == scores(engine.session(OPTIONS))
    assert drafted.stats.accepted >= 2 and drafted.stats.drafted >= 20


def test_many_sessions_in_one_forward() -> None:
    """Eight sessions, one for every drafter, one that guesses from the answer and one plain, share their forwards."""
    engine = toy_engine()
    prompts = [[*PROMPT[i:], *PROMPT[:i]] for i in range(8)]
    alone = [plain(engine, prompt, 40, replace(OPTIONS, seed=i)) for i, prompt in enumerate(prompts)]
    makers: list[Callable[[SessionOptions], Session]] = [
        lambda options, types=types: speculative(engine, types, options)  # type: ignore[misc]
        for types in (*TYPES, CHAIN)
    ]
    sessions = [make(replace(OPTIONS, seed=i)) for i, make in enumerate(makers)]
    guided = Scripted(alone[6].tokens, right_with(0.5))
    sessions.append(engine.session(replace(OPTIONS, seed=6, drafter=guided, depth=FixedDepth(3))))
    sessions.append(engine.session(replace(OPTIONS, seed=7)))
    for session, prompt in zip(sessions, prompts, strict=True):
        session.sync(prompt)
        session.begin(40)
    while running := [session for session in sessions if session.finish is None]:
        step(running)
    for one, session in zip(alone, sessions, strict=True):
        assert_same(session, one)
    assert sum(session.stats.accepted for session in sessions) >= 50
    assert_array_equal([session.state.pos for session in sessions], [len(PROMPT) + 39] * 8)


# --- the command line on a real model --------------------------------------------------------------------------------------

LIST = "--raw -n 56 -c 512 -t 1 --temp 0"
TEXT = "apple, pear, plum, fig, lime, apple, pear, plum, fig, lime, apple, pear, plum, fig, lime, apple,"
NGRAM = "--spec-type ngram-map-k --spec-ngram-map-k-size-n 3 --spec-ngram-map-k-size-m 8 --spec-depth fixed"


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> Callable[..., tuple[int, str, str]]:
    def run(options: str, *more: str) -> tuple[int, str, str]:
        code = main(["-m", str(smollm2_path), *options.split(), *more])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def accepted_of(err: str) -> int:
    found = re.search(r"^ds4: draft acceptance = \d\.\d{5} \( *(\d+) accepted / *\d+ generated\), mean len = ", err, re.MULTILINE)
    assert found, err
    return int(found[1])


@pytest.mark.parametrize("stop", ["fig, ap", "g, fig, fig, fig, fig, fi"])
def test_a_stop_string_across_tokens(ds4: Callable[..., tuple[int, str, str]], stop: str) -> None:
    """Drafts stay on with stop strings, and what is shown ends at the same character."""
    whole = ds4(LIST, "-p", TEXT)
    drafted = ds4(f"{LIST} {NGRAM}", "-p", TEXT, "-r", stop)
    assert drafted[0] == 0 and stop in whole[1] and drafted[1] == whole[1].partition(stop)[0]
    assert accepted_of(drafted[2]) >= 4 * (len(stop) > 10)


def test_statistics_and_logprobs_on_a_real_model(ds4: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """The same text, llama.cpp's lines on standard error, a trace that adds up, and the same file of log-probabilities."""
    plain_run = ds4(LIST, "-p", TEXT)
    trace = tmp_path / "trace.ndjson"
    code, out, err = ds4(f"{LIST} {NGRAM} --mtp-timing --spec-trace {trace}", "-p", TEXT)
    assert (code, out) == plain_run[:2]
    assert "ds4: speculation: off, because no --spec-type was given" in plain_run[2]
    assert "ds4: speculation: ngram-map-k 3/8, up to 8 tokens ahead, fixed depth, greedy\n" in err
    n_accepted = accepted_of(err)
    assert re.search(r"^ds4: acc per pos = \(0\.\d{3}|1\.000", err, re.MULTILINE)
    assert f"#acc tokens = {n_accepted}," in err and "ds4: statistics ngram-map-k: #calls(b,g,a) = 1 " in err
    assert re.search(rf"ds4: ngram-map-k: \d+ verify cycles, {n_accepted} drafts accepted", err)
    lines = trace.read_text().splitlines()
    assert sum(int(m[1]) for line in lines if (m := re.search(r'"evt":"mtp_accept".*"n_accepted":(\d+)', line))) == n_accepted
    files = [tmp_path / "plain.json", tmp_path / "drafted.json"]
    for path, more in zip(files, ("", NGRAM), strict=True):
        assert ds4(f"{LIST} {more} --dump-logprobs {path} --logprobs-top-k 3", "-p", TEXT)[0] == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_draft_model_is_recognised_and_exact_sampling_keeps_the_text(
    ds4: Callable[..., tuple[int, str, str]], smollm2_path: Path
) -> None:
    sampled = "--raw -n 40 -c 256 -t 1 --temp 1 --seed 11"
    plain_run = ds4(sampled, "-p", "The sea")
    code, out, err = ds4(f"{sampled} --spec-exact -md {smollm2_path} --spec-draft-n-max 4", "-p", "The sea")
    assert (code, out) == plain_run[:2]
    assert f"ds4: speculation: draft-simple with {smollm2_path.name} ({smollm2_path.name} was taken for one" in err


def test_made_up_acceptance_says_so(ds4: Callable[..., tuple[int, str, str]]) -> None:
    run = f"{LIST} {NGRAM} --ignore-eos"
    code, _, err = ds4(f"{run} --spec-synth-len 9", "-p", TEXT)
    assert code == 0 and "warning: acceptance is made up" in err and "commits 9.00 tokens a pass" in err
    counts = re.search(r"\( *(\d+) accepted / *(\d+) generated\)", err)
    assert counts and counts[1] == counts[2] and "acceptance below was made up, and so was the text" in err
    none = ds4(f"{run} --spec-synth-rates 0,0,0,0,0,0,0,0", "-p", TEXT)
    assert none[1] == ds4(f"{LIST} --ignore-eos", "-p", TEXT)[1] and accepted_of(none[2]) == 0
    wrong = ds4(f"{run} --spec-synth-rates 1,1", "-p", TEXT)
    assert wrong[0] == 2 and "has 2 numbers, but the longest draft has 8 tokens" in wrong[2]
    assert ds4(f"{run} --spec-synth-len 10", "-p", TEXT)[0] == 2


def test_a_grammar_holds_with_drafts_on(ds4: Callable[..., tuple[int, str, str]]) -> None:
    schema = '{"type":"array","items":{"enum":["yes","no"]},"minItems":4,"maxItems":4}'
    run = ["--temp", "0", "-p", "Answer yes four times, as JSON.", "-j", schema]
    plain_run = ds4("-n 60 -c 512 -t 1", *run)
    drafted = ds4(f"-n 60 -c 512 -t 1 {NGRAM}", *run)
    assert plain_run[0] == 0 and len(json.loads(plain_run[1])) == 4, plain_run[1]
    assert drafted[:2] == plain_run[:2]
    broken = ds4("-n 60 -c 512 -t 1", "-p", "hi", "-j", "{")
    assert broken[0] == 2 and broken[2].startswith("ds4: ")


def test_backend_sampling_changes_nothing(ds4: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms, by flag and by environment: the same text and the same counts, at temperature 0 and above."""
    ways = {"0": "-bs --spec-draft-backend-sampling", "0.8 --seed 3": "--backend-sampling --no-spec-draft-backend-sampling"}
    for temperature, more in ways.items():
        run = f"--raw -n 24 -c 256 -t 1 {NGRAM} --temp {temperature}"
        usual = ds4(run, "-p", TEXT)
        assert usual[0] == 0 and counts_of(usual[2])
        code, out, err = ds4(f"{run} {more}", "-p", TEXT)
        assert (code, out, counts_of(err)) == (0, usual[1], counts_of(usual[2]))
    monkeypatch.setenv("LLAMA_ARG_BACKEND_SAMPLING", "1")
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", "0")
    assert ds4(run, "-p", TEXT)[1] == usual[1]


def counts_of(err: str) -> list[str]:
    return re.findall(r"draft acceptance = .*|acc per pos = .*|speculation: .*", err)


@pytest.mark.parametrize(
    ("mode", "prompt"),
    [
        ("--inspect", False),
        ("--show-prompt", True),
        ("--dump-tokens", True),
        ("--dump-logits -", True),
        ("--decode-consistency 2", True),
        ("--perplexity-file text", False),
        ("--imatrix-dataset text --imatrix-out {tmp}/im.gguf", False),
    ],
)
def test_a_mode_that_drafts_nothing_says_so(
    ds4: Callable[..., tuple[int, str, str]], mode: str, prompt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("The sea is wide, and the ship is small. " * 8)
    run = f"-c 128 -t 1 {mode.format(tmp=tmp_path)}"
    said = ["-p", "hi"] if prompt else []
    plain_run = ds4(run, *said)
    code, out, err = ds4(f"{run} --spec-type ngram-cache -lcd {tmp_path}/dynamic", *said)
    assert (code, out) == plain_run[:2] and code == 0
    words = f"ds4: --spec-type, --lookup-cache-dynamic change nothing here: {mode.split()[0]} drafts nothing\n"
    assert err.count(words) == 1 and "nothing here" not in plain_run[2] and not (tmp_path / "dynamic").exists()
