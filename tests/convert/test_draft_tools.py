"""gguf-tools that make a draft out of a model: pruning keeps bytes and cuts metadata; training lowers the loss and writes a file
that the engine runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from draft_tools import tool
from tiny_models import make_tiny, tiny_gguf

from ds4py.errors import UsageError
from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Span

IDS = list(range(40))


def test_layers_are_kept_as_stored_under_new_numbers(tmp_path: Path) -> None:
    source = tiny_gguf("llama", tmp_path / "in.gguf", kind=GgmlType.Q8_0, num_hidden_layers=5)
    assert tool("prune_layers").main(["--in", str(source), "--keep", "0,3-4", "--out", str(tmp_path / "out.gguf")]) == 0
    old, new = open_gguf(source), open_gguf(tmp_path / "out.gguf")
    assert new.kv["llama.block_count"] == 3 and list(new.kv["ds4.pruned.layers"]) == [0, 3, 4]
    for part in ("attn_q.weight", "ffn_norm.weight", "ffn_down.weight"):
        for here, there in enumerate([0, 3, 4]):
            a, b = new.tensors[f"blk.{here}.{part}"], old.tensors[f"blk.{there}.{part}"]
            assert a.type == b.type and (a.data == b.data).all()
    assert "blk.3.attn_q.weight" not in new.tensors
    assert list(new.kv["tokenizer.ggml.tokens"]) == list(old.kv["tokenizer.ggml.tokens"])
    load_model(new, ReferenceKernels())


def test_gemmas_windows_stay_with_their_layers(tmp_path: Path) -> None:
    """Layer 5 sees everything and becomes layer 1: the file must say so, and logits equal a model made of those layers."""
    tiny = make_tiny("gemma3", tmp_path / "in.gguf", num_hidden_layers=7)
    tool("prune_layers").prune(tiny.path, "0,5", tmp_path / "out.gguf")
    g = open_gguf(tmp_path / "out.gguf")
    assert list(g.kv["gemma3.attention.sliding_window_pattern"]) == [True, False]
    tiny.hf.model.layers = torch.nn.ModuleList([tiny.hf.model.layers[0], tiny.hf.model.layers[5]])
    tiny.hf.model.layers[1].self_attn.layer_idx = 1
    tiny.hf.config.num_hidden_layers = tiny.hf.model.config.num_hidden_layers = 2
    tiny.hf.config.layer_types = tiny.hf.model.config.layer_types = ["sliding_attention", "full_attention"]
    model = load_model(g, ReferenceKernels(), kv_dtype="float32")
    ours = model.forward([Span(model.new_state(64, 4), IDS, n_logits=len(IDS))]).of(0)
    with torch.inference_mode():
        theirs = tiny.hf(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


@pytest.mark.parametrize("keep", ["", "5", "0-", "-1", "a", "3-2", "0-99999999"])
def test_layers_that_are_none(keep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny_gguf("llama", tmp_path / "in.gguf")
    code = tool("prune_layers").main(["--in", str(source), f"--keep={keep}", "--out", str(tmp_path / "out.gguf")])
    assert code == UsageError.exit_code
    assert "--keep" in capsys.readouterr().err and not (tmp_path / "out.gguf").exists()


def test_training_starts_from_the_targets_residual_and_learns(tmp_path: Path) -> None:
    """Untouched layers give the target's own distribution (loss 0); a pruned model's loss falls, and the saved file computes what
    was trained."""
    distil = tool("distil_draft")
    source = tiny_gguf("llama", tmp_path / "in.gguf", kind=GgmlType.F32, num_hidden_layers=4)
    tool("prune_layers").prune(source, "0-1,3", tmp_path / "pruned.gguf")
    g, pruned = open_gguf(source), open_gguf(tmp_path / "pruned.gguf")
    model = load_model(g, ReferenceKernels(), kv_dtype="float32")
    texts = []
    for seed in range(8):
        ids = np.random.default_rng(seed).integers(0, 258, 24).tolist()
        out = model.forward([Span(model.new_state(32, 4), ids, n_logits=24)], taps=(1, 3))
        texts.append(distil.Text(ids, np.stack([out.taps[1], out.taps[3]])))
    norm, head = torch.from_numpy(distil.values(g, "output_norm.weight")), torch.from_numpy(distil.values(g, "token_embd.weight"))
    whole = distil.LastLayers(g, 2)
    assert distil._loss(whole, texts, norm, head)[0].item() < 1e-4
    draft = distil.LastLayers(pruned, 1)
    before = distil._loss(draft, texts, norm, head)[0].item()
    distil.train(draft, g, texts, minutes=0.05, rate=3e-3)
    after = distil._loss(draft, texts, norm, head)[0].item()
    assert before > 0.1 and after < 0.7 * before
    distil.save(draft, pruned, tmp_path / "out.gguf", GgmlType.F16, None, {"ds4.distilled.tokens": 1})
    done = open_gguf(tmp_path / "out.gguf")
    assert (done.tensors["blk.0.attn_q.weight"].data == pruned.tensors["blk.0.attn_q.weight"].data).all()
    assert done.tensors["blk.2.attn_q.weight"].type is GgmlType.F16
    ids = texts[0].ids
    net = load_model(done, ReferenceKernels(), kv_dtype="float32")
    ours = net.forward([Span(net.new_state(32, 4), ids, n_logits=24)], taps=(2,)).taps[2].copy()
    with torch.no_grad():
        want = draft(torch.from_numpy(texts[0].taps[0])[None].float())[0].numpy()
    normed = ours / np.sqrt((ours**2).mean(-1, keepdims=True) + draft.eps) * distil.values(done, "output_norm.weight")
    np.testing.assert_allclose(normed, want, atol=0.05)
