"""Draws follow the softmax, the filters keep what they say, and no short cut changes a token."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.engine import FixedSchedule, Penalties
from ds4py.engine.noise import Noise
from ds4py.engine.sampling import Sampler, check_params, draw
from ds4py.errors import NumericError, UsageError
from ds4py.protocols import F32, SamplingParams


def softmax(row: F32, t: float) -> npt.NDArray[np.float64]:
    e = np.exp((row.astype(np.float64) - float(row.max())) / t)
    return np.asarray(e / e.sum(), np.float64)


def kept(row: F32, p: SamplingParams) -> npt.NDArray[np.int64]:
    """The tokens that pass the filters, by sorting and cumulating: likelier first, the lower id first among equals."""
    prob = softmax(row, p.temperature)
    order = np.lexsort((np.arange(len(row)), -row))
    if p.top_k:
        order = order[: p.top_k]
    before = np.cumsum(prob[order]) - prob[order]
    if p.top_p < 1:
        order = order[(before < p.top_p * prob[order].sum()) | (order == order[0])]
    return order[prob[order] >= p.min_p * prob[order[0]]]


def slow_draw(row: F32, p: SamplingParams, noise: Noise, pos: int) -> set[int]:
    """The definition, word by word; more than one token where a border lies so close that rounding may decide."""
    if p.temperature == 0:
        return {int(row.argmax())}
    tokens = set()
    for nudge in (-1e-5, 0, 1e-5):
        top_p, min_p = (x * (1 + nudge) if x < 1 else 1.0 for x in (p.top_p, p.min_p))
        ids = np.sort(kept(row, SamplingParams(p.temperature, p.top_k, top_p, min_p)))
        scores = row[ids].astype(np.float64) / p.temperature + noise.gumbel(pos, ids)
        tokens.add(int(ids[scores.argmax()]))
    return tokens


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.5, 0.7, 1.0, 1.3, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 10_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 0.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
)


@settings(max_examples=300, deadline=None)
@given(
    PARAMS, st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([0.0, 0.3, 3.0, 12.0]), st.booleans(), st.integers(0, 9)
)
def test_fast_equals_slow(p: SamplingParams, seed: int, n_vocab: int, spread: float, rounded: bool, pos: int) -> None:
    row = (np.random.default_rng(seed).normal(size=n_vocab) * spread).astype(np.float32)
    if rounded:
        row = np.round(row)  # many ties
    assert draw(row, p, Noise(seed), pos) in slow_draw(row, p, Noise(seed), pos)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(
    "p", [SamplingParams(1.0), SamplingParams(1.3, top_p=0.9), SamplingParams(0.8, top_p=0.3), SamplingParams(2, min_p=0.01)]
)
def test_fast_equals_slow_on_a_large_vocabulary(p: SamplingParams, spread: float) -> None:
    """Here the blocks, the level and the repeated narrowing of the nucleus are at work."""
    rng, n_certain = np.random.default_rng(1), 0
    for pos in range(4):
        row = (rng.normal(size=100_003) * spread).astype(np.float32)
        possible = slow_draw(row, p, Noise(2), pos)
        n_certain += len(possible) == 1
        assert draw(row, p, Noise(2), pos) in possible
    assert n_certain >= 3


@pytest.mark.parametrize(
    "p",
    [
        SamplingParams(1.0),
        SamplingParams(0.7),
        SamplingParams(1.5, top_k=12),
        SamplingParams(1.0, top_p=0.8),
        SamplingParams(1.0, min_p=0.1),
        SamplingParams(1.2, top_k=20, top_p=0.9, min_p=0.05),
    ],
)
def test_draws_over_positions_follow_the_filtered_softmax(p: SamplingParams) -> None:
    row = np.random.default_rng(3).normal(size=30).astype(np.float32) * 1.2
    n = 20_000 if p == SamplingParams(1.0) else 6000
    counts = np.bincount([draw(row, p, Noise(4), pos) for pos in range(n)], minlength=30)
    passed = kept(row, p)
    expected = np.zeros(30)
    expected[passed] = softmax(row, p.temperature)[passed]
    expected *= n / expected.sum()
    assert counts[expected == 0].sum() == 0
    common = expected > 5
    chi_square = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 6  # about 1 in 100,000


@pytest.mark.parametrize("what", ["seed", "choice", "epoch"])
def test_draws_over_seeds_choices_and_epochs_follow_the_softmax_too(what: str) -> None:
    row = np.array([0.0, 1.0, 2.0, 0.5], np.float32)
    n = 8000
    counts = np.bincount([draw(row, SamplingParams(1.0), Noise(**{"seed": 0, what: i}), 5) for i in range(n)], minlength=4)
    expected = softmax(row, 1.0) * n
    assert ((counts - expected) ** 2 / expected).sum() < 22  # 3 degrees of freedom: 1 in 10,000


def test_ties_keep_the_lower_ids() -> None:
    row = np.array([1, 3, 3, 3, 0], np.float32)
    seen = {draw(row, SamplingParams(1.0, top_k=2), Noise(1), pos) for pos in range(200)}
    assert seen == {1, 2}
    assert {draw(row, SamplingParams(1.0, top_p=0.25), Noise(1), pos) for pos in range(200)} == {1}
    assert {draw(row, SamplingParams(1.0, min_p=1.0), Noise(1), pos) for pos in range(200)} == {1, 2, 3}
    assert draw(row, SamplingParams(0), Noise(1), 0) == 1


def test_filters_that_leave_one_token_are_greedy() -> None:
    row = np.random.default_rng(0).normal(size=500).astype(np.float32)
    for p in (
        SamplingParams(2.0, top_k=1),
        SamplingParams(2.0, top_p=0.0),
        SamplingParams(2.0, min_p=1.0),
        SamplingParams(1e-12),
    ):
        assert {draw(row, p, Noise(1), pos) for pos in range(50)} == {int(row.argmax())}


def test_a_draw_depends_on_nothing_drawn_before() -> None:
    row = np.random.default_rng(0).normal(size=200).astype(np.float32)
    forward = [draw(row, SamplingParams(1.0), Noise(9), pos) for pos in range(100)]
    backward = [draw(row, SamplingParams(1.0), Noise(9), pos) for pos in reversed(range(100))]
    assert forward == backward[::-1]
    assert len(set(forward)) > 20


def test_another_process_draws_the_same_tokens() -> None:
    program = (
        "import numpy as np; from ds4py.engine.sampling import draw; from ds4py.engine.noise import Noise;"
        "from ds4py.protocols import SamplingParams; row = np.sin(np.arange(5000)).astype(np.float32) * 4;"
        "print([draw(row, SamplingParams(1.0, top_p=0.95), Noise(3), pos) for pos in range(20)])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    row = np.sin(np.arange(5000)).astype(np.float32) * 4
    assert out.stdout.strip() == str([draw(row, SamplingParams(1.0, top_p=0.95), Noise(3), pos) for pos in range(20)])


def test_minus_infinity_is_never_drawn() -> None:
    row = np.full(1000, -np.inf, np.float32)
    row[[7, 900]] = 0.0
    for p in (SamplingParams(0), SamplingParams(1.0), SamplingParams(5.0, top_p=0.99), SamplingParams(5.0, top_k=50)):
        assert {draw(row, p, Noise(1), pos) for pos in range(60)} <= {7, 900}


@pytest.mark.parametrize("t", [0.0, 1.0])
@pytest.mark.parametrize(
    ("at", "value", "word"), [(7, math.nan, "NaN"), (0, math.inf, "infinity"), (None, -math.inf, "every token")]
)
def test_broken_logits_name_the_position(t: float, at: int | None, value: float, word: str) -> None:
    row = np.zeros(20, np.float32)
    row[slice(None) if at is None else at] = value
    with pytest.raises(NumericError, match=f"position 123 .*{word}"):
        draw(row, SamplingParams(t), Noise(0), 123)


def test_a_ban_does_not_hide_the_nan_of_the_banned_token() -> None:
    row = np.zeros(20, np.float32)
    row[7] = math.nan
    for bias in ({7: -100.0}, {3: 100.0}):
        sampler = Sampler(FixedSchedule(SamplingParams(0), Penalties(), bias, 20), Noise(0))
        with pytest.raises(NumericError, match="NaN"):
            sampler.draw(row)


@pytest.mark.parametrize(
    ("params", "word"),
    [
        (SamplingParams(math.nan), "temperature"),
        (SamplingParams(math.inf), "temperature"),
        (SamplingParams(-0.1), "temperature"),
        (SamplingParams(top_k=-1), "top-k"),
        (SamplingParams(top_p=7), "top-p"),
        (SamplingParams(top_p=-0.1), "top-p"),
        (SamplingParams(top_p=math.nan), "top-p"),
        (SamplingParams(min_p=1.5), "min-p"),
        (SamplingParams(min_p=math.nan), "min-p"),
    ],
)
def test_settings_that_can_never_be_obeyed_are_refused(params: SamplingParams, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        check_params(params)
    assert caught.value.exit_code == 2
