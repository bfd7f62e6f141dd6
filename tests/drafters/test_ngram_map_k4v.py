"""ngram-map-k4v against a scan of the history: four continuations, counted, and a clear winner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, Ask, Feed, SlowMap, play, random_text, streams, wandering

from ds4py.drafters.config import NgramSizes
from ds4py.drafters.ngram_map_k4v import NgramMapK4V

SIZES = st.builds(NgramSizes, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))


def text_of(values: str) -> list[int]:
    """The key 5 6 followed by two equal tokens for each digit, and the key's first token."""
    return [0, *[token for value in values for token in (5, 6, 10 + int(value), 10 + int(value))], 1, 2, 3, 5]


def ask(values: str, min_hits: int = 1) -> list[int]:
    drafter = NgramMapK4V(NgramSizes(2, 2, min_hits))
    drafter.observe(text_of(values), {})
    return list(drafter.propose(99, 6, None).tokens)  # type: ignore[arg-type]


@UNTIMED
@given(SIZES, streams())
def test_equals_a_scan(sizes: NgramSizes, stream: list) -> None:  # type: ignore[type-arg]
    play(NgramMapK4V(sizes), SlowMap(sizes, n_values=4), stream)


@pytest.mark.parametrize("sizes", [NgramSizes(5, 3), NgramSizes(6, 2), NgramSizes(4, 1, 2)])
def test_equals_a_scan_through_a_long_session(sizes: NgramSizes) -> None:
    results = [play(NgramMapK4V(sizes), SlowMap(sizes, n_values=4), wandering(300, 3, seed)) for seed in range(4)]
    assert all(n_asked >= 150 for n_asked, _ in results)
    assert sum(n_drafts for _, n_drafts in results) >= 30, results


@pytest.mark.parametrize("sizes", [NgramSizes(2, 2), NgramSizes(3, 5), NgramSizes(1, 1, 4)])
def test_equals_a_scan_on_a_long_text(sizes: NgramSizes) -> None:
    text = random_text(600, 6, seed=3)
    stream = [event for token in text for event in (Ask(8, token, None), Feed([token]))]
    n_asked, n_drafts = play(NgramMapK4V(sizes), SlowMap(sizes, n_values=4), stream)
    assert n_asked == 600 and 40 <= n_drafts < 600


@pytest.mark.parametrize(
    ("values", "draft"),
    [
        ("1", 1),
        ("12", None),  # one against one
        ("112", 1),  # two against one: twice the rest
        ("211", 1),  # the winner, not the newest or the first
        ("1122", None),
        ("11112", 1),
        ("21111", 1),
        ("11123", None),  # three against two
        ("1111234", None),  # four against three
        ("111111234", 1),
        ("1234555555", None),  # the fifth continuation has no place, however frequent
        ("123455555555111111", 1),  # and does not count against the others
    ],
)
def test_a_winner_needs_twice_the_rest(values: str, draft: int | None) -> None:
    assert ask(values) == ([] if draft is None else [10 + draft] * 2)


def test_min_hits_counts_occurrences() -> None:
    assert [bool(ask("111", min_hits)) for min_hits in (1, 2, 3, 4)] == [True, True, True, False]


def test_asking_does_not_count() -> None:
    """Every occurrence counts once, however often the key was asked for."""
    drafter = NgramMapK4V(NgramSizes(2, 2))
    drafter.observe(text_of("112"), {})
    for _ in range(10):
        assert list(drafter.propose(9, 6, None).tokens) == [11, 11]  # type: ignore[arg-type]
    drafter.observe([6, 12, 12, 1, 2, 3, 4, 5], {})
    assert list(drafter.propose(9, 6, None).tokens) == []  # type: ignore[arg-type]


def test_lengths_are_remembered_for_each_continuation() -> None:
    drafter = NgramMapK4V(NgramSizes(2, 2))
    drafter.observe(text_of("1"), {})
    assert list(drafter.propose(9, 6, None).tokens) == [11, 11]  # type: ignore[arg-type]
    drafter.observe([6, 11, 12, 12, 12, 5, 6, 11, 12, 12, 12, 5, 6, 11, 12, 12, 12, 1, 2, 5], {})
    # 11 11 held for one token; but the winner is 11 12 now, which has not been offered before
    assert list(drafter.propose(9, 6, None).tokens) == [11, 12]  # type: ignore[arg-type]
    drafter.truncate(drafter.pos - 16)
    drafter.observe([1, 2, 3, 5], {})
    assert list(drafter.propose(9, 6, None).tokens) == []  # type: ignore[arg-type]


def test_an_offer_that_was_cut_off_is_forgotten() -> None:
    drafter = NgramMapK4V(NgramSizes(2, 2))
    drafter.observe(text_of("1"), {})
    assert list(drafter.propose(9, 6, None).tokens) == [11, 11]  # type: ignore[arg-type]
    drafter.truncate(drafter.pos - 1)
    drafter.observe([9, 5], {})  # the key comes up again, one position later: nothing has refuted its offer
    assert list(drafter.propose(9, 6, None).tokens) == [11, 11]  # type: ignore[arg-type]
