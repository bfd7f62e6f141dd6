"""tokenizer.json: byte-level BPE as it stands, and SentencePiece models that were rewritten as BPE.

The second kind (spaces as U+2581, bytes as `<0x0A>`) is known by its byte fallback. GGUF wants a score per token for it: a token
made by an earlier merge scores higher. That is the same tokenizer only if, first, all merges that make one token stand
together and, second, no two neighbours that would make a token lack a merge; both are checked, and what fails is refused, for
there is a tokenizer.model somewhere that says it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ds4py.convert.checkpoint import listed
from ds4py.convert.splits import pre_tokenizer
from ds4py.convert.vocabulary import PAD_SCORE, Token, Vocabulary, added_type, assemble
from ds4py.errors import FormatError, UnsupportedError
from ds4py.tokenizer import TokenType

Added = Mapping[str, tuple[int, bool]]  # spelling -> (id, special)
Pair = tuple[str, str]


def is_byte_level(table: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json spells bytes in GPT-2's alphabet (else it is a SentencePiece model)."""
    model = table.get("model")
    fallback = isinstance(model, dict) and model.get("byte_fallback") is True
    return not fallback and '"ByteLevel"' in repr(table.get("pre_tokenizer")).replace("'", '"')


def added_tokens(table: Mapping[str, Any], path: Path) -> dict[str, tuple[int, bool]]:
    """The added tokens, by spelling. FormatError for two of one id, or one spelling with two ids."""
    rows = table.get("added_tokens") or []
    found: dict[str, tuple[int, bool]] = {}
    ids: dict[int, str] = {}
    if not isinstance(rows, list):
        raise FormatError(f"{path}: added_tokens is no list")
    for row in rows:
        text, i = (row.get("content"), row.get("id")) if isinstance(row, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(i, int) or isinstance(i, bool):
            raise FormatError(f"{path}: the added token {row!r:.80} has no text or no id")
        if ids.setdefault(i, text) != text:
            raise FormatError(f"{path}: the added tokens {ids[i]!r:.60} and {text!r:.60} have the same id {i}")
        if text in found and found[text][0] != i:
            raise FormatError(f"{path}: the added token {text!r:.60} has the ids {found[text][0]} and {i}")
        found[text] = (i, bool(row.get("special")))
    return found


def read_byte_level(table: Mapping[str, Any], path: Path, override: str = "") -> Vocabulary:
    """A byte-level vocabulary. `override` names its pre-tokenizer."""
    vocab, merges = _model(table, path)
    pre = pre_tokenizer(table, path, override)
    found = _with_added({i: Token(text) for text, i in vocab.items()}, vocab, added_tokens(table, path), path)
    tokens, notes = assemble(found, path)
    if not any(len(text) == 1 for text in vocab):
        raise FormatError(f"{path}: the vocabulary has no token for any single byte")
    if any(" " in part for pair in merges for part in pair):
        raise FormatError(f"{path}: a merge has a space in it, which no byte-level merge has")
    unknown = [f"{left} {right}" for left, right in merges if left + right not in vocab or not {left, right} <= vocab.keys()]
    if unknown:
        raise FormatError(f"{path}: the merges {listed(unknown)} are of tokens that the vocabulary lacks")
    if table.get("normalizer") is not None:
        notes = (*notes, "the tokenizer normalises text to NFC and GGUF readers do not: text in other forms gets other ids")
    return Vocabulary("gpt2", pre, tokens, [f"{left} {right}" for left, right in merges], False, notes)


def read_rewritten(table: Mapping[str, Any], path: Path) -> Vocabulary:
    """A SentencePiece vocabulary from its BPE form. UnsupportedError if scores cannot express the merges."""
    vocab, merges = _model(table, path)
    added = added_tokens(table, path)
    model = table["model"]
    bytes_too = model.get("byte_fallback") is True
    unknown = model.get("unk_token")
    normal = {text for text in vocab if text not in added and text != unknown and not (bytes_too and _is_byte(text))}
    scores = _scores(merges, normal, path)
    last = -float(len(scores))
    found: dict[int, Token] = {}
    for text, i in vocab.items():
        kind = TokenType.NORMAL if text in normal else TokenType.BYTE if bytes_too and _is_byte(text) else TokenType.USER_DEFINED
        found[i] = Token(text, kind, scores.get(text, last) if text in normal else 0.0)
    found = _with_added(found, vocab, added, path)
    if unknown in vocab:
        found[vocab[unknown]] = Token(unknown, TokenType.UNKNOWN)
    tokens, notes = assemble(found, path)
    return Vocabulary("llama", "default", tokens, add_space_prefix=_adds_space(table), notes=notes)


def _model(table: Mapping[str, Any], path: Path) -> tuple[dict[str, int], list[Pair]]:
    model = table.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise UnsupportedError(f"{path}: a tokenizer of type {kind!r:.40} cannot be converted; BPE can")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(isinstance(i, int) and not isinstance(i, bool) for i in vocab.values()):
        raise FormatError(f"{path}: the vocabulary is no table of ids")
    if len(set(vocab.values())) < len(vocab):
        raise FormatError(f"{path}: two tokens of the vocabulary have the same id")
    return vocab, list(_merges(model.get("merges"), path))


def _merges(rows: Any, path: Path) -> Iterator[Pair]:
    """Merges in both spellings: "a b" and ["a", "b"]."""
    if not isinstance(rows, list):
        raise FormatError(f"{path}: the merges are no list")
    for row in rows:
        pair = tuple(row.split(" ")) if isinstance(row, str) else tuple(row) if isinstance(row, list) else ()
        if len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise FormatError(f"{path}: {row!r:.60} is no merge")
        yield pair


def _with_added(found: dict[int, Token], vocab: Mapping[str, int], added: Added, path: Path) -> dict[int, Token]:
    """Added tokens take their places: a new id, or the id that the vocabulary gives to the same spelling."""
    for text, (i, special) in added.items():
        if i in found and found[i].text != text:
            raise FormatError(f"{path}: the added token {text!r:.60} has id {i}, which is {found[i].text!r:.60} already")
        if vocab.get(text, i) != i:
            raise FormatError(f"{path}: the added token {text!r:.60} has id {i}, and {vocab[text]} in the vocabulary")
        found[i] = Token(text, added_type(text, special), PAD_SCORE if i not in found else found[i].score)
    return found


def _scores(merges: Sequence[Pair], normal: set[str], path: Path) -> dict[str, float]:
    """Score of every token that merges make: minus its place among them."""
    scores: dict[str, float] = {}
    before = ""
    for left, right in merges:
        made = left + right
        if made != before and made in scores:
            raise UnsupportedError(
                f"{path}: the merges that make {made!r:.40} do not stand together; convert with its tokenizer.model"
            )
        scores.setdefault(made, -float(len(scores)))
        before = made
    pairs = set(merges)
    for text in normal:
        for at in range(1, len(text)):
            if text[:at] in normal and text[at:] in normal and (text[:at], text[at:]) not in pairs:
                raise UnsupportedError(
                    f"{path}: {text[:at]!r:.40} and {text[at:]!r:.40} make a token but have no merge, which scores cannot "
                    "express; convert with its tokenizer.model"
                )
    return scores


def _adds_space(table: Mapping[str, Any]) -> bool:
    """Whether a space is put before the text: a Prepend in the normaliser, or a Metaspace that is not told to let it be."""
    normalizer, pre = table.get("normalizer"), table.get("pre_tokenizer")
    steps = [normalizer, *((normalizer or {}).get("normalizers") or []), pre, *((pre or {}).get("pretokenizers") or [])]
    for step in steps:
        if isinstance(step, dict) and step.get("type") == "Prepend":
            return True
        if isinstance(step, dict) and step.get("type") == "Metaspace":
            return bool(step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never")
    return False


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")
