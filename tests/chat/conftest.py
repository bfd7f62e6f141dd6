"""Scripted vocabularies: any list of pieces becomes tokens, so a test says exactly how text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds4py.chat import ChatFormat, open_format
from ds4py.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "deepseek-v4-encoding"
EOS = 0
CONTROLS = {"<eos>": 3, "<bos>": 3, "<|im_start|>": 3, "<|im_end|>": 3, "<think>": 4, "</think>": 4, "<tool_call>": 4}


def vocabulary(pieces: Sequence[str], controls: Mapping[str, int], **keys: Any) -> SimpleNamespace:
    """Tokens: the controls, all bytes, then the pieces; a raw byte of a piece is written as <0xEA>."""
    tokens = [*controls, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [*controls.values(), *[6] * 256, *[1] * len(pieces)]
    base = {"model": "llama", "tokens": tokens, "token_type": kinds, "eos_token_id": EOS, "add_space_prefix": False}
    kv: dict[str, Any] = {f"tokenizer.ggml.{key}": value for key, value in {**base, **keys}.items()}
    return SimpleNamespace(path="test.gguf", kv=kv)


@pytest.fixture
def scripted() -> Callable[[Sequence[str]], tuple[Tokenizer, list[int]]]:
    """scripted(["a", "ST", "<eos>"]) -> (tokenizer, the ids of these pieces)."""

    def make(pieces: Sequence[str]) -> tuple[Tokenizer, list[int]]:
        known = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256))]
        new = list(dict.fromkeys(piece for piece in pieces if piece not in known))
        order = {piece: i for i, piece in enumerate([*known, *new])}
        return load_tokenizer(vocabulary(new, CONTROLS)), [order[piece] for piece in pieces]

    return make


@pytest.fixture
def chat() -> Callable[..., tuple[ChatFormat, Tokenizer]]:
    """chat(template, ...) -> (format, tokenizer) of a file with that template (None: without)."""

    def make(
        template: str | None,
        *,
        controls: Mapping[str, int] = CONTROLS,
        override: str | None = None,
        tool_use: str | None = None,
        **keys: Any,
    ) -> tuple[ChatFormat, Tokenizer]:
        file = vocabulary(["a"], controls, **keys)
        if template is not None:
            file.kv["tokenizer.chat_template"] = template
        if tool_use is not None:
            file.kv["tokenizer.chat_template.tool_use"] = tool_use
        tokenizer = load_tokenizer(file)
        return open_format(file, tokenizer, override), tokenizer

    return make


@pytest.fixture
def golden_v4() -> Callable[[int], tuple[list[dict[str, Any]], str]]:
    """golden_v4(i) -> (message list, the prompt that DeepSeek's encoder gives for it) of test i of the V4 release."""

    def read(i: int) -> tuple[list[dict[str, Any]], str]:
        found = json.loads((GOLDEN / f"input_{i}.json").read_text("utf-8"))
        if isinstance(found, dict):
            found["messages"][0]["tools"] = found["tools"]
            found = found["messages"]
        return found, (GOLDEN / f"output_{i}.txt").read_text("utf-8")

    return read
