"""Answers that obey a grammar: JSON of a schema, a regular expression, a Lark or GBNF grammar.

A grammar is a `SamplingSchedule` around another one: it has a position, is pushed every token and truncated with the session, and
rules out, at each position, the tokens after which no valid text could follow. So the engine treats it like penalties. It holds
at every row of a verified block, proposals obey it as well, and a rejected draft or a rewind takes back what the parser consumed.
Penalties, bias and temperature of the inner schedule apply first, then the mask.

It holds from a position on (the end of the prompt), or from the token after a marker such as `</think>`, or from a marker such
as `<tool_call>` itself, wherever in a block that comes. Once the text is complete, only stop tokens are left. In a conversation
it begins again with each answer (`restart`).

A token that does not fit can only come from outside (teacher forcing, a history that was edited): from there on nothing is ruled
out, until the session goes back before it.

The parser is llguidance (computes a mask in tens of microseconds, has rollback). Its rollback (1.9.1) goes wrong over marker and
stop tokens that were consumed after a mask had been computed, so it is only used between those; across one, the text is read
again from its beginning. Rejected: a parser of our own, which is a
project of its own; and masks by tool mode in the accept rule, where a draft and plain decoding could differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ds4py.errors import UnsupportedError, UsageError
from ds4py.protocols import F32, SamplingParams, SamplingSchedule
from ds4py.tokenizer import Tokenizer

KINDS: Final = ("json_schema", "json_object", "regex", "lark", "gbnf")


class GrammarCompiler:
    """Compiles grammars for one vocabulary; making one costs some hundred milliseconds, so keep it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UnsupportedError if llguidance is not installed or cannot use this vocabulary."""
        try:
            import llguidance
        except ModuleNotFoundError as error:
            raise UnsupportedError("grammars need llguidance, which is not installed: pip install llguidance") from error
        stops = sorted(tokenizer.stop_ids) or ([tokenizer.eos_id] if tokenizer.eos_id is not None else [])
        if not stops:
            raise UnsupportedError("this model's vocabulary has no stop token, which a grammar needs to end an answer")
        self._llguidance = llguidance
        self._marks = frozenset(tokenizer.vocab.markers.values()) | tokenizer.stop_ids | frozenset(stops)
        try:
            self._tokens = llguidance.LLTokenizer(
                llguidance.TokenizerWrapper(_Words(tokenizer, stops[0])), n_vocab=tokenizer.vocab_size, eos_token=stops
            )
        except (ValueError, TypeError) as error:
            raise UnsupportedError(f"llguidance cannot use this model's vocabulary: {error}") from error

    def compile(self, kind: str, source: str | Mapping[str, Any] = "") -> Grammar:
        """A grammar of one of KINDS; `source` is a schema (text or parsed) or the grammar's text, none for json_object.

        Raises UsageError, with what is wrong, for one that cannot be obeyed."""
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

        matcher = self._llguidance.LLMatcher
        try:
            if kind in ("json_schema", "json_object"):
                schema = {"type": "object"} if kind == "json_object" else source
                parsed = json.loads(schema) if isinstance(schema, str) else schema
                text = matcher.grammar_from_json_schema(json.dumps(parsed))
            elif kind == "regex":
                text = matcher.grammar_from_regex(str(source))
            elif kind == "gbnf":
                text = matcher.grammar_from_lark(any_to_lark(str(source)))
            elif kind == "lark":
                text = matcher.grammar_from_lark(str(source))
            else:
                raise UsageError(f"unknown kind of grammar {kind!r}: choose one of {', '.join(KINDS)}")
        except (ValueError, TypeError, RecursionError, GbnfToLarkError) as error:
            raise UsageError(f"the {_NAMES[kind]} cannot be read: {_first_line(str(error))}") from error
        compiled = matcher(self._tokens, text, log_level=0)
        if compiled.is_error():
            raise UsageError(f"the {_NAMES[kind]} cannot be obeyed: {_first_line(compiled.get_error())}")
        return Grammar(compiled, self._marks)


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar, for any number of sessions."""

    _matcher: Any
    _marks: frozenset[int]  # tokens that rollback is not trusted with

    def schedule(
        self, inner: SamplingSchedule, start: int, after: int | None = None, with_marker: bool = False
    ) -> GrammarSchedule:
        """`inner`, which holds no tokens yet, with this grammar from position `start` on; `after`: only from the first such token
        there on, which is the grammar's own first token if `with_marker`, and else stands in front of it."""
        return GrammarSchedule(inner, self, start, after, with_marker)


class GrammarSchedule:
    """protocols.SamplingSchedule; see the head of this file."""

    def __init__(
        self, inner: SamplingSchedule, grammar: Grammar, start: int, after: int | None, with_marker: bool = False
    ) -> None:
        self._inner, self._grammar, self._start, self._after = inner, grammar, start, after
        self._matcher = grammar._matcher.deep_copy()
        self._n_skipped = 0 if with_marker else 1  # tokens from the marker on that are not the parser's
        self._first: int | None = start if after is None else None  # position of the first token that the parser is given
        self._consumed: list[int] = []  # tokens from there on that it was given
        self._mask: npt.NDArray[np.bool_] | None = None  # of tokens ruled out at `pos`, if known

    def restart(self, start: int, after: int | None = None) -> None:
        """From now on the answer that begins at `start` obeys, whatever was said before; `after` as in Grammar.schedule. For
        before the prompt is pushed."""
        self._matcher = self._grammar._matcher.deep_copy()
        self._start, self._after, self._first = start, after, start if after is None else None
        self._consumed, self._mask = [], None

    @property
    def pos(self) -> int:
        return self._inner.pos

    @property
    def floor(self) -> int:
        return self._inner.floor

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole sentence of the grammar."""
        return self._holds and bool(self._matcher.is_accepting())

    def push(self, token: int) -> None:
        pos = self.pos
        self._inner.push(token)
        if self._first is None and token == self._after and pos >= self._start:
            self._first = pos + self._n_skipped
        if self._first is not None and pos == self._first + len(self._consumed) and self._matcher.validate_tokens([token]) == 1:
            self._matcher.consume_token(token)
            self._consumed.append(token)
        self._mask = None

    def truncate(self, pos: int) -> None:
        self._inner.truncate(pos)
        self._mask = None
        if self._first is None:
            return
        kept = max(pos - self._first, 0)
        if taken := self._consumed[kept:]:
            del self._consumed[kept:]
            if self._grammar._marks.isdisjoint(taken):
                self._matcher.rollback(len(taken))
            else:
                self._matcher = self._grammar._matcher.deep_copy()
                self._matcher.consume_tokens(self._consumed)
        if self._after is not None and pos <= self._first - self._n_skipped:
            self._first = None

    def params(self) -> SamplingParams:
        return self._inner.params()

    def adjust(self, row: F32) -> F32:
        """What `inner` does to logits [V], and -inf for all tokens that cannot follow."""
        adjusted = self._inner.adjust(row)
        if not self._holds:
            return adjusted
        out = adjusted.copy() if adjusted is row else adjusted
        out[self._forbidden(len(row))] = -np.inf
        return out

    def allows(self, token: int) -> bool:
        return self._inner.allows(token) and (not self._holds or self._matcher.validate_tokens([token]) == 1)

    @property
    def _holds(self) -> bool:
        """Whether the parser has seen everything up to `pos`, and `pos` is its to judge."""
        return self._first is not None and self.pos == self._first + len(self._consumed)

    def _forbidden(self, n_vocab: int) -> npt.NDArray[np.bool_]:
        if self._mask is None:
            bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
            self._mask = np.ones(n_vocab, np.bool_)  # rows of a padded head are no tokens
            n = min(n_vocab, len(bits))
            self._mask[:n] = bits[:n] == 0
        return self._mask


class _Words:
    """A vocabulary as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens = tokenizer.all_bytes()
        self.special_token_ids = [
            token for token in range(tokenizer.vocab_size) if tokenizer.is_control(token) or token in tokenizer.stop_ids
        ]

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


_NAMES: Final[Mapping[str, str]] = {
    "json_schema": "JSON schema",
    "json_object": "JSON schema",
    "regex": "regular expression",
    "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
}


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"
