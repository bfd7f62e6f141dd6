"""draft-simple: a second, smaller model of the same vocabulary guesses what the target will say.

The drafter keeps the tokens that the target has evaluated, and beside them the tokens that its own model has (`_fed`). Nothing
else has to be kept in step: before it proposes, it keeps the longest common prefix of the two lists, truncates its state to that
and evaluates what is missing. So an accepted proposal is never evaluated twice, a rejected one is gone, and a rewind, an edited
prompt, passes without drafts and a restored session are the same case. Evaluating waits until something is to be proposed: a
depth policy that has given up costs no draft forward, and the target's rows of logits are not overwritten while they are read.

It proposes with the target's own sampler (aim.py).

Where the draft model's context ends, drafting ends, and one sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.drafters.aim import Aim, Limits, top_probability
from ds4py.errors import FormatError
from ds4py.models import LoadedModel
from ds4py.protocols import F32, Draft, Needs, SamplerView, Span

NAME = "draft-simple"


@dataclass(frozen=True)
class DraftModel:
    """An opened draft model, shared by the sessions of a target."""

    model: LoadedModel
    n_ctx: int  # of the drafter's own state
    target_vocab_size: int  # width of the rows that samplers of the target expect
    identity: str = ""  # of the file and the kernels: caches of others are not loaded

    @property
    def max_rows(self) -> int:
        return self.model.kernels.max_rows


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
        self._state = draft.model.new_state(draft.n_ctx, slack=draft.max_rows)
        self._tokens: list[int] = []  # evaluated by the target
        self._fed: list[int] = []  # evaluated by the draft model: the first state.pos of them count
        self._agreed = 0  # a length up to which both lists are known to agree

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
        self._agreed = min(self._agreed, pos)
        self._aim.forget(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._aim.seen(len(self._tokens), tokens)
        self._tokens += tokens

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self._aim.seen(len(self._tokens), [last])
        k = min(k, self._limits.n_max, self._room())
        if k < max(1, self._limits.n_min):
            return Draft()
        first, lag = self._catch_up(last)

        def row_after(i: int, before: int) -> tuple[F32, float | None]:
            row = self._feed([before]) if i else first
            return row, top_probability(row) if self._limits.least > 0 else None

        return self._aim.draft(k, last, view, self._limits, row_after, NAME, lag)

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """What `load` needs to go on without feeding anything again."""
        self._settle()
        state = {f"state.{name}": array for name, array in self._state.payload().items()}
        return {"fed": np.array(self._fed, np.int64), **state}

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `payload` gave. FormatError, and nothing changed, if it is not of this draft model."""
        fed = payload.get("fed")
        if fed is None or fed.dtype != np.int64 or fed.ndim != 1:
            raise FormatError("The saved session has no sound list of the draft model's tokens; it is damaged.")
        state = {name.removeprefix("state."): array for name, array in payload.items() if name.startswith("state.")}
        if "pos" not in state or state["pos"].shape != () or int(state["pos"]) != len(fed):
            raise FormatError("The saved session's draft state and its tokens differ in length; it is damaged.")
        self._state.load(state)
        self._fed, self._agreed = fed.tolist(), 0

    # --- inside --------------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Tokens that can be proposed: `last` and all of them but the final one are evaluated."""
        room = self._draft.n_ctx - len(self._tokens)
        if room <= 0 and self._notice:
            self._notice(f"the draft model's context of {self._draft.n_ctx} tokens is full: drafting stops")
            self._notice = None
        return room

    def _settle(self) -> None:
        """Make `_fed` what the state holds, whatever was interrupted."""
        n = min(self._state.pos, len(self._fed))
        del self._fed[n:]
        if self._state.pos > n:
            self._state.truncate(n)

    def _catch_up(self, last: int) -> tuple[F32, int]:
        """Evaluate what is missing of the tokens, and `last`. Returns the row of logits after it, and how many tokens were
        missing beyond what is missing from pass to pass."""
        self._settle()
        n = min(self._agreed, len(self._fed))
        while n < min(len(self._fed), len(self._tokens)) and self._fed[n] == self._tokens[n]:
            n += 1
        self._agreed = n
        if n < self._state.floor:
            self._state.clear()
            n = 0
        else:
            self._state.truncate(n)
        del self._fed[n:]
        missing = [*self._tokens[n:], last]
        for at in range(0, len(missing) - 1, self._draft.max_rows):
            self._feed(missing[at : min(at + self._draft.max_rows, len(missing) - 1)], n_logits=0)
        # after a draft that held to its end, its last token is missing too
        return self._feed([last]), max(len(missing) - 2, 0)

    def _feed(self, tokens: Sequence[int], n_logits: int = 1) -> F32:
        """Evaluate `tokens`; the last row of logits, as wide as the target's, if asked. Valid until the next forward."""
        limit = self._draft.model.vocab_size - 1
        known = [min(token, limit) for token in tokens]  # an id of the target's padding: any id will do
        out = self._draft.model.forward([Span(self._state, known, n_logits)])
        self._fed += tokens
        return self._fit(out.logits[0]) if n_logits else out.logits

    def _fit(self, row: F32) -> F32:
        n, width = len(row), self._draft.target_vocab_size
        if n >= width:
            return row[:width]
        wide = np.full(width, -np.inf, np.float32)
        wide[:n] = row
        return wide
