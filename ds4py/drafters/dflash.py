"""draft-dflash: a block of guesses, each row by itself.

The rows of a block know of each other only what attention told them before they guess, so each is read alone: its logits over
the target's vocabulary, and as confidence the probability that the draft itself gives its likeliest token.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4py.drafters.aim import RowAfter, top_probability
from ds4py.drafters.block import BlockDraft, Guess
from ds4py.models.drafts import widen
from ds4py.protocols import F32


@dataclass(frozen=True)
class DFlashReader:
    """block.Reader."""

    draft: BlockDraft
    measured: bool  # whether the confidence is asked for
    name: str = "draft-dflash"

    def rows(self, guess: Guess) -> RowAfter:
        def row_after(i: int, before: int) -> tuple[F32, float | None]:
            row = guess.logits[i]
            sure = top_probability(row) if self.measured else None
            return widen(row, self.draft.vocab_size, self.draft.network.d2t), sure

        return row_after
