"""eagle3: one llama block that goes on from what the target computed, token by token.

Residuals of three of the target's layers are joined and fused to one vector g per position (`fuse`). The block's input at
position p is the *next* token's embedding beside g of p, each under its own norm, joined to twice the width; only q, k and v read
it. Its output z, before the last norm, takes the place of g when the block goes on from its own guesses (`step`), and is what the
head reads after the norm. Context rows need no output, only keys and values (`write`).

So the row at position p cannot be made before the token at p + 1 is chosen, and the first guess after the last chosen token is
the block's output at the position before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgufFile
from ds4py.models.drafts import HIDDEN, Lender, borrowed_embedding, borrowed_head, read_d2t, read_taps
from ds4py.models.header import Header, Heads
from ds4py.models.rope import read_rope, rotated_len
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, Buf, Ops, Rope, Weight

N_TAPS = 3


@dataclass(frozen=True)
class Config:
    n_embd: int
    n_ff: int
    heads: Heads
    eps: float
    rope: Rope
    norm_before_fc: bool  # of the joined residuals
    norm_before_residual: bool  # whether what is added to attention is g after its norm

    @classmethod
    def read(cls, g: GgufFile, header: Header, t: Tensors) -> Config:
        if header.count("block_count", 1) != 1:
            raise UnsupportedError(f"{g.path}: an EAGLE-3 draft has one block, this file {header.count('block_count')}.")
        n_embd = header.count("embedding_length")
        heads = header.heads(n_embd)
        factors = t.optional_vector("rope_freqs.weight", rotated_len(header, heads.head_len) // 2)
        return cls(
            n_embd=n_embd,
            n_ff=header.count("feed_forward_length"),
            heads=heads,
            eps=header.number("attention.layer_norm_rms_epsilon"),
            rope=read_rope(header, heads.head_len, interleaved=True, factors=factors),
            norm_before_fc=bool(header.raw("norm_before_fc")),
            norm_before_residual=bool(header.raw("norm_before_residual")),
        )


@dataclass(frozen=True)
class Layer:
    attn_norm: F32  # of the token's embedding
    attn_norm_2: F32  # of g
    attn_q: Weight
    attn_k: Weight
    attn_v: Weight
    attn_output: Weight
    ffn_norm: F32
    ffn_gate: Weight
    ffn_up: Weight
    ffn_down: Weight

    @classmethod
    def read(cls, t: Tensors, blk: str, c: Config) -> Layer:
        q_len, kv_len = c.heads.q_len, c.heads.kv_len
        return cls(
            attn_norm=t.vector(f"{blk}.attn_norm.weight", c.n_embd),
            attn_norm_2=t.vector(f"{blk}.attn_norm_2.weight", c.n_embd),
            attn_q=t.matrix(f"{blk}.attn_q.weight", q_len, 2 * c.n_embd),
            attn_k=t.matrix(f"{blk}.attn_k.weight", kv_len, 2 * c.n_embd),
            attn_v=t.matrix(f"{blk}.attn_v.weight", kv_len, 2 * c.n_embd),
            attn_output=t.matrix(f"{blk}.attn_output.weight", c.n_embd, q_len),
            ffn_norm=t.vector(f"{blk}.ffn_norm.weight", c.n_embd),
            ffn_gate=t.matrix(f"{blk}.ffn_gate.weight", c.n_ff, c.n_embd),
            ffn_up=t.matrix(f"{blk}.ffn_up.weight", c.n_ff, c.n_embd),
            ffn_down=t.matrix(f"{blk}.ffn_down.weight", c.n_embd, c.n_ff),
        )


class Model:
    def __init__(self, g: GgufFile, t: Tensors, target: Lender) -> None:
        header = Header(g)
        c = self.config = Config.read(g, header, t)
        # of the last layer's output llama.cpp takes, by architecture, the normed or the plain one: none of ours says which
        self.taps = read_taps(g, header, target, final=False)
        if len(self.taps) != N_TAPS:
            raise UnsupportedError(f"{g.path}: an EAGLE-3 draft listens to {N_TAPS} layers, this file to {len(self.taps)}.")
        if header.count("target_hidden_size") != target.n_embd:
            both = f"a hidden size of {header.count('target_hidden_size')}, but {target.name} has {target.n_embd}"
            raise UnsupportedError(f"{g.path} is made for {both}: it is a draft for another model.")
        self.n_embd = self.vector_len = c.n_embd
        self.feature_len = N_TAPS * target.n_embd
        self.d2t = read_d2t(g, t, target)
        self.fc = t.matrix("fc.weight", c.n_embd, self.feature_len)
        self.enc_output_norm = t.vector("enc.output_norm.weight", self.feature_len) if c.norm_before_fc else None
        self.token_embd = borrowed_embedding(g, t, target, c.n_embd)
        self.blk = Layer.read(t, "blk.0", c)
        self.output_norm = t.vector("output_norm.weight", c.n_embd)
        self.output = borrowed_head(g, t, target, self.token_embd, self.d2t, tied=False)
        self.caches: Sequence[CacheSpec] = [CacheSpec(c.heads.n_head_kv, c.heads.head_len, c.heads.head_len)]

    def fuse(self, ops: Ops) -> Buf:
        """Joined residuals, given, to g [L, D]."""
        x = ops.given(self.feature_len)
        if self.enc_output_norm is not None:
            x = ops.rms_norm(x, self.enc_output_norm, self.config.eps)
        return ops.linear(ops.pick(x), self.fc)

    def write(self, ops: Ops) -> Buf:
        """Tokens and g, given, to keys and values at the rows' positions. No logits."""
        x, normed = self._joined(ops, ops.given(self.n_embd))
        k, v = self._keys_and_values(ops, x)
        ops.store(k, v, 0, self.config.heads.n_head_kv)
        return ops.pick(normed)

    def step(self, ops: Ops) -> Buf:
        """The same and the block's output, which is tap HIDDEN of the rows whose logits are asked."""
        c, heads, blk = self.config, self.config.heads, self.blk
        g = ops.given(self.n_embd)
        x, normed = self._joined(ops, g)
        q = ops.rope(ops.linear(x, blk.attn_q), c.rope, heads.n_head)
        k, v = self._keys_and_values(ops, x)
        mixed = ops.attend(q, k, v, 0, heads.n_head, heads.n_head_kv, heads.head_len**-0.5)
        y = ops.add(ops.linear(mixed, blk.attn_output), normed if c.norm_before_residual else g)
        h = ops.rms_norm(y, blk.ffn_norm, c.eps)
        h = ops.gated(ops.linear(h, blk.ffn_gate), ops.linear(h, blk.ffn_up), "silu")
        z = ops.pick(ops.add(y, ops.linear(h, blk.ffn_down)))
        ops.tap(HIDDEN, z)
        return ops.linear(ops.rms_norm(z, self.output_norm, c.eps), self.output)

    def _joined(self, ops: Ops, g: Buf) -> tuple[Buf, Buf]:
        """The block's input [R, 2 D], and its second half, g after its norm."""
        eps, blk = self.config.eps, self.blk
        normed = ops.rms_norm(g, blk.attn_norm_2, eps)
        return ops.concat(ops.rms_norm(ops.embed(self.token_embd), blk.attn_norm, eps), normed), normed

    def _keys_and_values(self, ops: Ops, x: Buf) -> tuple[Buf, Buf]:
        k = ops.rope(ops.linear(x, self.blk.attn_k), self.config.rope, self.config.heads.n_head_kv)
        return k, ops.linear(x, self.blk.attn_v)
