"""Tiny random models of every architecture: made by transformers, written as GGUF with our own writer.

The idea: transformers is an oracle that we did not write, so a tiny model exists twice, as a torch module and as a file that our
loader reads. All parameters are random, also norms and biases that transformers starts at 1 and 0: an ignored tensor shows.

    tiny = make_tiny("gemma3", tmp_path / "tiny.gguf", sliding_window=16)      # keywords change the transformers config
    tiny.path, tiny.hf, tiny.logits(ids)                                       # the file, the module, its logits [T, V]

Without an oracle, `tiny_gguf("llama", path)` stores the matrices quantised. Files carry a byte-level tokenizer, so that whole
programs can run on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from ds4py.gguf import GgmlType, NewTensor, write_gguf

torch.set_num_threads(1)  # nothing here is large enough to share, and waiting for a second thread can take longer than the work

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3")
N_VOCAB = 320

_COMMON: dict[str, Any] = dict(
    vocab_size=N_VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    tie_word_embeddings=False,
)
_CONFIGS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen2": (transformers.Qwen2Config, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 32}),
    "qwen3moe": (
        transformers.Qwen3MoeConfig,
        {"head_dim": 32, "num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 96, "norm_topk_prob": True},
    ),
    # 7 layers: the sixth sees everything, the others have a window
    "gemma3": (
        transformers.Gemma3TextConfig,
        {"num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": True},
    ),
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Tiny:
    path: Path
    hf: Any  # the transformers module, float32, eager attention

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """transformers' logits for one sequence: [T, V]."""
        with torch.inference_mode():
            return self.hf(torch.tensor([list(ids)])).logits[0].numpy()

    def hidden(self, ids: Sequence[int]) -> list[npt.NDArray[np.float32]]:
        """The residual after each layer but the last (transformers gives that one normed only): [T, D] each."""
        with torch.inference_mode():
            return [h[0].numpy() for h in self.hf(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[1:-1]]


def tiny_config(architecture: str, **changes: Any) -> Any:
    """A transformers config of a tiny model; `changes` are its keywords."""
    cls, own = _CONFIGS[architecture]
    return cls(**{**_COMMON, **own, "attn_implementation": "eager", **changes})


def tiny_module(config: Any, seed: int = 0) -> Any:
    """A transformers model with every parameter random: matrices of unit gain, norms near 1, biases small."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(0.2 * noise + (0.0 if config.model_type == "gemma3_text" else 1.0))
            elif p.ndim == 1:
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name:  # gemma multiplies its embedding by sqrt(D)
                p.copy_(noise / p.shape[1] ** 0.5 if config.model_type == "gemma3_text" else noise)
            else:
                p.copy_(noise * 1.5 / p.shape[-1] ** 0.5)
    return model


def make_tiny(architecture: str, path: Path, kv: Mapping[str, Any] | None = None, seed: int = 0, **changes: Any) -> Tiny:
    """The pair of torch module and GGUF file (float32). `kv` adds or replaces metadata keys."""
    model = tiny_module(tiny_config(architecture, **changes), seed)
    write_tiny(model, path, kv)
    return Tiny(path, model)


def write_tiny(model: Any, path: Path, kv: Mapping[str, Any] | None = None, kind: GgmlType = GgmlType.F32) -> Path:
    """Write a transformers module as GGUF, matrices as F32, F16 or Q8_0. Returns `path`."""
    architecture = model.config.model_type.removesuffix("_text").replace("_moe", "moe")
    tensors = [_encode(name, array, kind) for name, array in _gguf_arrays(model, architecture).items()]
    metadata = {**_metadata(model.config, architecture), **(kv or {})}
    write_gguf(path, {key: value for key, value in metadata.items() if value is not None}, tensors)
    return path


def tiny_gguf(architecture: str, path: Path, kind: GgmlType = GgmlType.Q8_0, seed: int = 0, **changes: Any) -> Path:
    """A tiny model file without its oracle; quantised unless `kind` says otherwise."""
    return write_tiny(tiny_module(tiny_config(architecture, **changes), seed), path, kind=kind)


def _gguf_arrays(model: Any, architecture: str) -> dict[str, npt.NDArray[np.float32]]:
    """All tensors under their GGUF names, with the changes that converters make."""
    out = {}
    for name, p in model.named_parameters():  # a tied head is listed once, as the embedding
        array = p.detach().numpy()
        if architecture == "gemma3" and "norm" in name:
            array = array + np.float32(1)
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = _interleave(array, model.config.head_dim)
        if name.endswith("experts.gate_up_proj"):  # [n_experts, 2 F, D], the gate's rows first
            gate, up = np.split(array, 2, 1)
            layer = name.split(".")[2]
            out[f"blk.{layer}.ffn_gate_exps.weight"], out[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
            continue
        out[_gguf_name(name, architecture)] = array
    scaling = getattr(model.config, "rope_parameters", None) or {}
    if scaling.get("rope_type") == "llama3":
        n_rot = model.config.head_dim
        plain = scaling["rope_theta"] ** -(torch.arange(0, n_rot, 2).double() / n_rot)
        out["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()
    return out


def _gguf_name(name: str, architecture: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    if rest == "mlp.experts.down_proj":
        return f"blk.{layer}.ffn_down_exps.weight"
    part, kind = rest.rsplit(".", 1)
    names = {**_LAYER_NAMES, **_GEMMA_NAMES} if architecture == "gemma3" else _LAYER_NAMES
    return f"blk.{layer}.{names[part]}.{kind}"


def _interleave(array: npt.NDArray[np.float32], head_len: int) -> npt.NDArray[np.float32]:
    """Reorder the rows of every head so that rotary partners, i and i + head_len / 2, become 2i and 2i + 1."""
    halves = array.reshape(-1, 2, head_len // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _encode(name: str, array: npt.NDArray[np.float32], kind: GgmlType) -> NewTensor:
    if array.ndim == 1 or kind == GgmlType.F32 or "ffn_gate_inp" in name:
        return NewTensor.of(name, np.ascontiguousarray(array))
    if kind == GgmlType.F16:
        return NewTensor.of(name, array.astype(np.float16))
    if kind != GgmlType.Q8_0:
        raise ValueError(f"tiny models are stored as F32, F16 or Q8_0, not {kind.name}")
    blocks = array.reshape(-1, 32)
    scale = np.abs(blocks).max(-1) / 127
    packed = np.zeros(len(blocks), np.dtype([("d", "<f2"), ("qs", "i1", 32)]))
    packed["d"] = scale
    packed["qs"] = np.rint(blocks / np.where(scale == 0, 1, scale)[:, None])
    return NewTensor(name, array.shape[::-1], kind, packed.view(np.uint8))


def _metadata(config: Any, architecture: str) -> dict[str, Any]:
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.head_dim,
        **_rope_keys(config.rope_parameters.get("full_attention", config.rope_parameters)),
    }
    if architecture == "qwen3moe":
        own["expert_count"], own["expert_used_count"] = config.num_experts, config.num_experts_per_tok
        own["expert_feed_forward_length"] = config.moe_intermediate_size
    if architecture == "gemma3":
        own["attention.sliding_window"] = config.sliding_window
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        if windowed != [(i + 1) % 6 != 0 for i in range(len(windowed))]:  # real files leave the usual pattern out
            own["attention.sliding_window_pattern"] = windowed
        own["final_logit_softcapping"] = config.final_logit_softcapping
        if config.query_pre_attn_scalar != config.head_dim:
            own["attention.scale"] = config.query_pre_attn_scalar**-0.5
    keys = {f"{architecture}.{key}": value for key, value in own.items()}
    names = {"general.architecture": architecture, "general.name": f"tiny {architecture}"}
    return {**names, **keys, **tokenizer_keys(config.vocab_size)}


def _rope_keys(rope: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"])}
    if rope["rope_type"] in ("linear", "yarn"):
        keys["rope.scaling.type"] = rope["rope_type"]
        keys["rope.scaling.factor"] = float(rope["factor"])
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys["rope.scaling.yarn_beta_fast"] = float(rope["beta_fast"]) if "beta_fast" in rope else None
        keys["rope.scaling.yarn_beta_slow"] = float(rope["beta_slow"]) if "beta_slow" in rope else None
    return keys


def tokenizer_keys(n_vocab: int) -> dict[str, Any]:
    """A byte-level vocabulary with one merge: ids 0..255 are the bytes, then end of text, "th", and unused entries."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbol = {byte: chr(byte) for byte in printable}
    for byte in range(256):  # GPT-2's table: the other bytes take the characters from 256 on, in order
        symbol.setdefault(byte, chr(256 + len(symbol) - len(printable)))
    tokens = [symbol[byte] for byte in range(256)] + ["<|endoftext|>", "th"] + [f"<unused{i}>" for i in range(n_vocab - 258)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 1] + [5] * (n_vocab - 258),
        "tokenizer.ggml.merges": [symbol[ord("t")] + " " + symbol[ord("h")]],
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.add_bos_token": False,
    }
