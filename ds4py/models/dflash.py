"""dflash: guesses a block of tokens at once from what the target computed (DFlash), with or without the heads of DSpark.

A stack of Qwen3 blocks whose attention sees two kinds of rows. The *context* is every position that the target has evaluated:
the residuals of some of its layers, joined and fused, give keys and values at that position, nothing else is computed for them
(`inject`). The *block* is the last chosen token and copies of a mask token behind it, at the positions that follow; its rows see
the whole context and each other, also those to their right (`block`). Their final hidden states go through the head; row i tells
the token after its own position (`sample_from_anchor`) or the token at it.

The context's rows are a function of the target's residuals alone, so they are stored once and for ever, like a prompt; the
block's own rows are stored behind them and never counted. Injected rows are normed after the fusion and not per layer: the keys
of a block's row and of a context's row come from the same matrices, but from differently normed inputs.

The confidence head reads the final hidden states after the last norm, which `block` offers as tap `HIDDEN`. DeepSeek V4's form of
the same draft (hyper-connections, latent attention, experts) has the same two graphs: it is to be another class with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgufFile
from ds4py.models.drafts import HIDDEN, Lender, borrowed_embedding, borrowed_head, read_d2t, read_taps
from ds4py.models.header import Header, Heads
from ds4py.models.rope import read_rope, rotated_len
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, Buf, Ops, Rope, Weight

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu"}


@dataclass(frozen=True)
class Config:
    n_layers: int
    n_embd: int
    n_ff: int
    heads: Heads
    eps: float
    rope: Rope
    windows: Sequence[int]  # per layer, 0 = sees the whole context
    causal: Sequence[bool]  # per layer: whether a row of the block sees the rows to its right
    act: str
    attn_scale: float
    value_scale: float
    embedding_scale: float
    block_size: int
    mask_token: int
    from_anchor: bool  # row i of a block tells the token after its own position, not the one at it

    @classmethod
    def read(cls, g: GgufFile, header: Header, t: Tensors) -> Config:
        header.refuse("hyper_connection.count", "the DeepSeek V4 form of the draft")
        header.refuse("selector_top_k", "DFlash2's candidate selector")
        n_layers, n_embd = header.count("block_count"), header.count("embedding_length")
        heads = header.heads(n_embd)
        factors = t.optional_vector("rope_freqs.weight", rotated_len(header, heads.head_len) // 2)
        spark = t.has("markov_w1.weight")
        act = header.raw("hidden_activation") or "silu"
        if act not in _ACTIVATIONS:
            raise UnsupportedError(f"{g.path}: {header.key('hidden_activation')} {act!r} is not supported.")
        return cls(
            n_layers=n_layers,
            n_embd=n_embd,
            n_ff=header.count("feed_forward_length"),
            heads=heads,
            eps=header.number("attention.layer_norm_rms_epsilon"),
            rope=read_rope(header, heads.head_len, interleaved=False, factors=factors),
            windows=_windows(header, n_layers),
            causal=_causal(header, n_layers),
            act=_ACTIVATIONS[act],
            attn_scale=_unless_zero(header, "attention.scale", heads.head_len**-0.5),
            value_scale=_unless_zero(header, "attention.value_scale", 1.0),
            embedding_scale=_unless_zero(header, "embedding_scale", 1.0),
            block_size=header.count("block_size", None if spark else 16),
            mask_token=_mask_token(g),
            from_anchor=spark and bool(header.raw("sample_from_anchor") in (None, True)),
        )


def _unless_zero(header: Header, name: str, default: float) -> float:
    return header.number(name, default) if header.raw(name) else default


def _windows(header: Header, n_layers: int) -> list[int]:
    """Per layer its window; a file without a pattern gives all layers the same."""
    window, pattern = header.raw("attention.sliding_window"), header.raw("attention.sliding_window_pattern")
    if not window:
        return [0] * n_layers
    window = header.count("attention.sliding_window")
    if pattern is None or pattern is True:
        return [window] * n_layers
    return [window if windowed else 0 for windowed in _per_layer(header, "attention.sliding_window_pattern", n_layers)]


def _causal(header: Header, n_layers: int) -> list[bool]:
    if header.raw("attention.causal") is None:
        return [False] * n_layers
    return _per_layer(header, "attention.causal", n_layers)


def _per_layer(header: Header, name: str, n_layers: int) -> list[bool]:
    value: Any = header.raw(name)
    if isinstance(value, (bool, int)):
        return [bool(value)] * n_layers
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < n_layers:
        raise header.fail(name, f"is not a truth value for each of {n_layers} layers")
    return [bool(value[i]) for i in range(n_layers)]


def _mask_token(g: GgufFile) -> int:
    token = g.kv.get("tokenizer.ggml.mask_token_id")
    if isinstance(token, bool) or not isinstance(token, int):
        raise UnsupportedError(f"{g.path}: tokenizer.ggml.mask_token_id is missing: a block cannot be laid out without it.")
    return token


@dataclass(frozen=True)
class Layer:
    attn_norm: F32
    attn_q: Weight
    attn_k: Weight
    attn_v: Weight | None  # None: values are the keys before their norm, with a norm without weights
    attn_q_norm: F32
    attn_k_norm: F32
    attn_output: Weight
    post_attention_norm: F32 | None
    ffn_norm: F32
    ffn_gate: Weight
    ffn_up: Weight
    ffn_down: Weight
    post_ffw_norm: F32 | None
    layer_output_scale: float | None

    @classmethod
    def read(cls, t: Tensors, blk: str, c: Config) -> Layer:
        q_len, kv_len, head_len = c.heads.q_len, c.heads.kv_len, c.heads.head_len
        scale = t.optional_vector(f"{blk}.layer_output_scale.weight", 1)
        return cls(
            attn_norm=t.vector(f"{blk}.attn_norm.weight", c.n_embd),
            attn_q=t.matrix(f"{blk}.attn_q.weight", q_len, c.n_embd),
            attn_k=t.matrix(f"{blk}.attn_k.weight", kv_len, c.n_embd),
            attn_v=t.matrix(f"{blk}.attn_v.weight", kv_len, c.n_embd) if t.has(f"{blk}.attn_v.weight") else None,
            attn_q_norm=t.vector(f"{blk}.attn_q_norm.weight", head_len),
            attn_k_norm=t.vector(f"{blk}.attn_k_norm.weight", head_len),
            attn_output=t.matrix(f"{blk}.attn_output.weight", c.n_embd, q_len),
            post_attention_norm=t.optional_vector(f"{blk}.post_attention_norm.weight", c.n_embd),
            ffn_norm=t.vector(f"{blk}.ffn_norm.weight", c.n_embd),
            ffn_gate=t.matrix(f"{blk}.ffn_gate.weight", c.n_ff, c.n_embd),
            ffn_up=t.matrix(f"{blk}.ffn_up.weight", c.n_ff, c.n_embd),
            ffn_down=t.matrix(f"{blk}.ffn_down.weight", c.n_embd, c.n_ff),
            post_ffw_norm=t.optional_vector(f"{blk}.post_ffw_norm.weight", c.n_embd),
            layer_output_scale=None if scale is None else float(scale[0]),
        )


class Model:
    def __init__(self, g: GgufFile, t: Tensors, target: Lender) -> None:
        header = Header(g)
        c = self.config = Config.read(g, header, t)
        self.taps = read_taps(g, header, target, final=True)
        self.feature_len = len(self.taps) * target.n_embd  # width of the rows that `inject` is given
        self.block_size, self.mask_token, self.from_anchor = c.block_size, c.mask_token, c.from_anchor
        self.d2t = read_d2t(g, t, target)
        self.fc = t.matrix("fc.weight", c.n_embd, self.feature_len)
        self.enc_output_norm = t.vector("enc.output_norm.weight", c.n_embd)
        self.token_embd = borrowed_embedding(g, t, target, c.n_embd)
        self.blk = [Layer.read(t, f"blk.{i}", c) for i in range(c.n_layers)]
        self.output_norm = t.vector("output_norm.weight", c.n_embd)
        self.output = borrowed_head(g, t, target, self.token_embd, self.d2t, tied=True)
        if not 0 <= c.mask_token < self.token_embd.shape[0]:
            raise UnsupportedError(f"{g.path}: the mask token {c.mask_token} has no row in the embedding.")
        heads = c.heads
        self.caches: Sequence[CacheSpec] = [CacheSpec(heads.n_head_kv, heads.head_len, heads.head_len, w) for w in c.windows]
        self._ones = np.ones(heads.head_len, np.float32)

    def inject(self, ops: Ops) -> Buf:
        """Rows of joined taps, given, to keys and values at the rows' positions. No logits."""
        c = self.config
        x = ops.rms_norm(ops.linear(ops.given(self.feature_len), self.fc), self.enc_output_norm, c.eps)
        for i, blk in enumerate(self.blk):
            k, v = self._keys_and_values(ops, blk, x)
            ops.store(k, v, i, c.heads.n_head_kv)
        return ops.pick(x)

    def block(self, ops: Ops) -> Buf:
        """One block per span: the chosen token and mask tokens."""
        c = self.config
        x = ops.embed(self.token_embd, c.embedding_scale)
        for i, blk in enumerate(self.blk):
            h = self._attention(ops, i, blk, ops.rms_norm(x, blk.attn_norm, c.eps))
            x = ops.add(x, h if blk.post_attention_norm is None else ops.rms_norm(h, blk.post_attention_norm, c.eps))
            h = ops.rms_norm(x, blk.ffn_norm, c.eps)
            h = ops.linear(ops.gated(ops.linear(h, blk.ffn_gate), ops.linear(h, blk.ffn_up), c.act), blk.ffn_down)
            x = ops.add(x, h if blk.post_ffw_norm is None else ops.rms_norm(h, blk.post_ffw_norm, c.eps))
            if blk.layer_output_scale is not None:
                x = ops.scale(x, blk.layer_output_scale)
        h = ops.rms_norm(ops.pick(x), self.output_norm, c.eps)
        ops.tap(HIDDEN, h)
        return ops.linear(h, self.output)

    def _attention(self, ops: Ops, i: int, blk: Layer, h: Buf) -> Buf:
        c, heads = self.config, self.config.heads
        q = ops.rope(ops.rms_norm(ops.linear(h, blk.attn_q), blk.attn_q_norm, c.eps, heads.n_head), c.rope, heads.n_head)
        k, v = self._keys_and_values(ops, blk, h)
        mixed = ops.attend(q, k, v, i, heads.n_head, heads.n_head_kv, c.attn_scale, block=not c.causal[i])
        out = ops.linear(mixed, blk.attn_output)
        return out if c.value_scale == 1 else ops.scale(out, c.value_scale)

    def _keys_and_values(self, ops: Ops, blk: Layer, h: Buf) -> tuple[Buf, Buf]:
        c, n_kv = self.config, self.config.heads.n_head_kv
        raw = ops.linear(h, blk.attn_k)
        k = ops.rope(ops.rms_norm(raw, blk.attn_k_norm, c.eps, n_kv), c.rope, n_kv)
        return k, ops.rms_norm(raw, self._ones, c.eps, n_kv) if blk.attn_v is None else ops.linear(h, blk.attn_v)
