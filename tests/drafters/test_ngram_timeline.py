"""What all draftless drafters promise: they are timelines, they never propose more than they are asked for, and a step costs the
same for a long history as for a short one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, random_text

from ds4py.drafters.chain import Chain
from ds4py.drafters.config import ModSizes, NgramSizes
from ds4py.drafters.ngram_cache import NgramCache
from ds4py.drafters.ngram_map_k import NgramMapK
from ds4py.drafters.ngram_map_k4v import NgramMapK4V
from ds4py.drafters.ngram_mod import NgramMod, NgramModPool
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.errors import UsageError
from ds4py.protocols import Timeline

SMALL = NgramSizes(2, 3)
# everything whose proposals are a function of the history alone; ngram-mod's pool is not part of its timeline
MAKERS: dict[str, Callable[[], Any]] = {
    "simple": lambda: NgramSimple(SMALL),
    "simple-3": lambda: NgramSimple(NgramSizes(3, 2, min_hits=2)),
    "map-k": lambda: NgramMapK(SMALL),
    "map-k-hits": lambda: NgramMapK(NgramSizes(1, 4, min_hits=3)),
    "map-k4v": lambda: NgramMapK4V(SMALL),
    "map-k4v-hits": lambda: NgramMapK4V(NgramSizes(1, 1, min_hits=2)),
    "cache": lambda: NgramCache(),
    "chain": lambda: Chain([NgramMapK4V(SMALL), NgramCache()]),
}
ALL = {**MAKERS, "mod": lambda: NgramMod(ModSizes(3, 1, 9), NgramModPool(1009))}


def answers(drafter: Any) -> list[list[int]]:
    """The proposals after each token of a small alphabet. They leave no trace but offers at this position, which are void."""
    return [list(drafter.propose(9, last, _View(drafter.pos + 1)).tokens) for last in range(4)]


class _View:
    """As much of a sampler as a chain touches."""

    def __init__(self, pos: int) -> None:
        self.pos = pos

    def truncate(self, pos: int) -> None:
        assert pos == self.pos


@pytest.mark.parametrize("name", MAKERS)
def test_every_truncate_equals_a_fresh_drafter(name: str) -> None:
    text = random_text(70, 4, seed=11)
    n_drafts = 0
    for pos in range(len(text) + 1):
        cut, fresh = MAKERS[name](), MAKERS[name]()
        cut.observe(text, {})
        cut.truncate(pos)
        fresh.observe(text[:pos], {})
        assert cut.pos == fresh.pos == pos
        assert answers(cut) == answers(fresh)
        n_drafts += sum(map(bool, answers(cut)))
        for drafter in (cut, fresh):  # and what grows from there is the same
            drafter.observe(text[::-1][:20], {})
        assert answers(cut) == answers(fresh)
    assert n_drafts >= 25


@pytest.mark.parametrize("name", MAKERS)
@UNTIMED
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=15), st.floats(0, 1)), max_size=12))
def test_any_way_to_a_history_is_as_good_as_the_straight_one(name: str, way: list[tuple[list[int], float]]) -> None:
    walker, fresh, text = MAKERS[name](), MAKERS[name](), list[int]()
    for tokens, share in way:
        walker.observe(tokens, {})
        text += tokens
        pos = int(share * len(text))
        walker.truncate(pos)
        del text[pos:]
    fresh.observe(text, {})
    assert answers(walker) == answers(fresh)


@pytest.mark.parametrize("name", ALL)
def test_short_and_shrunken_histories(name: str) -> None:
    drafter = ALL[name]()
    assert isinstance(drafter, Timeline)
    assert (drafter.pos, drafter.floor, drafter.needs.taps) == (0, 0, ())
    assert answers(drafter) == [[]] * 4  # nothing to look at
    drafter.observe([], {})
    drafter.observe([1], {})
    for _ in range(3):
        drafter.truncate(0)
        drafter.observe([1, 2, 3] * 20, {})
        assert any(answers(drafter))
        drafter.truncate(2)
        assert drafter.pos == 2
        if name not in ("cache", "chain", "mod"):  # statistics of two tokens are something, and a pool remembers
            assert answers(drafter) == [[]] * 4
    with pytest.raises(ValueError):
        drafter.truncate(3)
    with pytest.raises(ValueError):
        drafter.truncate(-1)
    drafter.truncate(2)
    assert drafter.pos == 2


@pytest.mark.parametrize("name", ALL)
def test_never_more_than_asked(name: str) -> None:
    drafter = ALL[name]()
    drafter.observe([1, 2, 3] * 20, {})
    lengths = [len(drafter.propose(k, 1, _View(drafter.pos + 1)).tokens) for k in range(1, 13)]
    assert all(0 < length <= k for k, length in enumerate(lengths, 1)), lengths
    assert lengths[:2] == [1, 2] or max(lengths) == 1


@pytest.mark.parametrize("name", [name for name in ALL if name != "chain"])
def test_drafts_carry_the_name_of_their_type(name: str) -> None:
    drafter = ALL[name]()
    drafter.observe([1, 2, 3] * 20, {})
    assert drafter.propose(2, 1, None).source == drafter.name == f"ngram-{name.removesuffix('-3').removesuffix('-hits')}"


def n_lines(work: Callable[[], object]) -> int:
    """How many lines of Python run: what a step costs, without a clock."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class Watched(list[int]):
    """A list that counts the elements that slices copy; searches and whole copies are forbidden."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        got = super().__getitem__(at)
        Watched.copied += len(got) if isinstance(at, slice) else 1
        return got

    def _no(self, *args: Any) -> Any:
        raise AssertionError("a step may not search the history")

    __contains__ = __iter__ = __reversed__ = index = count = copy = _no  # type: ignore[assignment]


SIZES = NgramSizes(12, 48)
COSTS: dict[str, Callable[[], Any]] = {
    "simple": lambda: NgramSimple(SIZES),
    "map-k": lambda: NgramMapK(SIZES),
    "map-k4v": lambda: NgramMapK4V(SIZES),
    "mod": lambda: NgramMod(ModSizes(24, 8, 64)),
    "cache": lambda: NgramCache(),
}


def cost_of_a_step(name: str, n_tokens: int, repeats: bool) -> tuple[int, int]:
    """(lines run, history elements read) by the dearest of some steps after `n_tokens` tokens."""
    drafter = COSTS[name]()
    text = ([*range(50)] * (n_tokens // 50 + 1))[:n_tokens] if repeats else random_text(n_tokens, 200, seed=5)
    for at in range(0, n_tokens, 64):
        drafter.observe(text[at : at + 64], {})
    holder = getattr(drafter, "_index", drafter)
    field = "tokens" if holder is not drafter else "_tokens"
    setattr(holder, field, Watched(getattr(holder, field)))

    def one(last: int) -> None:
        draft = drafter.propose(16, last, None)
        drafter.truncate(drafter.pos)
        drafter.observe([last, *draft.tokens[:3]], {})

    lines, copied = [], []
    for i in range(12):
        Watched.copied = 0
        lines.append(n_lines(lambda last=text[i]: one(last)))  # type: ignore[misc]
        copied.append(Watched.copied)
    return max(lines), max(copied)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("name", COSTS)
def test_a_step_costs_no_more_after_32k_tokens_than_after_1k(name: str, repeats: bool) -> None:
    short, long = cost_of_a_step(name, 1024, repeats), cost_of_a_step(name, 32768, repeats)
    assert long[0] <= 1.5 * short[0] + 60, (short, long)
    assert long[1] <= 1.5 * short[1] + 60, (short, long)


@pytest.mark.parametrize("make", [NgramSimple, NgramMapK, NgramMapK4V])
@pytest.mark.parametrize("sizes", [(0, 48, 1), (1025, 48, 1), (12, 0, 1), (12, 1025, 1), (12, 48, 0), (-1, -1, -1)])
def test_sizes_out_of_range_are_refused_by_name(make: Any, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match=f"^--spec-{make.name}-(size-[nm]|min-hits) must be [^\n]*, not -?[0-9]+$"):
        make(NgramSizes(*sizes))


def test_the_largest_sizes_work() -> None:
    text = [i % 1500 for i in range(6000)]
    for make in (NgramSimple, NgramMapK, NgramMapK4V):
        drafter = make(NgramSizes(1024, 1024))
        drafter.observe(text, {})
        assert list(drafter.propose(1024, 0, None).tokens) == list(range(1, 1025))
