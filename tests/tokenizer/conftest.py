"""Small vocabularies made by hand, as GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds4py.tokenizer import Tokenizer, load_tokenizer
from ds4py.tokenizer.bpe import byte_alphabet

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"


def metadata(**keys: Any) -> SimpleNamespace:
    return SimpleNamespace(path="test.gguf", kv={f"tokenizer.ggml.{key}": value for key, value in keys.items()})


@pytest.fixture
def load() -> Callable[..., Tokenizer]:
    """load(model="gpt2", tokens=[...], ...) -> Tokenizer."""
    return lambda **keys: load_tokenizer(metadata(**keys))


@pytest.fixture
def byte_level() -> Callable[..., Tokenizer]:
    """byte_level({spelling: type}, merges, ...) -> all bytes (ids 0..255), what merges make, then the given tokens."""

    def make(extra: Mapping[str, int] | None = None, merges: Sequence[str] = (), **keys: Any) -> Tokenizer:
        tokens = [char for char, _ in sorted(byte_alphabet().items(), key=lambda item: item[1])]
        tokens += [merge.replace(" ", "") for merge in merges]
        kinds = [1] * len(tokens) + list((extra or {}).values())
        tokens += list(extra or {})
        return load_tokenizer(
            metadata(**{"model": "gpt2", "pre": "qwen2", "tokens": tokens, "token_type": kinds, "merges": merges, **keys})
        )

    return make


@pytest.fixture
def sentencepiece() -> Callable[..., Tokenizer]:
    """sentencepiece({spelling: score}, {spelling: type}, ...) -> UNK 0, BOS 1, EOS 2, bytes 3..258, then the given tokens."""

    def make(words: Mapping[str, float], extra: Mapping[str, int] | None = None, **keys: Any) -> Tokenizer:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *(extra or {})]
        kinds = [2, 3, 3, *[6] * 256, *[1] * len(words), *(extra or {}).values()]
        scores = [0.0] * 259 + list(words.values()) + [-1000.0] * len(extra or {})
        base = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores}
        return load_tokenizer(metadata(**{**base, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **keys}))

    return make


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """golden("texts") -> the file of that name in tests/golden/tokenizer; "command" in each tells how it was made."""
    return lambda name: json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def deepseek() -> Tokenizer:
    """The part of DeepSeek V4's vocabulary that the golden texts use, all bytes among it."""
    kv = json.loads((GOLDEN / "deepseek-v4.json").read_text("utf-8"))["kv"]
    return load_tokenizer(SimpleNamespace(path="deepseek-v4.json", kv=kv))
