"""The oracle backend: every operation in plain torch, as its formula reads, in float32 or float64.

It is kept for ever and optimised never: other backends are tested against it, and it against programs we did not write. A
quantised matrix is decoded when it is multiplied and dropped after, so memory stays near the file's size.

Row invariance has its own mode. A library product changes its bits with the number of rows, so `row_by_row` multiplies one row
at a time on the row path and one tile of `prefill_tile` rows at a time on the prefill path, from buffers that torch aligned.
Attention always goes row by row, each over exactly the positions it sees. In float64 only the finished logits are rounded.

It works on `protocols.CacheView` by the published slot arithmetic and shares no code with `state/`, so each checks the other.
The operations on latents are in reference_latent.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ds4py.kernels.reference_latent import RefLatentOps, rotate
from ds4py.protocols import F32, I64, Buf, CacheView, Ops, Out, Rope, Router, Rows
from ds4py.quants import decode

TILE = 16  # positions per key tile, see CacheView
SMALL = 1e-20  # added to a sum of expert weights, which can underflow to 0
_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
}


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


@dataclass(frozen=True)
class Routing:
    """Experts of each row and their weights, [R, n_used] both."""

    ids: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class RefExperts:
    """A GGUF tensor [K, N, E] left as it lies in the file."""

    tensor: Any  # gguf.Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.tensor.shape[2], self.tensor.shape[1], self.tensor.shape[0])

    def matrix(self, expert: int) -> F32:
        """Decode one expert's matrix: float32 [N, K]."""
        n_experts, n_out, k = self.shape
        n_bytes = self.tensor.nbytes // n_experts
        return decode(self.tensor.type, self.tensor.data[expert * n_bytes : (expert + 1) * n_bytes], n_out * k).reshape(n_out, k)


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

    def experts(self, tensor: Any) -> RefExperts:
        return RefExperts(tensor)

    def vector(self, tensor: Any) -> F32:
        return decode(tensor.type, tensor.data, tensor.n_values)

    def ready(self, key: object, graph: Callable[[Ops], Buf]) -> None:
        """Nothing to prepare: weights are decoded at every use."""

    def run(self, key: object, graph: Callable[[Ops], Buf], rows: Rows, taps: Sequence[int]) -> Out:
        ops = RefOps(self, rows, frozenset(taps))
        with torch.inference_mode():
            logits = graph(ops).to(torch.float32).numpy()
        counts = np.bincount(rows.span_of[rows.logit_rows], minlength=len(rows.states))
        return Out(logits, [0, *np.cumsum(counts).tolist()], ops.taps)

    def rows_at_once(self, path: str) -> int:
        """How many rows one matrix product takes; 0 = all there are."""
        if not self.row_by_row:
            return 0
        return self.prefill_tile if path == "prefill" else 1


class RefOps:
    """`protocols.Ops` for one forward call. A Buf is a torch tensor [R, width], a Weight is a RefWeight."""

    def __init__(self, kernels: ReferenceKernels, rows: Rows, wanted: frozenset[int]) -> None:
        self._kernels = kernels
        self.rows = rows
        self.tokens, self.pos = np.asarray(rows.tokens, np.int64), np.asarray(rows.pos, np.int64)
        self._wanted = wanted
        self._picked = False  # rows picked for logits are no tiles
        self.taps: dict[int, F32] = {}
        self.latent = RefLatentOps(self)

    def first(self, row: int) -> int:
        """The lowest position that row number `row` may see."""
        return 0 if self.rows.first is None else int(self.rows.first[row])

    def product(self, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """x [R, K] @ matrix.T [K, N], by as many rows at once as this backend promises to."""
        chunk = self._kernels.rows_at_once("row" if self._picked else self.rows.path) or len(x)
        return torch.cat([x[i : i + chunk].clone() @ matrix.T for i in range(0, len(x), chunk)])

    def by_row(self, f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """f(x), one row at a time where rows must not matter: torch's exp and log give other bits at the end of an array than
        inside, which shows in rows that are no multiple of a vector."""
        return torch.cat([f(x[i : i + 1]) for i in range(len(x))]) if self._kernels.row_by_row and len(x) else f(x)

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """A copy in the backend's dtype, in memory that torch aligned (a product's bits may depend on alignment)."""
        copy = torch.empty(array.shape, dtype=self._kernels.dtype)
        copy.numpy()[...] = array
        return copy

    def embed(self, weight: Any, scale: float = 1.0) -> torch.Tensor:
        return self.tensor(np.concatenate([weight.rows(int(token), 1) for token in self.tokens])) * scale

    def given(self, width: int) -> torch.Tensor:
        rows = self.rows.given
        if rows is None or rows.shape != (self.rows.n, width):
            raise ValueError(f"the graph needs vectors [{self.rows.n}, {width}] with its rows")
        return self.tensor(rows)

    def rms_norm(self, x: torch.Tensor, weight: F32 | None, eps: float, n_heads: int = 1) -> torch.Tensor:
        heads = x.view(len(x), n_heads, x.shape[1] // n_heads)
        normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
        return (normed if weight is None else normed * self.tensor(weight)).view(x.shape)

    def linear(self, x: torch.Tensor, weight: Any, bias: F32 | None = None) -> torch.Tensor:
        if not len(x):  # no logits asked: the largest matrix of the model need not be decoded
            return x.new_empty(0, weight.shape[0])
        out = self.product(x, self.tensor(weight.rows(0, weight.shape[0])))
        return out if bias is None else out + self.tensor(bias)

    def rope(self, x: torch.Tensor, rope: Rope, n_heads: int, inverse: bool = False) -> torch.Tensor:
        return rotate(x, self.pos, rope, n_heads, inverse)

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
        for i, (pos, span) in enumerate(zip(self.pos, self.rows.span_of, strict=True)):
            view = self.rows.states[span].caches[cache]
            first = self.first(i)
            if view.window:
                first = max(first, int(pos) - view.window + 1)
            last = int(self.pos[self.rows.span_of == span].max()) if block else int(pos)
            mixed.append(self._attend_row(queries[i], view, first, last, scale, softcap))
        return torch.stack(mixed).view(len(q), -1)

    def store(self, k: torch.Tensor, v: torch.Tensor, cache: int, n_kv_heads: int) -> None:
        keys, values = (t.view(len(t), n_kv_heads, -1).to(torch.float32).numpy() for t in (k, v))
        for i, (pos, span) in enumerate(zip(self.pos, self.rows.span_of, strict=True)):
            _store(self.rows.states[span].caches[cache], int(pos), keys[i], values[i])

    def _attend_row(self, q: torch.Tensor, cache: CacheView, first: int, last: int, scale: float, softcap: float) -> torch.Tensor:
        """One row's queries [G, H / G, d] over positions first..last -> [H * d]."""
        keys, values = (self.tensor(rows) for rows in _load(cache, np.arange(first, last + 1)))
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

    def gated(self, gate: torch.Tensor, up: torch.Tensor, act: str, limit: float = 0.0) -> torch.Tensor:
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        if act == "silu":
            return F.silu(gate) * up
        if act == "gelu":
            return F.gelu(gate, approximate="tanh") * up
        raise ValueError(f"there is no activation {act!r}")

    def route(self, logits: torch.Tensor, router: Router) -> Routing:
        scores = self.by_row(_SCORES[router.score], logits)
        if router.table is not None:
            ids = torch.from_numpy(router.table[self.tokens].astype(np.int64))
        else:
            wanted = scores if router.bias is None else scores + self.tensor(router.bias)
            ids = torch.argsort(wanted, dim=-1, descending=True, stable=True)[:, : router.n_used]
        weights = scores.gather(1, ids)
        if router.normed:
            weights = weights / (weights.sum(-1, keepdim=True) + SMALL)
        return Routing(ids, weights * router.scale)

    def experts(
        self, x: torch.Tensor, routing: Routing, gate: Any, up: Any, down: Any, act: str, limit: float = 0.0
    ) -> torch.Tensor:
        parts = x.new_zeros(len(x), routing.ids.shape[1], down.shape[1])
        for e in routing.ids.unique().tolist():
            row, slot = torch.where(routing.ids == e)
            inputs = x[row]
            g, u = (self.product(inputs, self.tensor(m.matrix(e))) for m in (gate, up))
            h = self.gated(g, u, act, limit) * routing.weights[row, slot, None]
            parts[row, slot] = self.product(h, self.tensor(down.matrix(e)))
        out = parts[:, 0]
        for i in range(1, parts.shape[1]):
            out = out + parts[:, i]
        return out

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.tanh(x / cap)

    def pick(self, x: torch.Tensor) -> torch.Tensor:
        self._picked = True
        return x[torch.from_numpy(self.rows.logit_rows)]

    def wants(self, layer: int) -> bool:
        return layer in self._wanted

    def tap(self, layer: int, x: torch.Tensor) -> None:
        if layer in self._wanted:
            self.taps[layer] = x.to(torch.float32).numpy().copy()


def _store(cache: CacheView, pos: int, key: F32, value: F32) -> None:
    """Write one row, key and value [G, d], in the cache's dtype."""
    slot = pos % cache.capacity
    cache.keys[:, slot // TILE, :, slot % TILE] = key
    cache.values[:, slot] = value


def _load(cache: CacheView, pos: I64) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the positions `pos` [n]: [G, n, d] each."""
    slot = pos % cache.capacity
    return cache.keys[:, slot // TILE, :, slot % TILE].transpose(1, 0, 2), cache.values[:, slot]
