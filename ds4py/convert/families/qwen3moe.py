"""qwen3moe: Qwen 3, mixtures of experts: attention as in qwen3, and in every layer experts that a router chooses among.

The file has no key for two of the config's settings, so what other values would mean is refused: layers without experts
(`decoder_sparse_step`, `mlp_only_layers`), and shares of the chosen experts that do not sum to 1 (`norm_topk_prob`). The router
stays in float32, as readers of this architecture expect it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.config import Config
from ds4py.convert.families.qwen3 import attention
from ds4py.convert.families.qwen3 import metadata as dense_metadata
from ds4py.convert.family import Family, Wanted, top_tensors
from ds4py.errors import UnsupportedError
from ds4py.gguf import GgmlType


def metadata(config: Config) -> Mapping[str, Any]:
    _check_supported(config)
    n_experts, n_used = _n_experts(config), config.count("num_experts_per_tok")
    if n_used > n_experts:
        raise config.fail("num_experts_per_tok", f"is {n_used}, but there are {n_experts} experts")
    return {
        **dense_metadata(config),
        "expert_count": n_experts,
        "expert_used_count": n_used,
        "expert_feed_forward_length": config.count("moe_intermediate_size"),
    }


def _n_experts(config: Config) -> int:
    """Under the name that published files have, or the one that transformers 5 writes."""
    return config.count("num_experts" if config.get("num_local_experts") is None else "num_local_experts")


def _check_supported(config: Config) -> None:
    """UnsupportedError for what would change the arithmetic and has no key."""
    if not config.flag("norm_topk_prob", False):
        raise UnsupportedError(f"{config.path}: qwen3moe without norm_topk_prob is not supported: the file has no key for it")
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers", []):
        raise UnsupportedError(
            f"{config.path}: layers without experts (decoder_sparse_step, mlp_only_layers) are not supported for qwen3moe"
        )


def wanted(config: Config) -> Iterator[Wanted]:
    yield from top_tensors(config)
    n_embd, n_ff, n_experts = config.count("hidden_size"), config.count("moe_intermediate_size"), _n_experts(config)
    for i in range(config.count("num_hidden_layers")):
        yield from attention(config, i)
        there, here = f"model.layers.{i}.mlp", f"blk.{i}"
        yield Wanted(f"{there}.gate.weight", f"{here}.ffn_gate_inp.weight", (n_experts, n_embd), type=GgmlType.F32)
        for part, shape in (("gate", (n_ff, n_embd)), ("up", (n_ff, n_embd)), ("down", (n_embd, n_ff))):
            source, name = f"{there}.experts.{{}}.{part}_proj.weight", f"{here}.ffn_{part}_exps.weight"
            yield Wanted(source, name, (n_experts, *shape), stacked=True)


FAMILY = Family("qwen3moe", ("Qwen3MoeForCausalLM",), metadata, wanted)
