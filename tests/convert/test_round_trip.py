"""Checkpoint to GGUF to logits: what our engine computes from a converted file is what transformers computes from the folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_folders import edit_json, quantise_fp8, random_ids, save_folder
from safetensors.torch import load_file, save_file

from ds4py.convert import Options, make_plan, write_plan
from ds4py.errors import Ds4Error
from ds4py.gguf import GgmlType, GgufFile, open_gguf
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Span

N_TOKENS = 40  # crosses gemma's window of 16 twice
IDS = random_ids(N_TOKENS)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
}
DENSE = ("llama", "qwen2", "qwen3", "gemma3")
ARCHITECTURES = (*DENSE, "qwen3moe")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-head_dim": ("llama", {"head_dim": 24}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3moe-tied": ("qwen3moe", {"tie_word_embeddings": True}),
    "gemma3-rope": ("gemma3", {"rope_parameters": GEMMA_ROPE}),
    "gemma3-scale": ("gemma3", {"query_pre_attn_scalar": 168, "final_logit_softcapping": 3.0}),
    "gemma3-pattern": ("gemma3", {"layer_types": ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]}),
    "gemma3-untied": ("gemma3", {"tie_word_embeddings": False}),
}


def convert(folder: Path, outtype: str = "auto", **options: Any) -> GgufFile:
    path = folder.parent / f"{folder.name}-{outtype}.gguf"
    write_plan(make_plan(folder, Options(outtype=outtype, **options)), path)
    return open_gguf(path)


def our_logits(g: GgufFile) -> np.ndarray:
    model = load_model(g, ReferenceKernels(), kv_dtype="float32")
    return model.forward([Span(model.new_state(N_TOKENS, slack=4), IDS, n_logits=N_TOKENS)]).of(0).copy()


@pytest.mark.parametrize("shard", ["5GB", "60KB"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32(architecture: str, shard: str, tmp_path: Path) -> None:
    tiny = save_folder(architecture, tmp_path / "tiny", shard=shard)
    assert (len(list(tiny.path.glob("*.safetensors"))) > 3) == (shard == "60KB")
    theirs = tiny.logits(IDS)
    assert theirs.std() > 0.3
    np.testing.assert_allclose(our_logits(convert(tiny.path)), theirs, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, tmp_path: Path) -> None:
    architecture, changes = VARIANTS[name]
    tiny = save_folder(architecture, tmp_path / "tiny", **changes)
    np.testing.assert_allclose(our_logits(convert(tiny.path)), tiny.logits(IDS), rtol=0, atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", GgmlType.BF16), ("float16", GgmlType.F16)])
def test_half_precision_is_kept_exactly(architecture: str, dtype: str, kind: GgmlType, tmp_path: Path) -> None:
    tiny = save_folder(architecture, tmp_path / "tiny", dtype=dtype)
    g = convert(tiny.path)
    matrices = [t for t in g.tensors.values() if len(t.shape) > 1 and "ffn_gate_inp" not in t.name]  # a router stays F32
    assert {t.type for t in matrices} == {kind} and g.kv["general.file_type"] == {"bfloat16": 32, "float16": 1}[dtype]
    np.testing.assert_allclose(our_logits(g), tiny.logits(IDS), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("outtype", "atol"), [("f32", 1e-3), ("bf16", 0.1), ("f16", 0.02), ("q8_0", 0.4)])
def test_outtypes(outtype: str, atol: float, tmp_path: Path) -> None:
    tiny = save_folder("qwen3", tmp_path / "tiny", dtype="bfloat16" if outtype == "f32" else "float32")
    g = convert(tiny.path, outtype)
    assert {t.type.name for t in g.tensors.values() if len(t.shape) == 2} == {outtype.upper()}
    assert {t.type.name for t in g.tensors.values() if len(t.shape) == 1} == {"F32"}
    difference = np.abs(our_logits(g) - tiny.logits(IDS)).max()
    assert difference < atol and (outtype == "f32" or difference > 1e-4)


@pytest.mark.parametrize("architecture", DENSE)
def test_fp8_with_block_scales(architecture: str, tmp_path: Path) -> None:
    """Sizes that are no multiples of the block, so that edges are cut; and q, k cross blocks while their rows are reordered."""
    tiny = save_folder(architecture, tmp_path / "tiny", hidden_size=160, intermediate_size=288, num_attention_heads=10)
    before = tiny.logits(IDS)
    quantise_fp8(tiny)
    after = tiny.logits(IDS)
    assert np.abs(after - before).max() > 0.05  # FP8 is coarse: a converter that missed it would be seen
    np.testing.assert_allclose(our_logits(convert(tiny.path, "f32")), after, rtol=0, atol=1e-3)
    g = convert(tiny.path)
    assert g.tensors["blk.0.attn_q.weight"].type is GgmlType.BF16
    assert not any("scale" in name for name in g.tensors)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("norm_topk_prob", False, "without norm_topk_prob"),
        ("decoder_sparse_step", 2, "layers without experts"),
        ("mlp_only_layers", [1], "layers without experts"),
        ("num_experts_per_tok", 11, "there are 10 experts"),
    ],
)
def test_mixtures_that_the_file_cannot_describe_are_refused(key: str, value: object, reason: str, tmp_path: Path) -> None:
    """Such a file would load and give other numbers than the checkpoint."""
    tiny = save_folder("qwen3moe", tmp_path / "tiny")
    edit_json(tiny.path / "config.json", lambda table: table.update({key: value}))
    with pytest.raises(Ds4Error, match=reason):
        make_plan(tiny.path, Options())


def test_multimodal_gemma_gives_its_text_model(tmp_path: Path) -> None:
    """Names as in a model with vision, and a config that leaves the usual values out."""
    usual = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256}
    tiny = save_folder("gemma3", tmp_path / "tiny", **usual)
    path = tiny.path / "model.safetensors"
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in load_file(path).items()}
    save_file({**renamed, "model.vision_tower.patch.weight": next(iter(renamed.values())).clone()}, path)

    def wrap(table: dict[str, Any]) -> None:
        text = {key: value for key, value in table.items() if key not in ("architectures", "tie_word_embeddings", *usual)}
        table.clear()
        table.update(architectures=["Gemma3ForConditionalGeneration"], text_config=text)

    edit_json(tiny.path / "config.json", wrap)
    with pytest.raises(Exception, match=r"no place for model\.vision_tower\.patch\.weight.*--drop"):
        make_plan(tiny.path, Options())
    plan = make_plan(tiny.path, Options(drop=("model.vision_tower.*",)))
    assert "left out as asked: model.vision_tower.patch.weight" in plan.notes
    write_plan(plan, tmp_path / "text.gguf")
    np.testing.assert_allclose(our_logits(open_gguf(tmp_path / "text.gguf")), tiny.logits(IDS), rtol=0, atol=1e-3)


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("name", [*ARCHITECTURES, "llama-llama3", "gemma3-rope"])
def test_llama_cpp_reads_the_file_and_computes_the_same(name: str, tmp_path: Path) -> None:
    from llama_cpp import Llama

    architecture, changes = VARIANTS.get(name, (name, {}))
    if name == "gemma3-rope":
        changes = {"rope_parameters": {**GEMMA_ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    tiny = save_folder(architecture, tmp_path / "tiny", **changes)
    g = convert(tiny.path, "f32")
    peer = Llama(str(g.path), n_ctx=64, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
    peer.eval(IDS)
    theirs = np.array(peer.scores[:N_TOKENS], np.float32)
    np.testing.assert_allclose(theirs[:, : tiny.logits(IDS).shape[1]], tiny.logits(IDS), rtol=0, atol=0.05)
    agree = (theirs.argmax(1) == tiny.logits(IDS).argmax(1)).mean()
    assert agree > 0.95
