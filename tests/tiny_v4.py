"""Tiny random DeepSeek V4 models: a transformers module, its weights under the names of released checkpoints, and GGUF files.

Every buffer that transformers starts at 0 is random too (tables, sinks, biases, hyper-connections), the clamp bites, 32 indexer
heads leave no ties of silent heads, and 8 kept entries are far fewer than there are. Files have the names and keys of ds4.

    tiny = make_tiny(hca=128)                    # transformers module, weights, ratios
    tiny.write(path)                             # GGUF, float32; kind=GgmlType.Q8_0 and others store matrices and experts
    tiny.reference(torch.float64, rounding=True).run(ids)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepseek4_reference import Reference
from tiny_models import N_VOCAB, tokenizer_keys

from ds4py.gguf import GgmlType, NewTensor, write_gguf
from ds4py.quants import encode

torch.set_num_threads(1)

RATE = {"sliding_attention": 0, "compressed_sparse_attention": 4}
TOP = {
    "embed.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_scale": "output_hc_scale.weight",
}
BLOCK = {
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.compressor.ape": "attn_compressor_ape.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
}
# transformers' names, most specific first
RELEASED = {
    ".self_attn.compressor.indexer.scorer.weights_proj.": ".attn.indexer.weights_proj.",
    ".self_attn.compressor.indexer.q_b_proj.": ".attn.indexer.wq_b.",
    ".self_attn.compressor.indexer.kv_proj.": ".attn.indexer.compressor.wkv.",
    ".self_attn.compressor.indexer.gate_proj.": ".attn.indexer.compressor.wgate.",
    ".self_attn.compressor.indexer.position_bias": ".attn.indexer.compressor.ape",
    ".self_attn.compressor.indexer.kv_norm.": ".attn.indexer.compressor.norm.",
    ".self_attn.compressor.kv_proj.": ".attn.compressor.wkv.",
    ".self_attn.compressor.gate_proj.": ".attn.compressor.wgate.",
    ".self_attn.compressor.position_bias": ".attn.compressor.ape",
    ".self_attn.compressor.kv_norm.": ".attn.compressor.norm.",
    ".self_attn.q_a_proj.": ".attn.wq_a.",
    ".self_attn.q_b_proj.": ".attn.wq_b.",
    ".self_attn.q_a_norm.": ".attn.q_norm.",
    ".self_attn.kv_proj.": ".attn.wkv.",
    ".self_attn.kv_norm.": ".attn.kv_norm.",
    ".self_attn.o_a_proj.": ".attn.wo_a.",
    ".self_attn.o_b_proj.": ".attn.wo_b.",
    ".self_attn.sinks": ".attn.attn_sink",
    ".input_layernorm.": ".attn_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".attn_hc.": ".hc_attn_",
    ".ffn_hc.": ".hc_ffn_",
    ".mlp.gate.e_score_correction_bias": ".ffn.gate.bias",
    ".mlp.gate.": ".ffn.gate.",
    ".mlp.shared_experts.gate_proj.": ".ffn.shared_experts.w1.",
    ".mlp.shared_experts.up_proj.": ".ffn.shared_experts.w3.",
    ".mlp.shared_experts.down_proj.": ".ffn.shared_experts.w2.",
}


@dataclass(frozen=True)
class TinyV4:
    config: Any  # transformers DeepseekV4Config
    hf: Any  # the module, float32
    weights: dict[str, torch.Tensor]  # released names, float32
    ratios: list[int]
    extra: dict[str, Any] = field(default_factory=dict)  # metadata keys to add or replace

    def reference(self, dtype: torch.dtype, rounding: bool, angles: torch.dtype = torch.float64) -> Reference:
        w = {k: v if k.endswith("tid2eid") else v.to(dtype) for k, v in self.weights.items()}
        return Reference(w, self.config, self.ratios, rounding, angles)

    def write(
        self,
        path: Path,
        kind: GgmlType = GgmlType.F32,
        experts: GgmlType | None = None,
        down: GgmlType | None = None,
        draft: bool = False,
    ) -> Path:
        """The model, without mtp.* tensors unless `draft`. `kind` of matrices that real files quantise, `experts` of experts
        (default: kind), `down` of their last matrices (default: as the others)."""
        own = {name: w for name, w in self.weights.items() if draft or not name.startswith("mtp.")}
        tensors = []
        for name, array in gguf_arrays(own, self.config).items():
            tensors.append(stored(name, array, kind, (down if "_down_" in name else None) or experts or kind))
        keys = {"general.name": "tiny deepseek4", **metadata(self.config, self.ratios), **self.extra}
        write_gguf(path, {key: value for key, value in keys.items() if value is not None}, tensors)
        return path


def write_support(
    path: Path, weights: Mapping[str, torch.Tensor], config: Any, keys: Mapping[str, Any], kind: GgmlType = GgmlType.F32
) -> Path:
    """The mtp.* tensors as a support file; `keys` are its metadata beside the architecture's, which they may replace."""
    own = {name: w for name, w in weights.items() if name.startswith("mtp.")}
    tensors = [stored(name, array, kind, kind) for name, array in gguf_arrays(own, config).items()]
    write_gguf(path, {"general.architecture": "deepseek4-dspark", **keys}, sorted(tensors, key=lambda t: t.name))
    return path


def spark_keys(taps: list[int], rank: int, noise: int, block: int = 5, stages: int = 3) -> dict[str, Any]:
    """The nine keys of ds4's support files, but the first."""
    return {
        "general.name": "DeepSeek V4 Flash DSpark support",
        "general.alignment": 32,
        "dspark.block_size": block,
        "dspark.markov_rank": rank,
        "dspark.noise_token_id": noise,
        "dspark.target_layer_ids": taps,
        "dspark.stage_count": stages,
        "dspark.n_layers": stages,
    }


def tiny_config(hca: int = 128, **changes: Any) -> Any:
    from transformers import DeepseekV4Config

    own: dict[str, Any] = dict(
        vocab_size=N_VOCAB,
        hidden_size=64,
        moe_intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=80,
        qk_rope_head_dim=16,  # 64 plain dimensions: one block of the 8-bit rounding
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=32,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        scoring_func="sqrtsoftplus",
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        swiglu_limit=0.5,
        num_hash_layers=1,
        compress_ratios=[0, 4, 128, 4],  # 128 is a label, the number is compress_rate_hca
        compress_rate_hca=hca,
        sliding_window=16,
        index_n_heads=32,
        index_head_dim=32,
        index_topk=8,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_parameters=dict(
            rope_type="yarn", factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64
        ),
        max_position_embeddings=1024,
        num_nextn_predict_layers=1,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    return DeepseekV4Config(**{**own, **changes})


def make_tiny(seed: int = 1, hca: int = 128, **changes: Any) -> TinyV4:
    """A random model; `changes` are keywords of the transformers config."""
    from transformers import DeepseekV4ForCausalLM

    config = tiny_config(hca, **changes)
    config._attn_implementation = "eager"
    hf = DeepseekV4ForCausalLM(config).float().eval()
    _randomize(hf, config, seed)
    ratios = [RATE.get(kind, hca) for kind in config.layer_types]
    return TinyV4(config, hf, _released(hf.state_dict(), config), ratios)


@torch.no_grad()
def _randomize(model: Any, config: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    noise = {"sinks": 1.0, "position_bias": 0.5, "e_score_correction_bias": 0.1, "base": 0.5}
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name:
            continue
        if name.endswith("tid2eid"):  # distinct experts per token, as in the real table
            rows = [torch.randperm(config.n_routed_experts, generator=g)[: p.shape[1]] for _ in range(p.shape[0])]
            p.copy_(torch.stack(rows))
            continue
        x = torch.randn(p.shape, generator=g)
        size = next((s for end, s in noise.items() if name.endswith(end)), None)
        if name.endswith("norm.weight"):
            p.copy_(1 + 0.1 * x)
        elif name.endswith("scale"):
            p.copy_(0.5 + torch.rand(p.shape, generator=g))
        elif size is not None:
            p.copy_(x * size)
        else:
            p.copy_(x if name.endswith("embed_tokens.weight") else x / math.sqrt(p.shape[-1]))


def _released(state: Mapping[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    out = {}
    top = {f"hc_head.hc_{part}": f"hc_head_{part}" for part in ("fn", "base", "scale")}
    top |= {"embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight"}
    for name, value in state.items():
        if "inv_freq" in name:
            continue
        name = name.removeprefix("model.")
        name = top.get(name, name)
        for theirs, released in RELEASED.items():
            name = name.replace(theirs, released)
        prefix = name.partition(".mlp.experts.")[0] + ".ffn.experts"
        n = config.moe_intermediate_size
        if name.endswith("gate_up_proj"):
            for e in range(len(value)):
                out[f"{prefix}.{e}.w1.weight"], out[f"{prefix}.{e}.w3.weight"] = value[e, :n], value[e, n:]
        elif name.endswith("down_proj"):
            out.update({f"{prefix}.{e}.w2.weight": value[e] for e in range(len(value))})
        else:
            out[name] = value
    return {name: value.detach().clone() for name, value in out.items()}


def gguf_arrays(weights: Mapping[str, torch.Tensor], config: Any) -> dict[str, np.ndarray]:
    """Tensors under ds4's names; experts stacked."""
    out: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if ".ffn.experts." in name:
            continue
        prefix, number, rest = _split(name)
        new = BLOCK.get(rest) or (rest if rest.endswith(".weight") else rest + ".weight")
        out[TOP[name] if name in TOP else f"{prefix}.{number}.{new}"] = np.ascontiguousarray(value.numpy())
    for name in weights:
        if ".ffn.experts.0.w1." in name:
            prefix, number, _ = _split(name)
            stem = name.partition(".experts.")[0] + ".experts"
            for w, new in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
                stack = [weights[f"{stem}.{e}.{w}.weight"].numpy() for e in range(config.n_routed_experts)]
                out[f"{prefix}.{number}.ffn_{new}_exps.weight"] = np.stack(stack)
    return out


def _split(name: str) -> tuple[str, str, str]:
    """(GGUF prefix, layer number, rest) of a name under layers.N. or mtp.N."""
    if not name.startswith(("layers.", "mtp.")):
        return "", "", name
    prefix, number, rest = name.split(".", 2)
    return {"layers": "blk"}.get(prefix, prefix), number, rest


QUANTISED = ("attn_q_a.", "attn_q_b.", "attn_kv.", "attn_output_", "_shexp.", "token_embd.", "output.weight", "_proj.weight")


def stored(name: str, array: np.ndarray, kind: GgmlType, experts: GgmlType) -> NewTensor:
    """In the type that real files of this kind would use: experts and big matrices quantised, the rest as it is."""
    if name.endswith("tid2eid.weight"):
        return NewTensor.of(name, array.astype(np.int32))
    array = array.astype(np.float32)
    rows = array.reshape(-1, array.shape[-1])
    if array.ndim > 1 and kind != GgmlType.F32:
        if "_exps." in name:
            return NewTensor(name, array.shape[::-1], experts, encode(experts, rows))
        if any(part in name for part in QUANTISED) and "indexer" not in name:
            return NewTensor(name, array.shape[::-1], kind, encode(kind, rows))
        return NewTensor.of(name, array.astype(np.float16))
    return NewTensor.of(name, array)


def metadata(c: Any, ratios: list[int]) -> dict[str, Any]:
    y = c.rope_parameters["compress"]
    own: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "embedding_length": c.hidden_size,
        "vocab_size": c.vocab_size,
        "context_length": c.max_position_embeddings,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.q_lora_rank": c.q_lora_rank,
        "attention.output_lora_rank": c.o_lora_rank,
        "attention.output_group_count": c.o_groups,
        "attention.sliding_window": c.sliding_window,
        "attention.compress_ratios": list(ratios),
        "attention.compress_rope_freq_base": float(c.compress_rope_theta),
        "attention.indexer.head_count": c.index_n_heads,
        "attention.indexer.key_length": c.index_head_dim,
        "attention.indexer.top_k": c.index_topk,
        "attention.layer_norm_rms_epsilon": float(c.rms_norm_eps),
        "rope.dimension_count": c.qk_rope_head_dim,
        "rope.freq_base": float(c.rope_theta),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(y["factor"]),
        "rope.scaling.yarn_beta_fast": float(y["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(y["beta_slow"]),
        "rope.scaling.original_context_length": int(y["original_max_position_embeddings"]),
        "expert_count": c.n_routed_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_shared_count": 1,
        "expert_feed_forward_length": c.moe_intermediate_size,
        "expert_weights_scale": float(c.routed_scaling_factor),
        "expert_weights_norm": True,
        "hash_layer_count": sum(kind == "hash_moe" for kind in c.mlp_layer_types),
        "swiglu_clamp_exp": [float(c.swiglu_limit)] * c.num_hidden_layers,
        "hyper_connection.count": c.hc_mult,
        "hyper_connection.sinkhorn_iterations": c.hc_sinkhorn_iters,
        "hyper_connection.epsilon": float(c.hc_eps),
    }
    keys = {f"deepseek4.{key}": value for key, value in own.items()}
    return {"general.architecture": "deepseek4", **keys, **tokenizer_keys(c.vocab_size)}
