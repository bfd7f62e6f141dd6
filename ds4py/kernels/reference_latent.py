"""The oracle backend's operations on streams, latents and pools (`latent.LatentOps`), as their formulas read.

Formulas: DeepSeek V4's inference code and technical report, in our words in latent.py. Everything here works row by row or
element by element, except the products, which the backend makes in its own way; so the mode that promises row invariance needs
nothing more. Both roundings are done with exact powers of two and one rounding to even, and give the same in both dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ds4py.latent import Pooling
from ds4py.protocols import F32, CacheView, Rope

if TYPE_CHECKING:
    from ds4py.kernels.reference import RefOps

Chosen = list[torch.Tensor]  # of each row: the entries it attends to, ascending


class RefLatentOps:
    """`latent.LatentOps` for one forward call; `ops` does what is common to all models."""

    def __init__(self, ops: RefOps) -> None:
        self._ops = ops

    # --- streams ---
    def spread(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x.repeat(1, n)

    def mixing(self, m: torch.Tensor, scale: F32, base: F32, n: int, n_iters: int, eps: float) -> torch.Tensor:
        a, b = self._ops.tensor(scale), self._ops.tensor(base)
        return self._ops.by_row(lambda row: _mixing(row, a, b, n, n_iters, eps), m)

    def collapse(self, h: torch.Tensor, mixing: torch.Tensor, n: int) -> torch.Tensor:
        return (mixing[:, :n, None] * _streams(h, n)).sum(1)

    def renew(self, h: torch.Tensor, y: torch.Tensor, mixing: torch.Tensor, n: int) -> torch.Tensor:
        streams, matrix = _streams(h, n), mixing[:, 2 * n :].view(-1, n, n)
        mixed = (matrix[..., None] * streams[:, :, None]).sum(1)  # over the source j of [R, j, k, D]
        return (mixing[:, n : 2 * n, None] * y[:, None] + mixed).flatten(1)

    def mean(self, h: torch.Tensor, n: int) -> torch.Tensor:
        return _streams(h, n).mean(1)

    def stream_linear(self, h: torch.Tensor, weight: Any, n: int) -> torch.Tensor:
        return self._ops.linear(h.reshape(len(h) * n, h.shape[1] // n), weight).view(len(h), -1)

    # --- rounding ---
    def fp8(self, x: torch.Tensor, n_dims: int) -> torch.Tensor:
        return torch.cat([_round_fp8(x[:, :n_dims]), x[:, n_dims:]], 1)

    def fp4(self, x: torch.Tensor) -> torch.Tensor:
        return _round_fp4(x)

    def hadamard(self, x: torch.Tensor, n_heads: int) -> torch.Tensor:
        return _hadamard(x.view(len(x), n_heads, -1)).flatten(1)

    # --- rows ---
    def put(self, x: torch.Tensor, cache: int, exact: bool = False) -> None:
        rows = x.numpy()
        for i, view, pos, _ in self._each(cache):
            view.values[0, pos % view.capacity] = rows[i]

    def pool(self, projected: int, pool: int, how: Pooling) -> None:
        for _, view, pos, span in self._each(projected):
            if (pos + 1) % how.every == 0:
                entries = self._ops.rows.states[span].caches[pool]
                entry = pos // how.every
                entries.values[0, entry % entries.capacity] = self._entry(view, entry, how).numpy()

    def _entry(self, ring: CacheView, entry: int, how: Pooling) -> torch.Tensor:
        """Entry number `entry` [D] from the rows of its group, and of the one before if groups overlap."""
        d, bias = how.width, self._ops.tensor(how.position_bias)
        values, scores = [], []
        for group in (entry - 1, entry) if how.overlap else (entry,):
            if group < 0:
                continue
            rows = self._load(ring, np.arange(group * how.every, (group + 1) * how.every))
            value, score = rows.tensor_split(2, 1)
            part = slice(d, 2 * d) if how.overlap and group == entry else slice(0, d)
            values.append(value[:, part])
            scores.append(score[:, part] + bias[:, part])
        z = (torch.cat(values) * torch.cat(scores).softmax(0)).sum(0)
        z = z * torch.rsqrt(z.square().mean() + how.eps) * self._ops.tensor(how.norm)
        z = rotate(z[None], np.array([entry * how.every]), how.rope, 1)
        if how.rounding == "fp8":
            return self.fp8(z, d - 2 * len(how.rope.inv_freq))[0]
        return _round_fp4(_hadamard(z))[0] if how.rounding == "fp4" else z[0]

    def choose(self, q: torch.Tensor, weights: torch.Tensor, pool: int, every: int, n_heads: int, top_k: int) -> Chosen:
        queries, chosen = q.view(len(q), n_heads, -1), []
        for i, view, pos, _ in self._each(pool):
            n = (pos + 1) // every
            best = torch.arange(n)
            if n > top_k:
                scores = torch.relu(queries[i].clone() @ self._load(view, np.arange(n)).T)
                total = (weights[i, :, None] * scores).sum(0)
                best = torch.argsort(total, descending=True, stable=True)[:top_k].sort().values
            chosen.append(best)
        return chosen

    def attend(
        self,
        q: torch.Tensor,
        ring: int,
        n_heads: int,
        scale: float,
        sinks: F32,
        pool: int | None = None,
        every: int = 0,
        chosen: Sequence[torch.Tensor] | None = None,
        block: bool = False,
    ) -> torch.Tensor:
        queries, sink, mixed = q.view(len(q), n_heads, -1), self._ops.tensor(sinks)[:, None], []
        for i, view, pos, span in self._each(ring):
            first, last = pos - view.window + 1, pos
            if block:
                of_span = self._ops.pos[self._ops.rows.span_of == span]
                first, last = int(of_span[0]) - view.window + 1, int(of_span[-1])
            keys = self._load(view, np.arange(max(self._ops.first(i), first), last + 1))
            if pool is not None:
                seen = np.arange((pos + 1) // every) if chosen is None else chosen[i].numpy()
                keys = torch.cat([keys, self._load(self._ops.rows.states[span].caches[pool], seen)])
            scores = torch.cat([queries[i].clone() @ keys.T * scale, sink], 1)
            mixed.append(scores.softmax(-1)[:, :-1] @ keys)
        return torch.stack(mixed).flatten(1)

    def grouped_linear(self, x: torch.Tensor, weight: Any, n_groups: int) -> torch.Tensor:
        matrix = self._ops.tensor(weight.rows(0, weight.shape[0])).view(n_groups, -1, weight.shape[1])
        parts = x.view(len(x), n_groups, -1)
        return torch.cat([self._ops.product(parts[:, g], matrix[g]) for g in range(n_groups)], 1)

    # --- private ---
    def _each(self, cache: int) -> Iterator[tuple[int, CacheView, int, int]]:
        """Of every row: its number, its session's cache number `cache`, its position, its span."""
        rows = self._ops.rows
        for i, (pos, span) in enumerate(zip(rows.pos, rows.span_of, strict=True)):
            yield i, rows.states[span].caches[cache], int(pos), int(span)

    def _load(self, cache: CacheView, numbers: np.ndarray) -> torch.Tensor:
        """Rows [n, width] of the positions (or entries) `numbers`."""
        return self._ops.tensor(cache.values[0, numbers % cache.capacity])


def _streams(h: torch.Tensor, n: int) -> torch.Tensor:
    """h [R, n*D] as [R, n, D]; R may be 0."""
    return h.view(len(h), n, h.shape[1] // n)


def _mixing(m: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, n: int, n_iters: int, eps: float) -> torch.Tensor:
    """See LatentOps.mixing. The softmax over the matrix's last index stands for the first division of its rows."""
    enter = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
    if m.shape[1] == n:
        return enter
    get = 2 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    matrix = (m[:, 2 * n :] * scale[2] + base[2 * n :]).view(len(m), n, n).softmax(-1) + eps
    matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
    for _ in range(n_iters - 1):
        matrix = matrix / (matrix.sum(2, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
    return torch.cat([enter, get, matrix.flatten(1)], 1)


def rotate(x: torch.Tensor, pos: np.ndarray, rope: Rope, n_heads: int, inverse: bool = False) -> torch.Tensor:
    """x [R, H*d], each head's n_rot dimensions turned by pos [R] times the frequencies, angles in float64."""
    n_rot, width = 2 * len(rope.inv_freq), x.shape[1] // n_heads
    angle = torch.from_numpy(pos[:, None] * rope.inv_freq[None])[:, None]  # float64 [R, 1, n_rot / 2]
    cos, sin = ((f(angle) * rope.magnitude).to(x.dtype) for f in (torch.cos, torch.sin))
    if inverse:
        sin = -sin
    heads = x.view(len(x), n_heads, width)
    first, second = _pairs(n_rot, rope.interleaved, width - n_rot if rope.tail else 0)
    out = heads.clone()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., first] * sin + heads[..., second] * cos
    return out.view(x.shape)


def _pairs(n_rot: int, interleaved: bool, at: int) -> tuple[slice, slice]:
    """The two members of every rotated pair, from dimension `at` on: even and odd dimensions, or first and second half."""
    if interleaved:
        return slice(at, at + n_rot, 2), slice(at + 1, at + n_rot, 2)
    return slice(at, at + n_rot // 2), slice(at + n_rot // 2, at + n_rot)


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """2^ceil(log2 x), exact: a power of two is itself."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2^exponent, 1/2 <= mantissa < 1
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).to(exponent.dtype))


def _round_fp8(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 64 rounded to E4M3 (3 bits of mantissa, exponents down to -6) times a power of two; at most 448 of it."""
    blocks = x.reshape(len(x), -1, 64)
    scale = _power_of_two(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448)
    unit = (blocks / scale).clamp(-448, 448)
    _, exponent = torch.frexp(unit)
    step = torch.ldexp(torch.ones_like(unit), exponent.clamp_min(-5) - 4)  # frexp's exponent is one above the usual
    return ((unit / step).round() * step * scale).reshape(x.shape)


def _round_fp4(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 32 rounded to E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6) times a power of two."""
    blocks = x.reshape(len(x), -1, 32)
    scale = _power_of_two(blocks.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) / 6)
    unit = (blocks / scale).clamp(-6, 6)
    _, exponent = torch.frexp(unit)
    step = torch.ldexp(torch.ones_like(unit), exponent.clamp(1, 3) - 2)
    return ((unit / step).round() * step * scale).reshape(x.shape)


def _hadamard(x: torch.Tensor) -> torch.Tensor:
    """Walsh-Hadamard transform of the last dimension (a power of two), natural order, times its length^-0.5."""
    n, half, y = x.shape[-1], 1, x
    while half < n:
        pairs = y.reshape(*x.shape[:-1], n // (2 * half), 2, half)
        y = torch.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).reshape(x.shape)
        half *= 2
    return y * n**-0.5
