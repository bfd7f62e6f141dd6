"""ds4's own schedule for DSpark: whole drafts, and pauses of a few passes where they brought little. Counts alone decide.

A *cycle* is a pass in which a draft was asked for. One without a draft (the confidence head expected nothing) is followed by a
pause at once, a longer one while the session has not seen a long accept, the longest while it has seen none at all and the head
was pessimistic too. After every fourth cycle the four are judged together: fewer than 1.5 accepted tokens each, or half of them
without a draft, mean a pause. A pause only ever grows a running one. The draft's context follows the text through all pauses.

The last tokens of an answer are not drafted for, and such passes count nothing.

The numbers are ds4's defaults (DS4_DSPARK_SCHEDULER_*), and fixed. Not taken over: its rules by milliseconds, which cost.py has
in a form that may decide where text cannot depend on it.
"""

from __future__ import annotations

from typing import Final

from ds4py.protocols import Pass

WINDOW: Final = 4  # cycles judged together
MIN_ACCEPTED: Final = 1.5  # tokens per cycle that are worth drafting on
SKIP, SLOW_SKIP = 2, 4  # passes of a pause after a poor window, and after one that was half empty
NO_DRAFT_SKIP, SHORT_SKIP, COLD_SKIP = 3, 4, 7  # after a cycle without a draft
COLD: Final = 0.5  # confidence in a first token
TAIL: Final = 10  # tokens that may still come, below which nothing is drafted
LONG: Final = 3  # accepted tokens that make an accept a long one


class Ds4Depth:
    """protocols.DepthPolicy."""

    tail = TAIL

    def __init__(self, n_max: int) -> None:
        """Depths are 0 or n_max."""
        self._n_max = n_max
        self._skip = 0  # passes left of a pause
        self._cycles = self._accepted = self._empty = 0  # of the window
        self._total, self._long = 0, False  # accepted tokens of the session; whether an accept was long

    def depth(self) -> int:
        return 0 if self._skip else self._n_max

    def record(self, done: Pass) -> None:
        if self._skip:
            self._skip -= 1
            return
        if not done.asked:
            return
        self._cycles += 1
        self._accepted += done.accepted
        self._total += done.accepted
        self._long |= done.accepted >= LONG
        if not done.drafted:
            self._empty += 1
            self._skip = self._after_nothing(done.draft.stopped)
        if self._cycles == WINDOW:
            half_empty = 2 * self._empty >= WINDOW
            if half_empty or self._accepted < MIN_ACCEPTED * WINDOW:
                self._skip = max(self._skip, SLOW_SKIP if half_empty else SKIP)
            self._cycles = self._accepted = self._empty = 0

    def _after_nothing(self, confidence: float | None) -> int:
        if self._total:
            return NO_DRAFT_SKIP if self._long else SHORT_SKIP
        return COLD_SKIP if confidence is not None and confidence <= COLD else NO_DRAFT_SKIP
