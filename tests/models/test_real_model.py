"""SmolLM2 as people download it, against transformers' float32 model of the same file.

The reference backend must give its logits; the CPU backend, which rounds activations to 8 bits, must choose tokens as good as
llama.cpp's. The other two real models are scored by `scripts/fp32_regret.py`, which needs minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripts.fp32_regret import GOLDEN, Score, bound, fp32_model, greedy, regrets

from ds4py.gguf import open_gguf
from ds4py.kernels import open_kernels
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Span

PROMPTS = json.loads(GOLDEN.read_text())["SmolLM2-135M-Instruct.Q4_1.gguf"]["prompts"]


@pytest.fixture(scope="module")
def judge(smollm2_path: Path) -> Any:
    return fp32_model(smollm2_path)


def test_reference_logits(smollm2_path: Path, judge: Any) -> None:
    ids = PROMPTS["edit"]["prompt_ids"][:64]
    model = load_model(open_gguf(smollm2_path), ReferenceKernels(), kv_dtype="float32")
    ours = model.forward([Span(model.new_state(len(ids), slack=0), ids, n_logits=len(ids))]).of(0)
    with torch.inference_mode():
        theirs = judge(torch.tensor([ids])).logits[0].numpy()
    assert theirs.std() > 1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)


def test_cpu_greedy_tokens_are_as_good_as_llama_cpps(smollm2_path: Path, judge: Any) -> None:
    kernels = open_kernels("cpu", threads=2)
    model = load_model(open_gguf(smollm2_path), kernels)
    _, n_argmax, worst = bound(PROMPTS)
    assert (n_argmax, round(worst, 2)) == (307, 1.04)
    texts = {name: greedy(model, kernels, p["prompt_ids"], 64) for name, p in PROMPTS.items()}
    score = Score.of([r for name, p in PROMPTS.items() for r in regrets(judge, p["prompt_ids"], texts[name])])
    assert score.n_tokens == 320 and score.n_argmax >= n_argmax and score.worst <= worst, score
    distinct = {token for text in texts.values() for token in text}
    assert len(distinct) > 80, "the texts repeat themselves"
