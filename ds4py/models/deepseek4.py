"""deepseek4: DeepSeek V4 Flash, its Vision version's language part, and V4 PRO.

The residual is four streams; each half of a block mixes them with weights computed from them (hyper-connections), takes its
input from the mixture and spreads its output over them. One latent per position is key and value of all heads. A row attends to a
window of latents and, in most layers, to pools that summarise groups of 4 or 128 positions; where groups are of 4, an indexer
picks which entries. A sink per head joins the softmax, values come rotated and are rotated back. Every layer has experts; in the
first ones a table names them by token.

Latents and pool entries are rounded to 8 bits, the indexer's queries and entries to 4, as in training: without it the indexer
picks other entries. `Block` is also what the draft modules of these models are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ds4py.latent import Pooling
from ds4py.models.deepseek4_config import OVERLAP, Config, LayerCaches, projected_len
from ds4py.models.header import Header
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, Buf, Experts, Ops, Rope, Router, Weight


@dataclass(frozen=True)
class Site:
    """Hyper-connection of one half of a block, and the norm of what enters it."""

    fn: Weight
    base: F32
    scale: F32
    norm: F32

    @classmethod
    def read(cls, t: Tensors, blk: str, name: str, c: Config) -> Site:
        n = c.n_streams
        return cls(
            fn=t.matrix(f"{blk}.hc_{name}_fn.weight", n * (n + 2), n * c.n_embd),
            base=t.vector(f"{blk}.hc_{name}_base.weight", n * (n + 2)),
            scale=t.vector(f"{blk}.hc_{name}_scale.weight", 3),
            norm=t.vector(f"{blk}.{name}_norm.weight", c.n_embd),
        )

    def enter(self, ops: Ops, c: Config, h: Buf) -> tuple[Buf, Buf]:
        """What enters the half, normed [R, D], and the weights of the mixture."""
        lat = ops.latent
        m = ops.linear(ops.rms_norm(h, None, c.eps), self.fn)
        mixing = lat.mixing(m, self.scale, self.base, c.n_streams, c.n_mixing_iters, c.mixing_eps)
        return ops.rms_norm(lat.collapse(h, mixing, c.n_streams), self.norm, c.eps), mixing

    def run(self, ops: Ops, c: Config, h: Buf, half: Callable[[Buf], Buf]) -> Buf:
        x, mixing = self.enter(ops, c, h)
        return ops.latent.renew(h, half(x), mixing, c.n_streams)


@dataclass(frozen=True)
class Compressor:
    """Makes pool entries from projections of single positions."""

    kv: Weight
    gate: Weight
    how: Pooling

    @classmethod
    def read(cls, t: Tensors, name: str, ratio: int, width: int, rounding: str, c: Config) -> Compressor:
        n = projected_len(ratio, width)
        return cls(
            kv=t.matrix(f"{name}_kv.weight", n, c.n_embd),
            gate=t.matrix(f"{name}_gate.weight", n, c.n_embd),
            how=Pooling(
                every=ratio,
                overlap=ratio == OVERLAP,
                position_bias=t.array(f"{name}_ape.weight", ratio, n),
                norm=t.vector(f"{name}_norm.weight", width),
                eps=c.eps,
                rope=c.rope_pool,
                rounding=rounding if c.rounding else "",
            ),
        )

    def run(self, ops: Ops, x: Buf, projected: int, pool: int) -> None:
        ops.latent.put(ops.concat(ops.linear(x, self.kv), ops.linear(x, self.gate)), projected, exact=True)
        ops.latent.pool(projected, pool, self.how)


@dataclass(frozen=True)
class Indexer:
    """Picks the pool entries that each row attends to, by entries and queries of its own."""

    attn_q_b: Weight
    proj: Weight
    compressor: Compressor

    @classmethod
    def read(cls, t: Tensors, blk: str, ratio: int, c: Config) -> Indexer:
        n, d = c.indexer.n_heads, c.indexer.head_len
        return cls(
            attn_q_b=t.matrix(f"{blk}.indexer.attn_q_b.weight", n * d, c.q_rank),
            proj=t.matrix(f"{blk}.indexer.proj.weight", n, c.n_embd),
            compressor=Compressor.read(t, f"{blk}.indexer_compressor", ratio, d, "fp4", c),
        )

    def run(self, ops: Ops, c: Config, x: Buf, q_low: Buf, caches: LayerCaches) -> Buf:
        assert caches.index_projected is not None and caches.index_pool is not None
        n, d = c.indexer.n_heads, c.indexer.head_len
        self.compressor.run(ops, x, caches.index_projected, caches.index_pool)
        q = ops.rope(ops.linear(q_low, self.attn_q_b), c.rope_pool, n)
        if c.rounding:
            q = ops.latent.fp4(ops.latent.hadamard(q, n))
        weights = ops.scale(ops.linear(x, self.proj), (d * n) ** -0.5)
        return ops.latent.choose(q, weights, caches.index_pool, self.compressor.how.every, n, c.indexer.top_k)


@dataclass(frozen=True)
class Attention:
    attn_q_a: Weight
    attn_q_a_norm: F32
    attn_q_b: Weight
    attn_kv: Weight
    attn_kv_a_norm: F32
    attn_sinks: F32
    attn_output_a: Weight
    attn_output_b: Weight
    ratio: int
    compressor: Compressor | None
    indexer: Indexer | None

    @classmethod
    def read(cls, t: Tensors, blk: str, ratio: int, c: Config) -> Attention:
        d, n_out = c.heads.head_len, c.n_o_groups * c.o_rank
        return cls(
            attn_q_a=t.matrix(f"{blk}.attn_q_a.weight", c.q_rank, c.n_embd),
            attn_q_a_norm=t.vector(f"{blk}.attn_q_a_norm.weight", c.q_rank),
            attn_q_b=t.matrix(f"{blk}.attn_q_b.weight", c.heads.q_len, c.q_rank),
            attn_kv=t.matrix(f"{blk}.attn_kv.weight", d, c.n_embd),
            attn_kv_a_norm=t.vector(f"{blk}.attn_kv_a_norm.weight", d),
            attn_sinks=t.vector(f"{blk}.attn_sinks.weight", c.heads.n_head),
            attn_output_a=t.matrix(f"{blk}.attn_output_a.weight", n_out, c.heads.q_len // c.n_o_groups),
            attn_output_b=t.matrix(f"{blk}.attn_output_b.weight", c.n_embd, n_out),
            ratio=ratio,
            compressor=Compressor.read(t, f"{blk}.attn_compressor", ratio, d, "fp8", c) if ratio else None,
            indexer=Indexer.read(t, blk, ratio, c) if ratio == OVERLAP else None,
        )

    def latent(self, ops: Ops, c: Config, x: Buf) -> Buf:
        """What a position leaves in the window: [R, D], normed, rotated, rounded."""
        kv = ops.rms_norm(ops.linear(x, self.attn_kv), self.attn_kv_a_norm, c.eps)
        kv = ops.rope(kv, self._rope(c), 1)
        return ops.latent.fp8(kv, c.n_plain) if c.rounding else kv

    def run(self, ops: Ops, c: Config, x: Buf, caches: LayerCaches, block: bool = False) -> Buf:
        lat, heads = ops.latent, c.heads
        q_low = ops.rms_norm(ops.linear(x, self.attn_q_a), self.attn_q_a_norm, c.eps)
        q = ops.rms_norm(ops.linear(q_low, self.attn_q_b), None, c.eps, heads.n_head)
        q = ops.rope(q, self._rope(c), heads.n_head)
        lat.put(self.latent(ops, c, x), caches.ring)
        chosen = None
        if self.compressor is not None:
            assert caches.projected is not None and caches.pool is not None
            self.compressor.run(ops, x, caches.projected, caches.pool)
        if self.indexer is not None:
            chosen = self.indexer.run(ops, c, x, q_low, caches)
        scale = heads.head_len**-0.5
        mixed = lat.attend(q, caches.ring, heads.n_head, scale, self.attn_sinks, caches.pool, self.ratio, chosen, block)
        mixed = ops.rope(mixed, self._rope(c), heads.n_head, inverse=True)
        return ops.linear(lat.grouped_linear(mixed, self.attn_output_a, c.n_o_groups), self.attn_output_b)

    def _rope(self, c: Config) -> Rope:
        return c.rope_pool if self.ratio else c.rope_window


@dataclass(frozen=True)
class FeedForward:
    ffn_gate_inp: Weight
    ffn_gate_exps: Experts
    ffn_up_exps: Experts
    ffn_down_exps: Experts
    ffn_gate_shexp: Weight
    ffn_up_shexp: Weight
    ffn_down_shexp: Weight
    router: Router
    clamp: float

    @classmethod
    def read(cls, t: Tensors, blk: str, hashed: bool, clamp: float, n_vocab: int, c: Config) -> FeedForward:
        e = c.experts
        bias = None if hashed else t.vector(f"{blk}.exp_probs_b.bias", e.n_experts)
        table = t.table(f"{blk}.ffn_gate_tid2eid.weight", n_vocab, e.n_used, e.n_experts) if hashed else None
        return cls(
            ffn_gate_inp=t.matrix(f"{blk}.ffn_gate_inp.weight", e.n_experts, c.n_embd),
            ffn_gate_exps=t.experts(f"{blk}.ffn_gate_exps.weight", e.n_experts, e.n_ff, c.n_embd),
            ffn_up_exps=t.experts(f"{blk}.ffn_up_exps.weight", e.n_experts, e.n_ff, c.n_embd),
            ffn_down_exps=t.experts(f"{blk}.ffn_down_exps.weight", e.n_experts, c.n_embd, e.n_ff),
            ffn_gate_shexp=t.matrix(f"{blk}.ffn_gate_shexp.weight", e.n_ff_shared, c.n_embd),
            ffn_up_shexp=t.matrix(f"{blk}.ffn_up_shexp.weight", e.n_ff_shared, c.n_embd),
            ffn_down_shexp=t.matrix(f"{blk}.ffn_down_shexp.weight", c.n_embd, e.n_ff_shared),
            router=Router("sqrtsoftplus", e.n_used, bias, table, e.normed, e.scale),
            clamp=clamp,
        )

    def run(self, ops: Ops, x: Buf) -> Buf:
        routing = ops.route(ops.linear(x, self.ffn_gate_inp), self.router)
        y = ops.experts(x, routing, self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps, "silu", self.clamp)
        shared = ops.gated(ops.linear(x, self.ffn_gate_shexp), ops.linear(x, self.ffn_up_shexp), "silu", self.clamp)
        return ops.add(y, ops.linear(shared, self.ffn_down_shexp))


@dataclass(frozen=True)
class Block:
    """One layer: attention, then experts, each in its hyper-connection."""

    attn_site: Site
    attention: Attention
    ffn_site: Site
    ffn: FeedForward

    @classmethod
    def read(cls, t: Tensors, blk: str, ratio: int, hashed: bool, clamp: float, n_vocab: int, c: Config) -> Block:
        return cls(
            attn_site=Site.read(t, blk, "attn", c),
            attention=Attention.read(t, blk, ratio, c),
            ffn_site=Site.read(t, blk, "ffn", c),
            ffn=FeedForward.read(t, blk, hashed, clamp, n_vocab, c),
        )

    def run(self, ops: Ops, c: Config, h: Buf, caches: LayerCaches, block: bool = False) -> Buf:
        h = self.attn_site.run(ops, c, h, lambda x: self.attention.run(ops, c, x, caches, block))
        return self.ffn_site.run(ops, c, h, lambda x: self.ffn.run(ops, x))


@dataclass(frozen=True)
class Head:
    """Collapses the streams to one normed row."""

    fn: Weight
    base: F32
    scale: F32
    norm: F32

    @classmethod
    def read(cls, t: Tensors, prefix: str, norm: str, c: Config) -> Head:
        return cls(
            fn=t.matrix(f"{prefix}_fn.weight", c.n_streams, c.n_streams * c.n_embd),
            base=t.vector(f"{prefix}_base.weight", c.n_streams),
            scale=t.vector(f"{prefix}_scale.weight", 1),
            norm=t.vector(norm, c.n_embd),
        )

    def collapse(self, ops: Ops, c: Config, h: Buf) -> Buf:
        m = ops.linear(ops.rms_norm(h, None, c.eps), self.fn)
        mixing = ops.latent.mixing(m, self.scale, self.base, c.n_streams, c.n_mixing_iters, c.mixing_eps)
        return ops.latent.collapse(h, mixing, c.n_streams)

    def run(self, ops: Ops, c: Config, h: Buf) -> Buf:
        return ops.rms_norm(self.collapse(ops, c, h), self.norm, c.eps)


class Model:
    def __init__(self, header: Header, t: Tensors, rounding: bool = True) -> None:
        c = self.config = replace(Config.read(header), rounding=rounding)
        self.token_embd = t.embedding(c.n_embd)
        n_vocab = self.vocab_size = self.token_embd.shape[0]
        self.blk = [
            Block.read(t, f"blk.{i}", ratio, i < c.experts.n_hash_layers, clamp, n_vocab, c)
            for i, (ratio, clamp) in enumerate(zip(c.ratios, c.clamps, strict=True))
        ]
        self.output_hc = Head.read(t, "output_hc", "output_norm.weight", c)
        self.output = t.head(self.token_embd)
        self.n_layers, self.n_ctx_train = c.n_layers, c.n_ctx_train
        self.caches: Sequence[CacheSpec] = c.cache_specs
        self._layer_caches = c.layer_caches
        self.last_tap = c.n_layers

    def graph(self, ops: Ops) -> Buf:
        """Taps are means over the streams; number n_layers is all streams, as they enter the head."""
        c = self.config
        x = ops.embed(self.token_embd)
        ops.tap(-1, x)
        h = ops.latent.spread(x, c.n_streams)
        for i, (blk, caches) in enumerate(zip(self.blk, self._layer_caches, strict=True)):
            h = blk.run(ops, c, h, caches)
            if ops.wants(i):
                ops.tap(i, ops.latent.mean(h, c.n_streams))
        ops.tap(c.n_layers, h)
        return ops.linear(self.output_hc.run(ops, c, ops.pick(h)), self.output)
