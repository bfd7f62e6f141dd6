"""Grammars are taken back exactly, whatever was consumed and computed before: markers, the end, any number of tokens.

A draft is pushed, looked at and taken back at every pass, so a mask that is wrong afterwards is a wrong text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from call_texts import GOOD, TOOLS, with_marks

from ds4py.chat.calls import CallSyntax
from ds4py.chat.formats.dsml import DsmlCalls
from ds4py.chat.grammar import Grammar, GrammarCompiler, GrammarSchedule
from ds4py.engine import FixedSchedule, Penalties
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import Tokenizer

SCHEMA = {"type": "object", "properties": {"s": {"enum": ["x", "yy"]}}, "required": ["s"], "additionalProperties": False}
DSML = (
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">a</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
CASES: dict[str, tuple[str, Any, str]] = {
    "schema": ("json_schema", SCHEMA, '{"s": "yy"}'),
    "any object": ("json_object", "", '{"a": [1, {"b": null}]}'),
    "regex": ("regex", "ab[0-9]+c", "ab123c"),
    "gbnf": ("gbnf", 'root ::= "a" [0-9]+ ("b" | "c")', "a12c"),
    **{repr(syntax): ("calls", syntax, text) for syntax, (text, _) in GOOD.items()},
    "dsml": ("calls", DsmlCalls(), DSML),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return with_marks()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def opened(compiler: GrammarCompiler, tokenizer: Tokenizer, name: str) -> tuple[Grammar, list[int]]:
    """(the grammar, the tokens of its text and the stop token)."""
    kind, source, text = CASES[name]
    if kind == "calls":
        syntax: CallSyntax = source
        kind, source = "lark", syntax.grammar(TOOLS, True, tokenizer.vocab.markers)
    stop = tokenizer.vocab.markers["<|im_end|>"]
    return compiler.compile(kind, source), [*tokenizer.encode(text, special=True), stop]


def schedule(grammar: Grammar, tokenizer: Tokenizer, start: int = 0, **more: Any) -> GrammarSchedule:
    return grammar.schedule(FixedSchedule(SamplingParams(0), Penalties(), {}, tokenizer.vocab_size), start, **more)


def mask(made: GrammarSchedule, tokenizer: Tokenizer) -> bytes:
    return np.isfinite(made.adjust(np.zeros(tokenizer.vocab_size, np.float32))).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_what_was_taken_back_leaves_nothing_behind(compiler: GrammarCompiler, tokenizer: Tokenizer, name: str) -> None:
    grammar, ids = opened(compiler, tokenizer, name)
    fresh = schedule(grammar, tokenizer)
    want = []
    for token in ids:
        want.append(mask(fresh, tokenizer))
        assert fresh.allows(token) or token == ids[-1]
        fresh.push(token)
    for start in range(len(ids)):
        made = schedule(grammar, tokenizer)
        for token in ids[:start]:
            mask(made, tokenizer)  # every row is masked before its token is pushed
            made.push(token)
        for n in sorted({1, 2, 3, 7, len(ids)}):
            for token in ids[start : start + n]:
                mask(made, tokenizer)
                made.push(token)
            made.truncate(start)
            assert mask(made, tokenizer) == want[start], (start, n)


def test_a_marker_that_begins_a_grammar_is_taken_back_with_it(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    syntax = next(iter(GOOD))
    grammar, ids = opened(compiler, tokenizer, repr(syntax))
    words = tokenizer.encode("so: ")
    made = schedule(grammar, tokenizer, start=2, after=ids[0], with_marker=True)
    free = mask(made, tokenizer)
    for token in [ids[0], 5, *words]:  # in the prompt the marker means nothing
        made.push(token)
    assert mask(made, tokenizer) == free
    at = made.pos
    for n in (1, 2, 9, len(ids), 1):
        for token in ids[:n]:
            made.push(token)
        assert mask(made, tokenizer) != free or n == len(ids)
        made.truncate(at)
        assert mask(made, tokenizer) == free
    for token in ids[:-1]:
        assert made.allows(token)
        made.push(token)
    assert made.complete and not made.allows(words[0])
