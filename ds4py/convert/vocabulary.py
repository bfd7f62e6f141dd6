"""A vocabulary ready to be written: tokens with types, scores or merges, special ids; the same for both kinds of tokenizer.

The invariant: token i of the list is row i of the embedding. Ids that no token has, and rows of the embedding past the last
token (checkpoints pad them to a round number), become tokens of type "unused", which nothing encodes to; fewer rows than tokens
are refused, since some text would then have no embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ds4py.errors import FormatError
from ds4py.gguf import GgufType, Value
from ds4py.tokenizer import TokenType

MAX_TOKENS = 1 << 24
PAD_SCORE = -1000.0


@dataclass(frozen=True)
class Token:
    text: str
    type: TokenType = TokenType.NORMAL
    score: float = 0.0


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`kind` is "gpt2" (byte-level, with merges) or "llama" (SentencePiece, with scores)."""

    kind: str
    pre: str
    tokens: Sequence[Token]
    merges: Sequence[str] = ()
    add_space_prefix: bool | None = None
    notes: tuple[str, ...] = ()

    def find(self, text: str) -> int | None:
        """The id of a token by its spelling; the last one if several are spelled so (added tokens come last)."""
        return next((i for i in range(len(self.tokens) - 1, -1, -1) if self.tokens[i].text == text), None)

    def padded(self, n_rows: int, path: Path) -> Vocabulary:
        """With one token per row of the embedding. FormatError if the embedding has fewer rows."""
        n = len(self.tokens)
        if n_rows < n:
            raise FormatError(f"{path}: the tokenizer has {n:,} tokens, but the embedding has only {n_rows:,} rows")
        if n_rows == n:
            return self
        taken = {token.text for token in self.tokens}
        note = f"{n_rows - n:,} rows of the embedding have no token (ids {n:,} to {n_rows - 1:,}); they are typed unused"
        filled = [*self.tokens, *(unused(i, taken) for i in range(n, n_rows))]
        return replace(self, tokens=filled, notes=(*self.notes, note))

    def metadata(self) -> dict[str, Any]:
        keys: dict[str, Any] = {
            "tokenizer.ggml.model": self.kind,
            "tokenizer.ggml.pre": self.pre,
            "tokenizer.ggml.tokens": [token.text for token in self.tokens],
        }
        if self.kind == "llama":
            scores = [token.score for token in self.tokens]
            keys["tokenizer.ggml.scores"] = Value(GgufType.ARRAY, scores, GgufType.FLOAT32)
        types = [int(token.type) for token in self.tokens]
        keys["tokenizer.ggml.token_type"] = Value(GgufType.ARRAY, types, GgufType.INT32)
        if self.kind == "gpt2":
            keys["tokenizer.ggml.merges"] = Value(GgufType.ARRAY, list(self.merges), GgufType.STRING)
        if self.add_space_prefix is not None:
            keys["tokenizer.ggml.add_space_prefix"] = self.add_space_prefix
        return keys


def unused(token_id: int, taken: set[str]) -> Token:
    """A token for an id that has none, spelled like no other."""
    text = f"[PAD{token_id}]"
    while text in taken:
        text = f"[{text}]"
    return Token(text, TokenType.UNUSED, PAD_SCORE)


def assemble(found: Mapping[int, Token], path: Path) -> tuple[list[Token], tuple[str, ...]]:
    """Tokens by id as a list without gaps, and notes. FormatError for ids that are none and texts that are no text."""
    if not found:
        raise FormatError(f"{path}: the vocabulary is empty")
    if min(found) < 0 or max(found) >= MAX_TOKENS:
        raise FormatError(f"{path}: a token has the impossible id {min(found) if min(found) < 0 else max(found)}")
    for i, token in found.items():
        try:
            token.text.encode()
        except UnicodeEncodeError:
            raise FormatError(f"{path}: token {i} is not valid text: {token.text!r:.60}") from None
    taken = {token.text for token in found.values()}
    n = max(found) + 1
    gaps = n - len(found)
    notes = (f"{gaps:,} ids below the last token have no token; they are typed unused",) if gaps else ()
    return [found.get(i) or unused(i, taken) for i in range(n)], notes


def looks_special(text: str) -> bool:
    """Spellings that checkpoints often forget to mark as special: `<|...|>` and its full-width form."""
    return len(text) > 4 and ((text[:2], text[-2:]) in (("<|", "|>"), ("<｜", "｜>")))


def added_type(text: str, special: bool) -> TokenType:
    """The type of a token that was added to a vocabulary."""
    return TokenType.CONTROL if special or looks_special(text) else TokenType.USER_DEFINED
