"""A chain: members are asked in llama.cpp's precedence, the first answer wins, and all stay one timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
import pytest

from ds4py.drafters.chain import Chain
from ds4py.drafters.config import PRECEDENCE, ModSizes, NgramSizes, parse_types
from ds4py.drafters.ngram_cache import NgramCache
from ds4py.drafters.ngram_map_k import NgramMapK
from ds4py.drafters.ngram_map_k4v import NgramMapK4V
from ds4py.drafters.ngram_mod import NgramMod, NgramModPool
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.protocols import F32, Draft, Needs, SamplerView, Timeline


class View:
    """The part of a sampler that members may touch."""

    def __init__(self, pos: int) -> None:
        self.pos = pos

    def push(self, token: int) -> None:
        self.pos += 1

    def truncate(self, pos: int) -> None:
        assert pos <= self.pos
        self.pos = pos


class Speaker:
    """Says the same every time it is asked, after pushing `tries` guesses and running ahead by as many positions."""

    def __init__(self, says: Sequence[int], tries: int = 0, taps: tuple[int, ...] = (), floor: int = 0) -> None:
        self.needs, self.says, self.tries, self.floor = Needs(taps), says, tries, floor
        self.seen: list[int] = []
        self.tapped: list[Mapping[int, F32]] = []
        self.asked: list[tuple[int, int, int]] = []

    @property
    def pos(self) -> int:
        return len(self.seen)

    def truncate(self, pos: int) -> None:
        assert 0 <= pos <= self.pos
        del self.seen[pos:]

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self.seen += tokens
        self.tapped.append(taps)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        self.asked.append((k, last, view.pos))
        for _ in range(self.tries):
            view.push(0)
            self.seen.append(-1)
        return Draft(self.says[:k])


def test_the_first_answer_wins_and_nobody_after_it_is_asked() -> None:
    silent, first, second = Speaker([]), Speaker([1, 2, 3]), Speaker([4, 5, 6, 7])
    chain = Chain([silent, first, second])
    chain.observe([9, 9], {})
    assert list(chain.propose(2, 5, View(3)).tokens) == [1, 2]  # nothing of the second is appended
    assert silent.asked == first.asked == [(2, 5, 3)] and second.asked == []
    first.says = []
    assert list(chain.propose(3, 6, View(3)).tokens) == [4, 5, 6]
    second.says = []
    assert chain.propose(3, 6, View(3)) == Draft()


def test_what_a_silent_member_tried_is_taken_back_before_the_next_is_asked() -> None:
    silent, speaker = Speaker([], tries=3), Speaker([1])
    chain = Chain([silent, speaker])
    chain.observe([9, 9, 9], {})
    chain.propose(4, 5, View(4))
    assert speaker.asked == [(4, 5, 4)]
    assert chain.pos == 6  # a member ran ahead: the loop will cut it
    chain.truncate(5)
    assert [member.pos for member in chain.members] == [5, 3]
    chain.truncate(3)
    assert [member.pos for member in chain.members] == [3, 3] and silent.seen == [9, 9, 9]


def test_everybody_observes_everything_and_gets_its_own_taps() -> None:
    members = [Speaker([], taps=(1,)), Speaker([1], taps=(4, 1), floor=2), Speaker([2], floor=1)]
    chain = Chain(members)
    assert isinstance(chain, Timeline) and chain.needs == Needs((1, 4)) and chain.floor == 2
    taps = {1: np.ones((2, 3), np.float32), 4: np.zeros((2, 3), np.float32)}
    chain.observe([7, 8], taps)
    assert [list(member.tapped[0]) for member in members] == [[1], [4, 1], []]
    chain.observe([9], {})  # a forked session has no taps
    assert all(member.seen == [7, 8, 9] and member.tapped[1] == {} for member in members)


def test_only_members_at_one_position_make_a_chain() -> None:
    late = Speaker([])
    late.observe([1], {})
    for members in ([], [Speaker([]), late]):
        with pytest.raises(ValueError):
            Chain(members)
    chain = Chain([late])
    for pos in (-1, 2):
        with pytest.raises(ValueError):
            chain.truncate(pos)


def test_precedence_is_llama_cpps_whatever_was_typed() -> None:
    names = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "draft-simple"]
    assert list(PRECEDENCE[:6]) == names
    for typed in permutations(names[:4]):
        assert parse_types(",".join(typed)) == tuple(names[:4])


def test_each_type_answers_where_those_before_it_are_silent() -> None:
    """One text on which every member has something that the earlier ones have not."""
    pool = NgramModPool()
    NgramMod(ModSizes(2, 1, 8), pool).observe([70, 71, 72, 73, 74, 75], {})  # another session's text
    chain = Chain(
        [
            NgramSimple(NgramSizes(4, 4)),
            NgramMapK(NgramSizes(3, 3)),
            NgramMapK4V(NgramSizes(2, 2, min_hits=2)),
            NgramMod(ModSizes(2, 2, 8), pool),
            NgramCache(),
        ]
    )
    start = [0, *range(1, 21), *range(1, 9)]
    chain.observe(start, {})

    def source(*tokens: int) -> str:
        """Who answers after these tokens."""
        pos = chain.pos
        chain.observe(tokens[:-1], {})
        draft = chain.propose(3, tokens[-1], View(chain.pos + 1))
        chain.truncate(pos)
        return draft.source

    assert source(9) == "ngram-simple"  # 6 7 8 9
    assert source(50, 11, 12, 13) == "ngram-map-k"  # three tokens match, not four
    assert source(50, 2, 3) == "ngram-map-k4v"  # two match, and they occurred twice
    assert source(50, 71, 72) == "ngram-mod"  # known from the other session alone
    assert source(50, 60, 7) == "ngram-cache"  # one token
    assert source(98, 99) == ""


def test_a_member_that_was_not_asked_learns_nothing_wrong() -> None:
    """While the first member speaks, the second is not blamed for what the first proposed."""
    simple, map_k = NgramSimple(NgramSizes(2, 2)), NgramMapK(NgramSizes(2, 2))
    chain = Chain([simple, map_k])
    text = [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]
    chain.observe(text, {})
    assert chain.propose(9, 2, View(len(text) + 1)).source == "ngram-simple"
    chain.truncate(chain.pos)
    chain.observe([2, 30, 31, 32, 33, 34, 1], {})  # refused
    alone = NgramMapK(NgramSizes(2, 2))
    alone.observe([*text, 2, 30, 31, 32, 33, 34, 1], {})
    assert list(map_k.propose(9, 2, View(0)).tokens) == list(alone.propose(9, 2, View(0)).tokens) == [30, 31]
