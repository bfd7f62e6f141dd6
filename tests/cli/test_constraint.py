"""Grammars from the command line: where they hold, and what refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4py.chat.formats.base import ThinkTags
from ds4py.cli.constraint import constrained, constraint
from ds4py.cli.parsing import parse
from ds4py.cli.prompting import Prompt
from ds4py.engine import SessionOptions
from ds4py.errors import UnsupportedError, UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingSchedule
from ds4py.tokenizer import Tokenizer, load_tokenizer

SCHEMA = '{"enum":["yes","no"]}'


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_gguf(smollm2_path))


@pytest.fixture
def schedule(tokenizer: Tokenizer) -> Callable[..., SamplingSchedule]:
    """The schedule of an answer to a prompt of three tokens, which have been pushed."""

    def make(inside_thinking: bool, close: str = "<|im_end|>") -> SamplingSchedule:
        grammar = constraint(parse("ds4", ["-j", SCHEMA]), tokenizer)
        assert grammar is not None
        opened: Any = SimpleNamespace(
            tokenizer=tokenizer, engine=SimpleNamespace(model=SimpleNamespace(vocab_size=tokenizer.vocab_size))
        )
        chat: Any = SimpleNamespace(think_tags=ThinkTags("<|im_start|>", close))
        made = constrained(SessionOptions(), grammar, Prompt([1, 5, 9], "", inside_thinking), opened, chat).schedule
        assert made is not None
        for token in (1, 5, 9):
            made.push(token)
        return made

    return make


def allowed(schedule: SamplingSchedule, n_vocab: int) -> int:
    return int(np.isfinite(schedule.adjust(np.zeros(n_vocab, np.float32))).sum())


def test_a_grammar_holds_from_the_answers_first_token(schedule: Callable[..., SamplingSchedule], tokenizer: Tokenizer) -> None:
    assert 0 < allowed(schedule(False), tokenizer.vocab_size) < 20


def test_reasoning_comes_before_it(schedule: Callable[..., SamplingSchedule], tokenizer: Tokenizer) -> None:
    made = schedule(True)
    assert allowed(made, tokenizer.vocab_size) == tokenizer.vocab_size
    made.push(tokenizer.encode("<|im_end|>", special=True)[0])
    assert 0 < allowed(made, tokenizer.vocab_size) < 20


def test_a_closing_tag_of_several_tokens_is_refused(schedule: Callable[..., SamplingSchedule]) -> None:
    with pytest.raises(UnsupportedError, match="needs </long thought> to be one token; add --nothink"):
        schedule(True, "</long thought>")


def test_files_and_texts_are_read_alike(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA)
    (tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"')
    for argv in (["-jf", str(tmp_path / "schema.json")], ["--grammar-file", str(tmp_path / "g.gbnf")]):
        assert constraint(parse("ds4", argv), tokenizer) is not None
    assert constraint(parse("ds4", []), tokenizer) is None


@pytest.mark.parametrize("argv", [["-j", "{"], ["-j", '{"type":"strange"}'], ["--grammar", "root ::= ("]])
def test_a_broken_grammar_is_one_sentence(argv: list[str], tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError) as caught:
        constraint(parse("ds4", argv), tokenizer)
    assert "\n" not in str(caught.value)


def test_two_grammars_are_refused() -> None:
    with pytest.raises(UsageError, match="--grammar and --json-schema"):
        parse("ds4", ["--grammar", "x", "-j", "{}"])


def test_it_begins_again_with_each_answer(schedule: Callable[..., SamplingSchedule], tokenizer: Tokenizer) -> None:
    """Also when the last one was cut short, ran on, or is taken back."""
    made: Any = schedule(False)
    (yes,), (no,) = tokenizer.encode('"'), tokenizer.encode("7")
    stop = next(iter(tokenizer.stop_ids))
    for said in ([yes], [yes, no, no], tokenizer.encode('"yes"'), [*tokenizer.encode('"no"'), stop], [no]):
        for token in said:
            made.push(token)
        made.restart(made.pos + 4)
        for token in (5, yes, 9, 8):
            made.push(token)  # the next prompt, a part of which could be an answer
        assert 0 < allowed(made, tokenizer.vocab_size) < 20 and made.allows(yes)
        made.push(yes)
        assert 0 < allowed(made, tokenizer.vocab_size) < 40 and not made.allows(yes)
        made.truncate(made.pos - 1)
        assert made.allows(yes)
    made.restart(4)  # back to an early turn of the conversation
    made.truncate(4)
    assert made.allows(yes) and not made.allows(no)
