"""The K-quants' second level: a block's group scales (and minimums) are themselves small whole numbers under one float16 each.

The groups are fitted freely first (`fit.py`). Rounding their scales is then an error of its own, so it is treated as the levels
are: the block's float16 numbers are solved for by least squares from all levels, then each group's whole-number scale is tried
one below, at and one above its rounding, with its levels (and minimum) fitted to it, and the best is kept. Levels are rounded
last: every number that is stored has been chosen knowing the rounding of those above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ds4py.quants.fit import dot, extreme, fit_affine, fit_scale, ratio, rounded, whole
from ds4py.quants.layout import F32, U8, Batch, half_scale

Half = npt.NDArray[np.float16]

_ONE, _ZERO = np.float32(1), np.float32(0)
_SAME = np.float32(1e-6)  # of the product of the diagonal: a smaller determinant means scale and minimum cannot be told apart


@dataclass(frozen=True)
class Scaled:
    """A fitted batch. d [n]; scales [groups, n], whole numbers as float32; q [groups, length, n] likewise."""

    d: Half
    scales: F32
    q: F32


@dataclass(frozen=True)
class Shifted:
    """Like Scaled, with minimums [groups, n] under dmin [n]: value = d * scale * q - dmin * minimum."""

    d: Half
    dmin: Half
    scales: F32
    minimums: F32
    q: F32


def bytes_of(numbers: F32) -> U8:
    """Whole numbers 0-255 as bytes."""
    return numbers.astype(np.uint8)


def nearest(value: F32, unit: F32, low: float, high: float) -> F32:
    """The whole numbers in [low, high] whose multiples of `unit` are nearest to `value`."""
    numbers: F32 = np.clip(np.rint(value * ratio(_ONE, unit)), np.float32(low), np.float32(high))
    return numbers


def fit_scaled(
    batch: Batch, length: int, level_range: tuple[int, int], scale_range: tuple[int, int], targets: Sequence[float]
) -> Scaled:
    """Q3_K, Q6_K: signed levels q and signed group scales, both with their ranges."""
    x, w = batch.groups(length)
    wx = x if w is None else w * x
    levels = whole(*level_range)

    def sums(q: F32) -> tuple[F32, F32]:
        return dot(wx, q), dot(q, q if w is None else w * q)

    free = fit_scale(x, w, levels, targets)
    d, d_value = half_scale(extreme(free) / np.float32(scale_range[0]), batch.unit, above=True)
    start = nearest(free, d_value, *scale_range)
    cross, square = sums(rounded(x, levels, d_value * start))
    d, d_value = half_scale(ratio((start * cross).sum(axis=0), (start * start * square).sum(axis=0)), batch.unit)

    scales, best_gain = start, np.full_like(free, -np.inf)
    for step in (0, -1, 1):
        tried = np.clip(start + np.float32(step), *scale_range)
        scale = d_value * tried
        cross, square = sums(rounded(x, levels, scale))
        gain = scale * (2 * cross - scale * square)
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        scales = np.where(better, tried, scales)
    return Scaled(d, scales, rounded(x, levels, d_value * scales))


def _solve_both(scales: F32, minimums: F32, first: F32, total: F32, sum_q: F32, cross: F32, square: F32) -> tuple[F32, F32]:
    """(d, dmin) [n] of least squares for all groups' levels at once; (0, 0) where they are not determined."""
    a = (scales * scales * square).sum(axis=0)
    b = (scales * minimums * sum_q).sum(axis=0)
    c = (minimums * minimums * total).sum(axis=0)
    p = (scales * cross).sum(axis=0)
    r = (minimums * first).sum(axis=0)
    determinant = a * c - b * b
    determinant = np.where(determinant > _SAME * a * c, determinant, _ZERO)
    return ratio(p * c - r * b, determinant), ratio(p * b - r * a, determinant)


def fit_shifted(
    batch: Batch, length: int, high: int, scale_high: int, cuts: Sequence[tuple[float, float]]
) -> Shifted:
    """Q2_K, Q4_K, Q5_K: levels q in [0, high], group scales and minimums in [0, scale_high]."""
    x, w = batch.groups(length)
    wx = x if w is None else w * x
    total = np.full(x.shape[::2], length, np.float32) if w is None else w.sum(axis=-2)
    first = wx.sum(axis=-2)
    levels = whole(0, high)

    def sums(q: F32) -> tuple[F32, F32, F32]:
        wq = q if w is None else w * q
        return wq.sum(axis=-2), dot(wx, q), dot(wq, q)

    free_scale, free_m = fit_affine(x, w, high, cuts, below_zero=True)
    d, d_value = half_scale(free_scale.max(axis=0) / np.float32(scale_high), batch.unit, above=True)
    dmin, dmin_value = half_scale(-free_m.min(axis=0) / np.float32(scale_high), batch.unit, above=True)
    start, start_minimum = nearest(free_scale, d_value, 0, scale_high), nearest(-free_m, dmin_value, 0, scale_high)

    q = rounded(x, levels, d_value * start, -dmin_value * start_minimum)
    solved_d, solved_dmin = _solve_both(start, start_minimum, first, total, *sums(q))
    sound = (solved_d > 0) & (solved_dmin > 0)
    d, d_value = half_scale(np.where(sound, solved_d, d_value), batch.unit)
    dmin, dmin_value = half_scale(np.where(sound, solved_dmin, dmin_value), batch.unit)

    scales, minimums, best_gain = start, start_minimum, np.full_like(free_scale, -np.inf)
    for step in (0, -1, 1):
        tried = np.clip(start + np.float32(step), 0, np.float32(scale_high))
        scale = d_value * tried
        sum_q, cross, square = sums(rounded(x, levels, scale, -dmin_value * start_minimum))
        minimum = nearest((scale * sum_q - first) / total, dmin_value, 0, scale_high)
        m = dmin_value * minimum
        gain = scale * (2 * (cross + m * sum_q) - scale * square) - m * (2 * first + m * total)
        better = gain > best_gain
        best_gain, scales = np.where(better, gain, best_gain), np.where(better, tried, scales)
        minimums = np.where(better, minimum, minimums)
    return Shifted(d, dmin, scales, minimums, rounded(x, levels, d_value * scales, -dmin_value * minimums))
