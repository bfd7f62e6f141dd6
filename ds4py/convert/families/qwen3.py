"""qwen3: Qwen 3, dense: as qwen2 with norms over each head of q and k instead of biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.config import Config
from ds4py.convert.families.qwen2 import refuse_window
from ds4py.convert.family import (
    Family,
    Wanted,
    attention_tensors,
    common_metadata,
    mlp_tensors,
    norms,
    rope_metadata,
    top_tensors,
)

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def metadata(config: Config) -> Mapping[str, Any]:
    refuse_window(config)
    config.count("head_dim")  # no default: it is not the hidden size over the heads
    return {**common_metadata(config, 1e-6), **rope_metadata(config, config.rope())}


def wanted(config: Config) -> Iterator[Wanted]:
    yield from top_tensors(config)
    for i in range(config.count("num_hidden_layers")):
        yield from attention(config, i)
        yield from mlp_tensors(config, i)


def attention(config: Config, layer: int) -> Iterator[Wanted]:
    """A layer's norms and attention, which the mixtures of experts have too."""
    yield from norms(layer, config.count("hidden_size"), _NORMS)
    yield from norms(layer, config.heads()[2], _HEAD_NORMS)
    yield from attention_tensors(config, layer)


FAMILY = Family("qwen3", ("Qwen3ForCausalLM",), metadata, wanted)
