"""BOS comes once or not at all (field case FC-17), and answers end at every end-of-turn token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ds4py.tokenizer import PromptText, Tokenizer

Make = Callable[..., Tokenizer]
WITH_BOS = PromptText((("<bos>", True), ("a", False)))
PLAIN = PromptText.plain("a")


@pytest.fixture
def bos(byte_level: Make) -> Make:
    return lambda **keys: byte_level({"<bos>": 3, "<eos>": 3}, **keys)


def test_template_and_tokenizer_give_one_bos(bos: Make) -> None:
    tokenizer = bos(bos_token_id=256, add_bos_token=True)
    assert tokenizer.encode_prompt(WITH_BOS) == tokenizer.encode_prompt(PLAIN) == [256, 97]
    assert tokenizer.encode_prompt(PLAIN, add_bos=False) == [97]
    assert tokenizer.encode("<bos>a", add_bos=True, special=True) == tokenizer.encode("a", add_bos=True) == [256, 97]
    assert tokenizer.encode("", add_bos=True) == [256]


def test_bos_spelled_by_a_user_is_text(bos: Make) -> None:
    tokenizer = bos(bos_token_id=256, add_bos_token=True)
    assert tokenizer.encode("<bos>", add_bos=True) == [256, *b"<bos>"]


def test_template_alone_decides_without_add_bos(bos: Make) -> None:
    tokenizer = bos(bos_token_id=256, add_bos_token=False)
    assert tokenizer.encode_prompt(WITH_BOS) == [256, 97]
    assert tokenizer.encode_prompt(PLAIN) == tokenizer.encode("a", add_bos=True) == [97]


@pytest.mark.parametrize("keys", [{}, {"add_bos_token": True}, {"add_bos_token": True, "bos_token_id": 0xFFFFFFFF}])
def test_a_model_without_bos_gets_none(bos: Make, keys: dict[str, int]) -> None:
    tokenizer = bos(**keys)
    assert tokenizer.bos_id is None and not tokenizer.add_bos
    assert tokenizer.encode("a", add_bos=True) == [97]


def test_defaults_by_kind(byte_level: Make, sentencepiece: Make) -> None:
    assert sentencepiece({"a": 0.0}).add_bos
    assert not byte_level({"<bos>": 3}, bos_token_id=256).add_bos
    assert byte_level({"<bos>": 3}, bos_token_id=256, pre="llama-bpe").add_bos


def test_stop_ids(byte_level: Make) -> None:
    extra = {"<|im_end|>": 3, "<|endoftext|>": 3, "<|user|>": 3, "<|eot_id|>": 4, "</s>": 4, "<|other|>": 3, "end": 1}
    tokenizer = byte_level(extra, eos_token_id=262, eot_token_id=261)
    assert {tokenizer.vocab.tokens[i] for i in tokenizer.stop_ids} == {
        "<|im_end|>",
        "<|endoftext|>",
        "<|user|>",
        "<|eot_id|>",
        "<|other|>",
        "end",
    }
