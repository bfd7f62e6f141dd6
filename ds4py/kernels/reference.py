"""The oracle backend: every operation in plain torch, as its formula reads, in float32 or float64.

It is kept for ever and optimised never: other backends are tested against it, and it against programs we did not write. A
quantised matrix is decoded when it is multiplied and dropped after, so memory stays near the file's size.

Row invariance has its own mode. A library product changes its bits with the number of rows, so `row_by_row` multiplies one row
at a time on the row path and one tile of `prefill_tile` rows at a time on the prefill path, from buffers that torch aligned.
Attention always goes row by row, each over exactly the positions it sees. In float64 only the finished logits are rounded.

It works on `protocols.CacheView` by the published slot arithmetic and shares no code with `state/`, so each checks the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ds4py.protocols import F32, I64, Buf, CacheView, Ops, Out, Rope, Rows
from ds4py.quants import decode

TILE = 16  # positions per key tile, see CacheView


@dataclass(frozen=True)
class RefWeight:
    """A GGUF matrix left as it lies in the file."""

    tensor: Any  # gguf.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return (self.tensor.shape[1], self.tensor.shape[0])

    def rows(self, first: int, n: int) -> F32:
        """Decode rows first..first+n: float32 [n, K]."""
        n_out, k = self.shape
        row_bytes = self.tensor.nbytes // n_out
        data = self.tensor.data[first * row_bytes : (first + n) * row_bytes]
        return decode(self.tensor.type, data, n * k).reshape(n, k)


class ReferenceKernels:
    """`protocols.Kernels` in plain torch.

    dtype: "float32" or "float64", of activations and decoded weights. row_by_row: see the module. prefill_tile: positions per
    tile of the prefill path, 0 = none. max_rows: most rows of one call."""

    def __init__(self, dtype: str = "float32", row_by_row: bool = False, prefill_tile: int = 0, max_rows: int = 512) -> None:
        if dtype not in ("float32", "float64"):
            raise ValueError(f"the reference backend computes in float32 or float64, not {dtype}")
        if prefill_tile and (prefill_tile < 1 or max_rows % prefill_tile):
            raise ValueError(f"max_rows {max_rows} is not a whole number of tiles of {prefill_tile}")
        self.name = f"reference-{dtype}" + ("-rows" if row_by_row else "")
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.row_by_row = row_by_row
        self.prefill_tile = prefill_tile
        self.max_rows = max_rows
        self.n_threads = torch.get_num_threads()

    def weight(self, tensor: Any) -> RefWeight:
        return RefWeight(tensor)

    def vector(self, tensor: Any) -> F32:
        return decode(tensor.type, tensor.data, tensor.shape[0])

    def ready(self, key: object, graph: Callable[[Ops], Buf]) -> None:
        """Nothing to prepare: weights are decoded at every use."""

    def run(self, key: object, graph: Callable[[Ops], Buf], rows: Rows, taps: Sequence[int]) -> Out:
        ops = _RefOps(self, rows, frozenset(taps))
        with torch.inference_mode():
            logits = graph(ops).to(torch.float32).numpy()
        counts = np.bincount(rows.span_of[rows.logit_rows], minlength=len(rows.states))
        return Out(logits, [0, *np.cumsum(counts).tolist()], ops.taps)

    def rows_at_once(self, path: str) -> int:
        """How many rows one matrix product takes; 0 = all there are."""
        if not self.row_by_row:
            return 0
        return self.prefill_tile if path == "prefill" else 1


class _RefOps:
    """`protocols.Ops` for one forward call. A Buf is a torch tensor [R, width], a Weight is a RefWeight."""

    def __init__(self, kernels: ReferenceKernels, rows: Rows, wanted: frozenset[int]) -> None:
        self._kernels = kernels
        self._rows = rows
        self._wanted = wanted
        self._picked = False  # rows picked for logits are no tiles
        self.taps: dict[int, F32] = {}

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        """A copy in the backend's dtype, in memory that torch aligned (a product's bits may depend on alignment)."""
        copy = torch.empty(array.shape, dtype=self._kernels.dtype)
        copy.numpy()[...] = array
        return copy

    def embed(self, weight: Any, scale: float = 1.0) -> torch.Tensor:
        return self._tensor(np.concatenate([weight.rows(int(token), 1) for token in self._rows.tokens])) * scale

    def given(self, width: int) -> torch.Tensor:
        rows = self._rows.given
        if rows is None or rows.shape != (self._rows.n, width):
            raise ValueError(f"the graph needs vectors [{self._rows.n}, {width}] with its rows")
        return self._tensor(rows)

    def rms_norm(self, x: torch.Tensor, weight: F32, eps: float, n_heads: int = 1) -> torch.Tensor:
        heads = x.view(len(x), n_heads, x.shape[1] // n_heads)
        mean = heads.square().mean(-1, keepdim=True)
        return (heads * torch.rsqrt(mean + eps) * self._tensor(weight)).view(x.shape)

    def linear(self, x: torch.Tensor, weight: Any, bias: F32 | None = None) -> torch.Tensor:
        if not len(x):  # no logits asked: the largest matrix of the model need not be decoded
            return x.new_empty(0, weight.shape[0])
        matrix = self._tensor(weight.rows(0, weight.shape[0])).T
        chunk = self._kernels.rows_at_once("row" if self._picked else self._rows.path) or len(x)
        out = torch.cat([x[i : i + chunk].clone() @ matrix for i in range(0, len(x), chunk)])
        return out if bias is None else out + self._tensor(bias)

    def rope(self, x: torch.Tensor, rope: Rope, n_heads: int) -> torch.Tensor:
        n_rot = 2 * len(rope.inv_freq)
        angle = torch.from_numpy(self._rows.pos[:, None] * rope.inv_freq[None])[:, None]  # float64 [R, 1, n_rot / 2]
        cos, sin = ((f(angle) * rope.magnitude).to(x.dtype) for f in (torch.cos, torch.sin))
        heads = x.view(len(x), n_heads, x.shape[1] // n_heads)
        first, second = _pairs(n_rot, rope.interleaved)
        out = heads.clone()
        out[..., first] = heads[..., first] * cos - heads[..., second] * sin
        out[..., second] = heads[..., first] * sin + heads[..., second] * cos
        return out.view(x.shape)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: int,
        n_heads: int,
        n_kv_heads: int,
        scale: float,
        softcap: float = 0.0,
        block: bool = False,
    ) -> torch.Tensor:
        self.store(k, v, cache, n_kv_heads)
        queries = q.view(len(q), n_kv_heads, n_heads // n_kv_heads, -1)
        mixed = []
        for i, (pos, span) in enumerate(zip(self._rows.pos, self._rows.span_of, strict=True)):
            view = self._rows.states[span].caches[cache]
            first = int(self._rows.first[i]) if self._rows.first is not None else 0
            if view.window:
                first = max(first, int(pos) - view.window + 1)
            last = int(self._rows.pos[self._rows.span_of == span].max()) if block else int(pos)
            mixed.append(self._attend_row(queries[i], view, first, last, scale, softcap))
        return torch.stack(mixed).view(len(q), -1)

    def store(self, k: torch.Tensor, v: torch.Tensor, cache: int, n_kv_heads: int) -> None:
        keys, values = (t.view(len(t), n_kv_heads, -1).to(torch.float32).numpy() for t in (k, v))
        for i, (pos, span) in enumerate(zip(self._rows.pos, self._rows.span_of, strict=True)):
            _store(self._rows.states[span].caches[cache], int(pos), keys[i], values[i])

    def _attend_row(
        self, q: torch.Tensor, cache: CacheView, first: int, last: int, scale: float, softcap: float
    ) -> torch.Tensor:
        """One row's queries [G, H / G, d] over positions first..last -> [H * d]."""
        keys, values = (self._tensor(rows) for rows in _load(cache, np.arange(first, last + 1)))
        scores = q.clone() @ keys.transpose(1, 2) * scale  # [G, H / G, n]
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        return (torch.softmax(scores, -1) @ values).reshape(-1)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def concat(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b], 1)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, act: str) -> torch.Tensor:
        if act == "silu":
            return F.silu(gate) * up
        if act == "gelu":
            return F.gelu(gate, approximate="tanh") * up
        raise ValueError(f"there is no activation {act!r}")

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.tanh(x / cap)

    def pick(self, x: torch.Tensor) -> torch.Tensor:
        self._picked = True
        return x[torch.from_numpy(self._rows.logit_rows)]

    def tap(self, layer: int, x: torch.Tensor) -> None:
        if layer in self._wanted:
            self.taps[layer] = x.to(torch.float32).numpy().copy()


def _pairs(n_rot: int, interleaved: bool) -> tuple[slice, slice]:
    """The two members of every rotated pair: even and odd dimensions, or first and second half."""
    if interleaved:
        return slice(0, n_rot, 2), slice(1, n_rot, 2)
    return slice(0, n_rot // 2), slice(n_rot // 2, n_rot)


def _store(cache: CacheView, pos: int, key: F32, value: F32) -> None:
    """Write one row, key and value [G, d], in the cache's dtype."""
    slot = pos % cache.capacity
    cache.keys[:, slot // TILE, :, slot % TILE] = key
    cache.values[:, slot] = value


def _load(cache: CacheView, pos: I64) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the positions `pos` [n]: [G, n, d] each."""
    slot = pos % cache.capacity
    return cache.keys[:, slot // TILE, :, slot % TILE].transpose(1, 0, 2), cache.values[:, slot]
