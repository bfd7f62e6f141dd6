"""The policies that count: what they ask for, when they give up, and that they come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ds4py.drafters.price import Price
from ds4py.engine import FixedDepth
from ds4py.engine.depth import Adaptive, SkipStreak
from ds4py.errors import UsageError
from ds4py.protocols import DepthPolicy, Draft, Pass


def passed(depth: int, accepted: int, drafted: int | None = None) -> Pass:
    tokens = [0] * (depth if drafted is None else drafted)
    return Pass(0, 0, depth, Draft(tokens), accepted + 1, 0.0, 0.0, 1 + len(tokens))


def play(policy: DepthPolicy, p: float, n: int, seed: int = 0) -> list[int]:
    """Depths asked for while every drafted token is right with probability p."""
    rng, depths = np.random.default_rng(seed), []
    for _ in range(n):
        depth = policy.depth()
        depths.append(depth)
        accepted = next((i for i in range(depth) if rng.random() >= p), depth)
        policy.record(passed(depth, accepted))
    return depths


def test_fixed_stays() -> None:
    assert play(FixedDepth(3), 0.0, 5) == [3] * 5
    with pytest.raises(UsageError):
        FixedDepth(-1)


def test_adaptive_asks_for_more_where_more_is_right() -> None:
    means = [np.mean(play(Adaptive(16), p, 400)[100:]) for p in (0.4, 0.7, 0.9, 0.97)]
    assert means == sorted(means) and means[0] < 1.6 and means[-1] > 8


def test_adaptive_gives_up_and_probes_ever_more_seldom() -> None:
    depths = play(Adaptive(8), 0.0, 600)
    probes = np.flatnonzero(depths)
    gaps = np.diff(probes[-6:])
    assert len(probes) < 25 and sum(depths) < 40, "an always wrong drafter costs few rows"
    assert all(gap == 65 for gap in gaps), "the longest pause is 64 passes"


def test_adaptive_leaves_a_drafter_that_must_read_first_alone_for_longer() -> None:
    """Counts cannot know what reading costs; an always wrong draft model reads a token in 16 passes, and is asked for ever."""
    policy, n_missed, n_read, asked = Adaptive(8), 1, 0, list[int]()
    for i in range(4000):
        depth = policy.depth()
        lag = min(n_missed, 16) if depth else 0
        n_missed, n_read = (0, n_read + lag) if depth else (n_missed + 1, n_read)
        asked += [i] * (depth > 0)
        done = passed(depth, 0)
        policy.record(replace(done, draft=replace(done.draft, lag=lag)))
    assert n_read < 4000 / 16 + 20 and set(np.diff(asked[-4:])) == {321}, "64 passes, and 16 for each of 16 tokens"


def test_adaptive_comes_back_when_the_text_changes() -> None:
    policy = Adaptive(8)
    play(policy, 0.0, 300)
    assert np.mean(play(policy, 0.95, 200)[-100:]) > 3
    assert sum(play(policy, 0.0, 100)) < 60


@pytest.mark.parametrize(("n_max", "n_min"), [(8, 5), (5, 5), (3, 0)])
def test_adaptive_keeps_its_bounds(n_max: int, n_min: int) -> None:
    for p in (0.0, 0.5, 1.0):
        assert set(play(Adaptive(n_max, n_min), p, 200)) <= {0, *range(max(n_min, 1), n_max + 1)}
    assert set(play(Adaptive(3, 5), 1.0, 20)) == {0}


def rate(policy: DepthPolicy, price: Price, right: float, n: int, reads: float = 0.0, seed: int = 0) -> float:
    """Tokens per price of n passes; `reads`: of each token that the drafter reads when it was not asked, 16 at most."""
    rng, tokens, spent, n_missed = np.random.default_rng(seed), 0.0, 0.0, 1
    for _ in range(n):
        depth = policy.depth()
        lag = min(n_missed, 16) if depth and reads else 0
        n_missed = 0 if depth else n_missed + 1
        accepted = next((i for i in range(depth) if rng.random() >= right), depth)
        done = passed(depth, accepted)
        policy.record(replace(done, draft=replace(done.draft, lag=lag)))
        tokens += 1 + accepted
        spent += 1 + price.of(depth) + reads * lag
    return tokens / spent


@pytest.mark.parametrize("token", [0.0, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("row", [1 / 6, 0.4])
def test_adaptive_gains_what_the_price_allows_and_loses_next_to_nothing(row: float, token: float) -> None:
    """A draft model of half of the target's cost lost up to a quarter of the speed while depths went by acceptance alone."""
    price = Price(row, token=token)
    for right in (0.0, 0.2, 0.4, 0.6, 0.8, 0.95):
        found = np.mean([rate(Adaptive(8, 0, price), price, right, 800, token / 5, seed) for seed in range(3)])
        rates = [sum(right**i for i in range(k + 1)) / (1 + price.of(k)) for k in range(9)]
        assert found > max(0.89 * max(rates), 0.95), (right, found, rates)


def test_adaptive_without_a_chance_only_probes() -> None:
    assert np.mean(play(Adaptive(8, 0, Price(token=0.9)), 0.5, 800)) < 0.2


def test_adaptive_is_a_function_of_counts() -> None:
    assert play(Adaptive(8), 0.6, 300, seed=4) == play(Adaptive(8), 0.6, 300, seed=4)


def test_a_skip_streak_leaves_out_one_draft_after_so_many_misses() -> None:
    policy = SkipStreak(FixedDepth(4), 2)
    assert play(policy, 0.0, 9) == [4, 4, 0, 4, 4, 0, 4, 4, 0]


def test_an_accepted_token_ends_a_streak_and_an_empty_draft_does_not_count() -> None:
    policy = SkipStreak(FixedDepth(4), 2)
    for done in (passed(4, 0), passed(4, 1), passed(4, 0), passed(4, 0, drafted=0)):
        policy.record(done)
        assert policy.depth() == 4
    policy.record(passed(4, 0))
    assert policy.depth() == 0
    policy.record(passed(0, 0))
    assert policy.depth() == 4
