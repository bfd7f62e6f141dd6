"""Ways back below the floor of a state, under one budget of bytes.

A ring of a sliding window forgets; to go back further than its slack, a session restores a checkpoint at or below the wanted
position and evaluates the tokens between again. Checkpoints are taken at turn boundaries, where people go back to, and on the
way every so many positions. When the budget is exceeded, the one goes whose loss hurts least: the smallest gap left behind in
proportion to its distance from the newest. That keeps them dense near the end and thin far back (logarithmic spacing), so a
short way back is replayed quickly and a long one is still possible. Rejected: a fixed spacing, which for long sessions either
eats memory or makes every small step back a long replay.

Checkpoints are addressed by position like everything else: those past a truncation are gone, because the tokens under them are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ds4py.protocols import Snapshot, StateView

CHECKPOINT_STEP: Final = 512  # positions


class Checkpoints:
    """Checkpoints of one session's state, by rising position."""

    def __init__(self, budget_bytes: int, spacing: int = CHECKPOINT_STEP) -> None:
        self._budget_bytes = budget_bytes
        self._spacing = spacing
        self._kept: list[Snapshot] = []

    @property
    def positions(self) -> Sequence[int]:
        return [c.pos for c in self._kept]

    @property
    def n_bytes(self) -> int:
        return sum(c.n_bytes for c in self._kept)

    def take(self, state: StateView) -> None:
        """Remember where `state` is, unless that is known already or truncating alone always suffices."""
        if state.pos == 0 or (self._kept and self._kept[-1].pos >= state.pos):
            return
        checkpoint = state.checkpoint()
        if checkpoint.n_bytes:
            self._kept.append(checkpoint)
            self._thin()

    def pass_by(self, state: StateView) -> None:
        """Take one if the last is `spacing` positions back."""
        if state.pos - (self._kept[-1].pos if self._kept else 0) >= self._spacing:
            self.take(state)

    def truncate(self, pos: int) -> None:
        while self._kept and self._kept[-1].pos > pos:
            self._kept.pop()

    def newest(self) -> Snapshot | None:
        return self._kept[-1] if self._kept else None

    def _thin(self) -> None:
        while self.n_bytes > self._budget_bytes:
            at = [0, *self.positions]
            loss = [(at[i + 1] - at[i - 1]) / (at[-1] - at[i] + 1) for i in range(1, len(at) - 1)]
            # the newest goes last: it is the boundary that the session stands on
            self._kept.pop(loss.index(min(loss)) if loss else 0)
