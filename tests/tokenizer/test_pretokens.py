"""Where each kind of splitting cuts: pieces worked out by hand from the definitions, and nothing is ever lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ds4py.errors import UnsupportedError
from ds4py.tokenizer import Tokenizer
from ds4py.tokenizer.bpe import BpePieces, byte_alphabet
from ds4py.tokenizer.pretokens import known_names

Make = Callable[..., Tokenizer]
TEXT = "I'M  don't 12345 x=1;\n\n  \u4f60\u597da\u0301"
CASES = {  # pieces joined by bars
    "gpt-2": "I|'|M| | don|'t| 12345| x|=|1|;|\n\n | \u4f60\u597da|\u0301",
    "smollm": "I|'|M| | don|'t| |1|2|3|4|5| x|=|1|;|\n\n | \u4f60\u597da|\u0301",
    "qwen2": "I|'M| | don|'t| |1|2|3|4|5| x|=|1|;\n\n| | \u4f60\u597da|\u0301",
    "qwen35": "I|'M| | don|'t| |1|2|3|4|5| x|=|1|;\n\n| | \u4f60\u597da\u0301",
    "llama-bpe": "I|'M| | don|'t| |123|45| x|=|1|;\n\n| | \u4f60\u597da|\u0301",
    "glm4": "I|'M| | don|'t| |123|45| x|=|1|;\n\n| | \u4f60\u597da|\u0301",
    "deepseek-v3": "I|'M| | don|'t| |123|45| x|=|1|;\n\n|  |\u4f60\u597d|a\u0301",
    "joyai-llm": "I|'M| | don|'t| |123|45| x|=|1|;\n\n|  |\u4f60\u597d|a\u0301",  # DeepSeek V4
    "deepseek-coder": "I|'|M| | don|'|t| |1|2|3|4|5| x|=|1|;|\n|\n| | |\u4f60\u597d|a|\u0301",
    "gpt-4o": "I'M| | don't| |123|45| x|=|1|;\n\n| | \u4f60\u597da\u0301",
    "default": "I|'|M| | don|'|t| |123|45| x|=|1|;|\n\n | \u4f60\u597da|\u0301",
}


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    pieces = tokenizer._pieces
    assert isinstance(pieces, BpePieces)
    alphabet = byte_alphabet()
    cut = pieces._backend.pre_tokenizer.pre_tokenize_str(text)
    return [bytes(alphabet[char] for char in word).decode("utf-8", "replace") for word, _ in cut]


@pytest.mark.parametrize("pre", sorted(CASES))
def test_cuts(byte_level: Make, pre: str) -> None:
    assert "|".join(words(byte_level(pre=pre), TEXT)) == CASES[pre]


@pytest.mark.parametrize("pre", known_names())
def test_every_known_splitting_works_and_loses_nothing(byte_level: Make, pre: str) -> None:
    text = TEXT + "  XMLHttpRequest \uff01 \u0416\u0436 \u1100\u3042 $10.00 a\r\nb\t\tc   "
    tokenizer = byte_level(pre=pre)
    assert "".join(words(tokenizer, text)) == tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_splitting_is_refused_by_name(byte_level: Make) -> None:
    with pytest.raises(UnsupportedError, match="'mystery-bpe'.*supported are"):
        byte_level(pre="mystery-bpe")


def test_a_file_without_pre_says_what_it_got(load: Make, byte_level: Make) -> None:
    assert byte_level().notes == ()
    tokenizer = load(model="gpt2", tokens=["a"], merges=[])
    assert "default" in tokenizer.notes[0]


def test_whole_words_skip_merging(byte_level: Make) -> None:
    """tiktoken's rule: a word that is a token as it stands is that token, though no merge leads to it."""
    assert byte_level({"abc": 1}, pre="llama-bpe").encode("abc") == [256]
    assert byte_level({"abc": 1}, pre="qwen2").encode("abc") == [97, 98, 99]
