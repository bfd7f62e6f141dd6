"""The search behind IQ2_XXS: for each octet of values the nearest of 256 lattice points, under the best scales.

For a scale s, an octet y and weights w the best point g has the largest 2 <w y / s, g> - <w, g^2>, which for all points at once
is one product with a fixed matrix. A group of four octets shares a scale, found like any other (`fit.py`): several are tried, and
for given points least squares tells the best one. Only an even number of signs can be stored: where it is odd, the value that
costs least changes its sign, so the search runs on magnitudes of which at most one is negative.

The factors of the product are rounded to 1 / _UNIT, so that every sum is a whole number of units below 2^24: exact in float32,
hence the same in every order of summation, for any shape of the call and any BLAS.
Rejected: tables of each point's neighbours, as a product over all 256 is as fast in numpy as gathering ten candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ds4py.quants.fit import ratio
from ds4py.quants.layout import F32, U8

_UNIT = np.float32(256)
_LIMIT = np.float32(60)  # of magnitudes over the scale; the lattice ends at 43
_TOGETHER = 64  # octets of one product: small enough that a BLAS does not start threads of its own


@dataclass(frozen=True)
class Octets:
    """A batch by octets: y and w [8, groups * 4 * n] (w None: all alike), with n blocks of 8 groups; odd signs already moved."""

    y: F32
    w: F32 | None
    wy: F32
    n: int

    def by_group(self, octet_values: F32) -> F32:
        """Sums over each group's four octets: [32 n] -> [8, n]."""
        total: F32 = octet_values.reshape(8, 4, self.n).sum(axis=1)
        return total

    def by_octet(self, group_values: F32) -> F32:
        """[8, n] -> [32 n]."""
        repeated: F32 = np.repeat(group_values, 4, axis=0).reshape(-1)
        return repeated


def octets_of(x: F32, w: F32 | None) -> tuple[Octets, U8]:
    """Columns [256, n] as Octets, and the 7-bit sign sets [32 n]."""
    n = x.shape[1]

    def cut(columns: F32) -> F32:
        return columns.reshape(32, 8, n).transpose(1, 0, 2).reshape(8, 32 * n)

    values, weights = cut(x), None if w is None else cut(w)
    y = np.abs(values)
    negative = values < 0
    odd = np.flatnonzero(negative.sum(axis=0) % 2)
    cost = y[:, odd] if weights is None else weights[:, odd] * y[:, odd]
    cheapest = cost.argmin(axis=0)
    y[cheapest, odd] *= np.float32(-1)
    negative[cheapest, odd] ^= True
    signs = np.packbits(negative[:7], axis=0, bitorder="little")[0]
    return Octets(y, weights, y if weights is None else weights * y, n), signs


class Lattice:
    """The code's points, as the search needs them. grid: float32 [256, 8]. Immutable."""

    def __init__(self, grid: F32) -> None:
        squares = grid * grid
        self._columns = np.ascontiguousarray(grid.T)
        self._square_columns = np.ascontiguousarray(squares.T)
        self._norms = squares.sum(axis=1)
        self._factors = np.concatenate([2 * grid.T, -squares.T]).astype(np.float32)
        self._plain_factors = np.concatenate([2 * grid.T, -squares.sum(axis=1)[None]]).astype(np.float32)

    def nearest(self, octets: Octets, inverse: F32) -> U8:
        """The best point of each octet [32 n] for inverse scales [8, n]."""
        y, w = octets.y, octets.w
        scaled = y * octets.by_octet(inverse)
        np.minimum(scaled, _LIMIT, out=scaled)
        np.maximum(scaled, -_LIMIT, out=scaled)
        if w is None:
            left, factors = np.empty((len(scaled) + 1, scaled.shape[1]), np.float32), self._plain_factors
            left[8] = 1
        else:
            left, factors = np.empty((16, scaled.shape[1]), np.float32), self._factors
            relative = w * ratio(np.float32(1), w.max(axis=0))
            scaled *= relative
            np.rint(relative * _UNIT, out=left[8:])
            left[8:] /= _UNIT
        np.rint(scaled * _UNIT, out=left[:8])
        left[:8] /= _UNIT
        return self._argmax(np.ascontiguousarray(left.T), factors)

    def _argmax(self, left: F32, factors: F32) -> U8:
        out = np.empty(len(left), np.uint8)
        step = 8 * _TOGETHER
        for first in range(0, len(left), step):
            part = left[first : first + step]
            if len(part) % _TOGETHER == 0:
                scores = np.matmul(part.reshape(-1, _TOGETHER, part.shape[1]), factors).reshape(len(part), 256)
            else:
                scores = part @ factors
            out[first : first + step] = scores.argmax(axis=1)
        return out

    def sums(self, octets: Octets, points: U8) -> tuple[F32, F32]:
        """(cross, square) [8, n]: sums over each group of w y g and of w g^2."""
        cross = np.einsum("gn,gn->n", octets.wy, self._columns.take(points, axis=1))
        if octets.w is None:
            square = self._norms.take(points)
        else:
            square = np.einsum("gn,gn->n", octets.w, self._square_columns.take(points, axis=1))
        return octets.by_group(cross), octets.by_group(square)

    def fit(self, octets: Octets, targets: Sequence[float], polish: int) -> F32:
        """The free scale of each group [8, n]. `targets`: the lattice coordinates that the largest magnitude is tried at."""
        top = octets.y.reshape(8, 8, 4, octets.n).max(axis=(0, 2))
        best: F32 = np.zeros_like(top)
        best_gain = np.zeros_like(top)

        def consider(inverse: F32) -> None:
            cross, square = self.sums(octets, self.nearest(octets, inverse))
            scale = ratio(cross, square)
            gain = scale * cross
            better = (gain > best_gain) & (scale > 0)
            np.copyto(best_gain, gain, where=better)
            np.copyto(best, scale, where=better)

        inverse_top = ratio(np.float32(1), top)
        for target in targets:
            consider(inverse_top * np.float32(target))
        for _ in range(polish):
            consider(ratio(np.float32(1), best))
        return best
