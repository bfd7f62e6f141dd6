"""Arithmetic of a draw that numpy and compiled code do alike, bit for bit, on every machine.

The idea: a token must not depend on who draws it. Libraries' logarithms and exponentials differ in their last bits from one
processor to the next, and a sum depends on its order. So everything here is made of operations that IEEE 754 defines exactly
(+, -, *, / in a stated order, never fused) and of integers; and weights are multiples of 2^-34 that add up without any rounding,
in any order. `kernels/cpu/draws.py` is the same page in machine code, tests compare the two.

Formulas: log x = e ln 2 + 2 artanh(s), s = f / (2 + f), m = 1 + f in [sqrt 1/2, sqrt 2), with the artanh series; exp by
Cody-Waite reduction and the Taylor polynomial. Both are good to about the last bit of their type, which is all they need: what
matters is that they are the same everywhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

# splitmix64 (Steele, Lea, Flood 2014)
GOLDEN: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the step from one output to the next
MUL_1: Final = 0xBF58476D1CE4E5B9
MUL_2: Final = 0x94D049BB133111EB

SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has 32 significant bits: times e is exact
SERIES: Final = tuple(2.0 / n for n in range(21, 1, -2))  # 2/21, 2/19, ... 2/3: of artanh, in powers of s^2

LOG2_E, EXP_MAGIC = 1.4426950408889634, 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
EXP_MAGIC_BITS: Final = 0x4B400000
EXP_HIGH, EXP_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts
EXP_SERIES: Final = (1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0)

LIGHTEST: Final = -24.0  # a token that lies further below the largest, in units of the temperature, weighs nothing
GRID: Final = 1.5 * 2.0**18  # adding and subtracting it rounds a number below 1 to a multiple of 2^-34
MOST_TOKENS: Final = 1 << 19  # as many weights add up exactly

_CHUNK: Final = 16384  # weights made at once: small enough for the inner caches


def random_bits(key: int, ids: I64) -> U64:
    """Output number ids [n] of the splitmix64 generator that starts at `key`, the upper 32 bits: uint64 [n] below 2^32."""
    x = ids.astype(np.uint64)  # numpy's unsigned products wrap: the arithmetic modulo 2^64 that is wanted
    x *= np.uint64(GOLDEN)
    x += np.uint64((key + GOLDEN) % 2**64)
    x ^= x >> np.uint64(30)
    x *= np.uint64(MUL_1)
    x ^= x >> np.uint64(27)
    x *= np.uint64(MUL_2)
    x ^= x >> np.uint64(31)
    x >>= np.uint64(32)
    return x


def log(x: F64) -> F64:
    """Natural logarithm of positive normal float64 values."""
    bits = x.view(np.int64)
    e = (bits - SQRT_HALF_BITS) >> 52
    f = (bits - (e << 52)).view(np.float64) - 1.0
    s = f / (f + 2.0)
    z = s * s
    series = np.full_like(z, SERIES[0])
    for c in SERIES[1:]:
        series = series * z + c
    n = e.astype(np.float64)
    return n * LN2_HIGH + (n * LN2_LOW + (s * 2.0 + s * (z * series)))


def gumbel(bits: U64) -> F64:
    """g = -log(-log u), u = (r + 1/2) / 2^32, of random bits r: float64 [n]."""
    return -log(-log((bits.astype(np.float64) + 0.5) * 2.0**-32))


def weights(x: F32, largest: float, temperature: float) -> F64:
    """exp((x - largest) / temperature) in units of 2^-34, float64 [n]; the argument is formed in float32."""
    out = np.empty(len(x), np.float64)
    for at in range(0, len(x), _CHUNK):
        out[at : at + _CHUNK] = _weights(x[at : at + _CHUNK], np.float32(largest), np.float32(min(temperature, 3e38)))
    return out


def _weights(x: F32, largest: np.float32, temperature: np.float32) -> F64:
    one = np.float32
    with np.errstate(over="ignore"):
        z = (x - largest) / temperature
    light = z < one(LIGHTEST)
    z = np.where(light, one(0), z)
    y = z * one(LOG2_E) + one(EXP_MAGIC)
    n = y - one(EXP_MAGIC)
    r = (z - n * one(EXP_HIGH)) - n * one(EXP_LOW)
    p = np.full_like(r, one(EXP_SERIES[0]))
    for c in EXP_SERIES[1:]:
        p = p * r + one(c)
    power = ((y.view(np.int32) - np.int32(EXP_MAGIC_BITS - 127)) << 23).view(np.float32)
    on_grid = ((p * power).astype(np.float64) + GRID) - GRID
    return np.where(light, 0.0, on_grid)
