"""Rotary frequencies: from metadata to radians per position, every scaling applied once, at load time.

Pair i of n_rot dimensions turns by pos * base^(-2i / n_rot). Models trained on short contexts are stretched by one of
  linear   all frequencies divided by a factor
  llama3   each divided by its own factor, stored in the file as the tensor rope_freqs.weight
  yarn     fast pairs kept, slow pairs divided by the factor, a ramp between; cos and sin grow by 1 + 0.1 ln(factor)
           (Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023, section 3)
All is float64: an angle is pos * frequency, and at position 100,000 float32 has lost its digits.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ds4py.errors import UnsupportedError
from ds4py.models.header import Header
from ds4py.protocols import F32, Rope

F64 = npt.NDArray[np.float64]


def frequencies(base: float, n_rot: int) -> F64:
    """base^(-2i / n_rot) for i < n_rot / 2."""
    return np.power(base, -np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)


def yarn(freq: F64, base: float, factor: float, n_ctx_orig: int, beta_fast: float, beta_slow: float) -> F64:
    """Frequencies of pairs that turn more than beta_fast times within n_ctx_orig positions stay, those below beta_slow turns are
    divided by `factor`, with a linear ramp over the pair index between the two."""
    n_rot = 2 * len(freq)

    def pair_turning(n_turns: float) -> float:  # solves n_ctx_orig * base^(-2i / n_rot) = 2 pi n_turns for i
        return n_rot * math.log(n_ctx_orig / (2 * math.pi * n_turns)) / (2 * math.log(base))

    low = max(math.floor(pair_turning(beta_fast)), 0)
    high = min(math.ceil(pair_turning(beta_slow)), n_rot - 1)
    ramp = np.clip((np.arange(len(freq)) - low) / max(high - low, 1e-3), 0.0, 1.0)
    return freq * (1 - ramp) + freq / factor * ramp


def read_rope(
    header: Header, head_len: int, interleaved: bool, factors: F32 | None = None, default_base: float = 10000.0
) -> Rope:
    """The rotation that the keys `rope.*` describe for heads of `head_len` dimensions.

    `factors` [n_rot / 2] is the tensor rope_freqs.weight if the file has it. Raises FormatError for impossible values,
    UnsupportedError for scaling types that are not built."""
    n_rot = rotated_len(header, head_len)
    base = header.number("rope.freq_base", default_base)
    if base <= 1:
        raise header.fail("rope.freq_base", f"is {base}; it must be above 1")
    freq = frequencies(base, n_rot)
    kind = header.raw("rope.scaling.type") or "linear"  # files without a type mean linear, with factor 1 if that is absent too
    factor = header.number("rope.scaling.factor", header.number("rope.scale_linear", 1.0))
    magnitude = 1.0
    if kind == "linear":
        freq = freq / factor
    elif kind == "yarn":
        n_ctx_orig = header.count("rope.scaling.original_context_length")
        fast, slow = header.number("rope.scaling.yarn_beta_fast", 32.0), header.number("rope.scaling.yarn_beta_slow", 1.0)
        freq = yarn(freq, base, factor, n_ctx_orig, fast, slow)
        given = header.number("rope.scaling.attn_factor", header.number("rope.scaling.yarn_attn_factor", 1.0))
        magnitude = given * (1 + 0.1 * math.log(max(factor, 1.0)))
    elif kind != "none":
        raise UnsupportedError(f"{header.key('rope.scaling.type')} {kind!r} is not supported; linear, yarn and none are.")
    if factors is not None:
        if not np.all(np.isfinite(factors)) or np.any(factors <= 0):
            raise header.fail("rope_freqs.weight", "has factors that are not positive numbers")
        freq = freq / factors.astype(np.float64)
    return Rope(freq, interleaved, magnitude)


def rotated_len(header: Header, head_len: int) -> int:
    """How many dimensions of a head rotate: `rope.dimension_count`, by default all."""
    n_rot = header.count("rope.dimension_count", head_len)
    if n_rot > head_len or n_rot % 2:
        raise header.fail("rope.dimension_count", f"is {n_rot}; it must be even and at most the head's {head_len}")
    return n_rot
