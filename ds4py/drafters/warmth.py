"""At which temperature should a drafter propose? Counts tell.

Above temperature 0 the target's token is argmax(logit / T + noise), and a drafter that adds the same noise to its own logits
aims at that very token. How well it aims depends on how alike the two distributions are: where they are flat and alike, the
full noise is best; where the draft model is too unsure of what the target knows, less noise is. So a drafter proposes at some
warmth between 0 (its likeliest token) and 1 (the target's temperature).

The idea: nothing has to be tried out. Once the target has chosen the token at a position, it is known for every warmth whether
its proposal would have been right, whichever was proposed. The scores are sums of such hits that forget at a fixed rate per
position, so the choice depends on counts alone, never on time. Two levels that are equally good drift apart by a few hits, and
following that costs hits; so another level must lead by two.

Rejected: a bandit that plays each warmth now and then, which pays for what can be had for three more looks at a row of logits.
More levels, since between 0.75 and 1 next to nothing is won. Aiming at the likeliest of what the target's logits may be, given
how far the draft's were off before: with errors measured on a pair it found the target's token no more often (0.49 against
0.51), since errors that are alike for all tokens leave the order of `logit / T + noise` as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LEVELS: Final = (0.0, 0.5, 0.75, 1.0)
_KEEP: Final = 0.99  # of a score at the next position: a memory of about a hundred positions
_LEAD: Final = 2.0  # hits by which another level must lead to be taken


class Warmth:
    """Scores of the levels for one session."""

    def __init__(self) -> None:
        self._scores = [0.0] * len(LEVELS)
        self._best = len(LEVELS) - 1
        self._guessed: tuple[int, Sequence[int]] | None = None  # a position and what each level would propose for it

    @property
    def level(self) -> float:
        """The warmth to propose at."""
        return LEVELS[self._best]

    def guessed(self, pos: int, tokens: Sequence[int]) -> None:
        """What each level would propose for position `pos`."""
        self._guessed = pos, tokens

    def forget(self, pos: int) -> None:
        """Positions > `pos` are gone, and what will stand at `pos` may be another text's."""
        if self._guessed and self._guessed[0] > pos:
            self._guessed = None

    @property
    def waiting(self) -> int | None:
        """The position that was guessed and whose token is not known yet."""
        return self._guessed[0] if self._guessed else None

    def learn(self, token: int) -> None:
        """`token` is what the target chose for the position waited for: score the levels."""
        if self._guessed is None:
            return
        _, guesses = self._guessed
        self._guessed = None
        self._scores = [_KEEP * score + (guess == token) for score, guess in zip(self._scores, guesses, strict=True)]
        leader = max(range(len(LEVELS)), key=self._scores.__getitem__)
        if self._scores[leader] > self._scores[self._best] + _LEAD:
            self._best = leader
