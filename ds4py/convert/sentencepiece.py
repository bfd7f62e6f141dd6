"""tokenizer.model: a SentencePiece model, read from its protocol buffer.

Numbers of the format (sentencepiece_model.proto): model = {1: piece, repeated; 2: trainer; 3: normalizer}; piece = {1: text,
2: score, 3: type}, whose types are GGUF's token types; trainer = {3: kind of model, 1 unigram, 2 BPE}; normalizer = {3: add a
space before the text}. Only BPE models merge by score as GGUF's "llama" vocabularies do; a unigram model is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ds4py.convert.protobuf import BYTES, Field, fields, float32
from ds4py.convert.vocabulary import PAD_SCORE, Token, Vocabulary, added_type, assemble
from ds4py.errors import FormatError, ResourceError, UnsupportedError
from ds4py.tokenizer import TokenType

_BPE = 2
_KINDS = {1: "unigram", 3: "word", 4: "char"}


def read_sentencepiece(path: Path, added: Mapping[str, tuple[int, bool]]) -> Vocabulary:
    """The vocabulary of a tokenizer.model. `added`: further tokens, spelling -> (id, special), which also correct the types of
    tokens that are there. Raises FormatError (damaged), UnsupportedError (not BPE)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    found: dict[int, Token] = {}
    kind, prefix = 1, True
    for number, wire, value in fields(data, str(path)):
        if wire != BYTES or not isinstance(value, bytes):
            continue
        if number == 1:
            found[len(found)] = _piece(value, f"{path}: piece {len(found)}")
        elif number == 2:
            kind = _number(value, 3, kind, path)
        elif number == 3:
            prefix = bool(_number(value, 3, int(prefix), path))
    if kind != _BPE:
        raise UnsupportedError(f"{path}: this is a {_KINDS.get(kind, 'strange')} model; only BPE models can be expressed in GGUF")
    _add(found, added, path)
    tokens, notes = assemble(found, path)
    return Vocabulary("llama", "default", tokens, add_space_prefix=prefix, notes=notes)


def _piece(data: bytes, what: str) -> Token:
    text, score, kind = b"", 0.0, 1
    for number, _, value in fields(data, what):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2:
            score = float32(value, what)
        elif number == 3 and isinstance(value, int):
            kind = value
    try:
        token = Token(text.decode(), TokenType(kind), score)
    except ValueError:
        raise FormatError(f"{what} is damaged: text {text!r:.60}, type {kind}") from None
    if not math.isfinite(score) or token.type == TokenType.UNDEFINED:
        raise FormatError(f"{what} is damaged: score {score}, type {kind}")
    return token


def _number(message: bytes, wanted: int, default: int, path: Path) -> int:
    found: list[Field] = [field for field in fields(message, str(path)) if field[0] == wanted]
    return next((value for _, _, value in reversed(found) if isinstance(value, int)), default)


def _add(found: dict[int, Token], added: Mapping[str, tuple[int, bool]], path: Path) -> None:
    """Put added tokens in; one that replaces a piece of another spelling takes only a place that holds no text."""
    for text, (i, special) in added.items():
        old = found.get(i)
        if old is None:
            found[i] = Token(text, added_type(text, special), PAD_SCORE)
        elif old.text == text:
            if old.type == TokenType.NORMAL:
                found[i] = Token(text, added_type(text, special), old.score)
        elif old.type in (TokenType.NORMAL, TokenType.BYTE, TokenType.UNKNOWN):
            raise FormatError(f"{path}: the added token {text!r:.60} has id {i}, which is {old.text!r:.60} here")
        else:
            found[i] = Token(text, added_type(text, special), old.score)
