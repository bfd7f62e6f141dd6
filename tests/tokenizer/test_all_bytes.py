"""The bytes of a whole vocabulary at once are those of its tokens one by one, and cost little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ds4py.gguf import open_gguf
from ds4py.tokenizer import Tokenizer, load_tokenizer
from ds4py.tokenizer.bpe import byte_alphabet
from ds4py.tokenizer.vocab import TokenType

Make = Callable[..., Tokenizer]


def assert_alike(tokenizer: Tokenizer) -> None:
    assert tokenizer.all_bytes() == [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]


def test_byte_level(byte_level: Make) -> None:
    odd = {"<|x|>": 3, "<think>": 4, "[PAD1]": 5, "<br>": 4, "caf\xe9 noir": 1, "\u4f60": 1, "": 1, "\x80": 1}
    tokenizer = byte_level(odd, ["\u0120 f", "\u0120f o"])
    assert_alike(tokenizer)
    found = dict(zip(odd, tokenizer.all_bytes()[258:], strict=True))
    assert found["caf\xe9 noir"] == "caf\xe9 noir".encode(), "a space is not in the alphabet: the text is stored as it reads"
    assert found["<|x|>"] == b"<|x|>" and found["[PAD1]"] == b"" and found["\x80"] == b"\xc2\x80"
    assert tokenizer.all_bytes()[:256] == [bytes([byte]) for byte in range(256)] and len(byte_alphabet()) == 256


def test_sentencepiece(sentencepiece: Make) -> None:
    tokenizer = sentencepiece({"\u2581a": -1.0, "b\u2581": -2.0}, {"\u2581\u2581": 4, "<|x|>": 3, "unused": 5, "<0xZZ>": 6})
    assert_alike(tokenizer)
    assert tokenizer.all_bytes()[259:] == [b" a", b"b ", b"  ", b"<|x|>", b"", b""]
    assert tokenizer.all_bytes()[3:259] == [bytes([byte]) for byte in range(256)]


def test_types_are_looked_up_as_numbers(sentencepiece: Make) -> None:
    """It took 60 microseconds a token, 16 s for 262,144 of them: numpy scalars compared with members of an enum."""
    kinds = sentencepiece({"a": -1.0}).vocab.kinds
    assert all(type(kind) is int for kind in kinds) and kinds[3] == TokenType.BYTE and kinds[259] == TokenType.NORMAL


def test_a_real_byte_level_vocabulary(smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(open_gguf(smollm2_path))
    assert_alike(tokenizer)
    ids = tokenizer.encode("The sea is wide, \u4f60\u597d.\n")
    assert b"".join(tokenizer.all_bytes()[token] for token in ids).decode() == "The sea is wide, \u4f60\u597d.\n"


def test_a_real_sentencepiece_vocabulary(gemma_path: Path) -> None:
    tokenizer = load_tokenizer(open_gguf(gemma_path))
    found = tokenizer.all_bytes()
    assert len(found) == 262144
    some = [*range(3000), *range(3000, 262144, 97)]
    assert [found[token] for token in some] == [tokenizer.token_bytes(token) for token in some]
