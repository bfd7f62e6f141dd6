"""One tokenizer for all vocabularies: special tokens are cut out here, plain text goes to the vocabulary's own pieces.

The invariant: `encode(text)` gives no id of `vocab.markers`, whatever the text spells; only `special=True` and the control
segments of a `PromptText` do. It is enforced on the result, so no merge rule or odd vocabulary can break it. For text that
spells no marker the ids are llama.cpp's. BOS comes once or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from ds4py.errors import UsageError
from ds4py.tokenizer.detokenizer import Detokenizer
from ds4py.tokenizer.prompt import PromptText
from ds4py.tokenizer.special import Matcher
from ds4py.tokenizer.vocab import TokenType, Vocab

_USER_DEFINED = int(TokenType.USER_DEFINED)


class Pieces(Protocol):
    """What a kind of vocabulary does with plain text."""

    def encode(self, text: str) -> list[int]: ...

    def encode_bytes(self, data: bytes) -> list[int]: ...

    def spelled(self, text: str, kind: int) -> bytes:
        """The bytes of a token without special meaning, stored as `text`, of type `kind`."""
        ...


class Tokenizer:
    """Text to ids and back; immutable but for caches."""

    def __init__(self, vocab: Vocab, pieces: Pieces, add_bos: bool, add_space_prefix: bool, notes: tuple[str, ...] = ()) -> None:
        self.vocab = vocab
        self.vocab_size = len(vocab.tokens)
        self.bos_id = vocab.bos_id
        self.eos_id = vocab.eos_id
        self.stop_ids = vocab.stop_ids
        self.add_bos = add_bos and vocab.bos_id is not None
        self.notes = notes  # sentences for the user
        self._pieces = pieces
        self._space_prefix = add_space_prefix
        self._marker_ids = frozenset(vocab.markers.values())
        self._control_ids = frozenset(np.flatnonzero(np.isin(vocab.types, (TokenType.CONTROL, TokenType.UNKNOWN))).tolist())
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def markers(self) -> Matcher:
        """Finds the spellings that only a template may turn into tokens."""
        return Matcher(self.vocab.markers)

    @cached_property
    def _everything(self) -> Matcher:
        return Matcher({**self.vocab.literals, **self.vocab.markers})

    @cached_property
    def _literals(self) -> Matcher:
        return Matcher(self.vocab.literals)

    def encode(self, text: str, add_bos: bool = False, special: bool = False) -> list[int]:
        """Ids of `text`; half surrogates count as U+FFFD. special: spelled markers become their tokens, else they stay text.
        add_bos: begin with BOS if the vocabulary wants one and the text does not bring it."""
        ids: list[int] = []
        for part, token in (self._everything if special else self._literals).split(_valid(text)):
            if token is None:
                ids += self._encode_plain(part)
            else:
                ids.append(token)
        return self._with_bos(ids) if add_bos else ids

    def encode_prompt(self, prompt: PromptText, add_bos: bool = True) -> list[int]:
        """Ids of a rendered prompt: control segments become their token, all else is plain. add_bos as in `encode`.
        Raises UsageError if a control segment is no token of this vocabulary."""
        ids: list[int] = []
        for text, is_control in prompt.segments:
            if not is_control:
                ids += self.encode(text)
            elif text in self.vocab.markers:
                ids.append(self.vocab.markers[text])
            else:
                raise UsageError(f"the prompt uses the control token {text!r}, which this model's vocabulary does not have")
        return self._with_bos(ids) if add_bos else ids

    def is_control(self, token: int) -> bool:
        """Whether `token` is printed as nothing (control and unknown tokens)."""
        return token in self._control_ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes `token` stands for; for a control token its spelling. Ids outside the vocabulary (padded heads) give b""."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def all_bytes(self) -> list[bytes]:
        """`token_bytes` of every token, [V]; half a second for 262,144 of them."""
        kinds, special = self.vocab.kinds, self._marker_ids | self._control_ids
        spelled = self._pieces.spelled
        return [
            spelled(text, kind) if kind != _USER_DEFINED and token not in special else self._special_bytes(token, text, kind)
            for token, (text, kind) in enumerate(zip(self.vocab.tokens, kinds, strict=True))
        ]

    def token_text(self, token: int) -> str:
        """`token` for people: its bytes as text, broken characters as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of a whole id sequence, from its true start. special: control tokens are spelled out."""
        stream = self.detokenizer(special=special, text_start=True)
        return "".join(map(stream.push, ids)) + stream.flush()

    def detokenizer(self, special: bool = False, text_start: bool = False, show: Set[int] = frozenset()) -> Detokenizer:
        """A stream of text that continues other text, or begins one (text_start). special: control tokens are spelled out, else
        only those in `show`."""
        visible = self.token_bytes if special else partial(self._visible_bytes, show)
        return Detokenizer(visible, text_start and self._space_prefix)

    def _visible_bytes(self, show: Set[int], token: int) -> bytes:
        return b"" if self.is_control(token) and token not in show else self.token_bytes(token)

    def _find_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            return b""
        return self._special_bytes(token, self.vocab.tokens[token], int(self.vocab.types[token]))

    def _special_bytes(self, token: int, text: str, kind: int) -> bytes:
        """The bytes of a token of any kind."""
        if token in self._marker_ids or token in self._control_ids:
            return text.encode("utf-8", "surrogateescape")
        if kind == _USER_DEFINED:
            return (text.replace("\u2581", " ") if self.vocab.model == "llama" else text).encode("utf-8", "surrogateescape")
        return self._pieces.spelled(text, kind)

    def _encode_plain(self, text: str) -> list[int]:
        ids = self._pieces.encode(text)
        if self._marker_ids.isdisjoint(ids):
            return ids
        spelled: list[int] = []  # a merge made a marker: spell it out byte by byte
        for token in ids:
            spelled += self._pieces.encode_bytes(self.token_bytes(token)) if token in self._marker_ids else [token]
        return spelled

    def _with_bos(self, ids: list[int]) -> list[int]:
        if not self.add_bos or self.bos_id is None or (ids and ids[0] == self.bos_id):
            return ids
        return [self.bos_id, *ids]


def _valid(text: str) -> str:
    """`text` with surrogate pairs joined and half ones replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
