"""qwen3moe: Qwen 3, the mixtures of experts.

Attention as in qwen3. Every feed-forward part is a mixture: softmax over all experts in f32, the likeliest `expert_used_count`
of them, their shares renormalised to sum 1 (Qwen's `norm_topk_prob`, which every published model sets and the format has no key
for); no expert is shared by all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.models.header import Header, Heads
from ds4py.models.rope import read_rope
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, Buf, Experts, Ops, Rope, Router, Weight


@dataclass(frozen=True)
class Config:
    n_layers: int
    n_embd: int
    n_ff: int  # of one expert
    n_experts: int
    n_used: int
    n_ctx_train: int
    heads: Heads
    eps: float
    rope: Rope

    @classmethod
    def read(cls, header: Header) -> Config:
        n_embd = header.count("embedding_length")
        heads = header.heads(n_embd)
        n_experts, n_used = header.count("expert_count"), header.count("expert_used_count")
        if n_used > n_experts:
            raise header.fail("expert_used_count", f"is {n_used}, but there are {n_experts} experts")
        return cls(
            n_layers=header.count("block_count"),
            n_embd=n_embd,
            n_ff=header.count("expert_feed_forward_length"),
            n_experts=n_experts,
            n_used=n_used,
            n_ctx_train=header.count("context_length"),
            heads=heads,
            eps=header.number("attention.layer_norm_rms_epsilon"),
            rope=read_rope(header, heads.head_len, interleaved=False),
        )


@dataclass(frozen=True)
class Layer:
    attn_norm: F32
    attn_q: Weight
    attn_k: Weight
    attn_v: Weight
    attn_q_norm: F32
    attn_k_norm: F32
    attn_output: Weight
    ffn_norm: F32
    ffn_gate_inp: Weight
    ffn_gate_exps: Experts
    ffn_up_exps: Experts
    ffn_down_exps: Experts

    @classmethod
    def read(cls, t: Tensors, blk: str, c: Config) -> Layer:
        q_len, kv_len = c.heads.q_len, c.heads.kv_len
        return cls(
            attn_norm=t.vector(f"{blk}.attn_norm.weight", c.n_embd),
            attn_q=t.matrix(f"{blk}.attn_q.weight", q_len, c.n_embd),
            attn_k=t.matrix(f"{blk}.attn_k.weight", kv_len, c.n_embd),
            attn_v=t.matrix(f"{blk}.attn_v.weight", kv_len, c.n_embd),
            attn_q_norm=t.vector(f"{blk}.attn_q_norm.weight", c.heads.head_len),
            attn_k_norm=t.vector(f"{blk}.attn_k_norm.weight", c.heads.head_len),
            attn_output=t.matrix(f"{blk}.attn_output.weight", c.n_embd, q_len),
            ffn_norm=t.vector(f"{blk}.ffn_norm.weight", c.n_embd),
            ffn_gate_inp=t.matrix(f"{blk}.ffn_gate_inp.weight", c.n_experts, c.n_embd),
            ffn_gate_exps=t.experts(f"{blk}.ffn_gate_exps.weight", c.n_experts, c.n_ff, c.n_embd),
            ffn_up_exps=t.experts(f"{blk}.ffn_up_exps.weight", c.n_experts, c.n_ff, c.n_embd),
            ffn_down_exps=t.experts(f"{blk}.ffn_down_exps.weight", c.n_experts, c.n_embd, c.n_ff),
        )


class Model:
    def __init__(self, header: Header, t: Tensors) -> None:
        c = self.config = Config.read(header)
        self.router = Router("softmax", c.n_used)
        self.token_embd = t.embedding(c.n_embd)
        self.blk = [Layer.read(t, f"blk.{i}", c) for i in range(c.n_layers)]
        self.output_norm = t.vector("output_norm.weight", c.n_embd)
        self.output = t.head(self.token_embd)
        self.vocab_size = self.token_embd.shape[0]
        self.n_layers, self.n_ctx_train = c.n_layers, c.n_ctx_train
        self.caches: Sequence[CacheSpec] = [CacheSpec(c.heads.n_head_kv, c.heads.head_len, c.heads.head_len)] * c.n_layers

    def graph(self, ops: Ops) -> Buf:
        c = self.config
        x = ops.embed(self.token_embd)
        ops.tap(-1, x)
        for i, blk in enumerate(self.blk):
            x = ops.add(x, self._attention(ops, i, blk, ops.rms_norm(x, blk.attn_norm, c.eps)))
            x = ops.add(x, self._mixture(ops, blk, ops.rms_norm(x, blk.ffn_norm, c.eps)))
            ops.tap(i, x)
        return ops.linear(ops.rms_norm(ops.pick(x), self.output_norm, c.eps), self.output)

    def _attention(self, ops: Ops, i: int, blk: Layer, h: Buf) -> Buf:
        c, heads = self.config, self.config.heads
        q = ops.rms_norm(ops.linear(h, blk.attn_q), blk.attn_q_norm, c.eps, heads.n_head)
        k = ops.rms_norm(ops.linear(h, blk.attn_k), blk.attn_k_norm, c.eps, heads.n_head_kv)
        q, k = ops.rope(q, c.rope, heads.n_head), ops.rope(k, c.rope, heads.n_head_kv)
        v = ops.linear(h, blk.attn_v)
        mixed = ops.attend(q, k, v, i, heads.n_head, heads.n_head_kv, heads.head_len**-0.5)
        return ops.linear(mixed, blk.attn_output)

    def _mixture(self, ops: Ops, blk: Layer, h: Buf) -> Buf:
        routing = ops.route(ops.linear(h, blk.ffn_gate_inp), self.router)
        return ops.experts(h, routing, blk.ffn_gate_exps, blk.ffn_up_exps, blk.ffn_down_exps, "silu")
