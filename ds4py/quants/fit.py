"""Scales that minimise a group's weighted squared error: the search that nearly every encoder uses.

A group is a column: arrays are [..., length, n] and what is found is [..., n]. For given levels q the best scale is a division
(least squares); for a given scale the best levels are a rounding. Each step can only lower the error, so alternating them ends in
a local minimum; starting from several scales (which level the extreme value takes, how much of the range is given up) is what
finds a good one. Errors are compared as gains, the part of the sum of squares that the fit explains, which needs no second pass
over the values. Values are first brought to their group's range, so that a start is one multiplication by a number.
Sums run down a column in order, so a group's result does not depend on what else is in the batch.
Rejected: the extreme at the outermost level only, which is round-to-nearest and up to 40 % worse at 3 bits; cutting a range at
both ends alike, 6 to 10 % worse with importance than all pairs of three cuts; values in rows, where numpy's inner loops would be
32 long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ds4py.quants.layout import F32, LEAST_WEIGHT

Rounding = Callable[[F32], F32]  # scaled values, which may be overwritten -> levels

_ONE, _ZERO = np.float32(1), np.float32(0)
_NOTHING: F32 = np.zeros(1, np.float32)
_NOTHING.flags.writeable = False
_ALIKE = np.float32(1e-6)  # levels with less variance than this, of their mean square, are all the same level


def dot(a: F32, b: F32) -> F32:
    """Sums of products down the columns: [..., length, n] x 2 -> [..., n]."""
    out: F32 = np.einsum("...gn,...gn->...n", a, b)
    return out


def ratio(a: F32 | np.float32, b: F32) -> F32:
    """a / b, and 0 where b is 0."""
    out: F32 = np.zeros(np.broadcast_shapes(np.shape(a), b.shape), np.float32)
    np.divide(a, b, out=out, where=b != 0)
    return out


def whole(low: int, high: int) -> Rounding:
    """The levels low, low + 1 ... high."""
    least, most = np.float32(low), np.float32(high)

    def round_whole(scaled: F32) -> F32:
        np.rint(scaled, out=scaled)
        np.clip(scaled, least, most, out=scaled)
        return scaled

    return round_whole


def rounded(x: F32, levels: Rounding, scale: F32, shift: F32 | None = None) -> F32:
    """The levels q for which scale * q + shift is nearest to x; scale and shift are [..., n]. Where scale is 0, those of 0."""
    scaled = x if shift is None else x - shift[..., None, :]
    return levels(scaled * ratio(_ONE, scale)[..., None, :])


def extreme(x: F32) -> F32:
    """The value of largest magnitude in each column, with its sign."""
    high, low = x.max(axis=-2), x.min(axis=-2)
    out: F32 = np.where(high > -low, high, low)
    return out


def _that_count(x: F32, w: F32 | None, otherwise: F32) -> F32:
    """x with the values of least weight replaced by `otherwise` [..., n]: they must not stretch the range that levels cover."""
    if w is None:
        return x
    counts = w > LEAST_WEIGHT
    counts |= ~counts.any(axis=-2, keepdims=True)
    out: F32 = np.where(counts, x, otherwise[..., None, :])
    return out


def fit_scale(x: F32, w: F32 | None, levels: Rounding, targets: Sequence[float], polish: int = 1) -> F32:
    """d [..., n] such that d * levels are near x. `targets`: the levels that the extreme value is tried at."""
    top = extreme(_that_count(x, w, _NOTHING))
    y = x * ratio(_ONE, top)[..., None, :]
    wy = y if w is None else w * y
    best_d, best_gain = np.zeros_like(top), np.zeros_like(top)
    scaled, weighted = np.empty_like(x), np.empty_like(x)

    def consider(q: F32) -> None:
        cross, square = dot(wy, q), dot(q, q if w is None else np.multiply(w, q, out=weighted))
        d = ratio(cross, square)
        gain = d * cross
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best_d, d, where=better)

    for target in targets:
        consider(levels(np.multiply(y, np.float32(target), out=scaled)))
    for _ in range(polish):
        consider(levels(np.multiply(y, ratio(_ONE, best_d)[..., None, :], out=scaled)))
    found: F32 = best_d * top
    return found


def trims(*cuts: float) -> tuple[tuple[float, float], ...]:
    """All pairs of the cuts, for `fit_affine`."""
    return tuple((below, above) for below in cuts for above in cuts)


def fit_affine(
    x: F32, w: F32 | None, high: int, cuts: Sequence[tuple[float, float]], polish: int = 1, below_zero: bool = False
) -> tuple[F32, F32]:
    """(d, m), both [..., n], such that d * q + m with q in 0, 1 ... high is near x; d is not negative.

    `cuts`: what is tried to be cut off the range below and above, in steps of range / high; rare values at the ends are often
    best given up. below_zero: m may not be above 0.
    """
    total: F32 = np.full_like(x[..., 0, :], x.shape[-2]) if w is None else w.sum(axis=-2)
    counted = x if w is None else _that_count(x, w, ratio(dot(w, x), total))
    least, most = counted.min(axis=-2), counted.max(axis=-2)
    if below_zero:
        least = np.minimum(least, _ZERO)
    step = (most - least) / np.float32(high)
    levels = whole(0, high)
    y = x - least[..., None, :]
    y *= ratio(_ONE, step)[..., None, :]  # in [0, high] where it counts; what is found there is d = 1, m = 0 for step and least
    zero = -ratio(least, step)
    wy = y if w is None else w * y
    first = wy.sum(axis=-2)
    best_d, best_m = np.ones_like(step), np.zeros_like(step)
    best_gain = np.full_like(step, -np.inf)
    scaled, weighted = np.empty_like(x), np.empty_like(x)

    def consider(q: F32) -> None:
        wq = q if w is None else np.multiply(w, q, out=weighted)
        sum_q, square, cross = wq.sum(axis=-2), dot(wq, q), dot(wy, q)
        mean_q = sum_q / total
        spread = square - sum_q * mean_q
        d = ratio(cross - first * mean_q, np.where(spread > _ALIKE * square, spread, _ZERO))
        m = (first - d * sum_q) / total
        if below_zero:
            d = np.where(m > zero, ratio(cross - zero * sum_q, square), d)
            np.minimum(m, zero, out=m)
        gain = d * (2 * (cross - m * sum_q) - d * square) + m * (2 * first - m * total)
        better = (gain > best_gain) & (d > 0)
        for kept, new in ((best_gain, gain), (best_d, d), (best_m, m)):
            np.copyto(kept, new, where=better)

    for below, above in cuts:
        factor = high / (high - below - above)
        np.multiply(y, np.float32(factor), out=scaled)
        if below:
            np.subtract(scaled, np.float32(below * factor), out=scaled)
        consider(levels(scaled))
    for _ in range(polish):
        inverse = ratio(_ONE, best_d)
        np.multiply(y, inverse[..., None, :], out=scaled)
        np.subtract(scaled, (best_m * inverse)[..., None, :], out=scaled)
        consider(levels(scaled))
    return best_d * step, best_m * step + least
