"""The cost-aware policy on a simulated clock, where the best depth is known; and in the loop, where the clock may not show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scripted_drafters import Scripted, always_wrong, right_with
from toy_model import toy_engine

from ds4py.drafters.price import Price
from ds4py.engine import SessionOptions
from ds4py.engine.cost import CatchingUp, Chances, CostAware, Curve
from ds4py.protocols import Draft, Pass, SamplingParams

Cost = Callable[[int], float]


class World:
    """A machine and a text: seconds of a verify by rows and of a proposal by tokens, how often a drafted token is right, and how
    often the drafter has something to say. `reads`: seconds of each token that the drafter reads when it was not asked for some
    passes, of which it reads the last `n_read` at most. The first two passes take `cold` times as long."""

    def __init__(
        self,
        verify: Cost,
        draft: Cost,
        right: float,
        offers: float = 1.0,
        jitter: float = 0.03,
        seed: int = 0,
        reads: float = 0.0,
        n_read: int = 16,
        cold: float = 1.0,
    ) -> None:
        self.verify, self.draft, self.right, self.offers, self.jitter = verify, draft, right, offers, jitter
        self.rng = np.random.default_rng(seed)
        self.reads, self.n_read, self.n_missed = reads, n_read, 1
        self.cold, self.n_passes = cold, 0

    def run(self, policy: CostAware, n: int) -> tuple[list[int], float, int, int]:
        """Depths of n passes, seconds, tokens, and rows beyond one for each pass."""
        depths, seconds, tokens, extra = [], 0.0, 0, 0
        for _ in range(n):
            depth = policy.depth()
            drafted = depth if self.rng.random() < self.offers else 0
            accepted = next((i for i in range(drafted) if self.rng.random() >= self.right), drafted)
            lag = min(self.n_missed, self.n_read) if depth and self.reads else 0
            self.n_missed = 0 if depth else self.n_missed + 1
            draft = self._noisy(self.draft(drafted) + self.reads * lag) if depth else 0.0
            verify = self._noisy(self.verify(1 + drafted)) * (self.cold if self.n_passes < 2 else 1.0)
            self.n_passes += 1
            policy.record(Pass(0, 0, depth, Draft([0] * drafted, lag=lag), accepted + 1, draft, verify, 1 + drafted))
            depths.append(depth)
            seconds += draft + verify
            tokens += accepted + 1
            extra += drafted
        return depths, seconds, tokens, extra

    def rate(self, depth: int) -> float:
        """Expected tokens per second of always asking for `depth`."""
        won = sum(self.right**i for i in range(1, depth + 1))
        cost = self.offers * (self.draft(depth) + self.verify(1 + depth)) + (1 - self.offers) * (self.draft(0) + self.verify(1))
        return (1 + self.offers * won) / cost if depth else 1 / self.verify(1)

    def _noisy(self, seconds: float) -> float:
        return seconds * float(1 + self.jitter * abs(self.rng.standard_normal()))


def linear(slope: float) -> Cost:
    return lambda rows: 0.010 * (1 + slope * (rows - 1))


def steps(rows: int) -> float:
    """Rows in groups of four: the fifth costs as much as the eighth."""
    return 0.010 * (1 + 0.35 * ((rows - 1) // 4))


WORLDS = {
    "cheap rows, free drafts": (World(linear(0.05), lambda k: 1e-5, 0.9), 16),
    "dear rows, free drafts": (World(linear(0.6), lambda k: 1e-5, 0.9), 16),
    "cheap rows, a draft model": (World(linear(0.08), lambda k: 0.002 * k, 0.8), 8),
    "a draft model that is nearly as dear": (World(linear(0.08), lambda k: 0.007 * k, 0.8), 8),
    "steps": (World(steps, lambda k: 1e-5, 0.85), 16),
    "seldom an offer": (World(linear(0.1), lambda k: 2e-5, 0.9, offers=0.1), 32),
    "unsure": (World(linear(0.3), lambda k: 0.0005 * k, 0.5), 8),
}


@pytest.mark.parametrize("name", WORLDS)
def test_it_finds_a_depth_nearly_as_good_as_the_best(name: str) -> None:
    world, n_max = WORLDS[name]
    policy = CostAware(n_max)
    world.run(policy, 150)
    depths, seconds, tokens, _ = world.run(policy, 600)
    best = max(world.rate(depth) for depth in range(n_max + 1))
    mean_jitter = 1 + world.jitter * np.sqrt(2 / np.pi)
    enough = 0.86 if name == "steps" else 0.93  # between counts that were tried, costs are taken for straight lines
    assert tokens / seconds * mean_jitter > enough * best, (np.bincount(depths), tokens / seconds, best)
    plain = world.rate(0)
    assert policy.drafting == (best > 1.05 * plain) or abs(best / plain - 1) < 0.05


@pytest.mark.parametrize(("draft_seconds", "reads"), [(1e-5, 0.0), (0.003, 0.0), (0.003, 0.0015), (0.008, 0.004)])
@pytest.mark.parametrize("slope", [0.05, 0.3, 1.0])
def test_a_drafter_that_is_always_wrong_costs_at_most_3_percent(slope: float, draft_seconds: float, reads: float) -> None:
    world = World(linear(slope), lambda k: draft_seconds * k, 0.0, reads=reads)
    policy = CostAware(16)
    n = 700
    _, seconds, tokens, extra = world.run(policy, n)
    assert tokens == n
    plain = n * world.verify(1) * (1 + world.jitter * np.sqrt(2 / np.pi))
    print(f"slope {slope}, draft {draft_seconds}: {extra} rows beyond plain, {100 * (seconds / plain - 1):.2f} % slower")
    assert seconds < 1.03 * plain
    counted = extra * world.verify(1) * slope + extra * draft_seconds
    assert counted < 0.03 * plain, "the bound by counts, whatever the clock said"
    assert not policy.drafting and extra >= 3, "it did look"


def test_cold_first_passes_do_not_make_cheap_rows_look_free() -> None:
    """With AVX-512 a pass of four rows takes a tenth more than one of one row, and the first two passes a quarter more."""
    losses = []
    for seed in range(20):
        world = World(linear(0.04), lambda k: 1e-5, 0.0, seed=seed, cold=1.25)
        _, seconds, _, _ = world.run(CostAware(8), 128)
        _, plain, _, _ = World(linear(0.04), lambda k: 1e-5, 0.0, seed=seed, cold=1.25).run(CostAware(0), 128)
        losses.append(seconds / plain - 1)
    assert float(np.median(losses)) < 0.02 and max(losses) < 0.04, losses


@pytest.mark.parametrize("slope", [0.1, 0.5])
@pytest.mark.parametrize(("draft_seconds", "reads"), [(1e-5, 0.0), (0.001, 0.0003), (0.002, 0.001), (0.005, 0.003)])
def test_giving_up_is_not_for_good(slope: float, draft_seconds: float, reads: float) -> None:
    """A draft model that had been given up never came back: each probe read all that it had missed, was ten times more expensive
    than the one before, and one that was right was followed by another long wait."""
    world = World(linear(slope), lambda k: draft_seconds * k, 0.0, reads=reads)
    policy = CostAware(8)
    depths, seconds, *_ = world.run(policy, 3000)
    asked = np.flatnonzero(depths)
    assert not policy.drafting and seconds < 1.03 * 3000 * 0.010 * (1 + world.jitter * np.sqrt(2 / np.pi))
    probe = 0.010 * slope + draft_seconds + 16 * reads
    assert np.diff(asked[-4:]).max() < 50 + 130 * probe / 0.010, "every 100 c passes, if a probe costs c"
    world.right = 0.9
    after = next((i for i in range(2500) if world.run(policy, 1) and policy.drafting), None)
    gain = max(world.rate(depth) for depth in range(9)) / world.rate(0)
    print(f"slope {slope}, draft {draft_seconds}, reading {reads}: asked {len(asked)} times; gain {gain:.2f}, back after {after}")
    assert after is not None and after < 1000 if gain > 1.05 else after is None or not policy.drafting


DEAR = Price(token=0.93)


@pytest.mark.parametrize("right", [0.0, 0.6, 0.95])
@pytest.mark.parametrize("n", [64, 400, 2000])
def test_a_drafter_that_can_never_pay_costs_short_answers_nothing(right: float, n: int) -> None:
    """64 tokens took a fifth longer: four drafts that measured what the file tells, and each token at nearly the price of one of
    the target's own."""
    world = World(linear(1 / 6), lambda k: 0.0093 * k, right, reads=0.0016)
    _, seconds, tokens, _ = world.run(CostAware(3, 0, DEAR), n)
    assert tokens / seconds > 0.97 * world.rate(0) / (1 + world.jitter)
    if right < 0.9:
        _, seconds, tokens, _ = world.run(CostAware(3), 64)
        assert tokens / seconds < 0.9 * world.rate(0)


def test_a_file_that_lies_about_its_price_is_found_out() -> None:
    """It is said to be dear and is not, as a draft model on processors of its own may be: probes measure it, and it drafts."""
    world = World(linear(1 / 6), lambda k: 0.0005 * k, 0.9, reads=0.0001)
    policy = CostAware(3, 0, DEAR)
    world.run(policy, 1500)
    assert policy.drafting


def test_a_right_probe_is_followed_by_others_until_two_are_wrong() -> None:
    world = World(linear(0.2), lambda k: 0.002 * k, 0.0, reads=0.001)
    policy = CostAware(8)
    world.run(policy, 2000)

    def probe(accepted: int) -> int:
        """Passes until it asks again after a probe with so many right tokens."""
        while not policy.depth():
            world.run(policy, 1)
        world.right = float(accepted)
        world.run(policy, 1)
        waited = 0
        while not policy.depth():
            world.run(policy, 1)
            waited += 1
        return waited

    assert probe(0) > 50
    assert probe(1) == 0, "at once"
    assert probe(0) == 2 and not policy.drafting
    assert probe(0) > 50


def test_a_drafter_that_reads_all_it_missed_stays_within_the_bound() -> None:
    policy, seconds, since, n = CostAware(8), 0.0, 40, 3000
    for _ in range(n):
        depth = policy.depth()
        draft = 0.002 * depth + 0.001 * since if depth else 0.0
        verify = 0.010 * (1 + 0.1 * depth)
        policy.record(Pass(0, 0, depth, Draft([0] * depth, lag=since), 1, draft, verify, 1 + depth))
        since = 0 if depth else since + 1
        seconds += draft + verify
    assert seconds < 1.03 * n * 0.010 and not policy.drafting


def test_catching_up_once_is_no_reason_to_give_up() -> None:
    policy, depths = CostAware(8), []
    for i in range(60):
        depths.append(policy.depth())
        lag = 500 if i == 2 else 0
        draft = 0.002 * depths[-1] + 0.001 * lag
        done = Pass(0, 0, depths[-1], Draft([0] * depths[-1], lag=lag), depths[-1] + 1, draft, 0.010, 1 + depths[-1])
        policy.record(done)
    assert min(depths[3:]) > 0 and depths[-1] == 8


def test_what_is_lost_after_the_first_passes_is_at_most_1_percent_and_grows_no_faster() -> None:
    world = World(linear(0.5), lambda k: 0.004 * k, 0.0)
    policy = CostAware(8)
    world.run(policy, 100)
    for _ in range(3):
        _, _, _, extra = world.run(policy, 1000)
        assert 0 < extra * (0.005 + 0.004) < 0.0125 * 1000 * 0.010


def test_it_comes_back_when_the_text_changes_and_gives_up_again() -> None:
    world = World(linear(0.1), lambda k: 0.0005 * k, 0.0)
    policy = CostAware(8)
    world.run(policy, 400)
    assert not policy.drafting
    world.right = 0.9
    world.run(policy, 200)
    depths, seconds, tokens, _ = world.run(policy, 300)
    assert policy.drafting and tokens / seconds > 0.9 * max(world.rate(depth) for depth in range(9))
    world.right = 0.0
    depths, _, _, extra = world.run(policy, 400)
    assert not policy.drafting and extra < 8 * 25, "it takes no more than some twenty passes to see it"


def test_it_follows_a_machine_that_becomes_slower_at_rows() -> None:
    world = World(linear(0.05), lambda k: 1e-5, 0.8)
    policy = CostAware(16)
    world.run(policy, 300)
    before = world.run(policy, 100)[0]
    world.verify = linear(1.2)
    world.run(policy, 300)
    after = world.run(policy, 200)[0]
    assert np.mean(before) > 4 and np.mean(after) < 0.5


@pytest.mark.parametrize("right", [0.3, 0.5, 0.7])
def test_it_does_not_flap(right: float) -> None:
    """Near break-even too, it changes between drafting and plain decoding seldom, and never loses more than a little."""
    for slope in (0.3, 0.5, 0.7):
        world = World(linear(slope), lambda k: 1e-5, right, seed=1)
        policy = CostAware(8)
        n_changes, was, seconds, tokens = 0, policy.drafting, 0.0, 0
        for _ in range(500):
            _, its_seconds, its_tokens, _ = world.run(policy, 1)
            seconds, tokens = seconds + its_seconds, tokens + its_tokens
            n_changes += policy.drafting != was
            was = policy.drafting
        assert n_changes < 30, (right, slope, n_changes)
        assert tokens / seconds > 0.95 * world.rate(0)


def test_a_first_pass_that_compiles_does_not_decide() -> None:
    met: set[int] = set()

    def verify(rows: int) -> float:
        first = rows not in met
        met.add(rows)
        return 0.010 * (1 + 0.05 * (rows - 1)) + (0.5 if first else 0.0)

    world = World(verify, lambda k: 1e-5, 0.9)
    policy = CostAware(8)
    depths, *_ = world.run(policy, 100)
    assert policy.drafting and np.mean(depths[20:]) > 4


def test_bounds_and_no_room() -> None:
    for right in (0.0, 0.9):
        depths, *_ = World(linear(0.1), lambda k: 1e-5, right).run(CostAware(6, 4), 300)
        assert set(depths) <= {0, 4, 5, 6}
    depths, *_ = World(linear(0.1), lambda k: 1e-5, 1.0).run(CostAware(3, 5), 50)
    assert set(depths) == {0}
    depths, *_ = World(linear(0.1), lambda k: 1e-5, 1.0).run(CostAware(0), 50)
    assert set(depths) == {0}


# --- its parts ---------------------------------------------------------------------------------------------------------------


def test_catching_up_is_foreseen_by_what_it_took() -> None:
    back = CatchingUp()
    assert back.cost(100) == 0.0
    back.learn(0, 400, 0.8)  # a prompt
    assert back.cost(10) == pytest.approx(0.02) and back.cost(1000) == pytest.approx(0.032)
    back.learn(50, 24, 0.048)  # of 50 missed tokens it read 24
    assert back.cost(1000) == pytest.approx(0.048)
    back.learn(90, 590, 1.18)  # a prompt came meanwhile
    assert back.limit == 24
    back.learn(90, 89, 0.178)
    assert back.cost(1000) == pytest.approx(2.0)


def test_a_curve_is_monotone_and_goes_on_beyond_what_was_seen() -> None:
    curve = Curve(0.1)
    for count, seconds in ((1, 1.0), (3, 2.0), (5, 1.8), (9, 4.0)):
        curve.add(count, 99.0)  # the first one is left out
        for _ in range(3):
            curve.add(count, seconds)
    found = curve.at(np.arange(1, 14))
    assert (np.diff(found) >= 0).all()
    assert found[0] == 1.0 and found[2] == found[4] == pytest.approx(1.9) and found[8] == 4.0
    assert found[10] == pytest.approx(4.0 + 2 * 3 / 8)
    assert Curve(0.1).at(np.array([1, 5])).tolist() == [0, 0]


def test_an_outlier_does_not_move_a_curve() -> None:
    curve = Curve(0.1)
    for seconds in (5.0, 1.0, 1.0, 30.0, 1.0, 1.0):
        curve.add(1, seconds)
    assert curve.at(np.array([1]))[0] == 1.0 and curve.at(np.array([2]))[0] == pytest.approx(1.1)


def test_chances_of_unseen_steps_are_those_of_the_step_before() -> None:
    chances = Chances(20, 0.6)
    for _ in range(200):
        chances.count(2, 4, 15 / 16)
    each = chances.each()
    assert each[0] > 0.9 and each[1] > 0.9 and each[2] < 0.2
    assert (each[4:] == each[3]).all() and each[3] == each[2]


# --- in the loop ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_timing_cannot_change_the_text(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """A clock that tells nonsense gives other depths and the same tokens."""
    engine = toy_engine(n_ctx=700)
    options = SessionOptions(params=SamplingParams(temperature), seed=2)
    plain = engine.session(options)
    plain.sync([1, 2, 3])
    for _ in plain.generate(500):
        pass
    passes = set()
    for seed in range(6):
        rng, now = np.random.default_rng(seed), [0.0]

        def clock() -> float:
            now[0] += float(rng.exponential()) ** 3  # noqa: B023
            return now[0]  # noqa: B023

        monkeypatch.setattr(sys.modules["ds4py.engine.generate"], "perf_counter", clock)
        drafter = Scripted(plain.tokens, right_with(0.75))
        session = engine.session(replace(options, drafter=drafter, depth=CostAware(9)))
        session.sync([1, 2, 3])
        for _ in session.generate(500):
            pass
        assert session.tokens == plain.tokens
        passes.add(session.stats.passes)
    assert len(passes) > 3, "the clock did decide depths"


def test_an_always_wrong_drafter_costs_few_rows_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop reports what it should: with a clock on which a row costs a third of a pass, the bound of 3 % holds in rows."""
    engine = toy_engine(n_ctx=1100)
    toy = engine.model
    monkeypatch.setattr(sys.modules["ds4py.engine.generate"], "perf_counter", lambda: toy.n_forwards + toy.n_rows / 2)  # type: ignore[attr-defined]
    plain = engine.session(SessionOptions(params=SamplingParams(0)))
    plain.sync([1, 2, 3])
    for _ in plain.generate(1000):
        pass
    drafting = SessionOptions(params=SamplingParams(0), drafter=Scripted(plain.tokens, always_wrong), depth=CostAware(8))
    session = engine.session(drafting)
    session.sync([1, 2, 3])
    for _ in session.generate(1000):
        pass
    assert session.tokens == plain.tokens and session.stats.accepted == 0
    assert 0 < session.stats.drafted * 0.5 < 0.03 * 1000 * 1.5
