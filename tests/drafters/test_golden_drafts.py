"""Drafts give the numbers of the programs they were made with: dflash 0.1.0, speculators 0.9.0 (golden/drafters/drafts.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_reference import DFlash, Eagle3
from listening import cpu_or_reference
from numpy.testing import assert_allclose
from tiny_drafts import GOLDEN, Shape, TinyDraft, golden_inputs, tiny_dflash, tiny_eagle3

from ds4py.drafters.block import BlockDraft, Context
from ds4py.drafters.dspark import ConfidenceHead, MarkovHead
from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.models import eagle3
from ds4py.models.dflash import Model
from ds4py.models.drafts import HIDDEN, Lender
from ds4py.models.running import new_state
from ds4py.models.tensors import Tensors
from ds4py.protocols import Rows

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/drafters/drafts.json").read_text())
TOLERANCE = {"reference": 5e-5, "cpu": 5e-3}


def tiny_of(folder: Path, make: Any, shape: dict[str, Any]) -> TinyDraft:
    made = make(folder / "draft.gguf", **{key: tuple(v) if isinstance(v, list) else v for key, v in shape.items()})
    assert isinstance(made, TinyDraft)
    return made


def lender(folder: Path, shape: Shape, kernels: Any) -> Lender:
    """A target that has nothing but an embedding and a head."""
    _, embedding, head = golden_inputs(shape)
    path = folder / "target.gguf"
    tensors = [NewTensor.of("token_embd.weight", embedding), NewTensor.of("output.weight", head)]
    write_gguf(path, {"general.architecture": "llama"}, tensors)
    g = open_gguf(path)
    embd, out = (kernels.weight(g.tensors[name]) for name in ("token_embd.weight", "output.weight"))
    return Lender("target.gguf", embd, out, shape.target_embd, 8, shape.vocab_size)


def opened(folder: Path, tiny: TinyDraft, backend: str) -> tuple[BlockDraft, Tensors]:
    kernels, g = cpu_or_reference(backend), open_gguf(tiny.path)
    t = Tensors(g, kernels)
    network = Model(g, t, lender(folder, tiny.shape, kernels))
    kv_dtype = "float32" if backend == "reference" else "float16"
    return BlockDraft(network, kernels, 128, tiny.shape.vocab_size, kv_dtype), t


@pytest.mark.parametrize("which", range(len(RECORDED["blocks"])))
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_blocks_are_those_of_dflash(which: int, backend: str, tmp_path: Path) -> None:
    recorded = RECORDED["blocks"][which]
    tiny = tiny_of(tmp_path, tiny_dflash, recorded["shape"])
    features, embedding, head = golden_inputs(tiny.shape)
    draft, _ = opened(tmp_path, tiny, backend)
    context = Context(draft)
    for (at, last), hidden in zip(GOLDEN, recorded["hidden"], strict=True):
        rows = features[context.pos : at]
        context.add(dict(zip(draft.network.taps, np.split(rows, len(tiny.shape.layers), 1), strict=True)))
        n = draft.n_max
        assert_allclose(context.guess(n, last).hidden, np.array(hidden)[-n:], rtol=0, atol=TOLERANCE[backend])
        _, formula = DFlash(tiny, embedding, head).block(features[:at], last)
        assert_allclose(formula, hidden, rtol=0, atol=2e-5)


@pytest.mark.parametrize("which", range(len(RECORDED["heads"])))
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_heads_are_those_of_speculators(which: int, backend: str, tmp_path: Path) -> None:
    recorded = RECORDED["heads"][which]
    tiny = tiny_of(tmp_path, tiny_dflash, recorded["shape"])
    draft, t = opened(tmp_path, tiny, backend)
    markov = MarkovHead.read(t, draft)
    confidence = ConfidenceHead.read(t, tiny.shape.n_embd, tiny.shape.markov_rank)
    t.refuse_unused()
    assert confidence is not None
    from tiny_drafts import _Random

    hidden = _Random(9).noise(1, len(recorded["tokens"]), tiny.shape.n_embd)[0]
    ids = np.array([0, 5, 17, 95])
    for token, bias, sure, h in zip(recorded["tokens"], recorded["bias"], recorded["sure"], hidden, strict=True):
        assert_allclose(markov.bias(token), bias, rtol=0, atol=TOLERANCE[backend])
        embedding = markov.embedding(token)
        assert_allclose(markov.bias_of(ids, embedding), np.array(bias)[ids], rtol=0, atol=5e-5)
        assert_allclose(confidence.sure(h, embedding), sure, rtol=0, atol=5e-5)


@pytest.mark.parametrize("which", range(len(RECORDED["eagle3"])))
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_eagle_rows_are_those_of_speculators(which: int, backend: str, tmp_path: Path) -> None:
    recorded = RECORDED["eagle3"][which]
    tiny = tiny_of(tmp_path, tiny_eagle3, recorded["shape"])
    kernels, g = cpu_or_reference(backend, max_rows=64), open_gguf(tiny.path)
    t = Tensors(g, kernels)
    network = eagle3.Model(g, t, lender(tmp_path, tiny.shape, kernels))
    t.refuse_unused()
    features, embedding, head = golden_inputs(tiny.shape)
    n = len(features)
    state = new_state(network.caches, n, 0, "float32" if backend == "reference" else "float16")
    zero, every = np.zeros(n, np.int64), np.arange(n)
    g_rows = kernels.run("fuse", network.fuse, Rows(zero, every, [state], zero, every, given=features), ()).logits.copy()
    rows = Rows(np.array(recorded["tokens"]), every, [state], zero, every, given=g_rows)
    out = kernels.run("step", network.step, rows, (HIDDEN,))
    assert_allclose(out.taps[HIDDEN], recorded["hidden"], rtol=0, atol=TOLERANCE[backend])
    assert_allclose(out.logits[-3:], recorded["logits"], rtol=0, atol=2 * TOLERANCE[backend])
    formula = Eagle3(tiny, embedding, head).decode(features, [0, *recorded["tokens"]], 1)
    assert_allclose(formula.logits[0], recorded["logits"][-1], rtol=0, atol=5e-5)
