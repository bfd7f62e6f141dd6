"""What drafts compute, from their formulas, in torch and float64: no caches, no kernels, nothing of ours but the weights.

Every call starts from the residuals of all positions before the block, so whatever a drafter remembers, forgets or takes back
must come to the same numbers. `kv` rounds keys and values as a cache of that type does. Formulas: Chen et al., DFlash; DeepSpec's
DSpark heads; Li et al. 2025, EAGLE-3. The golden numbers of public packages (golden/drafters/drafts.json) stand above this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tiny_drafts import TinyDraft

Tensor = torch.Tensor


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rotate(x: Tensor, pos: Tensor, base: float, interleaved: bool) -> Tensor:
    """x [T, H, d] at positions pos [T]."""
    d = x.shape[-1]
    angle = pos[:, None].double() * base ** -(torch.arange(0, d, 2).double() / d)
    cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
    a, b = first * cos - second * sin, first * sin + second * cos
    return torch.stack([a, b], -1).flatten(-2) if interleaved else torch.cat([a, b], -1)


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """q [T, H, d], k and v [S, G, d], visible [T, S] -> [T, H * d]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
    return torch.einsum("hts,shd->thd", weights, v).flatten(1)


class _Weights:
    def __init__(self, tiny: TinyDraft, embedding: Any, head: Any, kv: str = "float32") -> None:
        self.tiny, self.s, self.kv = tiny, tiny.shape, getattr(torch, kv)
        own = {name: torch.from_numpy(np.asarray(array, np.float64)) for name, array in tiny.weights.items()}
        self.w = own
        self.embedding = own.get("token_embd.weight", torch.from_numpy(np.asarray(embedding, np.float64)))
        self.head = own.get("output.weight", torch.from_numpy(np.asarray(head, np.float64)))

    def stored(self, x: Tensor) -> Tensor:
        return x.to(self.kv).double()

    def mlp(self, blk: str, x: Tensor) -> Tensor:
        gate, up, down = (self.w[f"{blk}.ffn_{name}.weight"] for name in ("gate", "up", "down"))
        g = x @ gate.T
        return (g * torch.sigmoid(g) * (x @ up.T)) @ down.T


class DFlash(_Weights):
    """The block network; `causal`: per layer, whether a block's row sees only what is before it."""

    def __init__(self, tiny: TinyDraft, embedding: Any, head: Any, kv: str = "float32", causal: bool = False) -> None:
        super().__init__(tiny, embedding, head, kv)
        self.causal = causal

    def block(self, features: Any, last: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The block behind `last`, which stands at len(features): logits [B, V_d] and final hidden states [B, D]."""
        s, w = self.s, self.w
        base = len(features)
        f = torch.from_numpy(np.asarray(features, np.float64))[first:]
        context = rms(f @ w["fc.weight"].T, w["enc.output_norm.weight"], s.eps)
        x = self.embedding[torch.tensor([last] + [s.mask_token] * (s.block_size - 1))]
        pos = torch.arange(first, base + s.block_size)
        mine = torch.arange(base, base + s.block_size)
        for i in range(s.n_layers):
            blk = f"blk.{i}"
            h = rms(x, w[f"{blk}.attn_norm.weight"], s.eps)
            both = torch.cat([context, h])
            k, v = ((both @ w[f"{blk}.attn_{n}.weight"].T).view(len(both), s.n_head_kv, s.head_len) for n in ("k", "v"))
            k = rotate(rms(k, w[f"{blk}.attn_k_norm.weight"], s.eps), pos, s.rope_base, interleaved=False)
            q = (h @ w[f"{blk}.attn_q.weight"].T).view(len(h), s.n_head, s.head_len)
            q = rotate(rms(q, w[f"{blk}.attn_q_norm.weight"], s.eps), mine, s.rope_base, interleaved=False)
            distance = mine[:, None] - pos[None]
            windowed = s.window and (not s.windowed or s.windowed[i])
            visible = distance < s.window if windowed else torch.ones_like(distance, dtype=torch.bool)
            if self.causal:
                visible = visible & (distance >= 0)
            x = x + attention(q, self.stored(k), self.stored(v), visible) @ w[f"{blk}.attn_output.weight"].T
            x = x + self.mlp(blk, rms(x, w[f"{blk}.ffn_norm.weight"], s.eps))
        hidden = rms(x, w["output_norm.weight"], s.eps)
        return (hidden @ self.head.T).numpy(), hidden.numpy()


@dataclass(frozen=True)
class Chain:
    """What a DSpark draft proposes greedily."""

    tokens: list[int]
    logits: list[np.ndarray]  # [V_d] with the Markov bias
    confidence: list[float]


def dspark_chain(reference: DFlash, logits: np.ndarray, hidden: np.ndarray, last: int, k: int, markov: float = 1.0) -> Chain:
    """k tokens behind `last` from a block's rows; `markov` scales the Markov bias (1 is the formula)."""
    s, w, d2t = reference.s, {name: t.numpy() for name, t in reference.w.items()}, reference.tiny.d2t
    first = 1 if s.from_anchor is False else 0
    chain = Chain([], [], [])
    before = last
    for row, h in zip(logits[first : first + k], hidden[first : first + k], strict=True):
        e = w["markov_w1.weight"][before]
        biased = row + markov * (w["markov_w2.weight"] @ e)
        if s.confidence:
            z = w["conf_proj.weight"][0] @ np.concatenate([h, e]) + w["conf_proj.bias"][0]
            chain.confidence.append(float(1 / (1 + np.exp(-z))))
        best = int(biased.argmax())
        before = best if d2t is None else int(d2t[best])
        chain.tokens.append(before)
        chain.logits.append(biased)
    return chain


class Eagle3(_Weights):
    def decode(self, features: Any, tokens: list[int], k: int, first: int = 0) -> Chain:
        """`features` [n, F] of the positions before the last token; tokens [n + 1]. k tokens that follow."""
        s, w, d2t = self.s, self.w, self.tiny.d2t
        f = torch.from_numpy(np.asarray(features, np.float64))[first:]
        if s.norm_before_fc:
            f = rms(f, w["enc.output_norm.weight"], s.eps)
        g = f @ w["fc.weight"].T
        seen = list(tokens[first + 1 :])
        chain = Chain([], [], [])
        for _ in range(k):
            hidden = self._layer(g, seen, first)
            logits = (rms(hidden[-1], w["output_norm.weight"], s.eps) @ self.head.T).numpy()
            best = int(logits.argmax())
            chain.logits.append(logits)
            chain.tokens.append(best if d2t is None else int(d2t[best]))
            g = torch.cat([g, hidden[-1:]])
            seen.append(chain.tokens[-1])
        return chain

    def _layer(self, g: Tensor, tokens: list[int], first: int) -> Tensor:
        s, w = self.s, self.w
        e = rms(self.embedding[torch.tensor(tokens)], w["blk.0.attn_norm.weight"], s.eps)
        normed = rms(g, w["blk.0.attn_norm_2.weight"], s.eps)
        x = torch.cat([e, normed], 1)
        pos = torch.arange(first, first + len(g))
        q, k, v = (
            (x @ w[f"blk.0.attn_{n}.weight"].T).view(len(x), heads, s.head_len)
            for n, heads in (("q", s.n_head), ("k", s.n_head_kv), ("v", s.n_head_kv))
        )
        q, k = (rotate(part, pos, s.rope_base, interleaved=True) for part in (q, k))
        visible = pos[:, None] >= pos[None]
        mixed = attention(q, self.stored(k), self.stored(v), visible) @ w["blk.0.attn_output.weight"].T
        y = mixed + (normed if s.norm_before_residual else g)
        return y + self.mlp("blk.0", rms(y, w["blk.0.ffn_norm.weight"], s.eps))
