"""What a draft model has read of a text: a state, and the tokens in it.

Nothing has to be kept in step from pass to pass. Before a proposal, `catch_up` keeps the longest common prefix of the tokens that
were read and those that the target has by now, truncates the state to it and evaluates what is missing. So an accepted proposal
is never evaluated twice, a rejected one is gone, and a rewind, an edited prompt, passes without drafts and a restored session are
the same case.

A context may begin in the middle of the text (`start`): a draft model that was not asked for a long while looks at the last few
tokens before anybody pays for reading all of the rest (draft_simple.py). Rotary positions are relative, so it does not see that
its first token is not the text's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.drafters.placement import running_on
from ds4py.errors import FormatError
from ds4py.models import LoadedModel
from ds4py.protocols import F32, Span


@dataclass(frozen=True)
class DraftModel:
    """An opened draft model, shared by the sessions of a target."""

    model: LoadedModel
    n_ctx: int  # of a session's state
    target_vocab_size: int  # width of the rows that samplers of the target expect
    identity: str = ""  # of the file and the kernels: caches of others are not loaded
    cpus: frozenset[int] | None = None  # where its threads run, if not where the target's do

    @property
    def max_rows(self) -> int:
        return self.model.kernels.max_rows


class DraftContext:
    """A state of a draft model for one session."""

    def __init__(self, draft: DraftModel) -> None:
        self.start = 0  # position in the text of the first token that is read
        self.state = draft.model.new_state(draft.n_ctx, slack=draft.max_rows)
        self._draft = draft
        self._fed: list[int] = []  # evaluated: the first state.pos of them count
        self._agreed = 0  # a length up to which `_fed` and the target's tokens are known to agree

    def begin(self, start: int) -> None:
        """Forget everything and read from position `start` on."""
        self.start, self._fed, self._agreed = start, [], 0
        self.state.clear()

    def truncate(self, pos: int) -> None:
        """The text's positions >= `pos` are gone."""
        self._agreed = min(self._agreed, max(pos - self.start, 0))

    def behind(self, tokens: Sequence[int]) -> int:
        """How many of the target's `tokens` would have to be evaluated."""
        return len(tokens) - self.start - self._common(tokens)

    def catch_up(self, tokens: Sequence[int], last: int) -> tuple[F32, int]:
        """Evaluate what is missing of `tokens`, and `last`. Returns the row of logits after it, and how many tokens were missing
        beyond what is missing from pass to pass."""
        n = self._common(tokens)
        if n < self.state.floor:
            self.state.clear()
            n = 0
        else:
            self.state.truncate(n)
        del self._fed[n:]
        missing = [*tokens[self.start + n :], last]
        for at in range(0, len(missing) - 1, self._draft.max_rows):
            self.feed(missing[at : min(at + self._draft.max_rows, len(missing) - 1)], n_logits=0)
        # after a draft that held to its end, its last token is missing too
        return self.feed([last]), max(len(missing) - 2, 0)

    def feed(self, tokens: Sequence[int], n_logits: int = 1) -> F32:
        """Evaluate `tokens`; the last row of logits, as wide as the target's, if asked. Valid until the next forward."""
        limit = self._draft.model.vocab_size - 1
        known = [min(token, limit) for token in tokens]  # an id of the target's padding: any id will do
        with running_on(self._draft.cpus):  # the calling thread does a share of the work
            out = self._draft.model.forward([Span(self.state, known, n_logits)])
        self._fed += tokens
        return self._fit(out.logits[0]) if n_logits else out.logits

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """What `load` needs to go on without feeding anything again."""
        self._settle()
        state = {f"state.{name}": array for name, array in self.state.payload().items()}
        return {"fed": np.array(self._fed, np.int64), **state}

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `payload` gave. FormatError, and nothing changed, if it is not of this draft model."""
        fed = payload.get("fed")
        if fed is None or fed.dtype != np.int64 or fed.ndim != 1:
            raise FormatError("The saved session has no sound list of the draft model's tokens; it is damaged.")
        state = {name.removeprefix("state."): array for name, array in payload.items() if name.startswith("state.")}
        if "pos" not in state or state["pos"].shape != () or int(state["pos"]) != len(fed):
            raise FormatError("The saved session's draft state and its tokens differ in length; it is damaged.")
        self.state.load(state)
        self._fed, self._agreed = fed.tolist(), 0

    def _settle(self) -> None:
        """Make `_fed` what the state holds, whatever was interrupted."""
        n = min(self.state.pos, len(self._fed))
        del self._fed[n:]
        if self.state.pos > n:
            self.state.truncate(n)

    def _common(self, tokens: Sequence[int]) -> int:
        """Length of the longest common prefix of what was read and `tokens` from `start` on."""
        self._settle()
        n, end = min(self._agreed, len(self._fed)), min(len(self._fed), len(tokens) - self.start)
        while n < end and self._fed[n] == tokens[self.start + n]:
            n += 1
        self._agreed = n
        return n

    def _fit(self, row: F32) -> F32:
        n, width = len(row), self._draft.target_vocab_size
        if n >= width:
            return row[:width]
        wide = np.full(width, -np.inf, np.float32)
        wide[:n] = row
        return wide
