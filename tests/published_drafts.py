"""Drafts in a GGUF written back as their trainers publish them, so that tensors that draft well can go through the converter."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from draft_tools import ROOT, tool
from safetensors.torch import save_file

from ds4py.gguf import GgufFile
from ds4py.quants import decode

LAYER = {
    "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TOP = {
    "fc.weight": "fc.weight", "enc.output_norm.weight": "hidden_norm.weight", "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight", "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight", "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
}  # fmt: skip


def array_of(g: GgufFile, name: str) -> np.ndarray:
    """A tensor, rows first: float32, or int64 for d2t."""
    tensor = g.tensors[name]
    shape = tensor.shape[::-1]
    if name == "d2t":
        return np.frombuffer(bytes(tensor.data), np.int64)
    return decode(tensor.type, tensor.data, int(np.prod(shape))).reshape(shape)


def target_folder(g: GgufFile, folder: Path) -> None:
    """config.json and tokenizer of the pair's target, without weights."""
    folder.mkdir()
    tool("fitting_pair", ROOT / "tests" / "scripts").make_tokenizer(random.Random(1)).save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": g.require("embedding_length"),
        "num_hidden_layers": g.require("block_count"),
        "num_attention_heads": g.require("attention.head_count"),
        "vocab_size": len(g.kv["tokenizer.ggml.tokens"]),
    }
    (folder / "config.json").write_text(json.dumps(config))


def published(stored: GgufFile, kind: str, folder: Path, taps: Sequence[int]) -> None:
    """SpecForge's, z-lab's or DeepSpec's folder of the draft in `stored`, which reads the residuals after layers `taps`."""
    out = dict(_tensor(stored, name, kind == "eagle3") for name in stored.tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_config(stored, kind, list(taps))))
    save_file(out, folder / "model.safetensors")


def _tensor(stored: GgufFile, name: str, eagle: bool) -> tuple[str, torch.Tensor]:
    array = array_of(stored, name)
    if name == "d2t":
        return name, torch.tensor(array - np.arange(len(array)))
    if eagle and name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):  # rotary partners back to halves
        half = stored.kv["eagle3.attention.key_length"] // 2
        array = np.ascontiguousarray(array.reshape(-1, half, 2, array.shape[1]).swapaxes(1, 2)).reshape(array.shape)
    if not name.startswith("blk."):
        return TOP[name], torch.tensor(array)
    _, i, part, _ = name.split(".")
    return f"{'midlayer' if eagle else f'layers.{i}'}.{LAYER[part]}.weight", torch.tensor(array)


def _config(stored: GgufFile, kind: str, taps: list[int]) -> dict[str, Any]:
    arch = stored.architecture
    mask = stored.kv.get("tokenizer.ggml.mask_token_id")
    own: dict[str, Any] = {
        "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": taps}},
        "dflash": {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": taps, "mask_token_id": mask}},
        "dspark": {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": taps, "mask_token_id": mask, "markov_rank": 32},
    }[kind]
    theirs = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
        "vocab_size": "vocab_size",
        "block_size": "block_size",
    }
    read = {name: stored.kv[f"{arch}.{key}"] for name, key in theirs.items() if f"{arch}.{key}" in stored.kv}
    n_rows = stored.tensors["d2t"].shape[0] if "d2t" in stored.tensors else read["vocab_size"]
    return {**own, **read, "draft_vocab_size": n_rows}
