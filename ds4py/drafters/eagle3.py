"""draft-eagle3: one block goes on from the target's residuals, guess by guess.

What is remembered: a vector g per position, made of the target's residuals, and the keys and values of the block's rows. The row
at a position needs g there and the token *after* it, so rows are made one position late, when that token is known; the first step
of a draft makes the last of them. From then on the block's own output stands in for g. Those rows lie past the end, where
everything is garbage by definition, so whatever is accepted, the target's residuals write over them.

g is kept for every position. Going back to position p takes the row before p with it (its token may be another now), and without
g it could not be made again short of evaluating the target once more; llama.cpp keeps only the last batch's. By arithmetic that
is 4 D bytes beside the 4 L G d of the target's own caches: 7 % for a model of 4 billion parameters, 11 % for 8.

Like every context it may lack its beginning (a forked session): rows below `first` are never looked at, and a draft starts as
soon as one position was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ds4py.drafters.aim import Aim, Limits, top_probability
from ds4py.drafters.intake import Intake
from ds4py.errors import FormatError
from ds4py.models.drafts import HIDDEN, widen
from ds4py.models.eagle3 import Model
from ds4py.models.running import new_state
from ds4py.protocols import F32, I64, Draft, Kernels, Needs, Out, Rows, SamplerView
from ds4py.state.layout import zeros_on_touch

NAME: Final = "draft-eagle3"


@dataclass(frozen=True)
class EagleDraft:
    """An opened network, shared by the sessions of a target."""

    network: Model
    kernels: Kernels
    n_ctx: int  # of the target
    vocab_size: int  # of the target
    longest: int  # tokens of a draft
    kv_dtype: npt.DTypeLike = np.float16
    identity: str = ""  # of the file and the kernels: states of others are not loaded

    def known(self, token: int) -> int:
        """`token`, or any row for an id that only pads the target's vocabulary."""
        return min(token, self.network.token_embd.shape[0] - 1)


class Eagle3:
    """protocols.Drafter for one session."""

    def __init__(self, draft: EagleDraft, limits: Limits, greedy: bool = False) -> None:
        """limits.n_max <= draft.longest. `greedy`: propose likeliest tokens whatever the temperature."""
        network, kernels = draft.network, draft.kernels
        self.needs = Needs(network.taps)
        self.identity = draft.identity
        self._draft, self._limits, self._aim = draft, limits, Aim(greedy)
        n_ctx = draft.n_ctx + draft.longest
        self._state = new_state(network.caches, n_ctx, kernels.max_rows, draft.kv_dtype)  # rows of first .. at most pos - 1
        self._g: F32 = zeros_on_touch((n_ctx, network.n_embd), np.float32)
        self._n_g = 0  # positions whose g is made; those that follow wait in the intake
        self._intake = Intake(network.taps, network.feature_len, kernels.max_rows, self._fuse)
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
        self._intake.cut(max(pos - self._n_g, 0))
        self._n_g = min(self._n_g, pos)
        self._first = min(self._first, pos)
        self._cut(max(pos - 1, self._first))

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._aim.seen(len(self._tokens), tokens)
        self._tokens += tokens
        if taps:
            self._intake.add(taps)
        elif self._n_g + len(self._intake) < len(self._tokens):  # else they are the positions of a state that was loaded
            self._intake.cut(0)
            self._first = self._n_g = len(self._tokens)
            self._state.advance(self._first - self._state.pos, False)

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
            out = self._step(tokens, self._g[self._state.pos : base])

            def row_after(i: int, before: int) -> tuple[F32, float | None]:
                nonlocal out
                if i:
                    out = self._step([before], out.taps[HIDDEN])
                row = out.logits[0]
                sure = top_probability(row) if self._limits.least > 0 else None
                return widen(row, self._draft.vocab_size, self._draft.network.d2t), sure

            return self._aim.draft(k, last, view, self._limits, row_after, NAME, lag)
        finally:
            self._cut(max(base - 1, self._first))

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """What `load` needs to draft on as if the session had never been away."""
        self._intake.flush()
        state = {f"state.{name}": array for name, array in self._state.payload().items()}
        return {"first": np.array(self._first, np.int64), "g": self._g[self._first : self._n_g].copy(), **state}

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `payload` gave; the tokens follow. FormatError, and nothing changed, if it is not of this draft."""
        first, g = payload.get("first"), payload.get("g")
        width = self._g.shape[1]
        if first is None or first.dtype != np.int64 or first.shape != () or g is None or g.dtype != np.float32:
            raise FormatError("The saved session's draft state lacks a part; it is damaged.")
        n_g = int(first) + len(g)
        if g.shape != (len(g), width) or first < 0 or n_g > self._draft.n_ctx:
            raise FormatError(f"The saved session's draft state is {list(g.shape)} from position {int(first)}; it does not fit.")
        at = payload.get("state.pos")
        if at is None or at.shape != () or not first <= at <= max(n_g - 1, first):
            raise FormatError("The saved session's draft state contradicts itself; it is damaged.")
        self._state.load({name.removeprefix("state."): array for name, array in payload.items() if name.startswith("state.")})
        self._intake.cut(0)
        self._first, self._n_g = int(first), n_g
        self._g[self._first : n_g] = g

    # --- inside --------------------------------------------------------------------------------------------------------

    def _cut(self, pos: int) -> None:
        """Keep rows below `pos`."""
        if self._state.pos > pos:
            self._state.truncate(pos)

    def _catch_up(self) -> int:
        """Make rows until the rest, whose tokens are known, fits one step; returns how many that were."""
        n, max_rows = 0, self._draft.kernels.max_rows
        while (missing := self.pos - 1 - self._state.pos) > self._limits.n_max + 1:
            at = self._state.pos
            m = min(missing, max_rows)
            self._run("write", self._tokens[at + 1 : at + 1 + m], self._g[at : at + m], 0)
            n += m
        return n

    def _step(self, tokens: Sequence[int], g: F32) -> Out:
        """One forward behind the state, which it advances; logits and output of the last row."""
        return self._run("step", tokens, g, 1, (HIDDEN,))

    def _fuse(self, features: F32) -> None:
        n = len(features)
        nowhere, every = np.zeros(n, np.int64), np.arange(n, dtype=np.int64)
        rows = Rows(nowhere, nowhere, [self._state], nowhere, every, given=features)
        out = self._draft.kernels.run((self._draft, "fuse"), self._draft.network.fuse, rows, ())
        self._g[self._n_g : self._n_g + n] = out.logits
        self._n_g += n

    def _run(self, graph: str, tokens: Sequence[int], g: F32, n_logits: int, taps: Sequence[int] = ()) -> Out:
        draft, state, n = self._draft, self._state, len(tokens)
        ids = np.array([draft.known(token) for token in tokens], np.int64)
        pos: I64 = state.pos + np.arange(n, dtype=np.int64)
        first = np.full(n, self._first, np.int64)
        asked = np.arange(n - n_logits, n, dtype=np.int64)
        rows = Rows(ids, pos, [state], np.zeros(n, np.int64), asked, given=g, first=first)
        out = draft.kernels.run((draft, graph), getattr(draft.network, graph), rows, taps)
        state.advance(n, False)
        return out
