"""What every drafter that guesses a block at once is made of: a context that follows the target, and a pass over the block.

The context's rows are a pure function of the target's residuals at each position, so a rejected draft leaves nothing to undo, and
the state is an ordinary one: positions below `pos` are true. The block is evaluated at the positions that follow, always at the
width it was trained with, and forgotten; how many of its guesses are wanted decides only how many rows go through the head. So
the guesses of a shorter draft are the first of a longer one.

Positions are the target's own. What the context lacks (a forked session, a rewind further back than a ring holds) lies below
`first`, which attention never looks at: the draft is made from what is there, and nothing has to be evaluated again for it.

Two parts can be exchanged. A `Network` computes: anything with two graphs, of which models/dflash.py is one. A `Reader` turns the
rows of a block into rows of logits, one by one or as a chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4py.drafters.aim import Aim, Limits, RowAfter
from ds4py.drafters.intake import Intake
from ds4py.errors import FormatError
from ds4py.models.drafts import HIDDEN
from ds4py.models.running import CacheSpec, new_state
from ds4py.protocols import F32, I64, Buf, Draft, Kernels, Needs, Ops, Out, Rows, SamplerView, Weight


class Network(Protocol):
    """A draft network: see models/dflash.py."""

    caches: Sequence[CacheSpec]
    taps: tuple[int, ...]
    feature_len: int
    block_size: int
    mask_token: int
    from_anchor: bool
    d2t: I64 | None
    token_embd: Weight
    output: Weight

    def inject(self, ops: Ops) -> Buf: ...

    def block(self, ops: Ops) -> Buf: ...


@dataclass(frozen=True)
class BlockDraft:
    """An opened network, shared by the sessions of a target."""

    network: Network
    kernels: Kernels
    n_ctx: int  # of the target
    vocab_size: int  # of the target
    kv_dtype: npt.DTypeLike = np.float16  # of the context's caches
    slack: int = 512  # positions that one can go back without losing some of a window: about an answer
    identity: str = ""  # of the file and the kernels: contexts of others are not loaded

    @property
    def n_rows(self) -> int:
        """Ids of the draft's own vocabulary."""
        return self.network.output.shape[0]

    @property
    def first_row(self) -> int:
        """The row of a block that tells the token after the last chosen one."""
        return 0 if self.network.from_anchor else 1

    @property
    def n_max(self) -> int:
        """Tokens of the longest draft."""
        return self.network.block_size - self.first_row


@dataclass(frozen=True)
class Guess:
    """Of k rows: logits [k, V_d] over the draft's vocabulary and final hidden states [k, D]. Valid until the next block."""

    logits: F32
    hidden: F32


class Reader(Protocol):
    """How a block's guesses become rows of logits over the target's vocabulary."""

    @property
    def name(self) -> str:
        """Of the drafter, for the statistics."""
        ...

    def rows(self, guess: Guess) -> RowAfter: ...


class Context:
    """What one session's draft knows of the text: a Timeline over the network's caches."""

    def __init__(self, draft: BlockDraft) -> None:
        self.draft = draft
        network, kernels = draft.network, draft.kernels
        slack = max(draft.slack, kernels.max_rows, network.block_size)
        self._state = new_state(network.caches, draft.n_ctx + network.block_size, slack, draft.kv_dtype)
        self._intake = Intake(network.taps, network.feature_len, kernels.max_rows, self._inject)
        self._first = 0  # positions below are not known

    @property
    def pos(self) -> int:
        return self._state.pos + len(self._intake)

    @property
    def first(self) -> int:
        """The lowest position that is known."""
        return self._first

    @property
    def n_bytes(self) -> int:
        """Address space of the caches; memory is taken only as positions are written."""
        return self._state.n_bytes

    def truncate(self, pos: int) -> None:
        """To any position up to `pos`. ValueError outside."""
        if not 0 <= pos <= self.pos:
            raise ValueError(f"truncate({pos}) of a context at {self.pos}")
        self._intake.cut(max(pos - self._state.pos, 0))
        if pos < self._state.pos:
            self._first = min(max(self._first, self._state.retreat(pos)), pos)

    def add(self, taps: Mapping[int, F32]) -> None:
        """Further positions, a row of each tap for each."""
        self._intake.add(taps)

    def skip_to(self, pos: int) -> None:
        """`pos` comes next, and nothing before it is known."""
        self._intake.cut(0)
        self._state.advance(pos - self._state.pos, False)
        self._first = pos

    def guess(self, k: int, last: int) -> Guess:
        """The first k guesses behind `last`, which stands at `pos`. k <= draft.n_max."""
        self._intake.flush()
        network, base = self.draft.network, self._state.pos
        tokens = np.full(network.block_size, network.mask_token, np.int64)
        tokens[0] = min(last, network.token_embd.shape[0] - 1)  # higher ids are padding of the target's
        asked = self.draft.first_row + np.arange(k, dtype=np.int64)
        out = self._run("block", tokens, asked, (HIDDEN,))
        self._state.truncate(base)
        return Guess(out.logits, out.taps[HIDDEN])

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        self._intake.flush()
        return {"first": np.array(self._first, np.int64), **self._state.payload()}

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Stand where the context that gave `payload` stood. FormatError, and nothing changed, if it does not fit."""
        first = payload.get("first")
        if first is None or first.dtype != np.int64 or first.shape != () or first < 0:
            raise FormatError("The saved session's draft context does not tell where it begins; it is damaged.")
        self._state.load({name: array for name, array in payload.items() if name != "first"})
        self._intake.cut(0)
        self._first = min(int(first), self._state.pos)

    def _inject(self, features: F32) -> None:
        self._run("inject", np.zeros(len(features), np.int64), np.zeros(0, np.int64), (), features)

    def _run(self, graph: str, tokens: I64, asked: I64, taps: Sequence[int], given: F32 | None = None) -> Out:
        """Evaluate rows at the positions that follow and count them; an interrupted run counts none."""
        draft, state, n = self.draft, self._state, len(tokens)
        pos = state.pos + np.arange(n, dtype=np.int64)
        first = np.full(n, self._first, np.int64)
        rows = Rows(tokens, pos, [state], np.zeros(n, np.int64), asked, given=given, first=first)
        state.advance(n, False)  # before the run, so that rings note what it overwrites even if it is interrupted
        try:
            return draft.kernels.run((draft, graph), getattr(draft.network, graph), rows, taps)
        except BaseException:
            state.truncate(state.pos - n)
            raise


class BlockDrafter:
    """protocols.Drafter for one session: a context and a reader."""

    def __init__(self, draft: BlockDraft, reader: Reader, limits: Limits, greedy: bool = False) -> None:
        """`limits.n_max` <= draft.n_max. `greedy`: propose likeliest tokens whatever the temperature."""
        self.needs = Needs(draft.network.taps)
        self.identity = draft.identity
        self.context = Context(draft)
        self._reader, self._limits, self._aim = reader, limits, Aim(greedy)
        self._pos = 0

    @property
    def pos(self) -> int:
        return self._pos

    @property
    def floor(self) -> int:
        return 0  # any position can be reached; what the context has lost there makes drafts worse, not wrong

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= self._pos:
            raise ValueError(f"truncate({pos}) of a drafter at {self._pos}")
        self.context.truncate(pos)
        self._pos = pos
        self._aim.forget(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._aim.seen(self._pos, tokens)
        self._pos += len(tokens)
        if taps:
            self.context.add(taps)
        elif self.context.pos < self._pos:  # else they are the positions of a context that was loaded
            self.context.skip_to(self._pos)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self._aim.seen(self._pos, [last])
        k = min(k, self._limits.n_max)
        if k < max(1, self._limits.n_min):
            return Draft()
        rows = self._reader.rows(self.context.guess(k, last))
        return self._aim.draft(k, last, view, self._limits, rows, self._reader.name)

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """What `load` needs to draft on as if the session had never been away."""
        return self.context.payload()

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `payload` gave; the tokens follow. FormatError, and nothing changed, if it is not of this draft."""
        self.context.load(payload)
