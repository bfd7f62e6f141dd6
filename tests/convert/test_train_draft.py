"""Training of drafts that read residuals, and the stored pair: it fits, but not always; its files are what llama.cpp reads."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from draft_tools import KINDS, PAIR, ROOT, tool
from drafts.block import Block
from drafts.eagle3 import Eagle3
from drafts.layers import rotated
from drafts.saving import load, save
from drafts.texts import Text, continued
from drafts.training import Schedule, acceptance, train
from published_drafts import array_of, published, target_folder

from ds4py.convert import Options, make_plan, write_plan
from ds4py.engine import Engine, EngineOptions
from ds4py.gguf import GgmlType, GgufFile, open_gguf
from ds4py.tokenizer import load_tokenizer

BEGINNINGS = (
    "day 12: the fox met the owl near the",
    "def met_fox(fox, owl):\n",
    "day 3: the swan helped the",
    "day 40: the bear",
    "def called_toad(toad, wolf):\n    lake =",
    "day 7: the mole saw the duck near the hill.\n",
)
TAPS = (0, 1, 2)


@pytest.fixture(scope="module")
def target() -> GgufFile:
    return open_gguf(PAIR / "target.gguf")


@pytest.fixture(scope="module")
def texts(target: GgufFile) -> list[Text]:
    """The target's own texts with its residuals; every third is greedy."""
    tokenizer = load_tokenizer(target)
    engine = Engine.open(target, EngineOptions(n_ctx=256, threads=1))
    asked = [tokenizer.encode(text, add_bos=False) for text in BEGINNINGS for _ in range(3)]
    return list(continued(engine, asked, (*TAPS, 3), 64))


@pytest.mark.parametrize("script", ["train_draft", "distil_draft"])
def test_scripts_start_beside_a_file_named_like_a_module_of_pythons_own(script: str, tmp_path: Path) -> None:
    """inspect.py lies beside them, and torch asks for `inspect`."""
    asked = [sys.executable, str(ROOT / "gguf-tools" / f"{script}.py"), "--help"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, env=environ, check=False)
    assert done.returncode == 0 and "--minutes" in done.stdout, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_stored_draft_is_mostly_right_and_sometimes_wrong(kind: str, target: GgufFile, texts: Sequence[Text]) -> None:
    rates = acceptance(load(PAIR / f"{kind}.gguf", target), [text for text in texts if text.temperature == 0])
    assert 0.7 < rates[0] < 1 and 0.25 < rates[-1] < rates[0]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss(kind: str, target: GgufFile, texts: Sequence[Text]) -> None:
    model = tool("fitting_pair", ROOT / "tests" / "scripts").make_draft(kind, target, texts)
    before = acceptance(model, [text for text in texts if text.temperature == 0])
    losses = train(model, texts, Schedule(steps=25, rate=3e-3, rows=5), lambda line: None)
    assert len(losses) == 25 and np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    after = acceptance(model, [text for text in texts if text.temperature == 0])
    assert after[0] > before[0] + 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_draft_is_the_same_draft(kind: str, target: GgufFile, texts: Sequence[Text], tmp_path: Path) -> None:
    model = load(PAIR / f"{kind}.gguf", target)
    save(model, target, TAPS, tmp_path / "again.gguf", GgmlType.Q8_0, {})
    old, new = open_gguf(PAIR / f"{kind}.gguf"), open_gguf(tmp_path / "again.gguf")
    assert [str(value) for value in old.kv.values()] == [str(value) for value in new.kv.values()]
    assert list(old.kv) == list(new.kv) and set(old.tensors) == set(new.tensors)
    greedy = [text for text in texts if text.temperature == 0][:2]
    save(model, target, TAPS, tmp_path / "whole.gguf", GgmlType.F32, {})
    assert acceptance(load(tmp_path / "whole.gguf", target), greedy) == acceptance(model, greedy)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_partners(interleaved: bool) -> None:
    """A turn by position p, then the dot product of two rows depends on the distance of their positions only."""
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(1))
    near = (rotated(q, torch.tensor([3]), 100.0, interleaved) * rotated(k, torch.tensor([1]), 100.0, interleaved)).sum()
    far = (rotated(q, torch.tensor([33]), 100.0, interleaved) * rotated(k, torch.tensor([31]), 100.0, interleaved)).sum()
    assert near.item() == pytest.approx(far.item(), abs=1e-4)
    a, b = (0, 1) if interleaved else (0, 4)
    x = torch.zeros(1, 8)
    x[0, a] = 1
    turned = rotated(x, torch.tensor([1]), 100.0, interleaved)[0]
    assert turned[a].item() == pytest.approx(np.cos(1), abs=1e-6) and turned[b].item() == pytest.approx(np.sin(1), abs=1e-6)


def test_eagle3_steps_equal_drafts_made_one_at_a_time(target: GgufFile, texts: Sequence[Text]) -> None:
    """The unrolled training graph against a plain loop over one draft: same guesses wherever the draft begins."""
    model = load(PAIR / "eagle3.gguf", target)
    assert isinstance(model, Eagle3)
    text = next(text for text in texts if text.temperature == 1.0)
    n = 24
    ids, taps = torch.tensor([list(text.ids[:n])]), torch.from_numpy(text.taps[:3, None, :n]).float()
    with torch.no_grad():
        unrolled = list(model.steps(ids, taps, own=True))
        for begin in (0, 1, 7, n - 2):
            for step, z in enumerate(_one_draft(model, ids[0], taps[:, 0], begin)):
                if begin + step < n - 1:
                    torch.testing.assert_close(unrolled[step][0, begin + step], z, rtol=1e-4, atol=1e-4)


def _one_draft(model: Eagle3, ids: torch.Tensor, taps: torch.Tensor, begin: int) -> list[torch.Tensor]:
    """z of each step of the draft whose first row is `begin`, by attention over a growing list of rows."""
    w, s = model.w, model.shape
    g = torch.cat(list(taps), -1) @ w["fc.weight"].T
    rows: list[tuple[int, torch.Tensor]] = [(int(ids[p + 1]), g[p]) for p in range(begin + 1)]
    found = []
    for _ in range(model.n_steps):
        tokens = [_rms(model.target.embd[t], w["blk.0.attn_norm.weight"], s.eps) for t, _ in rows]
        x = torch.stack(
            [torch.cat([e, _rms(h, w["blk.0.attn_norm_2.weight"], s.eps)]) for e, (_, h) in zip(tokens, rows, strict=True)]
        )
        pos = torch.arange(len(rows))
        q, k, v = (x @ w[f"blk.0.attn_{part}.weight"].T for part in "qkv")
        mixed = []
        for head in range(s.n_head):
            own, shared = slice(head * s.head_len, (head + 1) * s.head_len), head * s.n_head_kv // s.n_head
            kv = slice(shared * s.head_len, (shared + 1) * s.head_len)
            keys, query = rotated(k[:, kv], pos, s.rope_base, True), rotated(q[-1:, own], pos[-1:], s.rope_base, True)
            mixed.append((query @ keys.T * s.head_len**-0.5).softmax(-1) @ v[:, kv])
        y = torch.cat(mixed, -1)[0] @ w["blk.0.attn_output.weight"].T + rows[-1][1]
        h = _rms(y, w["blk.0.ffn_norm.weight"], s.eps)
        gate, up = h @ w["blk.0.ffn_gate.weight"].T, h @ w["blk.0.ffn_up.weight"].T
        z = y + (gate * gate.sigmoid() * up) @ w["blk.0.ffn_down.weight"].T
        found.append(z)
        rows.append((int(model.rows[model.head(z).argmax()]), z))
    return found


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean() + eps).sqrt() * weight


def test_block_rows_see_no_residual_from_their_anchor_on(target: GgufFile, texts: Sequence[Text]) -> None:
    """What lies at or after the anchor must not reach the block, and blocks of one text must not reach each other."""
    model = load(PAIR / "dspark.gguf", target)
    assert isinstance(model, Block)
    text = texts[0]
    ids, taps = torch.tensor([list(text.ids)]), torch.from_numpy(text.taps[:3, None]).float()
    with torch.no_grad():
        both = model.rows_of(ids, taps, torch.tensor([[9, 20]]))
        blind = taps.clone()
        blind[:, :, 9:] = 7.0
        torch.testing.assert_close(model.rows_of(ids, blind, torch.tensor([[9]]))[0, 0], both[0, 0], rtol=1e-4, atol=1e-4)
        blind[:, :, 8:] = 7.0
        assert (model.rows_of(ids, blind, torch.tensor([[9]]))[0, 0] - both[0, 0]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_published_layouts_of_the_stored_drafts_convert_to_the_stored_files(kind: str, target: GgufFile, tmp_path: Path) -> None:
    """The pair's drafts written as SpecForge, z-lab and DeepSpec publish theirs, then converted: the same tensors bit for bit."""
    stored = open_gguf(PAIR / f"{kind}.gguf")
    target_folder(target, tmp_path / "target")
    published(stored, kind, tmp_path / "draft", TAPS)
    plan = make_plan(tmp_path / "draft", Options(outtype="f32", target=tmp_path / "target"))
    write_plan(plan, tmp_path / "converted.gguf")
    converted = open_gguf(tmp_path / "converted.gguf")
    assert set(converted.tensors) == set(stored.tensors)
    for name in stored.tensors:
        np.testing.assert_array_equal(array_of(converted, name), array_of(stored, name), err_msg=name)
    for key in ("target_layers", "block_size", "rope.freq_base", "attention.head_count_kv", "sample_from_anchor", "vocab_size"):
        theirs, ours = (g.kv.get(f"{g.architecture}.{key}") for g in (stored, converted))
        assert theirs == ours or list(theirs) == list(ours), key


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_loads_the_pair(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    import llama_cpp

    llama_cpp.llama_backend_init()
    for name in ("target", kind):
        path = PAIR / f"{name}.gguf"
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert model, capfd.readouterr().err
        assert llama_cpp.llama_model_n_embd(model) == 64
        llama_cpp.llama_model_free(model)
