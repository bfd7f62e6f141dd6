"""Penalties and bias are llama.cpp's formulas, counted by a journal that rolls back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from ds4py.engine import FixedSchedule, Penalties
from ds4py.engine.noise import Noise
from ds4py.engine.sampling import Sampler
from ds4py.errors import UsageError
from ds4py.protocols import F32, SamplingParams

N = 12
ROW = np.linspace(-3, 3, N, dtype=np.float32)


def schedule(penalties: Penalties | None = None, bias: dict[int, float] | None = None) -> FixedSchedule:
    return FixedSchedule(SamplingParams(), penalties or Penalties(), bias or {}, N)


def obvious(row: F32, tokens: list[int], p: Penalties) -> F32:
    window = tokens if p.last_n == -1 else tokens[len(tokens) - p.last_n :] if 0 < p.last_n < len(tokens) else tokens
    out = row.astype(np.float64)
    for token in set(window) if p.last_n else ():
        n = window.count(token)
        out[token] = out[token] / p.repeat if out[token] > 0 else out[token] * p.repeat
        out[token] -= n * p.frequency + p.presence
    return out.astype(np.float32)


PENALTIES = st.builds(
    Penalties,
    repeat=st.sampled_from([1.0, 1.1, 2.0, 0.5]),
    frequency=st.sampled_from([0.0, 0.25, -0.5]),
    presence=st.sampled_from([0.0, 0.75]),
    last_n=st.sampled_from([-1, 0, 1, 2, 5, 64]),
)


@given(PENALTIES, st.lists(st.one_of(st.integers(0, N - 1), st.tuples(st.just("cut"), st.integers(0, 40))), max_size=60))
def test_any_pushes_and_truncations_give_the_counts_of_the_tokens_that_are_left(
    p: Penalties, moves: list[int | tuple[str, int]]
) -> None:
    s, tokens = schedule(p), list[int]()
    for move in moves:
        if isinstance(move, tuple):
            del tokens[min(move[1], len(tokens)) :]
            s.truncate(len(tokens))
        else:
            tokens.append(move)
            s.push(move)
        assert s.pos == len(tokens) and s.floor == 0
        assert_allclose(s.adjust(ROW), obvious(ROW, tokens, p), rtol=1e-6)


def test_nothing_to_do_returns_the_row_itself() -> None:
    s = schedule(Penalties(1.0, 0.0, 0.0), {3: 0.0})
    s.push(1)
    assert s.adjust(ROW) is ROW
    assert schedule(Penalties(1.5, last_n=0)).adjust(ROW) is ROW


def test_the_row_is_never_written() -> None:
    before = ROW.copy()
    s = schedule(Penalties(2.0, 1.0, 1.0), {1: 5.0, 2: -100.0})
    s.push(4)
    assert s.adjust(ROW) is not ROW
    assert_array_equal(ROW, before)


def test_bias_is_added_before_the_penalty() -> None:
    s = schedule(Penalties(repeat=2.0), {0: 5.0})
    s.push(0)
    assert s.adjust(ROW)[0] == pytest.approx((ROW[0] + 5) / 2)


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_minus_100_bans_and_plus_100_forces_whatever_the_logits(t: float) -> None:
    row = ROW * 1000
    sampler = Sampler(FixedSchedule(SamplingParams(t), Penalties(), {N - 1: -100.0}, N), Noise(1))
    assert sampler.draw(row) == N - 2
    sampler = Sampler(FixedSchedule(SamplingParams(t), Penalties(5.0), {0: 100.0}, N), Noise(1))
    for _ in range(5):
        assert sampler.draw(row) == 0
        sampler.push(0)
    sampler = Sampler(FixedSchedule(SamplingParams(t), Penalties(), {N - 1: -math.inf, 0: 100.0, 1: 250.0}, N), Noise(1))
    assert sampler.draw(row) == 1  # of two forced tokens the likelier


@pytest.mark.parametrize("bias", [{-1: 5.0}, {N: 5.0}, {999999999: 5.0}, {5: math.nan}, {5: math.inf}])
def test_bias_that_means_nothing_is_refused(bias: dict[int, float]) -> None:
    with pytest.raises(UsageError, match="logit bias"):
        schedule(bias=bias)
    assert schedule(bias={5: 5.0}).adjust(ROW)[5] == ROW[5] + 5  # and the next request works


@pytest.mark.parametrize(
    ("penalties", "word"),
    [
        (Penalties(repeat=0.0), "repeat"),
        (Penalties(repeat=math.nan), "repeat"),
        (Penalties(frequency=math.inf), "frequency"),
        (Penalties(presence=math.nan), "presence"),
        (Penalties(last_n=-2), "window"),
    ],
)
def test_penalties_out_of_range_are_refused(penalties: Penalties, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        schedule(penalties)


def test_truncating_past_either_end_is_an_error() -> None:
    s = schedule()
    s.push(1)
    for pos in (-1, 2):
        with pytest.raises(ValueError):
            s.truncate(pos)
