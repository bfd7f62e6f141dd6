"""What a GGUF file says about its vocabulary, and which of its tokens text may reach.

The invariant: no text from a user, a tool or a file ever becomes a token that steers the model. The file gives each token a type:
  normal, unused  reached by merging only
  control, unknown  reached by templates only; printed as nothing
  user-defined  llama.cpp matches these in any text. Two very different things carry this type. Runs of blanks and HTML tags
      (gemma) are ordinary text with an id of their own: `literals`, matched in plain text, as the models were trained.
      `</think>`, `<tool_call>`, `｜DSML｜` steer the model: `markers`, reached by templates only, but printed.
  byte  fallback for characters the vocabulary lacks
The rule between the two: a user-defined token is a marker if it opens with one of `<[|｜`, has a letter in it and is no HTML tag.
A file that gives an end-of-turn token such as `<|im_end|>` the wrong type is put right.
Rejected: llama.cpp's rule (a pasted `</think>` ends the thinking) and a list of known markers (the next model brings new ones).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4py.errors import FormatError

_KEY = "tokenizer.ggml."
_BRACKETED = re.compile(r"[<\[|｜].*[^\W\d_]", re.DOTALL)  # closed or not: DeepSeek V4 has `<dsml:`
_HTML = frozenset(
    (
        "a abbr article aside b bbox blockquote body br button caption center cite code col dd del details div dl dt em "
        "figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins kbd label li link main "
        "mark meta nav ol option p pre q s script section select small span strong style sub summary sup svg table tbody td "
        "textarea tfoot th thead title tr u ul video"
    ).split()
)
# Spellings that end a turn in every vocabulary that has them.
_END_OF_TURN = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<turn|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|end_of_sentence|>"),
        *("<|EOT|>", "<EOT>", "_<EOT>", "[EOT]", "<|eos|>"),
    }
)
# These begin the next turn or close a text, but only where they are control tokens (`</s>` is HTML to gemma).
_END_IF_CONTROL = frozenset({"</s>", "<eos>", "<|user|>", "<|observation|>", "<｜User｜>"})


class TokenType(IntEnum):
    """tokenizer.ggml.token_type, the numbers of the GGUF format."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)


class MetadataFile(Protocol):
    """The part of gguf.GgufFile that is read here."""

    @property
    def path(self) -> Any: ...

    @property
    def kv(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Vocab:
    """A vocabulary of V tokens. Spellings are as stored: byte-level ones in the GPT-2 alphabet, SentencePiece ones with
    U+2581."""

    model: str  # "gpt2" or "llama"
    tokens: Sequence[str]  # [V]
    types: npt.NDArray[np.int32]  # [V] TokenType, corrected
    markers: Mapping[str, int]  # control, unknown and steering user-defined tokens
    literals: Mapping[str, int]  # user-defined tokens that are ordinary text
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    stop_ids: frozenset[int]

    @cached_property
    def kinds(self) -> list[int]:
        """`types` as plain numbers, which are compared ten times faster."""
        return [int(kind) for kind in self.types.tolist()]


def key(file: MetadataFile, name: str, kind: type, default: Any = None) -> Any:
    """Metadata `tokenizer.ggml.{name}`, or `default`; FormatError if it is not a `kind`."""
    value = file.kv.get(_KEY + name, default)
    if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise FormatError(f"{file.path}: metadata key {_KEY}{name} is not of type {kind.__name__}")
    return value


def array(file: MetadataFile, name: str, min_len: int) -> Sequence[Any] | None:
    """Metadata array `tokenizer.ggml.{name}` or None; FormatError if it is no array or shorter than `min_len`."""
    value = file.kv.get(_KEY + name)
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise FormatError(f"{file.path}: metadata key {_KEY}{name} is not an array")
    if len(value) < min_len:
        raise FormatError(f"{file.path}: metadata key {_KEY}{name} has {len(value):,} entries, fewer than the {min_len:,} tokens")
    return value


def numbers(file: MetadataFile, name: str, n: int, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
    """The first `n` entries of a metadata array of numbers, as [n] of `dtype`; None if the file has no such key."""
    value = array(file, name, n)
    if value is None:
        return None
    try:
        return np.array(np.asarray(value)[:n], dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"{file.path}: metadata key {_KEY}{name} is not an array of numbers") from None


def read_vocab(file: MetadataFile, model: str) -> Vocab:
    """Read and check the vocabulary; FormatError says what is missing or wrong. No token is decoded but the special ones."""
    tokens = array(file, "tokens", 1)
    if tokens is None:
        raise FormatError(f"{file.path}: metadata key {_KEY}tokens is missing, so the file has no vocabulary")
    if not isinstance(tokens[0], str):
        raise FormatError(f"{file.path}: metadata key {_KEY}tokens is not an array of strings")
    n = len(tokens)
    types = numbers(file, "token_type", n, np.int32)
    if types is None:
        types = np.full(n, TokenType.NORMAL, np.int32)
    ids = {name: _token_id(file, name, n) for name in ("bos", "eos", "eot", "eom", "unknown")}
    named = {i for name in ("bos", "eos", "eot", "eom") if (i := ids[name]) is not None}
    kinds = {i: int(types[i]) for i in {*np.flatnonzero(np.isin(types, _SPECIAL)).tolist(), *named}}
    spelled = {i: tokens[i] for i in kinds}
    for i, text in spelled.items():
        mistyped = kinds[i] == TokenType.USER_DEFINED and text in _END_OF_TURN
        if mistyped or (i in named and kinds[i] == TokenType.NORMAL and _BRACKETED.match(text)):
            types[i] = kinds[i] = TokenType.CONTROL
    literals = {text: i for i, text in spelled.items() if text and kinds[i] == TokenType.USER_DEFINED and not _steers(text)}
    markers = {text: i for i, text in spelled.items() if text and kinds[i] in _SPECIAL and text not in literals}
    stops = {i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None}
    for text, i in markers.items():
        if text in _END_OF_TURN or (text in _END_IF_CONTROL and kinds[i] == TokenType.CONTROL):
            stops.add(i)
    return Vocab(model, tokens, types, markers, literals, ids["bos"], ids["eos"], ids["unknown"], frozenset(stops))


def _token_id(file: MetadataFile, name: str, n: int) -> int | None:
    value: int | None = key(file, f"{name}_token_id", int)
    if value is None or value == 0xFFFFFFFF or value == -1:  # how converters write "none"
        return None
    if not 0 <= value < n:
        raise FormatError(f"{file.path}: metadata key {_KEY}{name}_token_id is {value:,}, but the vocabulary has {n:,} tokens")
    return value


def _steers(text: str) -> bool:
    """Whether a user-defined token of this spelling is a marker rather than ordinary text."""
    if not _BRACKETED.match(text):
        return False
    tag = re.fullmatch(r"</?([a-z][a-z0-9]*)\s*/?>", text)
    return tag is None or tag.group(1) not in _HTML
