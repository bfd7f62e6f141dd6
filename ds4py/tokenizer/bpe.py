"""Byte-level BPE ("gpt2" vocabularies) over the `tokenizers` library.

The idea: the library does the cutting and merging; this file gives it the GGUF's vocabulary, merges and splitting, and nothing
else of its machinery: no added tokens, no post-processing, so it cannot make a special token. It is built when the first text is
encoded (150,000 merges take about 0.3 s), since many commands never encode any.
A character whose bytes the vocabulary lacks has no ids at all and is lost, as everywhere (SmolLM2 has no U+0004).
Rejected: an own merge loop in Python (ten times slower on long prompts).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ds4py.errors import FormatError
from ds4py.tokenizer.pretokens import Splitting
from ds4py.tokenizer.vocab import TokenType, Vocab

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_UNUSED = int(TokenType.UNUSED)


def byte_alphabet() -> dict[str, int]:
    """The GPT-2 alphabet: printable character -> the byte it stands for. Bytes that print stand for themselves, the others, in
    order, are the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class BpePieces:
    """Plain text to ids and back for one byte-level vocabulary; immutable but for what it builds on first use."""

    def __init__(self, vocab: Vocab, merges: Sequence[str], split: Splitting, path: object) -> None:
        self._vocab = vocab
        self._merges = merges
        self._split = split
        self._path = path
        self._bytes = byte_alphabet()
        # character -> the one whose number is the byte; of those below U+0100 that are not in the alphabet, none
        self._latin = {byte: 0xFFFF for byte in range(256)} | {ord(char): byte for char, byte in self._bytes.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of valid Unicode `text`. Raises FormatError at the first call if merges and vocabulary do not fit together."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """One token per byte, without merging; bytes that the vocabulary lacks are skipped."""
        return [self._byte_ids[byte] for byte in data if byte in self._byte_ids]

    def spelled(self, text: str, kind: int) -> bytes:
        """What a normal token that is stored as `text` stands for."""
        if kind == _UNUSED:
            return b""
        try:
            return text.translate(self._latin).encode("latin-1")
        except UnicodeEncodeError:  # not in the alphabet: stored as it reads
            return text.encode("utf-8", "surrogateescape")

    @cached_property
    def _ids(self) -> dict[str, int]:
        tokens = list(self._vocab.tokens)
        ids = dict(zip(tokens, range(len(tokens)), strict=True))
        try:
            "".join(tokens).encode()
        except UnicodeEncodeError:  # the library takes valid text only, and nothing else can be spelled anyway
            ids = {text: i for text, i in ids.items() if not any("\ud800" <= char <= "\udfff" for char in text)}
        return ids

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        return {byte: self._ids[char] for char, byte in self._bytes.items() if char in self._ids}

    @cached_property
    def _backend(self) -> Backend:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers

        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in self._merges)]
        try:
            model = models.BPE(vocab=self._ids, merges=pairs, ignore_merges=self._split.whole_words)
        except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
            raise FormatError(f"{self._path}: metadata key tokenizer.ggml.merges does not fit the vocabulary ({error})") from None
        backend = Tokenizer(model)
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self._split.patterns]
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        return backend
