"""deepseek4: DeepSeek V4 Flash, the April preview and the 0731 release, with the names and keys of ds4's files.

The checkpoint's own names are short (`layers.3.attn.wq_a.weight`) and every layer has experts, so the two tables below are the
whole translation. Layers differ by their compression ratio: 0 has a window only, 4 a compressor and an indexer, 128 a compressor;
the first layers choose experts by a table of token ids instead of a bias. What follows the layers under `mtp.` drafts for the
model and goes into a file of its own: three DSpark stages in 0731, one MTP block in the preview.

The router is F16 and the token table I32 in whatever file, since that is what readers of this architecture know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from ds4py.convert.config import MAX_COUNT, Config
from ds4py.convert.family import Family, Support, Wanted
from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgmlType, GgufType, Value

_HC = 3  # groups of values that mix the streams: read, write, and stream to stream
_YARN = {"factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 65536}
_DSPARK = {"block_size": 5, "noise_token_id": 128799, "target_layer_ids": [40, 41, 42]}
_STAGE = re.compile(r"mtp\.(\d+)\.")


def metadata(config: Config) -> Mapping[str, Any]:
    n_layers = config.count("num_hidden_layers")
    _check_supported(config)
    yarn = {**_YARN, **(config.get("rope_scaling") or {})}
    ratios = _ratios(config)
    keys = {
        "block_count": n_layers,
        "context_length": config.count("max_position_embeddings"),
        "embedding_length": config.count("hidden_size"),
        "attention.head_count": config.count("num_attention_heads"),
        "attention.head_count_kv": config.count("num_key_value_heads", 1),
        "attention.key_length": config.count("head_dim"),
        "attention.value_length": config.count("head_dim"),
        "attention.q_lora_rank": config.count("q_lora_rank"),
        "attention.output_lora_rank": config.count("o_lora_rank"),
        "attention.output_group_count": config.count("o_groups"),
        "attention.sliding_window": config.count("sliding_window"),
        "attention.compress_ratios": Value(GgufType.ARRAY, ratios, GgufType.INT32),
        "attention.compress_rope_freq_base": config.number("compress_rope_theta"),
        "attention.indexer.head_count": config.count("index_n_heads"),
        "attention.indexer.key_length": config.count("index_head_dim"),
        "attention.indexer.top_k": config.count("index_topk"),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6),
        "expert_count": config.count("n_routed_experts"),
        "expert_used_count": config.count("num_experts_per_tok"),
        "expert_shared_count": config.count("n_shared_experts", 1),
        "expert_feed_forward_length": config.count("moe_intermediate_size"),
        "expert_weights_scale": config.number("routed_scaling_factor"),
        "expert_weights_norm": config.flag("norm_topk_prob", True),
        "hash_layer_count": _n_hash(config),
        "swiglu_clamp_exp": Value(GgufType.ARRAY, [config.number("swiglu_limit")] * n_layers, GgufType.FLOAT32),
        "hyper_connection.count": config.count("hc_mult"),
        "hyper_connection.sinkhorn_iterations": config.count("hc_sinkhorn_iters"),
        "hyper_connection.epsilon": config.number("hc_eps"),
        "rope.dimension_count": config.count("qk_rope_head_dim"),
        "rope.freq_base": config.number("rope_theta"),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(yarn["factor"]),
        "rope.scaling.original_context_length": Value(GgufType.UINT64, int(yarn["original_max_position_embeddings"])),
        "rope.scaling.yarn_beta_fast": float(yarn["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(yarn["beta_slow"]),
    }
    variant = {1: "preview", 3: "0731"}.get(len(ratios) - n_layers)
    return keys | ({"checkpoint_variant": variant} if variant else {})


def _check_supported(config: Config) -> None:
    """UnsupportedError for what would change the arithmetic and has no key."""
    for key, only in (("scoring_func", "sqrtsoftplus"), ("hidden_act", "silu"), ("topk_method", "noaux_tc")):
        if config.get(key, only) != only:
            raise UnsupportedError(f"{config.path}: {key} {config.get(key)!r:.40} is not supported for deepseek4, only {only}")


def _ratios(config: Config) -> list[int]:
    """One compression ratio per layer, then those of the drafting blocks. FormatError for anything but 0, 4 and 128."""
    value = config.get("compress_ratios")
    if not isinstance(value, list) or len(value) < config.count("num_hidden_layers") or not set(value) <= {0, 4, 128}:
        raise config.fail("compress_ratios", f"is {value!r:.60}, not a list of 0, 4 and 128 for every layer")
    return value


def _n_hash(config: Config) -> int:
    """Layers that choose experts by token; there may be none."""
    value = config.get("num_hash_layers", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise config.fail("num_hash_layers", f"is {value!r:.40}, not a whole number")
    return value


# --- tensors ---------------------------------------------------------------------------------------------------------------


def wanted(config: Config) -> Iterator[Wanted]:
    n_embd = config.count("hidden_size")
    yield Wanted("model.embed_tokens.weight", "token_embd.weight", (0, n_embd))
    yield Wanted("norm.weight", "output_norm.weight", (n_embd,))
    yield Wanted("lm_head.weight", "output.weight", (0, n_embd), optional=True)
    yield from _hc_head(config, "", "output_")
    ratios, n_hash = _ratios(config), _n_hash(config)
    for i in range(config.count("num_hidden_layers")):
        yield from _block(config, f"layers.{i}.", f"blk.{i}.", hashed=i < n_hash)
        yield from _compression(config, ratios[i], f"layers.{i}.attn.", f"blk.{i}.")


def _block(config: Config, there: str, here: str, hashed: bool) -> Iterator[Wanted]:
    """What every layer and every drafting block has: 24 tensors."""
    n_embd, n_hc = config.count("hidden_size"), config.count("hc_mult")
    n_mix = n_hc * 2 + n_hc * n_hc
    for site in ("hc_attn", "hc_ffn"):
        yield Wanted(f"{there}{site}_fn", f"{here}{site}_fn.weight", (n_mix, n_hc * n_embd))
        yield Wanted(f"{there}{site}_base", f"{here}{site}_base.weight", (n_mix,))
        yield Wanted(f"{there}{site}_scale", f"{here}{site}_scale.weight", (_HC,))
    yield from (Wanted(f"{there}{name}", f"{here}{name}", (n_embd,)) for name in ("attn_norm.weight", "ffn_norm.weight"))
    yield from _attention(config, f"{there}attn.", here)
    yield from _experts(config, f"{there}ffn.", here, hashed)


def _attention(config: Config, there: str, here: str) -> Iterator[Wanted]:
    n_embd, n_head, head_len = (config.count(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    q_rank, o_rank, n_groups = (config.count(key) for key in ("q_lora_rank", "o_lora_rank", "o_groups"))
    if n_head % n_groups:
        raise config.fail("num_attention_heads", f"is {n_head}, not a multiple of o_groups {n_groups}")
    yield Wanted(f"{there}attn_sink", f"{here}attn_sinks.weight", (n_head,))
    yield Wanted(f"{there}wq_a.weight", f"{here}attn_q_a.weight", (q_rank, n_embd))
    yield Wanted(f"{there}q_norm.weight", f"{here}attn_q_a_norm.weight", (q_rank,))
    yield Wanted(f"{there}wq_b.weight", f"{here}attn_q_b.weight", (n_head * head_len, q_rank))
    yield Wanted(f"{there}wkv.weight", f"{here}attn_kv.weight", (head_len, n_embd))
    yield Wanted(f"{there}kv_norm.weight", f"{here}attn_kv_a_norm.weight", (head_len,))
    yield Wanted(f"{there}wo_a.weight", f"{here}attn_output_a.weight", (n_groups * o_rank, n_head // n_groups * head_len))
    yield Wanted(f"{there}wo_b.weight", f"{here}attn_output_b.weight", (n_embd, n_groups * o_rank))


def _experts(config: Config, there: str, here: str, hashed: bool) -> Iterator[Wanted]:
    n_embd, n_ff, n_expert = (config.count(key) for key in ("hidden_size", "moe_intermediate_size", "n_routed_experts"))
    yield Wanted(f"{there}gate.weight", f"{here}ffn_gate_inp.weight", (n_expert, n_embd), type=GgmlType.F16)
    if hashed:
        table = (0, config.count("num_experts_per_tok"))
        yield Wanted(f"{there}gate.tid2eid", f"{here}ffn_gate_tid2eid.weight", table, type=GgmlType.I32)
    else:
        yield Wanted(f"{there}gate.bias", f"{here}exp_probs_b.bias", (n_expert,))
    n_shared = n_ff * config.count("n_shared_experts", 1)
    for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
        routed, shared = ((n_embd, n) if ours == "down" else (n, n_embd) for n in (n_ff, n_shared))
        yield Wanted(
            f"{there}experts.{{}}.{theirs}.weight", f"{here}ffn_{ours}_exps.weight", (n_expert, *routed), stacked=True
        )
        yield Wanted(f"{there}shared_experts.{theirs}.weight", f"{here}ffn_{ours}_shexp.weight", shared)


def _compression(config: Config, ratio: int, there: str, here: str) -> Iterator[Wanted]:
    """The compressor of a layer that compresses, and the indexer, with a compressor of its own, where the ratio is 4."""
    if not ratio:
        return
    yield from _compressor(config, ratio, config.count("head_dim"), f"{there}compressor.", f"{here}attn_compressor_")
    if ratio != 4:
        return
    n_heads, key_len = config.count("index_n_heads"), config.count("index_head_dim")
    query = (n_heads * key_len, config.count("q_lora_rank"))
    weights = (n_heads, config.count("hidden_size"))
    yield Wanted(f"{there}indexer.wq_b.weight", f"{here}indexer.attn_q_b.weight", query)
    yield Wanted(f"{there}indexer.weights_proj.weight", f"{here}indexer.proj.weight", weights)
    yield from _compressor(config, ratio, key_len, f"{there}indexer.compressor.", f"{here}indexer_compressor_")


def _compressor(config: Config, ratio: int, row_len: int, there: str, here: str) -> Iterator[Wanted]:
    """Windows of ratio 4 overlap, so each token has two halves there."""
    width, n_embd = row_len * (2 if ratio == 4 else 1), config.count("hidden_size")
    yield Wanted(f"{there}ape", f"{here}ape.weight", (ratio, width))
    yield Wanted(f"{there}wkv.weight", f"{here}kv.weight", (width, n_embd))
    yield Wanted(f"{there}wgate.weight", f"{here}gate.weight", (width, n_embd))
    yield Wanted(f"{there}norm.weight", f"{here}norm.weight", (row_len,))


def _hc_head(config: Config, there: str, here: str) -> Iterator[Wanted]:
    """What makes one stream of several."""
    n_hc = config.count("hc_mult")
    name = f"{here}hc" if here == "output_" else f"{here}hc_head"
    yield Wanted(f"{there}hc_head_fn", f"{name}_fn.weight", (n_hc, n_hc * config.count("hidden_size")))
    yield Wanted(f"{there}hc_head_base", f"{name}_base.weight", (n_hc,))
    yield Wanted(f"{there}hc_head_scale", f"{name}_scale.weight", (1,))


def canonical(name: str) -> str:
    """The two names that the converter's own checks know by what most checkpoints call them."""
    return {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}.get(name, name)


# --- what drafts -----------------------------------------------------------------------------------------------------------


def support(config: Config, names: Set[str]) -> Support:
    """The DSpark stages of 0731, or the preview's MTP block, told by the tensors that are there."""
    stages = {int(found[1]) for found in map(_STAGE.match, names) if found}
    n_stages = max(stages, default=-1) + 1
    if stages != set(range(n_stages)):
        raise FormatError(f"{config.path.parent}: of the drafting stages mtp.0 to mtp.{n_stages - 1} some are missing")
    if "mtp.0.main_proj.weight" in names:
        return _dspark(config, n_stages)
    if n_stages != 1:
        raise UnsupportedError(f"{config.path.parent}: {n_stages} drafting blocks without mtp.0.main_proj.weight are not known")
    return Support("deepseek4-mtp", "DeepSeek V4 Flash MTP support", {}, tuple(sorted(_mtp(config), key=_name)))


def _name(item: Wanted) -> str:
    return item.name


def _mtp(config: Config) -> Iterator[Wanted]:
    n_embd = config.count("hidden_size")
    yield from _block(config, "mtp.0.", "mtp.0.", hashed=False)
    for name in ("e_proj.weight", "h_proj.weight"):
        yield Wanted(f"mtp.0.{name}", f"mtp.0.{name}", (n_embd, n_embd))
    for name in ("enorm.weight", "hnorm.weight", "norm.weight"):
        yield Wanted(f"mtp.0.{name}", f"mtp.0.{name}", (n_embd,))
    yield from _hc_head(config, "mtp.0.", "mtp.0.")


def _dspark(config: Config, n_stages: int) -> Support:
    """Three stages and their heads: 81 tensors."""
    n_embd = config.count("hidden_size")
    block_size, noise, targets = (config.get(f"dspark_{key}", default) for key, default in _DSPARK.items())
    n_layers = config.count("num_hidden_layers")
    good = isinstance(targets, list) and targets == sorted({i for i in targets if isinstance(i, int) and 0 <= i < n_layers})
    if not good or not targets:
        raise config.fail("dspark_target_layer_ids", f"is {targets!r:.60}, not rising numbers of the {n_layers} layers")
    rank, last = config.count("dspark_markov_rank", 256), f"mtp.{n_stages - 1}."
    items = [item for i in range(n_stages) for item in _block(config, f"mtp.{i}.", f"mtp.{i}.", hashed=False)]
    items += [
        Wanted("mtp.0.main_proj.weight", "mtp.0.main_proj.weight", (n_embd, len(targets) * n_embd)),
        Wanted("mtp.0.main_norm.weight", "mtp.0.main_norm.weight", (n_embd,)),
        Wanted(f"{last}norm.weight", f"{last}norm.weight", (n_embd,)),
        *_hc_head(config, last, last),
    ]
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        items.append(Wanted(f"{last}{name}", f"{last}{name}", (0, rank)))
    confidence = f"{last}confidence_head.proj.weight"
    items.append(Wanted(confidence, confidence, (1, n_embd + rank), type=GgmlType.Q8_0))
    keys: dict[str, Any] = {
        "general.alignment": Value(GgufType.UINT32, 32),
        "dspark.block_size": block_size,
        "dspark.markov_rank": rank,
        "dspark.noise_token_id": noise,
        "dspark.target_layer_ids": Value(GgufType.ARRAY, targets, GgufType.UINT32),
        "dspark.stage_count": n_stages,
        "dspark.n_layers": n_stages,
        "dspark.checkpoint_variant": "0731",
    }
    return Support("deepseek4-dspark", "DeepSeek V4 Flash DSpark support", keys, tuple(sorted(items, key=_name)))


FAMILY = Family(
    "deepseek4",
    ("DeepseekV4ForCausalLM",),
    metadata,
    wanted,
    canonical=canonical,
    pre_tokenizer="joyai-llm",
    support_prefix="mtp.",
    support=support,
)
