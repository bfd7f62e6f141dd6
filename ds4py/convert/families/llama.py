"""llama: Llama 1-3, Mistral, SmolLM: rows of q and k interleaved, so that rotary pairs are neighbours.

Llama 3.1's stretched frequencies become the tensor rope_freqs.weight, factors that divide each frequency. A wavelength longer
than n_ctx / low_freq_factor is stretched by `factor`, one shorter than n_ctx / high_freq_factor not at all, and between them the
frequency is mixed linearly in n_ctx / wavelength (n_ctx: the context of the first training).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ds4py.convert.config import Config, Rope
from ds4py.convert.family import (
    Family,
    Wanted,
    attention_tensors,
    biases,
    common_metadata,
    interleave,
    mlp_tensors,
    norms,
    rope_metadata,
    top_tensors,
)
from ds4py.convert.floats import F32
from ds4py.errors import UnsupportedError

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def metadata(config: Config) -> Mapping[str, Any]:
    n_ctx = config.count("max_position_embeddings")
    if (config.get("sliding_window") or n_ctx) < n_ctx:
        raise UnsupportedError(f"{config.path}: a sliding_window of {config.get('sliding_window')} is not supported for llama")
    act = config.get("hidden_act", "silu")
    if act != "silu":
        raise UnsupportedError(f"{config.path}: hidden_act {act!r:.40} is not supported for llama, only silu")
    return {**common_metadata(config, 1e-6), **rope_metadata(config, config.rope(), inside=("llama3",))}


def wanted(config: Config) -> Iterator[Wanted]:
    yield from top_tensors(config)
    n_embd, rotated = config.count("hidden_size"), interleave(config.heads()[2])
    for i in range(config.count("num_hidden_layers")):
        attention, mlp = attention_tensors(config, i, rotated), mlp_tensors(config, i)
        yield from norms(i, n_embd, _NORMS)
        yield from attention
        yield from mlp
        # Biases are rare. A config that promises them and a checkpoint that lacks them do not fit.
        yield from biases(attention, optional=not config.flag("attention_bias", False))
        yield from biases(mlp, optional=not config.flag("mlp_bias", False))


def computed(config: Config) -> Mapping[str, F32]:
    rope = config.rope()
    return {"rope_freqs.weight": llama3_factors(rope, config.heads()[2])} if rope.kind == "llama3" else {}


def llama3_factors(rope: Rope, n_rot: int) -> F32:
    """What divides the frequency of each rotary pair: float32 [n_rot / 2]."""
    factor, low, high = rope.number("factor"), rope.number("low_freq_factor", 1.0), rope.number("high_freq_factor", 4.0)
    n_ctx = rope.number("original_max_position_embeddings")
    if high <= low:
        raise rope.config.fail("high_freq_factor", f"is {high}; it must be above low_freq_factor {low}")
    wavelength = 2 * math.pi * np.power(rope.base, np.arange(0, n_rot, 2) / n_rot)
    kept = np.clip((n_ctx / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)


FAMILY = Family("llama", ("LlamaForCausalLM", "MistralForCausalLM"), metadata, wanted, computed=computed)
