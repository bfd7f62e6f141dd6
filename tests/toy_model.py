"""A toy model for the engine's own logic: logits are a hash of everything that may be seen, kept in the real caches.

Whole texts run in milliseconds, and the toy is stricter than any network: one wrong, missing or stale row in a cache, one
position made by the other path, or one token out of place changes all logits from there on completely. Layer 0 keeps a number
for each token (in a ring if there is a window) and layer 1 a number for what layer 0 saw, so long range and window both count.

It can also break on purpose: NaN at a position, Ctrl-C in a forward, before or after the states have advanced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.engine import Engine
from ds4py.protocols import F32, I64, CacheView, Out, Span
from ds4py.state import FullCache, SlidingCache, State

N_VOCAB = 48
_FACTOR = 6364136223846793005  # of Knuth's 64-bit linear congruential generator


@dataclass
class ToyModel:
    """protocols.Model and, for what an engine asks of them, protocols.Kernels."""

    window: int = 0
    prefill_tile: int = 0
    max_rows: int = 64
    sharpness: float = 2.0  # standard deviation of the logits
    vocab_size: int = N_VOCAB
    n_layers: int = 2
    n_ctx_train: int = 4096
    name: str = "toy"
    n_threads: int = 1
    faults: Mapping[int, float] = field(default_factory=dict)  # position -> value put into logit 7 of the row evaluated there
    n_forwards: int = 0
    n_rows: int = 0
    n_logits: int = 0
    calls: list[tuple[str, list[int]]] = field(default_factory=list)  # path and lengths of the spans of each forward
    stop_at: tuple[int, str] | None = None  # (number of the forward, "before" or "after" the states advance) to interrupt

    def new_state(self, n_ctx: int, slack: int) -> State:
        slack = max(slack, self.max_rows - 1)
        first = SlidingCache(self.window, slack, 1, 1, 1, np.float32) if self.window else FullCache(n_ctx, 1, 1, 1, np.float32)
        return State([first, FullCache(n_ctx, 1, 1, 1, np.float32)], n_ctx)

    def forward(self, spans: Sequence[Span], taps: Sequence[int] = (), path: str = "row") -> Out:
        lengths = [len(span.tokens) for span in spans]
        assert 1 <= sum(lengths) <= self.max_rows
        if path == "prefill":
            assert all(span.state.pos % self.prefill_tile == 0 and len(span.tokens) % self.prefill_tile == 0 for span in spans)
        logits: list[F32] = []
        tapped: list[list[float]] = []
        offsets = [0]
        for span in spans:
            assert all(0 <= token < self.vocab_size for token in span.tokens)
            sums = [self._row(span.state.caches, span.state.pos + i, t, path) for i, t in enumerate(span.tokens)]
            tapped += [[float(low % 65536), float(high % 65536)] for low, high in sums]
            wanted = range(len(sums) - span.n_logits, len(sums))
            logits += [self._logits(sums[i][1], span.state.pos + i) for i in wanted]
            offsets.append(offsets[-1] + span.n_logits)
        self._interrupt("before")
        for span in spans:
            span.state.advance(len(span.tokens), path == "prefill")
        self._interrupt("after")
        self.n_forwards += 1
        self.n_rows += sum(lengths)
        self.n_logits += len(logits)
        self.calls.append((path, lengths))
        rows = np.stack(logits) if logits else np.zeros((0, self.vocab_size), np.float32)
        return Out(rows, offsets, {layer: np.array(tapped, np.float32)[:, layer : layer + 1] for layer in taps})

    def _row(self, caches: Sequence[CacheView], pos: int, token: int, path: str) -> tuple[int, int]:
        caches[0].values[0, pos % caches[0].capacity, 0] = 2 * token + 1 + (path == "prefill") * 1000
        low = _digest(caches[0], pos)
        caches[1].values[0, pos, 0] = low % (1 << 23)
        return low, _digest(caches[1], pos)

    def _logits(self, digest: int, pos: int) -> F32:
        row = np.random.default_rng(digest).normal(size=self.vocab_size).astype(np.float32) * np.float32(self.sharpness)
        if pos in self.faults:
            row[7] = self.faults[pos]
        return row

    def _interrupt(self, when: str) -> None:
        if self.stop_at == (self.n_forwards, when):
            self.stop_at = None
            raise KeyboardInterrupt


def _digest(cache: CacheView, pos: int) -> int:
    """A hash of the positions that the row at `pos` sees, in their order."""
    first = max(0, pos - cache.window + 1) if cache.window else 0
    seen = cache.values[0, np.arange(first, pos + 1) % cache.capacity, 0].astype(np.uint64)
    powers = np.cumprod(np.full(len(seen), _FACTOR, np.uint64))
    return int((seen * powers).sum()) >> 11


def toy_engine(n_ctx: int = 256, **changes: Any) -> Engine:
    """An engine on a toy; keywords are ToyModel's."""
    toy = ToyModel(**changes)
    return Engine(toy, toy, n_ctx)  # type: ignore[arg-type]  # a toy loads no weights and runs no graph


def remembered(state: State) -> list[npt.NDArray[Any]]:
    """All that a toy session's or a model session's caches hold below pos: what must be equal when histories are."""
    rings = [max(0, state.pos - cache.window + 1) if cache.window else 0 for cache in state.caches]
    parts: list[npt.NDArray[Any]] = [np.array([state.pos, *sum(state.tiles, ())], np.int64)]
    for cache, first in zip(state.caches, rings, strict=True):
        every = getattr(cache, "every", 1)  # a pool has one entry per closed group
        slots: I64 = np.arange(first, state.pos // every) % cache.capacity
        parts += [cache.values[:, slots], cache.keys[:, slots // 16, :, slots % 16]]
    return parts
