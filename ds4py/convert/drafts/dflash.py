"""dflash: block drafts of z-lab and speculators.

A few layers of Qwen 3's kind over a block of mask tokens, which attend to projected residuals of the target and to each other.
`target_layer_ids` names layers whose output is read; speculators writes `aux_hidden_state_layer_ids`, which is one more.
Feature width and draft width are one number here, so a draft is as wide as its target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.drafts.pair import DraftFamily, Pair, stripped
from ds4py.convert.family import Change, Wanted, common_metadata, rope_metadata
from ds4py.convert.floats import F32
from ds4py.errors import FormatError, UnsupportedError

_EPS = 1e-6
_BLOCK = 16  # when a checkpoint does not say
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}
_NUMBERS = {"attention_value_scale": "attention.value_scale", "input_embedding_scale": "embedding_scale"}
_UNKNOWN = ("conv_kernel_size", "selector_rank", "output_multiplier", "final_logit_softcapping")  # of DFlash2


def metadata(pair: Pair) -> Mapping[str, Any]:
    c = pair.draft
    for key in _UNKNOWN:
        if c.get(key):
            raise UnsupportedError(f"{c.path}: {key} belongs to DFlash2, which is not supported")
    if (c.path.parent / "mask_embedding.pt").exists():
        raise UnsupportedError(
            f"{c.path.parent}: mask_embedding.pt is a pickle, which can run code when it is read; put its row into "
            "embed_tokens.weight of a safetensors file and move it away"
        )
    act = c.get("hidden_act", "silu")
    if act not in _ACTIVATIONS:
        raise UnsupportedError(f"{c.path}: hidden_act {act!r:.40} is not supported, only {', '.join(_ACTIVATIONS)}")
    keys: dict[str, Any] = {
        **common_metadata(c, _EPS),
        **rope_metadata(c, c.rope()),
        "vocab_size": pair.n_vocab,
        "block_size": c.count("block_size", _BLOCK),
        "target_layers": taps(pair),
        "attention.causal": c.flag("causal", False),
        **windows(pair),
    }
    if act != "silu":
        keys["hidden_activation"] = _ACTIVATIONS[act]
    return keys | {ours: c.number(theirs) for theirs, ours in _NUMBERS.items() if c.get(theirs) is not None}


def taps(pair: Pair) -> list[int]:
    """The layers, as the file counts."""
    key = "target_layer_ids"
    if pair.draft.get(key) is None and pair.draft.get("aux_hidden_state_layer_ids") is not None:
        key = "aux_hidden_state_layer_ids"
    return pair.taps(key, pair.draft.get(key), int(key == "target_layer_ids"))


def windows(pair: Pair) -> Mapping[str, Any]:
    """Keys of the layers that see only part of the context; empty if all see everything."""
    c = pair.draft
    n = c.count("num_hidden_layers")
    kinds = c.get("layer_types") or ["full_attention"] * n
    if not isinstance(kinds, list) or len(kinds) != n or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise c.fail("layer_types", f"does not say full_attention or sliding_attention for each of {n} layers")
    size = "sliding_window"
    if c.flag("use_swa", False):
        kinds, size = ["sliding_attention"] * n, "swa_window_size"
    if "sliding_attention" not in kinds:
        return {}
    pattern = [kind == "sliding_attention" for kind in kinds]
    return {"attention.sliding_window": c.count(size), "attention.sliding_window_pattern": pattern}


def mask_token(pair: Pair) -> Mapping[str, Any]:
    mask = pair.draft.get("mask_token_id")
    if isinstance(mask, bool) or not isinstance(mask, int) or not 0 <= mask < pair.n_vocab:
        raise pair.draft.fail("mask_token_id", f"is {mask!r:.40}, not one of the target's {pair.n_vocab:,} tokens")
    return {"tokenizer.ggml.mask_token_id": mask}


def wanted(pair: Pair) -> Iterator[Wanted]:
    c = pair.draft
    d = c.count("hidden_size")
    if d != pair.target_width:
        raise FormatError(f"{c.path}: hidden_size is {d} and the target's is {pair.target_width}; a block draft is as wide as it")
    yield Wanted("fc.weight", "fc.weight", (d, len(taps(pair)) * d))
    yield Wanted("hidden_norm.weight", "enc.output_norm.weight", (d,))
    yield Wanted("norm.weight", "output_norm.weight", (d,))
    for i in range(c.count("num_hidden_layers")):
        yield from _layer(pair, f"layers.{i}.", f"blk.{i}.", d)
    yield Wanted("embed_tokens.weight", "token_embd.weight", (pair.n_vocab, d), optional=True)
    yield Wanted("lm_head.weight", "output.weight", (pair.n_rows, d), optional=pair.n_rows == pair.n_vocab)


def _layer(pair: Pair, there: str, here: str, d: int) -> Iterator[Wanted]:
    c = pair.draft
    n_ff = c.count("intermediate_size")
    n_head, n_head_kv, head_len = c.heads()
    q_len, kv_len = n_head * head_len, n_head_kv * head_len
    paired = None if c.flag("rope_is_neox_style", True) else separate(head_len)
    for theirs, ours in _NORMS.items():
        yield Wanted(f"{there}{theirs}.weight", f"{here}{ours}.weight", (d,))
    for which, n in (("q", q_len), ("k", kv_len)):
        yield Wanted(f"{there}self_attn.{which}_proj.weight", f"{here}attn_{which}.weight", (n, d), paired)
        yield Wanted(f"{there}self_attn.{which}_norm.weight", f"{here}attn_{which}_norm.weight", (head_len,), paired)
    shared = c.flag("attention_k_eq_v", False)  # readers then make values from keys
    yield Wanted(f"{there}self_attn.v_proj.weight", f"{here}attn_v.weight", (kv_len, d), optional=shared)
    yield Wanted(f"{there}self_attn.o_proj.weight", f"{here}attn_output.weight", (d, q_len))
    yield Wanted(f"{there}self_attn.sinks", f"{here}attn_sinks.weight", (n_head,), optional=True)
    yield Wanted(f"{there}mlp.gate_proj.weight", f"{here}ffn_gate.weight", (n_ff, d))
    yield Wanted(f"{there}mlp.up_proj.weight", f"{here}ffn_up.weight", (n_ff, d))
    yield Wanted(f"{there}mlp.down_proj.weight", f"{here}ffn_down.weight", (d, n_ff))


def separate(head_len: int) -> Change:
    """Rows of each head reordered: rotary partners that are neighbours come to lie head_len / 2 apart."""

    def apply(rows: F32) -> F32:
        pairs = rows.reshape(-1, head_len // 2, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    return Change(apply, head_len)


FAMILY = DraftFamily("dflash", ("DFlashDraftModel",), metadata, wanted, stripped, tokenizer=mask_token)
