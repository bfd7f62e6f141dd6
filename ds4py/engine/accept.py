"""Which drafted tokens are committed.

The target's token at a position is a pure function of its logits row and the position (sampling.py), so a verify has nothing to
decide: it draws the target's own token at each row, and a row is worth reading as long as the draft had guessed the one before
it. Greedy decoding and exact sampling are the same rule, and what is committed is the text that plain decoding would have
given. Rejected: accepting a proposal with its probability and resampling what remains (Leviathan et al. 2023). It keeps the
distribution but not the text: the answer would then depend on the drafter, its depth and its schedule.

Another rule is another class with `walk`, handed to a session by SessionOptions(rule=...).
"""

from __future__ import annotations

from collections.abc import Iterator

from ds4py.protocols import F32, Draft, SamplerView


class TargetDraw:
    """A proposal is accepted exactly when it equals the target's own draw."""

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        """Yield the target's tokens left to right, each pushed to `sampler` first, until one was not foreseen.

        rows [len(draft.tokens) + 1, V]. So the last token yielded is the target's alone, those before it were drafted too.
        """
        for i in range(len(draft.tokens) + 1):
            token = sampler.draw(rows[i])
            sampler.push(token)
            yield token
            if i < len(draft.tokens) and draft.tokens[i] != token:
                return
