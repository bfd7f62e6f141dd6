"""Drafters that know the answer: they draft rightly, wrongly, or rightly for as many tokens as a test wants.

A scripted drafter has the tokens of a plain run. It also holds the loop to its contract: what it observes must be the tokens of
the session in order, each position once after every truncation, with the rows of taps that belong to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ds4py.protocols import F32, Draft, Needs, SamplerView

Guess = Callable[[int, int, int], int]  # (position, right token, number of this proposal) -> proposed token


class Scripted:
    """Proposes guess(position, right token, call) for each position; `right` [n] are all tokens of the plain run."""

    def __init__(self, right: Sequence[int], guess: Guess, taps: tuple[int, ...] = ()) -> None:
        self.needs = Needs(taps)
        self.right = list(right)
        self.guess = guess
        self.calls = 0
        self.seen: list[int] = []
        self.tapped: list[dict[int, F32]] = []

    @property
    def pos(self) -> int:
        return len(self.seen)

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        assert 0 <= pos <= self.pos
        del self.seen[pos:], self.tapped[pos:]

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        assert set(taps) in (set(self.needs.taps), set())
        assert all(len(rows) == len(tokens) for rows in taps.values())
        self.tapped += [{layer: rows[i].copy() for layer, rows in taps.items()} for i in range(len(tokens))]
        self.seen += tokens

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        assert view.pos == self.pos + 1 and k >= 1
        tokens = []
        for pos in range(view.pos, min(view.pos + k, len(self.right))):
            tokens.append(self.guess(pos, self.right[pos], self.calls))
            view.push(tokens[-1])  # left there on purpose: taking it back is the caller's duty
        self.calls += 1
        self.seen += tokens  # as a chaining drafter leaves rows of its own guesses: the loop cuts them off
        self.tapped += [{} for _ in tokens]
        return Draft(tokens, [0.5] * len(tokens))


def always_right(pos: int, token: int, call: int) -> int:
    return token


def always_wrong(pos: int, token: int, call: int) -> int:
    return token + 1 if token else 1


def right_with(p: float) -> Guess:
    """Right with probability p, by position."""
    lucky = np.random.default_rng(7).random(4096) < p
    return lambda pos, token, call: token if lucky[pos] else always_wrong(pos, token, call)


def from_table(table: Mapping[int, int]) -> Guess:
    """Whatever the table says for a position, e.g. the target's second choice."""
    return lambda pos, token, call: table.get(pos, token)


@dataclass
class EveryLength:
    """The first proposal holds for `first` tokens and the next ones for one more each, cyclically up to `depth`."""

    depth: int
    first: int = 0
    call: int = -1
    start: int = 0

    def __call__(self, pos: int, token: int, call: int) -> int:
        if call != self.call:
            self.call, self.start = call, pos
        length = (self.first + call) % (self.depth + 1)
        return token if pos - self.start < length else always_wrong(pos, token, call)
