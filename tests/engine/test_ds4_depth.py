"""ds4's schedule, rule by rule: what a session of scripted cycles is asked for."""

from __future__ import annotations

import pytest
from scripted_drafters import Scripted, always_right
from toy_model import toy_engine

from ds4py.engine import FixedDepth, SessionOptions
from ds4py.engine.depth import SkipStreak
from ds4py.engine.ds4_depth import TAIL, Ds4Depth
from ds4py.protocols import DepthPolicy, Draft, Pass, SamplingParams

FULL, N = 5, 5


def cycle(policy: Ds4Depth, accepted: int, drafted: int = FULL, stopped: float | None = None) -> int:
    """One attempt; returns the passes of the pause that follows, each told of as a pass without a draft."""
    assert policy.depth() == N
    policy.record(Pass(0, 0, N, Draft([0] * drafted, stopped=stopped), accepted + 1, 0.0, 0.0, 1 + drafted))
    n = 0
    while policy.depth() == 0:
        policy.record(Pass(0, 0, 0, Draft(), 1, 0.0, 0.0, 1))
        n += 1
        assert n < 100
    return n


def test_good_drafts_are_never_paused() -> None:
    policy = Ds4Depth(N)
    assert [cycle(policy, accepted) for accepted in (1, 2, 1, 2, 5, 0, 1, 0) * 5] == [0] * 40


def test_a_poor_window_pauses_two_passes() -> None:
    policy = Ds4Depth(N)
    assert [cycle(policy, accepted) for accepted in (2, 1, 1, 1, 0, 0, 0, 0, 5, 5, 5, 5, 3, 3, 0, 0)] == [
        *(0, 0, 0, 2),  # 5 tokens in 4 cycles
        *(0, 0, 0, 2),
        *(0, 0, 0, 0),  # drafts that are right again are not punished for what was
        *(0, 0, 0, 0),  # 6 in 4 are enough
    ]


@pytest.mark.parametrize(
    ("before", "stopped", "pause"),
    [
        ((), 0.2, 7),  # nothing was ever accepted and the head is pessimistic
        ((), 0.5, 7),
        ((), 0.6, 3),
        ((), None, 3),
        ((0,), 0.1, 7),
        ((2,), 0.1, 4),  # something was, but no more than two at once
        ((3,), 0.1, 3),
        ((1, 5), 0.9, 3),
    ],
)
def test_a_cycle_without_a_draft_pauses_at_once(before: tuple[int, ...], stopped: float | None, pause: int) -> None:
    policy = Ds4Depth(N)
    for accepted in before:
        assert cycle(policy, accepted) == 0
    assert cycle(policy, 0, drafted=0, stopped=stopped) == pause


def test_a_window_half_without_drafts_pauses_four_passes() -> None:
    policy = Ds4Depth(N)
    assert [cycle(policy, 5), cycle(policy, 0, 0), cycle(policy, 5), cycle(policy, 0, 0)] == [0, 3, 0, 4]
    assert [cycle(policy, 0, 0), cycle(policy, 5), cycle(policy, 0, 0), cycle(policy, 5)] == [3, 0, 3, 4]
    assert [cycle(policy, 5), cycle(policy, 5), cycle(policy, 5), cycle(policy, 0, 0)] == [0, 0, 0, 3]


def test_passes_that_could_not_draft_count_nothing() -> None:
    policy = Ds4Depth(N)
    for _ in range(20):
        policy.record(Pass(0, 0, 0, Draft(), 1, 0.0, 0.0, 1))
    assert policy.depth() == N


@pytest.mark.parametrize("skipping", [False, True])
def test_the_last_ten_tokens_are_not_drafted_for(skipping: bool) -> None:
    """With drafts that are always right: passes of six tokens while ten may come, then of one; none of those is a cycle."""
    engine, prompt = toy_engine(), list(range(3, 20))
    plain = engine.session(SessionOptions(params=SamplingParams(0)))
    plain.sync(prompt)
    for _ in plain.generate(40):
        pass
    for n_tokens, sizes in ((40, [6, 6, 6, 6, 6, 6, 1, 1, 1, 1]), (11, [6, 1, 1, 1, 1, 1]), (10, [6, 1, 1, 1, 1]), (9, [1] * 9)):
        policy: DepthPolicy = SkipStreak(Ds4Depth(N), 3) if skipping else Ds4Depth(N)
        assert policy.tail == TAIL == 10 and FixedDepth(3).tail == 0
        drafter = Scripted(plain.tokens, always_right)
        session = engine.session(SessionOptions(params=SamplingParams(0), drafter=drafter, depth=policy))
        session.sync(prompt)
        assert [len(step.tokens) for step in session.generate(n_tokens)] == sizes
        assert session.tokens == plain.tokens[: len(prompt) + n_tokens] and session.stats.draft_calls == sizes.count(6)
