"""Ids equal those of programs we did not write (tests/scripts/golden_tokenizer.py records them and compares many more texts)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ds4py.gguf import open_gguf
from ds4py.tokenizer import Tokenizer, load_tokenizer

Golden = Callable[[str], Any]


def check(tokenizer: Tokenizer, golden: Golden, name: str) -> None:
    record, texts = golden(name), golden("texts")
    assert len(texts) == len(record["ids"]) == len(record["special"]) > 300
    n_plain = n_special = 0
    for text, ids, special in zip(texts, record["ids"], record["special"], strict=True):
        if ids is not None:
            assert tokenizer.encode(text) == ids, repr(text)
            n_plain += 1
        if special is not None:
            assert tokenizer.encode(text, special=True) == special, repr(text)
            n_special += 1
    assert n_plain > len(texts) - 10


@pytest.mark.parametrize("name", ["deepseek-v4", "qwen2", "qwen35"])
def test_ids_of_the_vocabularies_own_programs(name: str, golden: Golden) -> None:
    check(load_tokenizer(SimpleNamespace(path=name, kv=golden(name)["kv"])), golden, name)


@pytest.mark.parametrize(("model", "name"), [("smollm2", "smollm2"), ("gemma", "gemma3"), ("qwen", "qwen25-coder")])
def test_ids_of_llama_cpp_on_real_models(model: str, name: str, golden: Golden, request: pytest.FixtureRequest) -> None:
    check(load_tokenizer(open_gguf(request.getfixturevalue(f"{model}_path"))), golden, name)


@pytest.mark.parametrize("model", ["gemma", "qwen"])
def test_real_models_give_every_golden_text_back(model: str, golden: Golden, request: pytest.FixtureRequest) -> None:
    tokenizer = load_tokenizer(open_gguf(request.getfixturevalue(f"{model}_path")))
    markers = set(tokenizer.vocab.markers.values())
    for text in golden("texts"):
        ids = tokenizer.encode(text)
        assert markers.isdisjoint(ids)
        want = text.replace("\u2581", " ") if model == "gemma" else text  # SentencePiece cannot tell U+2581 from a space
        assert tokenizer.decode(ids) == want
        stream = tokenizer.detokenizer()
        assert "".join(map(stream.push, ids)) + stream.flush() == want


def test_start_up_decodes_no_vocabulary(gemma_path: Any) -> None:
    """Loading 262,144 tokens takes milliseconds, since only the special ones are looked at."""
    import time

    file = open_gguf(gemma_path)
    times = []
    for _ in range(3):
        start = time.process_time()
        tokenizer = load_tokenizer(file)
        times.append(time.process_time() - start)
    assert tokenizer.vocab_size == 262_144 and not isinstance(tokenizer.vocab.tokens, list)
    assert min(times) < 0.3
