"""Random numbers that belong to positions: g(seed, choice, epoch, position, token id).

A stream of random numbers has a state, and a state has to be rolled back whenever a draft is rejected, an answer is rewound or
a history is edited. Here nothing is rolled back, because nothing is remembered: the Gumbel noise of a token at a position is a
pure function of five integers, so that it is the same whatever was drawn before it, by whom, and how often.

The function is counter-based. Seed, choice, epoch and position are folded one after another into a 64-bit key through the
splitmix64 finaliser (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators"), and the number of token i is
the i-th output of the splitmix64 generator started at that key. Rejected: Philox (ten rounds of 64-bit products per id, several
times slower in numpy, where nothing here needs its longer period) and numpy's own generators (their streams cannot be entered
at an id).

The upper 32 bits r give u = (r + 1/2) / 2^32 and g = -log(-log u), formed in float64, where u and 1 - u are exact. So g lies in
[LOWEST, HIGHEST], about [-3.13, 22.87]: that no token can jump further is what makes exact pruning possible (sampling.py). The
logarithm is our own (kernels/exact.py), so that compiled code and every machine form the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ds4py.kernels.exact import F64, GOLDEN, MUL_1, MUL_2, U64, gumbel, random_bits
from ds4py.protocols import I64

__all__ = ["F64", "HIGHEST", "LOWEST", "Noise", "U64", "bits_reaching", "fold", "gumbel_of", "mix"]

_MASK: Final = (1 << 64) - 1

LOWEST: Final = -math.log(-math.log(0.5 / 2**32)) - 1e-9  # of any noise; the margin covers a last-bit difference of log
HIGHEST: Final = -math.log(-math.log1p(-0.5 / 2**32)) + 1e-9


def mix(x: int) -> int:
    """splitmix64's finaliser: a bijection of 64-bit integers in which every input bit changes half of the output bits."""
    x = ((x ^ (x >> 30)) * MUL_1) & _MASK
    x = ((x ^ (x >> 27)) * MUL_2) & _MASK
    return x ^ (x >> 31)


def fold(*parts: int) -> int:
    """A 64-bit key of several integers (each taken modulo 2^64), order included."""
    key = 0
    for part in parts:
        key = mix((key + GOLDEN + (part & _MASK)) & _MASK)
    return key


@dataclass(frozen=True)
class Noise:
    """The random numbers of one generation: `choice` tells answers to one prompt apart, `epoch` a second try from a first."""

    seed: int
    choice: int = 0
    epoch: int = 0

    def key(self, pos: int) -> int:
        """Where the generator of position `pos` starts: 64 bits, fold(seed, choice, epoch, pos)."""
        return mix((self._start + GOLDEN + (pos & _MASK)) & _MASK)

    @cached_property
    def _start(self) -> int:
        return fold(self.seed, self.choice, self.epoch)

    def bits(self, pos: int, ids: I64) -> U64:
        """32 random bits r, uint64 [n] below 2^32, of the token ids [n] at position `pos`."""
        return random_bits(self.key(pos), ids)

    def gumbel(self, pos: int, ids: I64) -> F64:
        """Standard Gumbel noise, float64 [n], of the token ids [n] at position `pos`."""
        return gumbel_of(self.bits(pos, ids))


def gumbel_of(bits: U64) -> F64:
    """The noise g, float64 [n], that belongs to random bits r [n]."""
    return gumbel(bits)


def bits_reaching(level: float) -> int:
    """A number of random bits below which no g reaches `level`: the inverse of `gumbel_of`, one step on the safe side."""
    if level <= LOWEST:
        return 0
    return max(0, math.floor(math.exp(-math.exp(-level)) * 2.0**32) - 2)
