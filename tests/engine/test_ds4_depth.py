"""ds4's schedule, rule by rule: what a session of scripted cycles is asked for."""

from __future__ import annotations

import pytest

from ds4py.engine.ds4_depth import Ds4Depth
from ds4py.protocols import Draft, Pass

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
