"""Tiny draft checkpoints in every layout that people publish, beside a tiny target folder.

    target = save_folder("qwen3", tmp_path / "target")                 # tokenizer, config and weights of the model drafted for
    draft = save_draft("specforge", tmp_path / "draft", target.path)   # .path, .tensors: what the GGUF must hold, by its names

The numbers are random; `tensors` is made here independently of the converter, from the formulas of the file format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

D, N_FF, N_HEAD, N_KV, HEAD, N_VOCAB, N_DRAFT, RANK = 64, 96, 4, 2, 16, 320, 100, 8
LAYOUTS = ("specforge", "angelslim", "speculators-eagle3", "z-lab", "deepspec", "speculators-dspark", "speculators-dflash")
_TRANSFORMER: Mapping[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": D,
    "intermediate_size": N_FF,
    "num_attention_heads": N_HEAD,
    "num_key_value_heads": N_KV,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": N_VOCAB,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class DraftFolder:
    path: Path
    tensors: Mapping[str, np.ndarray]
    config: Mapping[str, Any]


def save_draft(layout: str, folder: Path, **changes: Any) -> DraftFolder:
    """Write config.json and model.safetensors. `changes` replace top-level keys of the config; None removes one."""
    rng = np.random.default_rng(LAYOUTS.index(layout))
    eagle = layout in ("specforge", "angelslim", "speculators-eagle3")
    there, expected = _eagle3(rng) if eagle else _block(rng, layout)
    named = {_named(name, layout): torch.from_numpy(array) for name, array in there.items()}
    config = {**_config(layout), **changes}
    folder.mkdir()
    save_file(named, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return DraftFolder(folder, expected, config)


def _named(name: str, layout: str) -> str:
    """A tensor's name in this layout."""
    if layout == "speculators-eagle3":
        return name.replace("midlayer.", "layers.0.")
    return f"model.{name}" if layout == "angelslim" and name.startswith("midlayer.") else name


def _config(layout: str) -> dict[str, Any]:
    speculators = {"speculators_config": {"algorithm": "x"}, "transformer_layer_config": _TRANSFORMER}
    eagle = {"num_hidden_layers": 1, "draft_vocab_size": N_DRAFT}
    layered = {**_TRANSFORMER, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    mask = {"mask_token_id": 299, "block_size": 7}
    markov = {"markov_rank": RANK, "markov_head_type": "vanilla"}
    dflash = {"dflash_config": {"mask_token_id": 299, "target_layer_ids": [0, 1]}, "block_size": 8, "num_target_layers": 3}
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return {
        "specforge": {**_TRANSFORMER, **eagle, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": ids},
        "angelslim": {
            **_TRANSFORMER,
            **eagle,
            "architectures": ["Eagle3LlamaForCausalLM"],
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        },
        "speculators-eagle3": {
            **speculators,
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": N_DRAFT,
            "target_hidden_size": None,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        },
        "z-lab": {**layered, **dflash, "architectures": ["DFlashDraftModel"]},
        "deepspec": {
            **layered,
            **mask,
            **markov,
            "architectures": ["Qwen3DSparkModel"],
            "target_layer_ids": [0, 1],
            "num_target_layers": 3,
            "num_anchors": 512,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
        "speculators-dspark": {
            **speculators,
            **mask,
            **markov,
            "transformer_layer_config": layered,
            "architectures": ["DSparkDraftModel"],
            "aux_hidden_state_layer_ids": [1, 3],
            "draft_vocab_size": N_DRAFT,
        },
        "speculators-dflash": {
            **speculators,
            **mask,
            "transformer_layer_config": layered,
            "architectures": ["DFlashDraftModel"],
            "aux_hidden_state_layer_ids": [1, 3],
        },
    }[layout]


Arrays = dict[str, np.ndarray]


def _eagle3(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Tensors by the checkpoint's names and by the file's."""
    n = _random(rng)
    names = {
        "fc.weight": ("fc.weight", n(D, 3 * D)),
        "midlayer.input_layernorm.weight": ("blk.0.attn_norm.weight", n(D)),
        "midlayer.hidden_norm.weight": ("blk.0.attn_norm_2.weight", n(D)),
        "midlayer.post_attention_layernorm.weight": ("blk.0.ffn_norm.weight", n(D)),
        "midlayer.self_attn.v_proj.weight": ("blk.0.attn_v.weight", n(N_KV * HEAD, 2 * D)),
        "midlayer.self_attn.o_proj.weight": ("blk.0.attn_output.weight", n(D, N_HEAD * HEAD)),
        "midlayer.mlp.gate_proj.weight": ("blk.0.ffn_gate.weight", n(N_FF, D)),
        "midlayer.mlp.up_proj.weight": ("blk.0.ffn_up.weight", n(N_FF, D)),
        "midlayer.mlp.down_proj.weight": ("blk.0.ffn_down.weight", n(D, N_FF)),
        "norm.weight": ("output_norm.weight", n(D)),
        "lm_head.weight": ("output.weight", n(N_DRAFT, D)),
        "embed_tokens.weight": ("token_embd.weight", n(N_VOCAB, D)),
    }
    there = {name: array for name, (_, array) in names.items()}
    here = dict(names.values())
    for which, heads in (("q", N_HEAD), ("k", N_KV)):
        rows = n(heads * HEAD, 2 * D)
        there[f"midlayer.self_attn.{which}_proj.weight"] = rows
        here[f"blk.0.attn_{which}.weight"] = neighbours(rows)
    _add_map(rng, there, here)
    return there, here


def _block(rng: np.random.Generator, layout: str) -> tuple[Arrays, Arrays]:
    n = _random(rng)
    spark, reduced = layout not in ("z-lab", "speculators-dflash"), layout == "speculators-dspark"
    names = {
        "fc.weight": ("fc.weight", n(D, 2 * D)),
        "hidden_norm.weight": ("enc.output_norm.weight", n(D)),
        "norm.weight": ("output_norm.weight", n(D)),
    }
    for i in range(2):
        here, there = f"blk.{i}.", f"layers.{i}."
        names |= {
            f"{there}input_layernorm.weight": (f"{here}attn_norm.weight", n(D)),
            f"{there}post_attention_layernorm.weight": (f"{here}ffn_norm.weight", n(D)),
            f"{there}self_attn.q_proj.weight": (f"{here}attn_q.weight", n(N_HEAD * HEAD, D)),
            f"{there}self_attn.k_proj.weight": (f"{here}attn_k.weight", n(N_KV * HEAD, D)),
            f"{there}self_attn.v_proj.weight": (f"{here}attn_v.weight", n(N_KV * HEAD, D)),
            f"{there}self_attn.o_proj.weight": (f"{here}attn_output.weight", n(D, N_HEAD * HEAD)),
            f"{there}self_attn.q_norm.weight": (f"{here}attn_q_norm.weight", n(HEAD)),
            f"{there}self_attn.k_norm.weight": (f"{here}attn_k_norm.weight", n(HEAD)),
            f"{there}mlp.gate_proj.weight": (f"{here}ffn_gate.weight", n(N_FF, D)),
            f"{there}mlp.up_proj.weight": (f"{here}ffn_up.weight", n(N_FF, D)),
            f"{there}mlp.down_proj.weight": (f"{here}ffn_down.weight", n(D, N_FF)),
        }
    n_rows = N_DRAFT if reduced else N_VOCAB
    if spark:
        names |= {
            "markov_head.markov_w1.weight": ("markov_w1.weight", n(N_VOCAB, RANK)),
            "markov_head.markov_w2.weight": ("markov_w2.weight", n(n_rows, RANK)),
            "confidence_head.proj.weight": ("conf_proj.weight", n(1, D + RANK)),
            "confidence_head.proj.bias": ("conf_proj.bias", n(1)),
        }
    there, here = {name: array for name, (_, array) in names.items()}, dict(names.values())
    if spark:  # frozen copies, which no reader needs
        there["embed_tokens.weight"] = n(N_VOCAB, D)
        there["lm_head.weight"] = n(n_rows, D)
    if reduced:
        here["output.weight"] = there["lm_head.weight"]
        _add_map(rng, there, here)
    return there, here


def _random(rng: np.random.Generator) -> Any:
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def _add_map(rng: np.random.Generator, there: Arrays, here: Arrays) -> None:
    """d2t as offsets, t2d as marks; the file holds ids."""
    ids = np.sort(rng.choice(N_VOCAB, N_DRAFT, replace=False)).astype(np.int64)
    there["d2t"] = ids - np.arange(N_DRAFT)
    there["t2d"] = np.isin(np.arange(N_VOCAB), ids)
    here["d2t"] = ids


def neighbours(rows: np.ndarray) -> np.ndarray:
    """Rotary partners i and i + HEAD / 2 of every head as rows 2i and 2i + 1."""
    out = np.empty_like(rows)
    for head in range(len(rows) // HEAD):
        for i in range(HEAD // 2):
            out[head * HEAD + 2 * i] = rows[head * HEAD + i]
            out[head * HEAD + 2 * i + 1] = rows[head * HEAD + i + HEAD // 2]
    return out
