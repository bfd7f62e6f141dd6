"""draft-simple: a second, smaller model of the same vocabulary guesses what the target will say.

The drafter keeps the tokens that the target has evaluated; what its own model has read of them is brought up to date when
something is to be proposed (draft_context.py). So a depth policy that has given up costs no draft forward, and the target's
rows of logits are not overwritten while they are read.

Coming back must be cheap as well, or nobody could afford to ask again. After a pause of more than `_NEAR` passes the drafter
first glances: it reads the last `_NEAR` tokens alone, in a second state, and drafts from there, passably (0.40 of SmolLM2's
tokens instead of 0.58). Only when that has gone on for as many tokens as are missing does it read those, so that reading them
costs no more than following would have. A prompt that comes while drafting pays is read whole and at once.

It proposes with the target's own sampler (aim.py).

Where the draft model's context ends, drafting ends, and one sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from ds4py.drafters.aim import Aim, Limits, top_probability
from ds4py.drafters.draft_context import DraftContext, DraftModel
from ds4py.protocols import F32, Draft, Needs, SamplerView

NAME = "draft-simple"
_NEAR: Final = 16  # tokens that are read without asking what they cost


class DraftSimple:
    """protocols.Drafter for one session."""

    def __init__(
        self,
        draft: DraftModel,
        n_max: int,
        n_min: int = 0,
        p_min: float = 0.0,
        greedy: bool = False,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """`greedy`: propose likeliest tokens whatever the temperature. `notice` is told once when the draft context is full."""
        self.needs = Needs()
        self.identity = draft.identity
        self._draft, self._limits = draft, Limits(n_max, n_min, p_min)
        self._notice = notice
        self._aim = Aim(greedy)
        self._tokens: list[int] = []  # evaluated by the target
        self._whole = DraftContext(draft)
        self._glance: DraftContext | None = None
        self._glancing: tuple[int, int] | None = None  # position at which that began; tokens that were missing then
        self._n_unasked = 0  # passes since the whole context was up to date
        self._asked = False  # in this pass

    @property
    def pos(self) -> int:
        return len(self._tokens)

    @property
    def floor(self) -> int:
        return 0  # the tokens are kept, so any position can be reached, at the price of feeding them again

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= len(self._tokens):
            raise ValueError(f"truncate({pos}) of a drafter at {len(self._tokens)}")
        del self._tokens[pos:]
        self._whole.truncate(pos)
        if self._glance and self._glancing:
            self._glance.truncate(pos)
            if pos < self._glancing[0]:
                self._glancing = None
        self._aim.forget(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._n_unasked += not self._asked and len(tokens) == 1
        self._asked = False
        self._aim.seen(len(self._tokens), tokens)
        self._tokens += tokens

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self._asked = True
        self._aim.seen(len(self._tokens), [last])
        k = min(k, self._limits.n_max, self._room())
        if k < max(1, self._limits.n_min):
            return Draft()
        context = self._context()
        first, lag = context.catch_up(self._tokens, last)

        def row_after(i: int, before: int) -> tuple[F32, float | None]:
            row = context.feed([before]) if i else first
            return row, top_probability(row) if self._limits.least > 0 else None

        return self._aim.draft(k, last, view, self._limits, row_after, NAME, lag)

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """What `load` needs to go on without feeding anything again."""
        return self._whole.payload()

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `payload` gave. FormatError, and nothing changed, if it is not of this draft model."""
        self._whole.load(payload)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Tokens that can be proposed: `last` and all of them but the final one are evaluated."""
        room = self._draft.n_ctx - len(self._tokens)
        if room <= 0 and self._notice:
            self._notice(f"the draft model's context of {self._draft.n_ctx} tokens is full: drafting stops")
            self._notice = None
        return room

    def _context(self) -> DraftContext:
        """Where to draft from: all of the text, or the last of it."""
        missing, pos = self._whole.behind(self._tokens), len(self._tokens)
        if missing > _NEAR and self._n_unasked > _NEAR:
            if self._glance is None:
                self._glance = DraftContext(self._draft)
            if self._glancing is None or self._glance.behind(self._tokens) > _NEAR:
                self._glancing = pos, missing
                self._glance.begin(pos - _NEAR)
            if pos < sum(self._glancing):
                return self._glance
        self._glancing, self._n_unasked = None, 0
        return self._whole
