"""A grammar holds at every position, with and without drafts, after rewinds, and from a marker on wherever that comes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scripted_drafters import Guess, Scripted, from_table, right_with

from ds4py.chat.grammar import KINDS, GrammarCompiler, GrammarSchedule
from ds4py.drafters import NgramSizes
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.engine import Engine, EngineOptions, FixedDepth, FixedSchedule, Penalties, Session, SessionOptions
from ds4py.engine.noise import Noise
from ds4py.engine.sampling import Sampler
from ds4py.errors import UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import F32, SamplingParams
from ds4py.tokenizer import Tokenizer, load_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "job": {"enum": ["baker", "smith", "teacher", "sailor"]},
    },
    "required": ["name", "age", "job"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_gguf(smollm2_path))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Engine:
    return Engine.open(open_gguf(smollm2_path), EngineOptions(n_ctx=512, threads=1, max_rows=16))


GREEDY = SamplingParams(0)


def fixed(tokenizer: Tokenizer, params: SamplingParams = GREEDY, **penalties: Any) -> FixedSchedule:
    return FixedSchedule(params, Penalties(**penalties), {}, tokenizer.vocab_size)


# --- the schedule ------------------------------------------------------------------------------------------------------------


def allowed(schedule: GrammarSchedule, n_vocab: int) -> set[int]:
    return set(np.flatnonzero(np.isfinite(schedule.adjust(np.zeros(n_vocab, np.float32)))).tolist())


def test_masks_follow_the_text_and_rewind_with_it(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    n_vocab = tokenizer.vocab_size
    schedule = compiler.compile("json_schema", PERSON).schedule(fixed(tokenizer), start=3)
    for token in (5, 6, 7):
        assert len(allowed(schedule, n_vocab)) == n_vocab, "the prompt is free"
        schedule.push(token)
    ids = tokenizer.encode('{"name": "Ann", "age": 31, "job": "smith"}')
    masks = []
    for token in ids:
        masks.append(allowed(schedule, n_vocab))
        assert token in masks[-1] and len(masks[-1]) < n_vocab and not schedule.complete
        schedule.push(token)
    assert schedule.complete and allowed(schedule, n_vocab) == set(tokenizer.stop_ids)
    for at in (len(ids) - 1, 7, 0):
        schedule.truncate(3 + at)
        assert allowed(schedule, n_vocab) == masks[at]
        for token in ids[at:]:
            schedule.push(token)
        assert schedule.complete
        schedule.truncate(3 + at)
    schedule.truncate(1)
    assert schedule.pos == 1 and len(allowed(schedule, n_vocab)) == n_vocab


def test_a_token_that_does_not_fit_ends_the_mask_until_it_is_taken_back(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    schedule = compiler.compile("regex", "[0-9]{4}").schedule(fixed(tokenizer), start=0)
    before = allowed(schedule, tokenizer.vocab_size)
    wrong = tokenizer.encode("hello")[0]
    for _ in range(3):
        schedule.push(wrong)
        schedule.push(next(iter(before)))
        assert len(allowed(schedule, tokenizer.vocab_size)) == tokenizer.vocab_size
        schedule.truncate(0)
        assert allowed(schedule, tokenizer.vocab_size) == before


def test_a_grammar_may_begin_after_a_marker(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    marker = 17
    schedule = compiler.compile("regex", "[0-9]+").schedule(fixed(tokenizer), start=2, after=marker)
    for token in (marker, 4, 9, 9):  # the marker in the prompt does not count
        schedule.push(token)
    assert len(allowed(schedule, tokenizer.vocab_size)) == tokenizer.vocab_size
    schedule.push(marker)
    digits = allowed(schedule, tokenizer.vocab_size)
    assert all(tokenizer.token_text(token).isdigit() for token in digits) and len(digits) >= 10
    schedule.push(next(iter(digits)))
    schedule.truncate(4)
    assert len(allowed(schedule, tokenizer.vocab_size)) == tokenizer.vocab_size
    schedule.push(marker)
    assert allowed(schedule, tokenizer.vocab_size) == digits


def test_padded_rows_of_a_head_are_ruled_out_and_the_row_is_not_written(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    schedule = compiler.compile("json_object").schedule(fixed(tokenizer), start=0)
    row = np.zeros(tokenizer.vocab_size + 64, np.float32)
    out = schedule.adjust(row)
    assert np.isfinite(row).all() and not np.isfinite(out[tokenizer.vocab_size :]).any()


def test_drafts_end_before_a_token_that_no_text_of_the_grammar_has(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    schedule = compiler.compile("json_schema", PERSON).schedule(fixed(tokenizer), start=0)
    sampler = Sampler(schedule, Noise(0))
    good = tokenizer.encode('{"name": "Ann", "age": 31')
    assert sampler.possible(good) == len(good)
    assert sampler.possible([*good[:3], tokenizer.encode("}")[0], 7]) == 3 and sampler.pos == 0
    banned = Sampler(FixedSchedule(GREEDY, Penalties(), {4: -100.0, 5: 3.0}, 10), Noise(0))
    assert banned.possible([5, 6, 4, 5]) == 2
    forced = Sampler(FixedSchedule(GREEDY, Penalties(), {4: 100.0}, 10), Noise(0))
    assert forced.possible([4, 4, 5]) == 2


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", "{"),
        ("json_schema", {"type": "strin"}),
        ("json_schema", "[" * 100000),
        ("regex", "("),
        ("lark", "start: foo"),
        ("gbnf", "root = "),
        ("xml", "<a/>"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_in_one_sentence(compiler: GrammarCompiler, kind: str, source: Any) -> None:
    with pytest.raises(UsageError) as caught:
        compiler.compile(kind, source)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_every_kind_compiles(compiler: GrammarCompiler) -> None:
    sources: Mapping[str, Any] = {
        "json_schema": json.dumps(PERSON),
        "json_object": "",
        "regex": "a+",
        "lark": 'start: "a"+',
        "gbnf": 'root ::= "a"{5,5}',
    }
    for kind in KINDS:
        compiler.compile(kind, sources[kind])


# --- answers of a real model ---------------------------------------------------------------------------------------------------


def answer(
    engine: Engine, tokenizer: Tokenizer, schedule: GrammarSchedule, ids: list[int], **options: Any
) -> tuple[Session, list[F32]]:
    session = engine.session(SessionOptions(schedule=schedule, seed=11, stop_ids=tokenizer.stop_ids, **options))
    session.sync(ids)
    return session, [row.copy() for step in session.generate(220) for row in step.rows]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_answers_are_valid_and_drafts_change_nothing(
    engine: Engine, tokenizer: Tokenizer, compiler: GrammarCompiler, temperature: float
) -> None:
    ids = tokenizer.encode("Three people of the village, as a JSON list:\n")
    grammar = compiler.compile("json_schema", PEOPLE)
    params = SamplingParams(temperature, top_k=50, top_p=0.95)

    def schedule() -> GrammarSchedule:
        return grammar.schedule(fixed(tokenizer, params, repeat=1.1), start=len(ids))

    plain = answer(engine, tokenizer, schedule(), ids)
    assert plain[0].finish == "stop"
    people = json.loads(tokenizer.decode(plain[0].tokens[len(ids) :]))
    assert len(people) == 3 and all(set(person) == {"name", "age", "job"} for person in people)
    second = [_second_choices(plain, schedule(), ids, phase) for phase in range(3)]
    guesses: list[tuple[Guess, int]] = [(right_with(0.7), 6), *((from_table(table), 6) for table in second)]
    n_accepted = n_rejected = 0
    for guess, depth in guesses:
        drafter = Scripted(plain[0].tokens, guess)
        other = answer(engine, tokenizer, schedule(), ids, drafter=drafter, depth=FixedDepth(depth))
        assert other[0].tokens == plain[0].tokens
        assert_array_equal(other[1], plain[1])
        n_accepted += other[0].stats.accepted
        n_rejected += other[0].stats.drafted - other[0].stats.accepted
    copied = answer(engine, tokenizer, schedule(), ids, drafter=NgramSimple(NgramSizes(3, 8)), depth=FixedDepth(8))
    assert copied[0].tokens == plain[0].tokens and copied[0].stats.accepted > 5, "keys repeat, so they are foreseen"
    assert n_accepted >= 50 and n_rejected >= 50


def _second_choices(
    plain: tuple[Session, list[F32]], schedule: GrammarSchedule, ids: list[int], phase: int
) -> dict[int, int]:
    """At every third position, the likeliest token but one under the mask, where there are two."""
    table = {}
    for token in ids:
        schedule.push(token)
    for i, row in enumerate(plain[1]):
        masked = schedule.adjust(row)
        if i % 3 == phase and np.isfinite(masked).sum() > 1:
            table[len(ids) + i] = int(masked.argsort()[-2])
        schedule.push(plain[0].tokens[len(ids) + i])
    return table


def test_a_rewind_inside_the_answer_gives_it_again(engine: Engine, tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    ids = tokenizer.encode("A person:\n")
    schedule = compiler.compile("json_schema", PERSON).schedule(fixed(tokenizer, SamplingParams(0.8)), start=len(ids))
    session, _ = answer(engine, tokenizer, schedule, ids)
    text = list(session.tokens)
    session.rewind(len(ids) + 6)
    for _ in session.generate(100):
        pass
    assert session.tokens == text
    json.loads(tokenizer.decode(text[len(ids) :]))
