"""eagle3: EAGLE-3 drafts of SpecForge, AngelSlim (as vLLM loads them) and speculators.

One layer, `midlayer` or `layers.0`, whose attention reads [norm(embedding); norm(features)], so that q, k and v are twice as wide
as the residual. Files pair rotary partners as llama does, so rows of q and k are interleaved. The three layers whose residuals
are read are told in three ways: `eagle_aux_hidden_state_layer_ids` at the top counts like the file (the residual that enters a
layer), the same key inside `eagle_config` names layers whose output is read, and without either it is 2, half and the third
from the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.drafts.pair import DraftFamily, Pair, stripped
from ds4py.convert.families.llama import llama3_factors
from ds4py.convert.family import Wanted, common_metadata, interleave, rope_metadata
from ds4py.convert.floats import F32
from ds4py.errors import UnsupportedError

_EPS = 1e-6
_N_TAPS = 3
_IDS = "eagle_aux_hidden_state_layer_ids"
_LAYER = "midlayer."
_NORMS = {"input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm"}


def metadata(pair: Pair) -> Mapping[str, Any]:
    c = pair.draft
    if c.count("num_hidden_layers", 1) != 1:
        raise UnsupportedError(f"{c.path}: an EAGLE-3 draft of {c.count('num_hidden_layers')} layers is not supported, only one")
    act = c.get("hidden_act", "silu")
    if act != "silu":
        raise UnsupportedError(f"{c.path}: hidden_act {act!r:.40} is not supported for EAGLE-3, only silu")
    return {
        **common_metadata(c.with_defaults({"num_hidden_layers": 1}), _EPS),
        **rope_metadata(c, c.rope(), inside=("llama3",)),
        "vocab_size": pair.n_vocab,
        "target_layers": taps(pair),
        "target_hidden_size": pair.target_width,
        "norm_before_residual": c.flag("norm_before_residual", False),
        "norm_before_fc": c.flag("norm_before_fc", False),
    }


def taps(pair: Pair) -> list[int]:
    """The three layers, as the file counts."""
    c, n = pair.draft, pair.n_target_layers
    if c.get(_IDS) is not None:
        return pair.taps(_IDS, c.get(_IDS), 0, _N_TAPS)
    nested = c.get("eagle_config")
    if isinstance(nested, dict) and nested.get(_IDS) is not None:
        return pair.taps(f"eagle_config.{_IDS}", nested[_IDS], 1, _N_TAPS)
    return pair.taps(f"{_IDS} (the usual one, since none is given)", [2, n // 2, n - 3], 0, _N_TAPS)


def wanted(pair: Pair) -> Iterator[Wanted]:
    c = pair.draft
    d, n_ff, features = c.count("hidden_size"), c.count("intermediate_size"), _N_TAPS * pair.target_width
    n_head, n_head_kv, head_len = c.heads()
    q_len, kv_len, rotated = n_head * head_len, n_head_kv * head_len, interleave(head_len)
    yield Wanted("fc.weight", "fc.weight", (d, features))
    if c.flag("norm_before_fc", False):
        yield Wanted("input_norm.weight", "enc.output_norm.weight", (features,))
    for there, here in _NORMS.items():
        yield Wanted(f"{_LAYER}{there}.weight", f"blk.0.{here}.weight", (d,))
    yield Wanted(f"{_LAYER}self_attn.q_proj.weight", "blk.0.attn_q.weight", (q_len, 2 * d), rotated)
    yield Wanted(f"{_LAYER}self_attn.k_proj.weight", "blk.0.attn_k.weight", (kv_len, 2 * d), rotated)
    yield Wanted(f"{_LAYER}self_attn.v_proj.weight", "blk.0.attn_v.weight", (kv_len, 2 * d))
    yield Wanted(f"{_LAYER}self_attn.o_proj.weight", "blk.0.attn_output.weight", (d, q_len))
    yield Wanted(f"{_LAYER}mlp.gate_proj.weight", "blk.0.ffn_gate.weight", (n_ff, d))
    yield Wanted(f"{_LAYER}mlp.up_proj.weight", "blk.0.ffn_up.weight", (n_ff, d))
    yield Wanted(f"{_LAYER}mlp.down_proj.weight", "blk.0.ffn_down.weight", (d, n_ff))
    yield Wanted("norm.weight", "output_norm.weight", (d,))
    borrowable = d == pair.target_width  # else the target's rows have another length
    yield Wanted("embed_tokens.weight", "token_embd.weight", (pair.n_vocab, d), optional=borrowable)
    yield Wanted("lm_head.weight", "output.weight", (pair.n_rows, d), optional=borrowable and pair.n_rows == pair.n_vocab)


def computed(pair: Pair) -> Mapping[str, F32]:
    rope = pair.draft.rope()
    return {"rope_freqs.weight": llama3_factors(rope, pair.draft.heads()[2])} if rope.kind == "llama3" else {}


def canonical(name: str) -> str:
    name = stripped(name)
    return _LAYER + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


FAMILY = DraftFamily(
    "eagle3",
    ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"),
    metadata,
    wanted,
    canonical,
    computed=computed,
)
