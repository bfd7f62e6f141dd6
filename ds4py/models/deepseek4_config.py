"""What the metadata of a deepseek4 file says: DeepSeek V4 Flash (preview and 0731), its Vision version's language part, V4 PRO.

All are one network with other numbers. The numbers say which caches each layer has, so the list of caches is made here too: a
model's graph and its states must agree on their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.models.header import Header, Heads
from ds4py.models.rope import frequencies, rotated_len, yarn
from ds4py.models.running import CacheSpec
from ds4py.protocols import Rope

OVERLAP = 4  # the group length whose groups overlap, and whose layers have an indexer
SQRT_SOFTPLUS = 4  # llama.cpp's number of the router's activation
MOST_STREAMS = 16
FP8_BLOCK, FP4_BLOCK = 64, 32  # dimensions that share a scale
PRO_LAYERS = 61  # Flash has 43


@dataclass(frozen=True)
class Indexer:
    """The scorer that picks the pool entries a row attends to."""

    n_heads: int
    head_len: int
    top_k: int


@dataclass(frozen=True)
class Experts:
    n_experts: int
    n_used: int
    n_ff: int
    n_ff_shared: int
    n_hash_layers: int  # the first layers choose experts by the token alone
    normed: bool
    scale: float


@dataclass(frozen=True)
class LayerCaches:
    """Numbers of a layer's caches; None where it has no such cache."""

    ring: int  # latents of the window
    projected: int | None = None
    pool: int | None = None
    index_projected: int | None = None
    index_pool: int | None = None


@dataclass(frozen=True)
class Config:
    n_layers: int
    n_embd: int
    n_ctx_train: int
    heads: Heads
    eps: float
    q_rank: int
    o_rank: int
    n_o_groups: int
    window: int
    ratios: Sequence[int]  # per layer: positions per pool entry, 0 = no pool
    clamps: Sequence[float]  # per layer: limit of the experts' gate and up, 0 = none
    rope_window: Rope  # layers without a pool
    rope_pool: Rope  # everything in layers with one
    indexer: Indexer
    experts: Experts
    n_streams: int
    n_mixing_iters: int
    mixing_eps: float
    rounding: bool = True  # cached rows rounded as in training; off only to compare with programs that leave it out

    @classmethod
    def read(cls, header: Header) -> Config:
        header.refuse("expert_group_count", "grouped experts")
        n_layers, n_embd = header.count("block_count"), header.count("embedding_length")
        heads = header.heads(n_embd)
        if heads.n_head_kv != 1:
            raise header.fail("attention.head_count_kv", f"is {heads.n_head_kv}; this architecture has one latent per position")
        n_groups = header.count("attention.output_group_count")
        if heads.n_head % n_groups:
            raise header.fail("attention.output_group_count", f"is {n_groups}, which does not divide {heads.n_head} heads")
        n_streams = header.count("hyper_connection.count")
        if n_streams > MOST_STREAMS:
            raise header.fail("hyper_connection.count", f"is {n_streams}; it must be at most {MOST_STREAMS}")
        rope_window, indexer = _rope_window(header, heads.head_len), _indexer(header, rotated_len(header, heads.head_len))
        n_plain = heads.head_len - 2 * len(rope_window.inv_freq)
        if n_plain % FP8_BLOCK:
            raise header.fail("rope.dimension_count", f"leaves {n_plain} dimensions; they are rounded in blocks of {FP8_BLOCK}")
        return cls(
            n_layers=n_layers,
            n_embd=n_embd,
            n_ctx_train=header.count("context_length", 1 << 20),
            heads=heads,
            eps=header.number("attention.layer_norm_rms_epsilon"),
            q_rank=header.count("attention.q_lora_rank"),
            o_rank=header.count("attention.output_lora_rank"),
            n_o_groups=n_groups,
            window=header.count("attention.sliding_window"),
            ratios=_ratios(header, n_layers),
            clamps=header.numbers("swiglu_clamp_exp", n_layers),
            rope_window=rope_window,
            rope_pool=_rope_pool(header, heads.head_len),
            indexer=indexer,
            experts=_experts(header, n_layers),
            n_streams=n_streams,
            n_mixing_iters=header.count("hyper_connection.sinkhorn_iterations"),
            mixing_eps=header.number("hyper_connection.epsilon"),
        )

    @property
    def n_plain(self) -> int:
        """Dimensions of a latent that are not rotated."""
        return self.heads.head_len - 2 * len(self.rope_window.inv_freq)

    @property
    def is_pro(self) -> bool:
        """V4 PRO: it has no draft module of its own."""
        return self.n_layers == PRO_LAYERS

    @property
    def layer_caches(self) -> list[LayerCaches]:
        """Per layer the numbers of its caches, counted through all layers in the order of `cache_specs`."""
        out, n = [], 0
        for ratio in self.ratios:
            count = 5 if ratio == OVERLAP else 3 if ratio else 1
            out.append(LayerCaches(*range(n, n + count)))
            n += count
        return out

    @property
    def cache_specs(self) -> list[CacheSpec]:
        out = []
        for ratio in self.ratios:
            out.append(CacheSpec(1, 0, self.heads.head_len, window=self.window))
            if ratio:
                out += _pool_specs(ratio, self.heads.head_len)
            if ratio == OVERLAP:
                out += _pool_specs(ratio, self.indexer.head_len)
        return out


def projected_len(ratio: int, width: int) -> int:
    """Values (and scores) per position from which pool entries of `width` are made."""
    return width * (2 if ratio == OVERLAP else 1)


def _pool_specs(ratio: int, width: int) -> list[CacheSpec]:
    """The ring of projected rows that a group (with its predecessor if they overlap) is made from, and the pool."""
    reach = ratio * (2 if ratio == OVERLAP else 1)
    return [
        CacheSpec(1, 0, 2 * projected_len(ratio, width), window=reach, exact=True),
        CacheSpec(1, 0, width, every=ratio),
    ]


def _ratios(header: Header, n_layers: int) -> list[int]:
    ratios = [int(ratio) for ratio in header.numbers("attention.compress_ratios", n_layers)]
    if any(ratio < 0 or ratio == 1 for ratio in ratios):
        raise header.fail("attention.compress_ratios", f"is {ratios}; each must be 0 or at least 2")
    return ratios


def _indexer(header: Header, n_rot: int) -> Indexer:
    head_len = header.count("attention.indexer.key_length")
    if head_len < max(FP4_BLOCK, n_rot) or head_len & (head_len - 1):
        least = max(FP4_BLOCK, n_rot)
        raise header.fail("attention.indexer.key_length", f"is {head_len}; it must be a power of two of at least {least}")
    return Indexer(header.count("attention.indexer.head_count"), head_len, header.count("attention.indexer.top_k"))


def _experts(header: Header, n_layers: int) -> Experts:
    gating = header.raw("expert_gating_func")
    if gating not in (None, SQRT_SOFTPLUS):
        raise header.fail("expert_gating_func", f"is {gating}; this architecture has {SQRT_SOFTPLUS}, sqrt(softplus)")
    n_experts, n_used, n_ff = (header.count(f"expert_{name}") for name in ("count", "used_count", "feed_forward_length"))
    n_hash = int(header.raw("hash_layer_count") or 0)
    if n_used > n_experts:
        raise header.fail("expert_used_count", f"is {n_used}, above expert_count {n_experts}")
    if not 0 <= n_hash <= n_layers:
        raise header.fail("hash_layer_count", f"is {n_hash}, above block_count {n_layers}")
    normed = header.raw("expert_weights_norm")
    n_shared = header.count("expert_shared_count", 1)
    scale = header.number("expert_weights_scale", 1.0)
    return Experts(n_experts, n_used, n_ff, n_ff * n_shared, n_hash, normed is None or bool(normed), scale)


def _rope_window(header: Header, head_len: int) -> Rope:
    return Rope(frequencies(_base(header, "rope.freq_base"), rotated_len(header, head_len)), interleaved=True, tail=True)


def _rope_pool(header: Header, head_len: int) -> Rope:
    """YaRN's frequencies without its factor on cos and sin."""
    base = _base(header, "attention.compress_rope_freq_base")
    freq = yarn(
        frequencies(base, rotated_len(header, head_len)),
        base,
        header.number("rope.scaling.factor", 16.0),
        header.count("rope.scaling.original_context_length", 65536),
        header.number("rope.scaling.yarn_beta_fast", 32.0),
        header.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    return Rope(freq, interleaved=True, tail=True)


def _base(header: Header, name: str) -> float:
    base = header.number(name)
    if base <= 1:
        raise header.fail(name, f"is {base}; it must be above 1")
    return base
