"""Rows of a target's taps on their way into a draft's state.

The target hands over its residuals with every forward, many rows while a prompt is read, a few per pass later. Computing with
each handful at once would read the draft's weights for every pass, also while nobody asks for drafts; keeping them all would cost
more memory than the target's own caches. So rows wait here, joined as the draft wants them, until a forward's worth has gathered
or a proposal needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ds4py.protocols import F32


class Intake:
    """Rows [n, W] of the positions start .. start + n, not computed with yet."""

    def __init__(self, layers: Sequence[int], width: int, max_rows: int, compute: Callable[[F32], None]) -> None:
        """`compute` takes the oldest rows [n, width], n <= max_rows; they are gone when it returns."""
        self._layers, self._compute = tuple(layers), compute
        self._rows = np.zeros((max_rows, width), np.float32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, taps: Mapping[int, F32]) -> None:
        """taps[layer] [n, D]: copies their rows, side by side in the order of the layers."""
        n = len(taps[self._layers[0]])
        done = 0
        while done < n:
            if self._n == len(self._rows):
                self.flush()
            m = min(n - done, len(self._rows) - self._n)
            d = self._rows.shape[1] // len(self._layers)
            for i, layer in enumerate(self._layers):
                self._rows[self._n : self._n + m, i * d : (i + 1) * d] = taps[layer][done : done + m]
            self._n += m
            done += m

    def cut(self, n: int) -> None:
        """Keep the first `n` rows."""
        self._n = min(self._n, n)

    def flush(self) -> None:
        if self._n:
            self._compute(self._rows[: self._n])
            self._n = 0
