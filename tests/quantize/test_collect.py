"""Collecting: the sums are those of torch hooks, observing changes no result, and data sets are cut as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import Tiny, make_tiny

from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import open_gguf
from ds4py.kernels import open_kernels
from ds4py.models import load_model
from ds4py.protocols import Span
from ds4py.quantize.collect import Limits, chunks, collect
from ds4py.quantize.dataset import Prompt, cut

NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip
IDS = [int(i) for i in np.random.default_rng(0).integers(0, 300, 90)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny("llama", tmp_path_factory.mktemp("collect") / "tiny.gguf")


def hooked(tiny: Tiny, pieces: list[list[int]]) -> dict[str, np.ndarray]:
    """Sum of squares of every Linear's inputs, by GGUF name, in float64."""
    sums: dict[str, np.ndarray] = {}

    def watch(name: str) -> Any:
        def hook(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            sums[name] = sums.get(name, 0) + (inputs[0].double() ** 2).sum((0, 1)).numpy()

        return hook

    handles = []
    for name, module in tiny.hf.named_modules():
        if isinstance(module, torch.nn.Linear):
            parts = name.split(".")
            gguf = "output.weight" if name == "lm_head" else f"blk.{parts[2]}.{NAMES[parts[-1]]}.weight"
            handles.append(module.register_forward_pre_hook(watch(gguf)))
    for piece in pieces:
        tiny.logits(piece)
    for handle in handles:
        handle.remove()
    return sums


@pytest.mark.parametrize("max_rows", [7, 64])
def test_sums_are_those_of_torch(tiny: Tiny, max_rows: int) -> None:
    g = open_gguf(tiny.path)
    kernels = open_kernels("cpu", threads=2, max_rows=max_rows)
    found = collect(load_model(g, kernels), kernels, [IDS[:50], IDS[50:]], "t.txt", Limits(chunk_len=32), lambda *progress: None)
    expected = hooked(tiny, [IDS[:32], IDS[32:50], IDS[50:82], IDS[82:]])
    assert set(found.imatrix.entries) == set(expected) and len(expected) == 3 * 7 + 1
    for name, entry in found.imatrix.entries.items():
        assert entry.counts.tolist() == [90], name
        assert np.abs(entry.sums / expected[name] - 1).max() < 0.01, name  # keys and values are float16 in the caches
    first = found.imatrix.entries["blk.0.attn_q.weight"]
    assert np.allclose(first.sums, expected["blk.0.attn_q.weight"], rtol=1e-6)
    assert (found.n_tokens, found.imatrix.n_chunks, found.imatrix.chunk_len, found.too_few) == (90, 4, 32, [])


def test_observing_changes_no_bit_of_a_result(tiny: Tiny) -> None:
    g = open_gguf(tiny.path)
    results = []
    for observed in (False, True):
        kernels: Any = open_kernels("cpu", threads=1, max_rows=8)
        model = load_model(g, kernels)
        if observed:
            kernels.observe()
        results.append(model.forward([Span(model.new_state(32, 0), IDS[:8], n_logits=8)]).logits.copy())
    assert np.array_equal(*results)


def test_observing_holds_for_programs_recorded_before(tiny: Tiny) -> None:
    kernels: Any = open_kernels("cpu", threads=1, max_rows=8)
    model = load_model(open_gguf(tiny.path), kernels)
    model.forward([Span(model.new_state(32, 0), IDS[:8], n_logits=8)])
    sums = kernels.observe()
    model.forward([Span(model.new_state(32, 0), IDS[:8], n_logits=8)])
    assert sums["output.weight"][-1] == 8


def test_too_few_samples_count_as_unknown(tiny: Tiny) -> None:
    kernels = open_kernels("cpu", threads=1, max_rows=16)
    found = collect(
        load_model(open_gguf(tiny.path), kernels), kernels, [IDS[:9]], "t", Limits(min_samples=10), lambda *progress: None
    )
    assert len(found.too_few) == 22 and (found.imatrix.entries["output.weight"].mean() == 1).all()


def test_limits_cut_prompts_and_tokens() -> None:
    prompts = [[1] * 5, [2] * 3, [3] * 4]
    assert list(map(len, chunks(prompts, Limits(chunk_len=4)))) == [4, 1, 3, 4]
    assert list(map(len, chunks(prompts, Limits(max_prompts=2, chunk_len=4)))) == [4, 1, 3]
    assert list(map(len, chunks(prompts, Limits(max_tokens=6, chunk_len=4)))) == [4, 1, 1]
    with pytest.raises(UsageError, match="no tokens"):
        chunks([[]], Limits())


def test_a_backend_that_cannot_observe_says_so(tiny: Tiny) -> None:
    kernels = open_kernels("reference")
    model = load_model(open_gguf(tiny.path), kernels)
    with pytest.raises(UnsupportedError, match="cannot collect"):
        collect(model, kernels, [IDS], "t", Limits(), lambda *progress: None)


def test_marked_prompts_are_rendered_ones() -> None:
    text = "\n\n===== DS4_IMATRIX_PROMPT p1 code think src =====\n<|user|>hi\nthere\n\n===== DS4_IMATRIX_PROMPT p2 =====\nsecond"
    assert cut(text, "x.txt") == [Prompt("<|user|>hi\nthere", True), Prompt("second", True)]


def test_lines_of_json_and_plain_text(tmp_path: Path) -> None:
    assert cut('"one"\n\n{"text": "two"}\n{"prompt": "three"}\n', "x.jsonl") == [Prompt("one"), Prompt("two"), Prompt("three")]
    assert cut("a\n\nb\n", "x.txt") == [Prompt("a\n\nb\n")]
    for text, path, why in (
        ("{", "x.jsonl", "line 1: not JSON"),
        ('"a"\n[1]', "x.jsonl", "line 2: neither"),
        ('{"text": 3}', "x.jsonl", "line 1: neither"),
        ("  \n", "x.txt", "no text"),
    ):
        with pytest.raises(FormatError, match=why):
            cut(text, path)
