"""What the drafts are made of, as torch functions: norms, rotary embedding, attention under a mask, a gated MLP.

The idea: parameters carry the names that their tensors have in the GGUF file, so saving is copying and a reader can follow a
tensor from the formula to the file. Nothing here knows which draft it serves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of a draft. `n_taps` residuals of the target go in; heads as in the target, so that speeds compare."""

    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_len: int
    n_layers: int
    n_taps: int
    eps: float
    rope_base: float
    n_ctx: int


def key(name: str) -> str:
    """Tensor names as torch allows them."""
    return name.replace(".", "/")


class Weights(torch.nn.Module):
    """Trained tensors by their GGUF names."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.table = torch.nn.ParameterDict({key(name): torch.nn.Parameter(tensor) for name, tensor in tensors.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self.table[key(name)]

    def __contains__(self, name: str) -> bool:
        return key(name) in self.table

    def named(self) -> dict[str, Tensor]:
        return {name.replace("/", "."): tensor.detach() for name, tensor in self.table.items()}


def matrix(rng: torch.Generator, n_out: int, n_in: int, gain: float = 1.0) -> Tensor:
    """A random matrix [out, in] that keeps the size of what goes in, times `gain`."""
    return torch.randn(n_out, n_in, generator=rng) * gain / math.sqrt(n_in)


def block_tensors(shape: Shape, layer: int, n_in: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Fresh tensors of one block whose attention reads rows of width `n_in`; what is added to the residual starts small."""
    q_len, kv_len, d = shape.n_head * shape.head_len, shape.n_head_kv * shape.head_len, shape.n_embd
    blk = f"blk.{layer}"
    return {
        f"{blk}.attn_norm.weight": torch.ones(d),
        f"{blk}.attn_q.weight": matrix(rng, q_len, n_in),
        f"{blk}.attn_k.weight": matrix(rng, kv_len, n_in),
        f"{blk}.attn_v.weight": matrix(rng, kv_len, n_in),
        f"{blk}.attn_output.weight": matrix(rng, d, q_len, 0.3),
        f"{blk}.ffn_norm.weight": torch.ones(d),
        f"{blk}.ffn_gate.weight": matrix(rng, shape.n_ff, d),
        f"{blk}.ffn_up.weight": matrix(rng, shape.n_ff, d),
        f"{blk}.ffn_down.weight": matrix(rng, d, shape.n_ff, 0.3),
    }


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def heads(x: Tensor, n: int) -> Tensor:
    """[..., R, n * d] -> [..., n, R, d]."""
    return x.unflatten(-1, (n, -1)).transpose(-2, -3)


def merged(x: Tensor) -> Tensor:
    """[..., n, R, d] -> [..., R, n * d]."""
    return x.transpose(-2, -3).flatten(-2)


def rotated(x: Tensor, pos: Tensor, base: float, interleaved: bool) -> Tensor:
    """Rotary embedding of x [..., R, d] at pos [..., R] (broadcast over heads): partners are 2i and 2i + 1, or i and i + d /
    2."""
    n = x.shape[-1]
    angle = pos.double()[..., None] * base ** (-torch.arange(0, n, 2).double() / n)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : n // 2], x[..., n // 2 :])
    turned = a * cos - b * sin, a * sin + b * cos
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def repeated(x: Tensor, n_head: int) -> Tensor:
    """Key/value heads [B, G, R, d] as often as queries read them: [B, H, R, d]."""
    return x.repeat_interleave(n_head // x.shape[1], 1)


def mlp(w: Weights, blk: str, h: Tensor) -> Tensor:
    gated = F.silu(h @ w[f"{blk}.ffn_gate.weight"].T) * (h @ w[f"{blk}.ffn_up.weight"].T)
    return gated @ w[f"{blk}.ffn_down.weight"].T


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), -1)
