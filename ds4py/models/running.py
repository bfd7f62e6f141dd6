"""Running any architecture: several sessions' tokens become one list of rows, the backend runs the graph, the states advance.

An architecture file gives its graph and its list of caches (`Network`); everything that is the same for all of them is here,
once, by composition: `LoadedModel` has a network, it is not the base class of one.

All checks happen before the backend is called, so a refused call changes nothing. If the backend itself stops half way (Ctrl-C),
the states stay at their positions but take note of the rows that may have been written: rings have lost what lay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ds4py.errors import ContextError, UsageError
from ds4py.protocols import Buf, Kernels, Ops, Out, Rows, Span
from ds4py.state import Cache, FullCache, PoolCache, SlidingCache, State


@dataclass(frozen=True)
class CacheSpec:
    """One cache, of which an attention layer has one or several. window 0 keeps every position; `every` above 1 keeps one row per
    group of so many positions. `exact`: float32 at least, whatever the dtype of attention caches."""

    n_kv_heads: int
    key_len: int
    value_len: int
    window: int = 0
    every: int = 1
    exact: bool = False


class Network(Protocol):
    """What an architecture file provides: a forward written with `Ops`, and the numbers needed to run it."""

    vocab_size: int
    n_layers: int
    n_ctx_train: int
    caches: Sequence[CacheSpec]  # in the order of the cache numbers that `graph` uses

    def graph(self, ops: Ops) -> Buf: ...


class LoadedModel:
    """A network with weights on a backend: `protocols.Model`."""

    def __init__(self, network: Network, kernels: Kernels, kv_dtype: npt.DTypeLike) -> None:
        self.network = network
        self.kernels = kernels
        self.kv_dtype = np.dtype(kv_dtype)
        self.vocab_size = network.vocab_size
        self.n_layers = network.n_layers
        self.n_ctx_train = network.n_ctx_train
        # an architecture may offer one more: all its streams, as they enter the head
        self.last_tap: int = getattr(network, "last_tap", network.n_layers - 1)

    def new_state(self, n_ctx: int, slack: int) -> State:
        """Empty caches for n_ctx positions, of which the last `slack` can always be taken back. ValueError for n_ctx < 1.

        Rings are longer than asked where one forward may write more rows than `slack`."""
        if n_ctx < 1 or slack < 0:
            raise ValueError(f"n_ctx {n_ctx} must be at least 1 and slack {slack} at least 0")
        return new_state(self.network.caches, n_ctx, max(slack, self.kernels.max_rows - 1), self.kv_dtype)

    def forward(self, spans: Sequence[Span], taps: Sequence[int] = (), path: str = "row") -> Out:
        """Evaluate the spans' tokens, write their cache rows, advance each state by its span's length.

        ContextError when a span does not fit its context, UsageError for a token id outside the vocabulary, ValueError for a
        call that no caller should make (too many rows, one session twice, a ragged tile)."""
        self._check(spans, taps, path)
        rows = flatten(spans, path) if len(spans) > 1 else _flatten_one(spans[0], path)  # a chat's: nothing to join
        try:
            out = self.kernels.run(self, self.network.graph, rows, taps)
        except BaseException:
            for span in spans:
                pos = span.state.pos
                span.state.advance(len(span.tokens), False)
                span.state.truncate(pos)
            raise
        for span in spans:
            span.state.advance(len(span.tokens), path == "prefill")
        return out

    def _check(self, spans: Sequence[Span], taps: Sequence[int], path: str) -> None:
        n_rows = 0
        for span in spans:
            n_rows += len(span.tokens)
            self._check_span(span, path)
        if not 1 <= n_rows <= self.kernels.max_rows:
            raise ValueError(f"a forward of {n_rows} rows; this backend takes 1 to {self.kernels.max_rows}")
        if len(spans) > 1 and len({id(span.state) for span in spans}) != len(spans):
            raise ValueError("one session appears twice in a forward")
        if taps and not -1 <= min(taps) <= max(taps) <= self.last_tap:
            raise ValueError(f"taps {list(taps)} are not all layers -1..{self.last_tap}")
        if path not in ("row", "prefill"):
            raise ValueError(f"there is no path {path!r}")

    def _check_span(self, span: Span, path: str) -> None:
        n, pos, n_ctx = len(span.tokens), span.state.pos, span.state.n_ctx
        if n == 0 or not 0 <= span.n_logits <= n:
            raise ValueError(f"a span of {n} tokens that asks for {span.n_logits} rows of logits")
        if pos + n > n_ctx:
            raise ContextError(f"{pos + n} tokens do not fit the context of {n_ctx}; choose a larger --ctx or a shorter prompt.")
        low, high = min(span.tokens), max(span.tokens)
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise UsageError(f"The token id {bad} is outside the model's vocabulary of {self.vocab_size}.")
        tile = self.kernels.prefill_tile
        if path == "prefill" and (not tile or pos % tile or n % tile):
            raise ValueError(f"the prefill path takes whole aligned tiles of {tile}, not {n} tokens at position {pos}")


def new_state(specs: Sequence[CacheSpec], n_ctx: int, slack: int, dtype: npt.DTypeLike) -> State:
    """Empty caches for `n_ctx` positions; rings hold `slack` positions more than their window."""

    def cache(spec: CacheSpec) -> Cache:
        own = np.promote_types(np.dtype(dtype), np.float32) if spec.exact else dtype
        if spec.window:
            return SlidingCache(spec.window, slack, spec.n_kv_heads, spec.key_len, spec.value_len, own)
        if spec.every > 1:
            return PoolCache(n_ctx, spec.every, spec.value_len, own)
        return FullCache(n_ctx, spec.n_kv_heads, spec.key_len, spec.value_len, own)

    return State([cache(spec) for spec in specs], n_ctx)


_ZEROS: Final = np.zeros(64, np.int64)  # read by everyone, written by none


def flatten(spans: Sequence[Span], path: str) -> Rows:
    """The rows of a call, spans one after another."""
    lengths = [len(span.tokens) for span in spans]
    ends = np.cumsum(lengths)
    logit_rows = [np.arange(end - span.n_logits, end) for span, end in zip(spans, ends, strict=True)]
    return Rows(
        tokens=np.concatenate([np.asarray(span.tokens, np.int64) for span in spans]),
        pos=np.concatenate([span.state.pos + np.arange(n, dtype=np.int64) for span, n in zip(spans, lengths, strict=True)]),
        states=[span.state for span in spans],
        span_of=np.repeat(np.arange(len(spans), dtype=np.int64), lengths),
        logit_rows=np.concatenate(logit_rows).astype(np.int64),
        path=path,
    )


def _flatten_one(span: Span, path: str) -> Rows:
    n, pos = len(span.tokens), span.state.pos
    return Rows(
        tokens=span.tokens,
        pos=range(pos, pos + n),
        states=[span.state],
        span_of=_ZEROS[:n] if n <= len(_ZEROS) else np.zeros(n, np.int64),
        logit_rows=_ZEROS[:1] if n == span.n_logits == 1 else np.arange(n - span.n_logits, n, dtype=np.int64),
        path=path,
    )
