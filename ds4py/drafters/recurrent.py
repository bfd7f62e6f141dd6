"""What drafters have in common that go on from what the target computed, guess by guess: one block, fed with its own output.

What is remembered: a vector per position, made of the target's residuals, and the caches of the block's rows. The row at a
position needs the vector there and the token *after* it, so rows are made one position late, when that token is known; the first
step of a draft makes the last of them. From then on the block's own output stands in for the vector. Those rows lie past the end,
where everything is garbage by definition, so whatever is accepted, the target's residuals write over them.

Vectors outlive their rows. Going back to position p takes the row before p with it (its token may be another now), and without
its vector it could not be made again short of evaluating the target once more; llama.cpp keeps only the last batch's. Where they
are small all are kept, else the last ones (`RecurrentDraft.kept`): going back further empties the draft's context.

Like every context it may lack its beginning: rows below `first` are never looked at, and a draft starts as soon as one position
was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4py.drafters.aim import Aim, Limits
from ds4py.drafters.intake import Intake
from ds4py.errors import FormatError
from ds4py.models.drafts import HIDDEN, widen
from ds4py.models.running import CacheSpec, new_state
from ds4py.protocols import F32, I64, Buf, Draft, Kernels, Needs, Ops, Out, Rows, SamplerView, Weight
from ds4py.state.layout import zeros_on_touch


class Network(Protocol):
    """A draft network: see models/eagle3.py and models/deepseek4_mtp.py."""

    caches: Sequence[CacheSpec]
    taps: tuple[int, ...]
    feature_len: int  # of the taps joined
    vector_len: int  # of what stands for them
    d2t: I64 | None
    token_embd: Weight
    output: Weight

    def write(self, ops: Ops) -> Buf: ...

    def step(self, ops: Ops) -> Buf: ...


@dataclass(frozen=True)
class RecurrentDraft:
    """An opened network, shared by the sessions of a target."""

    name: str  # of the drafter, for the statistics
    network: Network
    kernels: Kernels
    n_ctx: int  # of the target
    vocab_size: int  # of the target
    longest: int  # tokens of a draft
    kv_dtype: npt.DTypeLike = np.float16
    identity: str = ""  # of the file and the kernels: states of others are not loaded
    fuse: Callable[[Ops], Buf] | None = None  # joined residuals, given, to vectors; None: they are the vectors
    kept: int | None = None  # vectors that are kept, more than a forward's rows; None: all
    joined: bool = True  # whether a few missing context rows are made in the forward of a draft's first step

    def known(self, token: int) -> int:
        """`token`, or any row for an id that only pads the target's vocabulary."""
        return min(token, self.network.token_embd.shape[0] - 1)


class Vectors:
    """One vector per position, of which a ring keeps the last."""

    def __init__(self, n: int, width: int) -> None:
        self._rows: F32 = zeros_on_touch((n, width), np.float32)
        self.pos = 0  # positions below have had one
        self.low = 0  # of which those from here on are kept

    @property
    def capacity(self) -> int:
        return len(self._rows)

    def add(self, rows: F32) -> None:
        """Of the positions that follow; at most `capacity`."""
        self._rows[self._at(self.pos, self.pos + len(rows))] = rows
        self.pos += len(rows)
        self.low = max(self.low, self.pos - self.capacity)

    def take(self, lo: int, hi: int) -> F32:
        """A copy of those of lo .. hi, low <= lo: [hi - lo, width]."""
        rows: F32 = self._rows[self._at(lo, hi)]
        return rows

    def truncate(self, pos: int) -> None:
        self.pos = min(self.pos, pos)
        self.low = min(self.low, self.pos)

    def begin(self, pos: int) -> None:
        """`pos` comes next, and nothing before it is kept."""
        self.pos = self.low = pos

    def _at(self, lo: int, hi: int) -> I64:
        return np.arange(lo, hi, dtype=np.int64) % len(self._rows)


class Recurrent:
    """protocols.Drafter for one session."""

    def __init__(
        self, draft: RecurrentDraft, limits: Limits, greedy: bool = False, measure: Callable[[F32], float] | None = None
    ) -> None:
        """limits.n_max <= draft.longest. `greedy`: propose likeliest tokens whatever the temperature. `measure`: a row's
        confidence, by which drafts end; None where `limits.least` is 0."""
        network, kernels = draft.network, draft.kernels
        self.needs = Needs(network.taps)
        self.identity = draft.identity
        self._draft, self._limits, self._aim, self._measure = draft, limits, Aim(greedy), measure
        n_ctx = draft.n_ctx + draft.longest
        kept = n_ctx if draft.kept is None else min(n_ctx, draft.kept)
        slack = max(kernels.max_rows, kept if draft.kept is not None else 0)
        self._state = new_state(network.caches, n_ctx, slack, draft.kv_dtype)  # rows of first .. at most pos - 1
        self._vectors = Vectors(kept, network.vector_len)  # those of positions that follow wait in the intake
        self._intake = Intake(network.taps, network.feature_len, kernels.max_rows, self._take)
        self._tokens: list[int] = []  # evaluated by the target
        self._first = 0  # positions below are not known

    @property
    def pos(self) -> int:
        return len(self._tokens)

    @property
    def floor(self) -> int:
        return 0

    @property
    def first(self) -> int:
        """The lowest position that is known."""
        return self._first

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= len(self._tokens):
            raise ValueError(f"truncate({pos}) of a drafter at {len(self._tokens)}")
        del self._tokens[pos:]
        self._aim.forget(pos)
        self._intake.cut(max(pos - self._vectors.pos, 0))
        self._vectors.truncate(pos)
        self._first = min(self._first, pos)
        self._cut(max(pos - 1, self._first))
        if self._state.pos < self._vectors.low:
            self._begin(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._aim.seen(len(self._tokens), tokens)
        self._tokens += tokens
        if taps:
            self._intake.add(taps)
        elif self._vectors.pos + len(self._intake) < len(self._tokens):  # else they are the positions of a state that was loaded
            self._intake.cut(0)
            self._begin(len(self._tokens))

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self._aim.seen(len(self._tokens), [last])
        k = min(k, self._limits.n_max)
        if k < max(1, self._limits.n_min) or self.pos == self._first:
            return Draft()
        self._intake.flush()
        base = self.pos
        try:
            lag = self._catch_up()
            tokens = [*self._tokens[self._state.pos + 1 :], last]
            out = self._step(tokens, self._vectors.take(self._state.pos, base))

            def row_after(i: int, before: int) -> tuple[F32, float | None]:
                nonlocal out
                if i:
                    out = self._step([before], out.taps[HIDDEN])
                row = out.logits[0]
                sure = self._measure(row) if self._measure is not None else None
                return widen(row, self._draft.vocab_size, self._draft.network.d2t), sure

            return self._aim.draft(k, last, view, self._limits, row_after, self._draft.name, lag)
        finally:
            self._cut(max(base - 1, self._first))

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """What `load` needs to draft on as if the session had never been away."""
        self._intake.flush()
        vectors, low = self._vectors, max(self._first, self._vectors.low)
        state = {f"state.{name}": array for name, array in self._state.payload().items()}
        return {"first": np.array(self._first, np.int64), "g": vectors.take(low, vectors.pos),
                "g.pos": np.array(vectors.pos, np.int64), **state}  # fmt: skip

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `payload` gave; the tokens follow. FormatError, and nothing changed, if it is not of this draft."""
        numbers = [payload.get(name) for name in ("first", "g.pos", "state.pos")]
        g, width = payload.get("g"), self._draft.network.vector_len
        if any(n is None or n.dtype != np.int64 or n.shape != () for n in numbers) or g is None or g.dtype != np.float32:
            raise FormatError("The saved session's draft state lacks a part; it is damaged.")
        first, end, at = (int(n) for n in numbers if n is not None)
        if g.shape != (len(g), width) or len(g) > self._vectors.capacity or end > self._draft.n_ctx or first < 0:
            raise FormatError(f"The saved session's draft state is {list(g.shape)} up to position {end}; it does not fit.")
        if not first <= at <= max(end - 1, first) or not first <= end - len(g) <= at:
            raise FormatError("The saved session's draft state contradicts itself; it is damaged.")
        self._state.load({name.removeprefix("state."): array for name, array in payload.items() if name.startswith("state.")})
        self._intake.cut(0)
        self._first = first
        self._vectors.begin(end - len(g))
        self._vectors.add(g)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _cut(self, pos: int) -> None:
        """Keep rows below `pos`, as far as they are still there."""
        if self._state.pos > pos:
            self._first = max(self._first, self._state.retreat(pos))

    def _begin(self, pos: int) -> None:
        """`pos` comes next, and nothing before it is known."""
        self._cut(pos)
        self._state.advance(pos - self._state.pos, False)
        self._first = pos
        self._vectors.begin(pos)

    def _catch_up(self) -> int:
        """Make rows until the rest, whose tokens are known, fits one step; returns how many that were beyond what is missing
        from pass to pass."""
        usual = self._limits.n_max + 1
        n = self._write(self.pos - 1, usual if self._draft.joined else 0)
        return n if n > usual or self._draft.joined else 0

    def _write(self, end: int, rest: int = 0) -> int:
        """Make rows below `end`, or all but at most `rest` of them; returns how many."""
        n, max_rows = 0, self._draft.kernels.max_rows
        while (missing := end - self._state.pos) > rest:
            at = self._state.pos
            m = min(missing, max_rows)
            self._run("write", self._tokens[at + 1 : at + 1 + m], self._vectors.take(at, at + m), 0)
            n += m
        return n

    def _step(self, tokens: Sequence[int], g: F32) -> Out:
        """One forward behind the state, which it advances; logits and output of the last row."""
        return self._run("step", tokens, g, 1, (HIDDEN,))

    def _take(self, features: F32) -> None:
        vectors = self._vectors
        if vectors.pos + len(features) - self._state.pos > vectors.capacity:
            self._write(vectors.pos)  # their tokens are known, and their vectors are about to go
        vectors.add(features if self._draft.fuse is None else self._fused(features))

    def _fused(self, features: F32) -> F32:
        n = len(features)
        nowhere, every = np.zeros(n, np.int64), np.arange(n, dtype=np.int64)
        rows = Rows(nowhere, nowhere, [self._state], nowhere, every, given=features)
        assert self._draft.fuse is not None
        return self._draft.kernels.run((self._draft, "fuse"), self._draft.fuse, rows, ()).logits

    def _run(self, graph: str, tokens: Sequence[int], g: F32, n_logits: int, taps: Sequence[int] = ()) -> Out:
        """Evaluate rows behind the state and count them; an interrupted run counts none."""
        draft, state, n = self._draft, self._state, len(tokens)
        ids = np.array([draft.known(token) for token in tokens], np.int64)
        pos: I64 = state.pos + np.arange(n, dtype=np.int64)
        first = np.full(n, self._first, np.int64)
        asked = np.arange(n - n_logits, n, dtype=np.int64)
        rows = Rows(ids, pos, [state], np.zeros(n, np.int64), asked, given=g, first=first)
        state.advance(n, False)  # before the run, so that rings note what it overwrites even if it is interrupted
        try:
            return draft.kernels.run((draft, graph), getattr(draft.network, graph), rows, taps)
        except BaseException:
            state.truncate(state.pos - n)
            raise
