"""A hash of the last n tokens that costs the same for every n.

h(t_0 .. t_(n-1)) = sum of t_i * factor^(n-1-i), modulo a power of two: a linear congruential generator that is fed a token per
step. Moving on by one token is a multiplication, an addition of the token that comes and a subtraction of the one that leaves,
so an n-gram of 1,024 tokens is as cheap to follow as one of four. The two sets of constants are llama.cpp's, which makes its
documented values our test vectors. Rejected: Python's own hash of a tuple, which reads all n tokens at every position.

Any integers will do: numpy's, which wrap around at their own width, are taken for what they say.

The hash is weak against someone who looks for collisions; callers compare tokens, or live with a wrong guess that the target
refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAP_FACTOR: Final = 2654435761  # of 32-bit hashes, for the n-gram maps
MOD_FACTOR: Final = 6364136223846793005  # of 64-bit hashes, for the pool


class RollingHash:
    """The hash of n-grams of one length: `of` reads a whole n-gram, `roll` moves on by a token."""

    def __init__(self, n: int, factor: int, n_bits: int) -> None:
        self._factor = factor
        self._mask = (1 << n_bits) - 1
        self._leaver = pow(factor, n, 1 << n_bits)  # weight of the token that has just left the n-gram

    def of(self, tokens: Iterable[int]) -> int:
        h = 0
        for token in tokens:
            h = (h * self._factor + int(token)) & self._mask
        return h

    def roll(self, h: int, leaves: int, comes: int) -> int:
        """The hash of the n-gram one token further on."""
        return (int(h) * self._factor + int(comes) - int(leaves) * self._leaver) & self._mask
