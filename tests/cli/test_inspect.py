"""--inspect on files made for it: models, support files, files that cannot run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.cli.draftable import drafters_for, support_kind
from ds4py.cli.inspect import inspect, size
from ds4py.cli.terminal import Terminal
from ds4py.gguf import GgufFile, NewTensor, open_gguf, write_gguf


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def made(architecture: str, *names: str, **keys: Any) -> GgufFile:
        kv = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}
        write_gguf(tmp_path / "m.gguf", kv, [NewTensor.of(name, np.zeros((2, 32), np.float32)) for name in names])
        return open_gguf(tmp_path / "m.gguf")

    return made


def shown(g: GgufFile) -> str:
    stream = io.StringIO()
    inspect(g, 4096, Terminal(stream, False, False))
    return stream.getvalue()


@pytest.mark.parametrize(
    "architecture, names, keys, kind",
    [
        ("llama", ["token_embd.weight", "blk.0.attn_norm.weight"], {}, None),
        ("eagle3", ["fc.weight"], {}, "an EAGLE-3 draft"),
        ("dflash", ["fc.weight"], {}, "a DFlash draft"),
        ("dflash", ["fc.weight", "markov_w1.weight"], {}, "a DSpark draft"),
        ("deepseek4-dspark", ["mtp.0.main_proj.weight"], {}, "a DSpark support file for DeepSeek V4 Flash"),
        ("deepseek4", ["mtp.0.main_proj.weight", "mtp.2.markov_w1.weight"], {}, "a DSpark support file"),
        ("deepseek4", ["mtp.0.attn_norm.weight"], {}, "a one-stage MTP file"),
        (
            "qwen3next",
            ["blk.48.nextn.eh_proj.weight", "token_embd.weight"],
            {"nextn_predict_layers": 1},
            "an MTP block without its model",
        ),
        (
            "glm4moe",
            ["blk.0.attn_norm.weight", "blk.46.nextn.eh_proj.weight", "token_embd.weight"],
            {"nextn_predict_layers": 1},
            None,
        ),
    ],
)
def test_support_files_are_known_by_their_marks(
    make: Any, architecture: str, names: list[str], keys: dict[str, Any], kind: str | None
) -> None:
    assert support_kind(make(architecture, *names, **keys)) == kind


def test_built_in_mtp_is_seen(make: Any) -> None:
    names = ["token_embd.weight", "blk.0.attn_norm.weight", "blk.46.nextn.eh_proj.weight"]
    found = dict(drafters_for(make("glm4moe", *names, nextn_predict_layers=1)))
    assert found["built-in MTP"].startswith("yes: 1 MTP block(s), 1 tensors")
    assert dict(drafters_for(make("glm4moe", *names[:2], nextn_predict_layers=1)))["built-in MTP"].endswith("stripped")
    assert dict(drafters_for(make("llama", *names[:2])))["built-in MTP"].startswith("no")
    assert all("yes" in found[name] for name in ("n-gram", "draft model"))


def test_a_file_that_cannot_run_is_still_described(make: Any) -> None:
    text = shown(make("rwkv7", "token_embd.weight", block_count=3))
    assert "rwkv7" in text and "layers            3" in text
    assert "cannot run" in text and "'rwkv7'" in text and "supported are" in text


def test_a_model_with_tensors_missing_is_found_out(make: Any) -> None:
    text = shown(
        make("llama", "token_embd.weight", block_count=1, embedding_length=32, context_length=64, feed_forward_length=32)
    )
    assert "cannot run" in text


def test_a_support_file_says_what_it_is(make: Any) -> None:
    assert "this is a DSpark draft: it drafts for another model" in shown(make("dflash", "fc.weight", "markov_w1.weight"))


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 98_362_432, 1.5e12, 2e16)] == ["0 B", "999 B", "98.4 MB", "1.5 TB", "2e+04 TB"]
