"""ngram-mod against an obvious model, and the life of its pool: shared, position-free, emptied by two rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, Ask, Feed, SlowMod, play, random_text, streams, wandering

from ds4py.drafters.config import ModSizes
from ds4py.drafters.ngram_mod import POOL_SLOTS, NgramMod, NgramModPool
from ds4py.errors import UsageError

SIZES = st.builds(lambda n, low, more: ModSizes(n, low, low + more), st.integers(1, 4), st.integers(0, 3), st.integers(0, 6))
LONG = list(range(100, 200))


def ask(drafter: NgramMod, last: int, k: int = 99) -> list[int]:
    return list(drafter.propose(k, last, None).tokens)  # type: ignore[arg-type]


@UNTIMED
@given(SIZES, streams(), st.sampled_from([1, 7, 40, 331, POOL_SLOTS]))
def test_equals_an_obvious_model(sizes: ModSizes, stream: list, n_slots: int) -> None:  # type: ignore[type-arg]
    drafter, slow = NgramMod(sizes, NgramModPool(n_slots)), SlowMod(sizes, n_slots)
    play(drafter, slow, stream)
    assert drafter.pool.n_used == len(slow.pool)


@pytest.mark.parametrize("n_slots", [300, 5000, POOL_SLOTS])
def test_equals_an_obvious_model_on_a_long_text(n_slots: int) -> None:
    sizes = ModSizes(2, 1, 8)
    drafter, slow = NgramMod(sizes, NgramModPool(n_slots)), SlowMod(sizes, n_slots)
    stream: list[Feed | Ask] = []
    for i, token in enumerate(random_text(900, 12, seed=4)):
        stream += [Ask(4, token, i % 4), Feed([token])]
    # long pieces take the array path, and must leave what token by token would have left
    stream += [Feed(random_text(700, 12, seed=6)), Ask(8, 3, None), Feed(random_text(256, 12, seed=7)), Ask(8, 2, None)]
    for i in range(8):  # the same draft, refused again and again
        stream += [Feed([3000 + i, 5, 5, 5, 6]), Ask(4, 7, None), Feed([7, 8, 9, 5, 6]), Ask(4, 7, 0)]
    n_asked, n_drafts = play(drafter, slow, stream)
    assert n_drafts >= 100 and n_asked == 918
    assert drafter.pool.n_used == len(slow.pool)
    assert slow.n_emptied >= 1


@pytest.mark.parametrize("n_slots", [64, 500])
def test_equals_an_obvious_model_through_a_long_session(n_slots: int) -> None:
    sizes = ModSizes(3, 1, 8)
    for seed in range(4):
        n_asked, n_drafts = play(NgramMod(sizes, NgramModPool(n_slots)), SlowMod(sizes, n_slots), wandering(300, 3, seed))
        assert n_asked >= 150 and n_drafts >= 15


def test_one_piece_or_many_make_the_same_pool() -> None:
    text = random_text(3000, 50, seed=8)
    whole, parts = NgramMod(ModSizes(3, 0, 8)), NgramMod(ModSizes(3, 0, 8))
    whole.observe(text, {})
    for token in text:
        parts.observe([token], {})
    assert bytes(whole.pool._array) == bytes(parts.pool._array)  # the table itself is what is claimed to be equal
    assert whole.pool.n_used == parts.pool.n_used == len(set(zip(text, text[1:], text[2:-1], strict=False)))


def test_a_pool_serves_all_sessions_and_outlives_rewinds() -> None:
    pool = NgramModPool()
    first, second = NgramMod(ModSizes(3, 1, 9), pool), NgramMod(ModSizes(3, 1, 9), pool)
    first.observe(LONG, {})
    second.observe([1, 2, 3, 100, 101], {})
    assert ask(second, 102) == LONG[3:12]
    first.truncate(0)
    assert ask(second, 102) == LONG[3:12]
    first.observe([7, 7, 100, 101, 102, 55], {})  # the newest text wins
    assert ask(second, 102)[0] == 55
    private = NgramMod(ModSizes(3, 1, 9))
    private.observe([1, 2, 3, 100, 101], {})
    assert ask(private, 102) == []


def test_n_min_asks_how_far_the_pool_sees_not_how_much_is_wanted() -> None:
    drafter = NgramMod(ModSizes(3, 20, 30))
    drafter.observe([*LONG, 1, 2, 100, 101], {})
    assert ask(drafter, 102, k=4) == LONG[3:7]
    assert ask(drafter, 102) == LONG[3:33]
    drafter.observe([102, 103, *LONG[70:72]], {})
    assert ask(drafter, LONG[72]) == [*LONG[73:], 1, 2, 100]  # 27 to the end of the text, and three of what came then
    short = NgramMod(ModSizes(3, 30, 30))
    short.observe([*LONG[:25], 1, 2, 100, 101], {})
    assert ask(short, 102, k=4) == []


def refuse(drafter: NgramMod, n: int) -> None:
    """n drafts in a row of which nothing is accepted."""
    for i in range(n):
        drafter.observe([1000 + 3 * drafter.pos + i, 100, 101], {})
        assert ask(drafter, 102)
        drafter.observe([102], {})


def test_five_bad_drafts_in_a_row_empty_the_pool_and_the_own_text_comes_back() -> None:
    pool = NgramModPool()
    other, drafter = NgramMod(ModSizes(3, 1, 9), pool), NgramMod(ModSizes(3, 1, 9), pool)
    other.observe(range(500, 560), {})  # type: ignore[arg-type]
    drafter.observe(LONG, {})
    stranger = NgramMod(ModSizes(3, 1, 9), pool)
    stranger.observe([7, 500, 501], {})
    refuse(drafter, 4)
    assert ask(stranger, 502) == list(range(503, 512))
    refuse(drafter, 1)
    assert ask(stranger, 502) == []
    drafter.observe([50, 100, 101], {})
    assert ask(drafter, 102)


def test_a_success_starts_the_count_anew_and_failing_on_does_not_empty_again() -> None:
    pool = NgramModPool()
    drafter = NgramMod(ModSizes(3, 1, 8), pool)
    emptied = 0
    clear = pool.clear

    def counting() -> None:
        nonlocal emptied
        emptied += 1
        clear()

    pool.clear = counting  # type: ignore[method-assign]
    drafter.observe(LONG, {})
    refuse(drafter, 4)
    drafter.observe([9, 100, 101], {})
    draft = ask(drafter, 102)
    drafter.observe([102, *draft[:2]], {})  # two of eight: a quarter is enough
    refuse(drafter, 4)
    assert emptied == 0
    refuse(drafter, 1)
    assert emptied == 1
    refuse(drafter, 20)
    assert emptied == 1


def test_a_draft_cut_short_is_judged_by_its_own_length() -> None:
    drafter = NgramMod(ModSizes(3, 1, 60))
    drafter.observe(LONG, {})
    for _ in range(12):
        drafter.observe([9, 8, 100, 101], {})
        assert ask(drafter, 102, k=1) == [103]
        drafter.observe([102, 103], {})
    assert drafter._n_low == 0  # one of one, not one of sixty


def test_a_crowded_pool_is_emptied_before_text_is_added() -> None:
    pool = NgramModPool(4000)
    old, new = NgramMod(ModSizes(2, 1, 5), pool), NgramMod(ModSizes(2, 1, 5), pool)
    rng = np.random.default_rng(2)
    old.observe(rng.integers(0, 10_000, 1500).tolist(), {})
    assert pool.crowded
    text = rng.integers(0, 10_000, 60).tolist()
    new.observe([*text, 7, text[0]], {})
    assert 45 < pool.n_used <= 62  # nothing of the old text
    assert ask(new, text[1]) == text[2:7]  # the prompt that found the pool crowded is in it


def test_a_pool_that_never_fits_costs_little() -> None:
    """A text larger than a quarter of the pool: emptied again and again, but only after many new tokens."""
    pool = NgramModPool(64)
    drafter = NgramMod(ModSizes(2, 1, 5), pool)
    emptied = 0
    clear = pool.clear

    def counting() -> None:
        nonlocal emptied
        emptied += 1
        clear()

    pool.clear = counting  # type: ignore[method-assign]
    for token in range(1000):
        drafter.observe([token], {})
    assert 1 <= emptied <= 1000 / (64 / 8)


def test_an_offer_after_another_token_is_not_judged() -> None:
    drafter = NgramMod(ModSizes(3, 1, 9))
    drafter.observe(LONG, {})
    for _ in range(6):
        drafter.observe([9, 8, 100, 101], {})
        assert ask(drafter, 102)
        drafter.observe([103, 5], {})
        drafter.observe([9, 8, 100, 101], {})
        assert ask(drafter, 102)
        drafter.truncate(drafter.pos - 1)
        drafter.observe([101, 102], {})
    assert drafter._n_low == 0


@pytest.mark.parametrize("sizes", [(0, 1, 2), (1025, 1, 2), (24, -1, 2), (24, 1, 1025), (24, 1025, 1025), (24, 9, 8)])
def test_sizes_that_cannot_draft_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="^--spec-ngram-mod-n-(match|min|max) [^\n]+$"):
        NgramMod(ModSizes(*sizes))


def test_short_matches_come_with_advice() -> None:
    assert NgramMod(ModSizes(16, 1, 2), NgramModPool(8)).advice is None
    assert "15" in str(NgramMod(ModSizes(15, 1, 2), NgramModPool(8)).advice)


def test_the_default_pool_is_llama_cpps() -> None:
    pool = NgramModPool()
    assert pool.n_slots == 4 * 1024 * 1024 and pool._array.nbytes == 16 << 20
    with pytest.raises(ValueError):
        NgramModPool(0)
