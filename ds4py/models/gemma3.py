"""gemma3: Gemma 3, text.

The embedding is multiplied by sqrt(n_embd). A norm before and one after each half of a block; the stored norm weights already
include the +1 of the checkpoint. q and k are normed per head. Of every six layers five see a sliding window and rotate with base
10,000; the sixth sees everything, rotates with base 1,000,000 and takes the file's rope scaling. GELU is the tanh form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.models.header import Header, Heads
from ds4py.models.rope import frequencies, read_rope, rotated_len
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, Buf, Ops, Rope, Weight

N_LAYERS_27B = 62  # the one size whose queries are scaled by the hidden size over the heads instead of the head length


@dataclass(frozen=True)
class Config:
    n_layers: int
    n_embd: int
    n_ff: int
    n_ctx_train: int
    heads: Heads
    eps: float
    rope: Rope  # layers that see everything
    rope_local: Rope  # layers with a window
    windows: Sequence[int]  # per layer, 0 = sees everything
    attn_scale: float
    final_softcap: float  # 0 = none

    @classmethod
    def read(cls, header: Header) -> Config:
        header.refuse("attn_logit_softcapping", "capped attention scores")
        n_layers, n_embd = header.count("block_count"), header.count("embedding_length")
        heads = header.heads(n_embd)
        query_len = n_embd / heads.n_head if n_layers == N_LAYERS_27B else heads.head_len
        local = frequencies(header.number("rope.freq_base_swa", 10000.0), rotated_len(header, heads.head_len))
        return cls(
            n_layers=n_layers,
            n_embd=n_embd,
            n_ff=header.count("feed_forward_length"),
            n_ctx_train=header.count("context_length"),
            heads=heads,
            eps=header.number("attention.layer_norm_rms_epsilon"),
            rope=read_rope(header, heads.head_len, interleaved=False, default_base=1e6),
            rope_local=Rope(local, interleaved=False),
            windows=_windows(header, n_layers),
            attn_scale=header.number("attention.scale", query_len**-0.5),
            final_softcap=header.number("final_logit_softcapping", 0.0),
        )


def _windows(header: Header, n_layers: int) -> list[int]:
    """Per layer its window, 0 for the layers that see everything.

    The pattern is a period (6: every sixth layer sees everything) or a list that says of each layer whether it has a window."""
    window = header.count("attention.sliding_window")
    pattern = header.raw("attention.sliding_window_pattern")
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        if len(pattern) < n_layers:
            raise header.fail("attention.sliding_window_pattern", f"has {len(pattern)} entries for {n_layers} layers")
        return [window if pattern[i] else 0 for i in range(n_layers)]
    period = header.count("attention.sliding_window_pattern", 6)
    return [0 if (i + 1) % period == 0 else window for i in range(n_layers)]


@dataclass(frozen=True)
class Layer:
    attn_norm: F32
    attn_q: Weight
    attn_k: Weight
    attn_v: Weight
    attn_q_norm: F32
    attn_k_norm: F32
    attn_output: Weight
    post_attention_norm: F32
    ffn_norm: F32
    ffn_gate: Weight
    ffn_up: Weight
    ffn_down: Weight
    post_ffw_norm: F32

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
            post_attention_norm=t.vector(f"{blk}.post_attention_norm.weight", c.n_embd),
            ffn_norm=t.vector(f"{blk}.ffn_norm.weight", c.n_embd),
            ffn_gate=t.matrix(f"{blk}.ffn_gate.weight", c.n_ff, c.n_embd),
            ffn_up=t.matrix(f"{blk}.ffn_up.weight", c.n_ff, c.n_embd),
            ffn_down=t.matrix(f"{blk}.ffn_down.weight", c.n_embd, c.n_ff),
            post_ffw_norm=t.vector(f"{blk}.post_ffw_norm.weight", c.n_embd),
        )


class Model:
    def __init__(self, header: Header, t: Tensors) -> None:
        c = self.config = Config.read(header)
        self.token_embd = t.embedding(c.n_embd)
        self.blk = [Layer.read(t, f"blk.{i}", c) for i in range(c.n_layers)]
        self.output_norm = t.vector("output_norm.weight", c.n_embd)
        self.output = t.head(self.token_embd)
        self.vocab_size = self.token_embd.shape[0]
        self.n_layers, self.n_ctx_train = c.n_layers, c.n_ctx_train
        heads = c.heads
        self.caches: Sequence[CacheSpec] = [CacheSpec(heads.n_head_kv, heads.head_len, heads.head_len, w) for w in c.windows]

    def graph(self, ops: Ops) -> Buf:
        c = self.config
        x = ops.embed(self.token_embd, c.n_embd**0.5)
        ops.tap(-1, x)
        for i, blk in enumerate(self.blk):
            h = self._attention(ops, i, blk, ops.rms_norm(x, blk.attn_norm, c.eps))
            x = ops.add(x, ops.rms_norm(h, blk.post_attention_norm, c.eps))
            h = ops.rms_norm(x, blk.ffn_norm, c.eps)
            h = ops.gated(ops.linear(h, blk.ffn_gate), ops.linear(h, blk.ffn_up), "gelu")
            x = ops.add(x, ops.rms_norm(ops.linear(h, blk.ffn_down), blk.post_ffw_norm, c.eps))
            ops.tap(i, x)
        logits = ops.linear(ops.rms_norm(ops.pick(x), self.output_norm, c.eps), self.output)
        return ops.softcap(logits, c.final_softcap) if c.final_softcap else logits

    def _attention(self, ops: Ops, i: int, blk: Layer, h: Buf) -> Buf:
        c, heads = self.config, self.config.heads
        rope = c.rope_local if c.windows[i] else c.rope
        q = ops.rms_norm(ops.linear(h, blk.attn_q), blk.attn_q_norm, c.eps, heads.n_head)
        k = ops.rms_norm(ops.linear(h, blk.attn_k), blk.attn_k_norm, c.eps, heads.n_head_kv)
        q, k = ops.rope(q, rope, heads.n_head), ops.rope(k, rope, heads.n_head_kv)
        v = ops.linear(h, blk.attn_v)
        mixed = ops.attend(q, k, v, i, heads.n_head, heads.n_head_kv, c.attn_scale)
        return ops.linear(mixed, blk.attn_output)
