"""ngram-map-k against a scan of the history, and what it learns from acceptance."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, Ask, Feed, SlowMap, play, random_text, streams, wandering

from ds4py.drafters.config import NgramSizes
from ds4py.drafters.ngram_map_k import NgramMapK
from ds4py.drafters.rolling_hash import MAP_FACTOR, RollingHash

SIZES = st.builds(NgramSizes, st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
KEY, VALUE = [5, 6], [1, 2, 3, 4]


def drafter_with(history: list[int], sizes: NgramSizes) -> NgramMapK:
    drafter = NgramMapK(sizes)
    drafter.observe(history, {})
    return drafter


def ask(drafter: NgramMapK, last: int, k: int = 99) -> list[int]:
    return list(drafter.propose(k, last, None).tokens)  # type: ignore[arg-type]


@UNTIMED
@given(SIZES, streams())
def test_equals_a_scan(sizes: NgramSizes, stream: list) -> None:  # type: ignore[type-arg]
    play(NgramMapK(sizes), SlowMap(sizes), stream)


@pytest.mark.parametrize("sizes", [NgramSizes(1, 3), NgramSizes(2, 4), NgramSizes(3, 2, 2)])
def test_equals_a_scan_through_a_long_session(sizes: NgramSizes) -> None:
    for seed in range(4):
        n_asked, n_drafts = play(NgramMapK(sizes), SlowMap(sizes), wandering(300, 3, seed))
        assert n_asked >= 150 and n_drafts >= 15


@pytest.mark.parametrize("sizes", [NgramSizes(2, 5), NgramSizes(4, 8), NgramSizes(1, 3, 4)])
def test_equals_a_scan_on_a_long_text(sizes: NgramSizes) -> None:
    text = random_text(600, 6, seed=2)
    stream = [event for token in text for event in (Ask(8, token, None), Feed([token]))]
    n_asked, n_drafts = play(NgramMapK(sizes), SlowMap(sizes), stream)
    assert n_asked == 600 and 100 <= n_drafts < 600


def test_the_accepted_length_is_read_off_the_text_and_grows_back() -> None:
    drafter = drafter_with([0, *KEY, *VALUE, 7, 8, 9, 5], NgramSizes(2, 4))
    assert ask(drafter, 6) == VALUE
    drafter.observe([6, 1, 2], {})  # two accepted
    drafter.observe([9, *[10, 11, 12], 5], {})  # the target's own token was another one
    assert ask(drafter, 6) == [1, 2]
    drafter.observe([6, 1, 2], {})  # both accepted
    drafter.observe([9, 10, 11, 12, 13, 5], {})  # and what followed was the newest continuation, of which two were offered
    assert ask(drafter, 6) == [1, 2, 9, 10]


def test_a_refused_key_is_silent_once_and_judged_all_the_same() -> None:
    drafter = drafter_with([0, *KEY, *VALUE, 7, 8, 9, 5], NgramSizes(2, 4))
    assert ask(drafter, 6) == VALUE
    drafter.observe([6, 30, 31, 32, 33, 34, 5], {})
    assert ask(drafter, 6) == []
    drafter.observe([6, 30, 31, 32, 33, 34, 5], {})  # the silent offer would have been right
    assert ask(drafter, 6) == [30, 31, 32, 33]


def test_a_draft_that_a_budget_cut_short_is_not_blamed() -> None:
    drafter = drafter_with([0, *KEY, *VALUE, 7, 8, 9, 5], NgramSizes(2, 4))
    assert ask(drafter, 6, k=1) == VALUE[:1]
    drafter.observe([6, *VALUE[:1]], {})
    drafter.observe([*VALUE[1:], 7, 8, 9, 5], {})
    assert ask(drafter, 6) == VALUE


def test_truncation_takes_the_evidence_back() -> None:
    drafter = drafter_with([0, *KEY, *VALUE, 7, 8, 9, 5], NgramSizes(2, 4))
    pos = drafter.pos
    for refused in ([6, 30, 31, 32, 33, 34, 35, 5], [6, 1, 40, 41, 42, 43, 44, 5]):
        assert ask(drafter, 6) == VALUE
        drafter.observe(refused, {})
        assert ask(drafter, 6) == ([] if refused[1] == 30 else [1])
        drafter.truncate(pos)  # regenerate: as if it had never been asked


def test_an_offer_that_was_cut_off_is_forgotten() -> None:
    drafter = drafter_with([0, *KEY, *VALUE, 7, 8, 9, 5], NgramSizes(2, 4))
    assert ask(drafter, 6) == VALUE
    drafter.truncate(drafter.pos - 1)
    drafter.observe([10, 5], {})  # the key comes up again, one position later: nothing has refuted its offer
    assert ask(drafter, 6) == VALUE


def test_an_offer_after_another_token_is_void() -> None:
    drafter = drafter_with([0, *KEY, *VALUE, 7, 8, 9, 5], NgramSizes(2, 4))
    assert ask(drafter, 6) == VALUE
    drafter.observe([7, 30, 31, 32, 33, 34, 35, 5], {})  # the user edited the last token: nothing followed the key
    assert ask(drafter, 6) == VALUE


def test_the_newest_complete_occurrence_is_copied() -> None:
    history = [0, *KEY, 1, 1, 1, 1, *KEY, 2, 2, 2, 2, 7, 8, *KEY, 3, 5]
    assert ask(drafter_with(history, NgramSizes(2, 4)), 6) == [2, 2, 2, 2]  # only one token follows the newest


@pytest.mark.parametrize("n_before", [0, 1, 2, 3])
def test_min_hits_counts_occurrences(n_before: int) -> None:
    history = [0, *[5, 6, 7, 8, 9] * n_before, 1, 2, 3, 4, 5]
    for min_hits in (1, 2, 3):
        assert bool(ask(drafter_with(history, NgramSizes(2, 2, min_hits)), 6)) == (n_before >= min_hits)


def two_keys_with_one_hash() -> tuple[list[int], list[int]]:
    """(x, 0) and (y, d) with x * factor = y * factor + d modulo 2^32, for small ids."""
    hashes = sorted((x * MAP_FACTOR % 2**32, x) for x in range(100_000))
    return next(([x, 0], [y, g - h]) for (h, y), (g, x) in pairwise(hashes) if g - h < 150_000)


def test_ngrams_with_one_hash_are_told_apart() -> None:
    one, two = two_keys_with_one_hash()
    hashing = RollingHash(2, MAP_FACTOR, 32)
    assert hashing.of(one) == hashing.of(two) and one != two
    history = [0, *one, 11, 12, 13, *two, 21, 22, 23, *one, 11, 12, 14, 1, 2, 3]
    for key, value in ((one, [11, 12]), (two, [21, 22])):
        drafter = drafter_with([*history, key[0]], NgramSizes(2, 2))
        assert ask(drafter, key[1]) == value
        drafter.truncate(11)
        drafter.observe([1, 2, 3, key[0]], {})
        assert ask(drafter, key[1]) == value
        drafter.truncate(6)  # only `one` is left
        drafter.observe([1, 2, 3, key[0]], {})
        assert ask(drafter, key[1]) == (value if key == one else [])
