"""Damaged and foreign vocabularies give one sentence that names the file and the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ds4py.errors import Ds4Error, FormatError, UnsupportedError
from ds4py.tokenizer import Tokenizer

GOOD: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}
BAD: list[tuple[dict[str, Any], type[Ds4Error], str]] = [
    ({"model": None}, FormatError, "tokenizer.ggml.model is missing"),
    ({"model": "rwkv"}, UnsupportedError, "'rwkv' is not supported"),
    ({"model": 5}, FormatError, "tokenizer.ggml.model is not of type str"),
    ({"tokens": None}, FormatError, "tokenizer.ggml.tokens is missing"),
    ({"tokens": []}, FormatError, "tokenizer.ggml.tokens has 0 entries"),
    ({"tokens": [1, 2]}, FormatError, "not an array of strings"),
    ({"tokens": "abc"}, FormatError, "not an array"),
    ({"token_type": [1, 1]}, FormatError, "token_type has 2 entries, fewer than the 3 tokens"),
    ({"token_type": ["x", "y", "z"]}, FormatError, "token_type is not an array of numbers"),
    ({"token_type": 7}, FormatError, "token_type is not an array"),
    ({"merges": None}, FormatError, "merges is missing"),
    ({"merges": [1]}, FormatError, "merges is not an array of strings"),
    ({"eos_token_id": 3}, FormatError, "eos_token_id is 3, but the vocabulary has 3 tokens"),
    ({"bos_token_id": "x"}, FormatError, "bos_token_id is not of type int"),
    ({"add_bos_token": 1}, FormatError, "add_bos_token is not of type bool"),
    ({"model": "llama", "scores": [0.0]}, FormatError, "scores has 1 entries"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "sentence"), BAD)
def test_refused_when_loaded(
    load: Callable[..., Tokenizer], change: dict[str, Any], error: type[Ds4Error], sentence: str
) -> None:
    keys = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(error, match=sentence) as caught:
        load(**keys)
    assert str(caught.value).startswith("test.gguf: ")


@pytest.mark.parametrize("merges", [["a x"], ["a"], ["a b c"], ["a \udcff"]])
def test_merges_that_do_not_fit_are_refused_at_first_use(load: Callable[..., Tokenizer], merges: list[str]) -> None:
    with pytest.raises(FormatError, match="test.gguf: metadata key tokenizer.ggml.merges does not fit the vocabulary"):
        load(**{**GOOD, "merges": merges}).encode("ab")


def test_the_good_one_loads(load: Callable[..., Tokenizer]) -> None:
    assert load(**GOOD).encode("ab") == [2]
    assert load(**{key: value for key, value in GOOD.items() if key != "token_type"}).encode("ab") == [2]


def test_strings_that_are_not_utf8_do_no_harm(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(
        model="llama", tokens=["a", "\udcff", "<x\udcfe>"], token_type=[1, 1, 3], scores=[0.0, 0.0, 0.0], add_space_prefix=False
    )
    assert tokenizer.encode("a") == [0]
    assert tokenizer.decode([0, 1, 2], special=True) == "a\ufffd<x\ufffd>"
    byte_level = load(**{**GOOD, "tokens": ["a", "b", "ab", "\udcff"], "token_type": [1, 1, 1, 3]})
    assert byte_level.encode("ab") == [2]
