"""qwen2: Qwen 2 and 2.5: biases on q, k and v."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.config import Config
from ds4py.convert.family import (
    Family,
    Wanted,
    attention_tensors,
    biases,
    common_metadata,
    mlp_tensors,
    norms,
    rope_metadata,
    top_tensors,
)
from ds4py.errors import UnsupportedError

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def metadata(config: Config) -> Mapping[str, Any]:
    refuse_window(config)
    return {**common_metadata(config, 1e-6), **rope_metadata(config, config.rope())}


def refuse_window(config: Config) -> None:
    """UnsupportedError if a layer has a sliding window: configs carry a size for one that is switched off."""
    kinds = config.get("layer_types")
    if config.flag("use_sliding_window", False) or (isinstance(kinds, list) and set(kinds) != {"full_attention"}):
        raise UnsupportedError(f"{config.path}: sliding windows are not supported for {config.architecture}")


def wanted(config: Config) -> Iterator[Wanted]:
    yield from top_tensors(config)
    for i in range(config.count("num_hidden_layers")):
        attention = attention_tensors(config, i)
        yield from norms(i, config.count("hidden_size"), _NORMS)
        yield from attention
        yield from biases(attention[:3])
        yield from mlp_tensors(config, i)


FAMILY = Family("qwen2", ("Qwen2ForCausalLM",), metadata, wanted)
