"""ngram-simple against a scan of the history, and its documented corners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, Ask, Feed, SlowSimple, play, random_text, streams, wandering

from ds4py.drafters.config import NgramSizes
from ds4py.drafters.ngram_simple import NgramSimple

SIZES = st.builds(NgramSizes, st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))


def ask(sizes: NgramSizes, history: list[int], last: int, k: int = 99) -> list[int]:
    drafter = NgramSimple(sizes)
    drafter.observe(history, {})
    return list(drafter.propose(k, last, None).tokens)  # type: ignore[arg-type]


@UNTIMED
@given(SIZES, streams())
def test_equals_a_scan(sizes: NgramSizes, stream: list) -> None:  # type: ignore[type-arg]
    play(NgramSimple(sizes), SlowSimple(sizes), stream)


@pytest.mark.parametrize("sizes", [NgramSizes(1, 3), NgramSizes(2, 4), NgramSizes(3, 2, 2)])
def test_equals_a_scan_through_a_long_session(sizes: NgramSizes) -> None:
    for seed in range(4):
        n_asked, n_drafts = play(NgramSimple(sizes), SlowSimple(sizes), wandering(300, 3, seed))
        assert n_asked >= 150 and n_drafts >= 15


@pytest.mark.parametrize("sizes", [NgramSizes(2, 5), NgramSizes(4, 8), NgramSizes(3, 2, 2)])
def test_equals_a_scan_on_a_long_text(sizes: NgramSizes) -> None:
    text = random_text(600, 6, seed=1)
    stream = [event for token in text for event in (Ask(8, token, None), Feed([token]))]
    n_asked, n_drafts = play(NgramSimple(sizes), SlowSimple(sizes), stream)
    assert n_asked == 600 and 100 <= n_drafts < 600


def test_the_newest_occurrence_counts() -> None:
    assert ask(NgramSizes(2, 3), [0, 1, 2, 7, 7, 7, 1, 2, 8, 8, 8, 1], 2) == [8, 8, 8]


def test_a_match_at_the_end_must_be_followed_by_n_tokens() -> None:
    history = [0, 9, 9, 9, 9, 9, 9, 2, 3, 4, 2, 3]
    assert ask(NgramSizes(3, 4), history, 4) == []  # 2 3 4 is followed by two tokens only
    assert ask(NgramSizes(2, 4), history, 4) == [2, 3]


def test_short_values_are_drafted_too() -> None:
    assert ask(NgramSizes(4, 2), [0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], 4) == [5, 6]


@pytest.mark.parametrize("n_before", [0, 1, 2, 3])
def test_min_hits_counts_occurrences(n_before: int) -> None:
    history = [0, *[5, 6, 7, 8, 9] * n_before, 1, 2, 3, 4, 5]
    for min_hits in (1, 2, 3):
        drafts = ask(NgramSizes(2, 2, min_hits), history, 6)
        assert bool(drafts) == (n_before >= min_hits), (n_before, min_hits)
