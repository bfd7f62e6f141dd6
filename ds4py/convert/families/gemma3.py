"""gemma3: Gemma 3, text: norms stored as their distance from 1, windows in five of six layers, two rotary bases.

Readers take the usual pattern of windows, scale of scores and local base for granted, so those keys are written only where a
checkpoint departs from them. Of a model with vision the text part is converted; the rest has to be dropped by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.config import Config
from ds4py.convert.family import (
    Family,
    Wanted,
    attention_tensors,
    common_metadata,
    mlp_tensors,
    norms,
    plus_one,
    rope_metadata,
    top_tensors,
)
from ds4py.errors import UnsupportedError

_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_PERIOD, _LOCAL_BASE = 6, 10000.0
# configs of models with vision leave out what is as in the 4B model
_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
}
_N_LAYERS_27B = 62  # whose scores are scaled by hidden size / heads, which readers know


def metadata(config: Config) -> Mapping[str, Any]:
    config.count("head_dim")
    if config.get("attn_logit_softcapping"):
        raise UnsupportedError(f"{config.path}: attn_logit_softcapping is not supported for gemma3")
    rope = rope_metadata(config, config.rope("full_attention", 1e6))
    keys = {**common_metadata(config, 1e-6), **rope, "attention.sliding_window": config.count("sliding_window")}
    windowed = _windowed(config)
    if windowed != [(i + 1) % _PERIOD != 0 for i in range(len(windowed))]:
        keys["attention.sliding_window_pattern"] = windowed
    local = _local_base(config)
    if local != _LOCAL_BASE:
        keys["rope.freq_base_swa"] = local
    if config.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = config.number("final_logit_softcapping")
    n_head, _, head_len = config.heads()
    usual = config.count("hidden_size") / n_head if len(windowed) == _N_LAYERS_27B else float(head_len)
    scalar = config.number("query_pre_attn_scalar", usual)
    if scalar != usual:
        keys["attention.scale"] = scalar**-0.5
    return keys


def _windowed(config: Config) -> list[bool]:
    n = config.count("num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        period = config.count("sliding_window_pattern", _PERIOD)
        return [(i + 1) % period != 0 for i in range(n)]
    if not isinstance(kinds, list) or len(kinds) != n or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise config.fail("layer_types", f"does not say full_attention or sliding_attention for each of {n} layers")
    return [kind == "sliding_attention" for kind in kinds]


def _local_base(config: Config) -> float:
    table = config.get("rope_parameters")
    if isinstance(table, dict) and isinstance(table.get("sliding_attention"), dict):
        rope = config.rope("sliding_attention", _LOCAL_BASE)
        if rope.kind != "default":
            raise UnsupportedError(f"{config.path}: rope scaling of layers with a window is not supported for gemma3")
        return rope.base
    return config.number("rope_local_base_freq", _LOCAL_BASE)


def wanted(config: Config) -> Iterator[Wanted]:
    yield from top_tensors(config, plus_one())
    for i in range(config.count("num_hidden_layers")):
        yield from norms(i, config.count("hidden_size"), _NORMS, plus_one())
        yield from norms(i, config.heads()[2], _HEAD_NORMS, plus_one())
        yield from attention_tensors(config, i)
        yield from mlp_tensors(config, i)


def canonical(name: str) -> str:
    """Names inside a multimodal checkpoint, of either generation, as a text model has them."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


FAMILY = Family(
    "gemma3",
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    metadata,
    wanted,
    tied_by_default=True,
    canonical=canonical,
    defaults=_DEFAULTS,
)
