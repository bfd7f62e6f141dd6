"""Several drafters as one: the first that has something to propose is heard.

Draftless drafters are nearly free and right where a text repeats itself; a draft model knows something always. So they are
asked in order of precedence (config.PRECEDENCE), and a draft model runs only when nobody before it had an answer. Drafts are
never joined: what one drafter appends to another's guess rests on a guess.

All members are one timeline: everybody observes everything and is truncated together, so a member that was not asked for a
thousand tokens is as ready as one that was. A member learns from its own proposals only, since only it knows them. While a
member proposes it may run ahead (a draft model evaluates its own guesses); the position of the chain is then that of the
foremost, so that whoever cuts the chain cuts everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds4py.protocols import F32, Draft, Drafter, Needs, SamplerView


class Chain:
    """A Drafter; `members` in the order in which they are asked, all at one position."""

    def __init__(self, members: Sequence[Drafter]) -> None:
        """ValueError for no members, or for members that have not seen the same tokens."""
        if len({member.pos for member in members}) != 1:
            raise ValueError("a chain needs drafters that stand at one position")
        self.members = tuple(members)
        self.needs = Needs(tuple(sorted({layer for member in members for layer in member.needs.taps})))

    @property
    def pos(self) -> int:
        return max(member.pos for member in self.members)

    @property
    def floor(self) -> int:
        return max(member.floor for member in self.members)

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= self.pos:
            raise ValueError(f"truncate({pos}) of a chain at {self.pos}")
        for member in self.members:
            member.truncate(min(pos, member.pos))

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        for member in self.members:
            member.observe(tokens, {layer: taps[layer] for layer in member.needs.taps if layer in taps})

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        start = view.pos
        for member in self.members:
            draft = member.propose(k, last, view)
            if draft.tokens:
                return draft
            view.truncate(start)  # it may have tried something before it gave up
        return Draft()
