"""Noise is a pure function of five integers, and it is Gumbel noise."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from ds4py.engine.noise import HIGHEST, LOWEST, Noise, bits_reaching, gumbel_of, mix

IDS = np.arange(50_000)


def splitmix64(state: int, n: int) -> list[int]:
    """The published generator, written the obvious way with Python integers."""
    out = []
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        out.append(z ^ (z >> 31))
    return out


def test_generator_gives_the_published_first_outputs_of_seed_1234567() -> None:
    # the test vector that accompanies the public-domain reference implementation
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert splitmix64(1234567, 5) == published
    assert mix((1234567 + 0x9E3779B97F4A7C15) % 2**64) == published[0]


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**20))
def test_bits_are_the_upper_halves_of_one_generator_per_position(seed: int, pos: int) -> None:
    key = 0
    for part in (seed, 3, 1, pos):
        key = mix((key + 0x9E3779B97F4A7C15 + part) % 2**64)
    expected = [z >> 32 for z in splitmix64(key, 20)]
    assert Noise(seed, 3, 1).bits(pos, np.arange(20)).tolist() == expected


def test_an_id_has_the_same_noise_alone_and_among_others_in_any_order() -> None:
    noise = Noise(5)
    whole = noise.gumbel(9, IDS)
    some = np.random.default_rng(0).permutation(IDS)[:777]
    assert_array_equal(noise.gumbel(9, some), whole[some])
    for i in (0, 1, 49_999):
        assert noise.gumbel(9, np.array([i]))[0] == whole[i]


def test_every_one_of_the_five_integers_matters() -> None:
    base = Noise(1, 0, 0).bits(4, IDS)
    for other in (Noise(2, 0, 0).bits(4, IDS), Noise(1, 1, 0).bits(4, IDS), Noise(1, 0, 1).bits(4, IDS), Noise(1).bits(5, IDS)):
        assert (base == other).mean() < 1e-3
        flipped = np.unpackbits((base ^ other).astype("<u8").view(np.uint8)).mean() * 2  # of 64 bits, the upper 32 are always 0
        assert abs(flipped - 0.5) < 0.002


def test_neighbouring_positions_and_ids_are_uncorrelated() -> None:
    table = np.stack([Noise(11).gumbel(pos, IDS[:2000]) for pos in range(50)])
    table -= table.mean()
    for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1]), (table[1:, 1:], table[:-1, :-1])):
        correlation = (a * b).mean() / table.var()
        assert abs(correlation) < 5 / math.sqrt(a.size)


def test_distribution_is_gumbel() -> None:
    g = np.sort(Noise(3).gumbel(0, np.arange(200_000)))
    distance = np.abs(np.exp(-np.exp(-g)) - (np.arange(len(g)) + 0.5) / len(g)).max()
    assert distance < 1.95 / math.sqrt(len(g))  # Kolmogorov-Smirnov, 0.1 %


def test_bounds_hold_at_both_ends_of_the_bits() -> None:
    ends = gumbel_of(np.array([0, 2**32 - 1], np.uint64))
    assert LOWEST <= ends[0] < LOWEST + 1e-6 and HIGHEST - 1e-6 < ends[1] <= HIGHEST
    assert -3.14 < LOWEST < -3.12 and 22.86 < HIGHEST < 22.89


@pytest.mark.parametrize("level", [-5.0, LOWEST, -1.0, 0.0, 1.0, 10.0, 22.0, HIGHEST, 30.0, 800.0])
def test_no_bits_below_the_border_reach_the_level(level: float) -> None:
    border = bits_reaching(level)
    assert 0 <= border <= 2**32
    if border > 0:
        assert gumbel_of(np.array([border - 1], np.uint64))[0] < level
    if border < 2**32 - 10:
        assert gumbel_of(np.array([border + 5], np.uint64))[0] > level


def test_another_process_draws_the_same() -> None:
    program = "import numpy as np; from ds4py.engine.noise import Noise; print(Noise(7, 1, 2).bits(99, np.arange(5)).tolist())"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert out.stdout.strip() == str(Noise(7, 1, 2).bits(99, np.arange(5)).tolist())
