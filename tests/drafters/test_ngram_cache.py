"""ngram-cache against counting anew at every question, its thresholds, and the counts themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, Ask, Feed, SlowCache, Table, play, random_text, streams, table_of, wandering

from ds4py.drafters.lookup_file import LookupCache, pack
from ds4py.drafters.ngram_cache import LookupCaches, NgramCache, look_up

IDS = st.integers(0, 3)


def tables(low: int, high: int) -> st.SearchStrategy[Table]:
    keys = st.lists(IDS, min_size=low, max_size=high).map(tuple)
    return st.dictionaries(keys, st.dictionaries(IDS, st.integers(1, 6), min_size=1, max_size=4), max_size=12)


def cache_of(table: Table) -> LookupCache:
    cache = LookupCache()
    for ngram, counts in table.items():
        for token, count in counts.items():
            cache.add(pack(ngram), len(ngram), token, count)
    return cache


def dump(cache: LookupCache) -> Table:
    return {ngram: dict(counts) for ngram, counts in cache.items()}


def ask(drafter: NgramCache, last: int, k: int = 99) -> list[int]:
    return list(drafter.propose(k, last, None).tokens)  # type: ignore[arg-type]


@UNTIMED
@given(tables(2, 2), tables(1, 4), streams(4))
def test_equals_counting_anew(static: Table, dynamic: Table, stream: list) -> None:  # type: ignore[type-arg]
    caches = LookupCaches(cache_of(static), cache_of(dynamic))
    drafter = NgramCache(caches)
    play(drafter, SlowCache(static, dynamic), stream)
    assert dump(drafter.learned) == table_of(drafter._tokens)  # nothing of what was cut or tried is left
    assert (dump(caches.static), dump(caches.dynamic)) == (static, dynamic)


def test_equals_counting_anew_on_a_long_text() -> None:
    text, other = random_text(400, 8, seed=9), random_text(1500, 8, seed=10)
    dynamic = {key: dict(counts) for key, counts in table_of(other).items()}
    static = {key: counts for key, counts in table_of(other[::-1]).items() if len(key) == 2}
    stream = [event for token in text for event in (Ask(8, token, None), Feed([token]))]
    drafter = NgramCache(LookupCaches(cache_of(static), cache_of(dynamic)))
    n_asked, n_drafts = play(drafter, SlowCache(static, dynamic), stream)
    assert n_asked == 400 and n_drafts >= 200


def test_equals_counting_anew_through_a_long_session() -> None:
    drafter = NgramCache()
    n_asked, n_drafts = play(drafter, SlowCache(), wandering(300, 5, seed=1))
    assert n_asked >= 150 and n_drafts >= 100
    assert dump(drafter.learned) == table_of(drafter._tokens)


def test_a_new_request_forgets_the_last_one() -> None:
    """A long request, then a short one that shares no prefix: the first draft rests on the short one alone."""
    drafter = NgramCache()
    drafter.observe([1, 2, 3, 4, 5] * 40, {})
    assert ask(drafter, 1) == [2, 3, 4, 5, 1, 2, 3, 4]
    drafter.truncate(0)
    drafter.observe([1, 2, 9, 8, 1, 2, 9, 8], {})
    assert ask(drafter, 1) == [2, 9, 8, 1, 2, 9, 8, 1]
    assert dump(drafter.learned) == table_of([1, 2, 9, 8, 1, 2, 9, 8])


def test_ngrams_across_pieces_are_counted() -> None:
    text = random_text(200, 5, seed=12)
    whole, pieces = NgramCache(), NgramCache()
    whole.observe(text, {})
    for i in range(0, len(text), 3):
        pieces.observe(text[i : i + 3], {})
    assert dump(whole.learned) == dump(pieces.learned) == table_of(text)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("strict", [False, True])
def test_thresholds(n: int, strict: bool) -> None:
    """Each length needs its own number of observations and its own share, one less of either is silence."""
    samples = {False: (2, 2, 1, 1), True: (4, 3, 2, 2)}[strict][n - 1]
    percent = {False: (66, 50, 50, 50), True: (75, 66, 66, 66)}[strict][n - 1]

    def drafts(counts: dict[int, int]) -> bool:
        cache = cache_of({(1, 2, 3, 4)[4 - n :]: counts})
        pair = (LookupCache(), LookupCaches(dynamic=cache)) if strict else (cache, LookupCaches())
        return look_up([1, 2, 3, 4], *pair, 1) == [7]

    assert drafts({7: samples})
    assert samples == 1 or not drafts({7: samples - 1})
    assert drafts({7: percent, 8: 100 - percent})
    assert not drafts({7: percent - 1, 8: 101 - percent}) or percent == 50  # at 50 the other one has the majority
    assert not drafts({8: 101 - percent, 7: percent - 1})


def test_static_alone_needs_two_and_half() -> None:
    def draft(counts: dict[int, int]) -> list[int]:
        return look_up([1, 3, 4], LookupCache(), LookupCaches(static=cache_of({(3, 4): counts})), 8)

    assert [draft(c) for c in ({9: 1}, {9: 2}, {9: 1, 5: 1}, {9: 1, 5: 1, 6: 1}, {9: 2, 5: 1, 6: 2})] == [[], [9], [9], [], []]


def test_static_weighs_the_candidates_of_the_others() -> None:
    context = cache_of({(3, 4): {7: 2, 8: 2}})
    assert look_up([3, 4], context, LookupCaches(), 1) == [7]
    assert look_up([3, 4], context, LookupCaches(static=cache_of({(3, 4): {8: 1}})), 1) == [8]
    # a candidate that wins by its weight and misses its share yields to shorter n-grams, not to the runner-up
    context = cache_of({(3, 4): {7: 9, 8: 1}, (4,): {6: 5}})
    assert look_up([3, 4], context, LookupCaches(static=cache_of({(3, 4): {8: 1}})), 1) == [6]


def test_ties_go_to_the_token_that_was_seen_first_also_after_truncation() -> None:
    drafter = NgramCache()
    drafter.observe([4, 1, 2, 8, 3, 1, 2, 7, 6, 1], {})
    assert ask(drafter, 2, 1) == [8]
    drafter.truncate(0)
    drafter.observe([3, 1, 2, 7, 4, 1, 2, 8, 6, 1], {})
    assert ask(drafter, 2, 1) == [7]
    drafter.observe([2, 8], {})
    drafter.truncate(10)
    assert ask(drafter, 2, 1) == [7]


def test_at_most_eight_and_two_tokens_are_needed() -> None:
    drafter = NgramCache()
    assert ask(drafter, 1) == []
    drafter.observe([1], {})
    assert ask(drafter, 2) == []
    drafter.observe([1] * 40, {})
    assert ask(drafter, 1) == [1] * 8 and ask(drafter, 1, k=3) == [1] * 3


def test_a_short_history_is_not_taken_for_one_that_begins_with_token_0() -> None:
    dynamic = cache_of({(0, 0, 1, 2): {7: 5}, (0, 1, 2): {7: 5}})
    assert look_up([1, 2], LookupCache(), LookupCaches(dynamic=dynamic), 1) == []
    assert look_up([0, 1, 2], LookupCache(), LookupCaches(dynamic=dynamic), 1) == [7]


def test_an_interrupted_question_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = NgramCache()
    drafter.observe([1, 2, 3], {})

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ds4py.drafters.ngram_cache.look_up", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(drafter, 4)
    assert drafter.pos == 3 and dump(drafter.learned) == table_of([1, 2, 3])


@UNTIMED
@given(st.lists(st.tuples(IDS, IDS, IDS, st.integers(1, 3)), max_size=30), st.lists(st.tuples(IDS, IDS, IDS), max_size=30))
def test_adding_and_removing_are_inverse(base: list[tuple[int, int, int, int]], more: list[tuple[int, int, int]]) -> None:
    cache, same = LookupCache(), LookupCache()
    for a, b, token, count in base:
        cache.add(pack([a, b]), 2, token, count)
        same.add(pack([a, b]), 2, token, count)
    for a, b, token in more:
        cache.add(pack([a, b]), 2, token)
    for a, b, token in reversed(more):
        cache.remove(pack([a, b]), 2, token)
    assert [(key, list(counts.items())) for key, counts in cache.items()] == [
        (key, list(counts.items())) for key, counts in same.items()
    ]


def test_merging_adds_counts() -> None:
    one, two = random_text(100, 4, seed=1), random_text(100, 4, seed=2)
    drafters = [NgramCache(), NgramCache()]
    drafters[0].observe(one, {})
    drafters[1].observe(two, {})
    total = LookupCache()
    for drafter in drafters:
        total.merge(drafter.learned)
    a, b = table_of(one), table_of(two)
    assert dump(total) == {
        key: {t: a.get(key, {}).get(t, 0) + b.get(key, {}).get(t, 0) for t in {*a.get(key, {}), *b.get(key, {})}}
        for key in {*a, *b}
    }
    assert dump(drafters[0].learned) == a and len(total) == len({*a, *b})
