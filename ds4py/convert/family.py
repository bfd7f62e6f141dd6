"""What an architecture must tell a converter: metadata, and which tensors of the checkpoint become which tensors of the file.

The idea: a family lists every tensor it wants, by both names and with its shape. What is wanted and absent is an error, what is
present and not wanted is one too, so a checkpoint with one bias more than expected cannot be turned into a file that runs and
babbles. Changes of the values are functions on whole groups of rows, so a tensor is converted a few rows at a time.
Rejected: a table of regular expressions for all families (nobody can see what one family's file must hold).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds4py.convert.config import Config, Rope
from ds4py.convert.floats import F32
from ds4py.errors import UnsupportedError
from ds4py.gguf import GgmlType


@dataclass(frozen=True)
class Change:
    """A change of values, float32 [n, ...] -> the same shape, where n is a multiple of `group` rows."""

    apply: Callable[[F32], F32]
    group: int = 1


@dataclass(frozen=True)
class Wanted:
    """One tensor: its name in the checkpoint, in the file, its shape there (rows first; 0 = any number of rows).

    stacked: the source has `{}` in its name, for the numbers 0 .. shape[0] of the matrices that become one tensor (experts).
    type: how it is stored whatever is asked; None leaves it to the options."""

    source: str
    name: str
    shape: tuple[int, ...]
    change: Change | None = None
    optional: bool = False
    stacked: bool = False
    type: GgmlType | None = None

    @property
    def sources(self) -> list[str]:
        return [self.source.format(i) for i in range(self.shape[0])] if self.stacked else [self.source]


@dataclass(frozen=True)
class Support:
    """A second file that a checkpoint makes: what drafts for the model. `metadata` has whole keys."""

    architecture: str
    name: str
    metadata: Mapping[str, Any]
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True)
class Family:
    """One architecture. classes: what config.json calls it. canonical: a checkpoint's tensor name as `wanted` spells it."""

    name: str  # general.architecture
    classes: tuple[str, ...]
    metadata: Callable[[Config], Mapping[str, Any]]  # keys without the architecture's name in front
    wanted: Callable[[Config], Iterable[Wanted]]
    tied_by_default: bool = False
    computed: Callable[[Config], Mapping[str, F32]] = field(default=lambda config: {})  # tensors that no checkpoint holds
    canonical: Callable[[str], str] = field(default=lambda name: name)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # config values that checkpoints leave out
    pre_tokenizer: str = ""  # of the names that mean the same splitting, the one this family's files have
    support_prefix: str = ""  # begins the names of tensors that belong to the support file
    support: Callable[[Config, Set[str]], Support] | None = None  # the support file, from the names of all tensors there are


def interleave(head_len: int) -> Change:
    """Rows of each head reordered: rotary partners i and i + head_len / 2 become neighbours 2i and 2i + 1."""

    def apply(rows: F32) -> F32:
        halves = rows.reshape(-1, 2, head_len // 2, *rows.shape[1:])
        return halves.swapaxes(1, 2).reshape(rows.shape)

    return Change(apply, head_len)


def plus_one() -> Change:
    """Norms that a checkpoint stores as their distance from 1."""
    return Change(lambda rows: rows + np.float32(1))


def common_metadata(config: Config, eps: float) -> dict[str, Any]:
    """The keys that all dense transformers share; `eps` is the default of rms_norm_eps."""
    n_head, n_head_kv, head_len = config.heads()
    return {
        "block_count": config.count("num_hidden_layers"),
        "context_length": config.count("max_position_embeddings"),
        "embedding_length": config.count("hidden_size"),
        "feed_forward_length": config.count("intermediate_size"),
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": head_len,
        "attention.value_length": head_len,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", eps),
        "rope.dimension_count": head_len,
    }


def rope_metadata(config: Config, rope: Rope, inside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Keys of the frequencies. Kinds in `inside` need no key (their factors are a tensor). UnsupportedError for other kinds."""
    keys: dict[str, Any] = {"rope.freq_base": rope.base}
    if rope.kind in ("default", *inside):
        return keys
    if rope.kind not in ("linear", "yarn"):
        raise UnsupportedError(f"{config.path}: rope scaling {rope.kind!r} is not supported for {config.architecture}")
    keys |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": rope.number("factor")}
    if rope.kind == "yarn":
        trained = rope.number("original_max_position_embeddings", float(config.count("max_position_embeddings")))
        keys["rope.scaling.original_context_length"] = int(trained)
        for ours, theirs in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if rope.table.get(theirs) is not None:
                keys[f"rope.scaling.{ours}"] = rope.number(theirs)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if rope.table.get(name) is not None:
                raise UnsupportedError(f"{config.path}: YaRN with {name} is not supported for {config.architecture}")
    return keys


def top_tensors(config: Config, norm: Change | None = None) -> list[Wanted]:
    """Embedding, last norm and head. The head is optional here; the plan decides by the config's word about tying."""
    n_embd = config.count("hidden_size")
    return [
        Wanted("model.embed_tokens.weight", "token_embd.weight", (0, n_embd)),
        Wanted("model.norm.weight", "output_norm.weight", (n_embd,), norm),
        Wanted("lm_head.weight", "output.weight", (0, n_embd), optional=True),
    ]


def mlp_tensors(config: Config, layer: int) -> list[Wanted]:
    n_embd, n_ff = config.count("hidden_size"), config.count("intermediate_size")
    there, here = f"model.layers.{layer}.mlp", f"blk.{layer}"
    return [
        Wanted(f"{there}.gate_proj.weight", f"{here}.ffn_gate.weight", (n_ff, n_embd)),
        Wanted(f"{there}.up_proj.weight", f"{here}.ffn_up.weight", (n_ff, n_embd)),
        Wanted(f"{there}.down_proj.weight", f"{here}.ffn_down.weight", (n_embd, n_ff)),
    ]


def attention_tensors(config: Config, layer: int, rotated: Change | None = None) -> list[Wanted]:
    """q, k, v and output; `rotated` changes the rows of q and k."""
    n_embd = config.count("hidden_size")
    n_head, n_head_kv, head_len = config.heads()
    there, here = f"model.layers.{layer}.self_attn", f"blk.{layer}"
    q_len, kv_len = n_head * head_len, n_head_kv * head_len
    return [
        Wanted(f"{there}.q_proj.weight", f"{here}.attn_q.weight", (q_len, n_embd), rotated),
        Wanted(f"{there}.k_proj.weight", f"{here}.attn_k.weight", (kv_len, n_embd), rotated),
        Wanted(f"{there}.v_proj.weight", f"{here}.attn_v.weight", (kv_len, n_embd)),
        Wanted(f"{there}.o_proj.weight", f"{here}.attn_output.weight", (n_embd, q_len)),
    ]


def biases(weights: Iterable[Wanted], optional: bool = False) -> list[Wanted]:
    """The biases of some matrices, which go through the same change."""
    return [
        Wanted(w.source.removesuffix("weight") + "bias", w.name.removesuffix("weight") + "bias", w.shape[:1], w.change, optional)
        for w in weights
    ]


def norms(layer: int, n: int, names: Mapping[str, str], change: Change | None = None) -> list[Wanted]:
    """Vectors of a layer: checkpoint part -> file part."""
    return [
        Wanted(f"model.layers.{layer}.{there}.weight", f"blk.{layer}.{here}.weight", (n,), change)
        for there, here in names.items()
    ]
