"""The attention caches: all positions, a ring of the last ones, or one entry per group of positions.

A cache owns its arrays and knows one thing beyond them: which positions a truncated session may still stand on. It does not know
the session's position; `State` does, and passes it in, because all caches of a model move together.

`high` counts the positions ever written (one past the highest). A ring of window W and slack S keeps the last W + S of them:
row p sees positions above p - W, so a session may go back to any p with p - W >= first - 1, `first` being the oldest position
still stored. That is `high - S - 1` once the ring has wrapped, 0 before. The arrays are a little longer than W + S (whole tiles),
and the extra slots are never counted on, so that results and refusals do not depend on rounding.

A pool has one entry per closed group of m positions. How many entries count follows from the position, pos // m; an entry is
made anew whenever its closing position is evaluated, from projected rows that a ring keeps. So a pool needs no undoing, and its
floor is that of the ring. Rejected: copying the open group's state before each draft, a second truth beside the position.

A cache of single rows (latents, pools, projected rows) has keys of length 0. Another kind of cache (recurrent) is one more class
with the methods of `Cache`; `State` has no list of kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4py.errors import FormatError
from ds4py.protocols import CacheView
from ds4py.state import layout

Parts = Mapping[str, npt.NDArray[Any]]  # what one cache puts into a snapshot


class Cache(CacheView, Protocol):
    """What `State` asks of any cache."""

    def floor(self, high: int) -> int:
        """Lowest position that a session which has written `high` positions can be truncated to."""
        ...

    def save(self, pos: int, high: int) -> Parts:
        """Copies of the rows that count for a session at `pos`, in position order."""
        ...

    def check(self, parts: Parts, pos: int) -> None:
        """Raise FormatError if `restore(parts, pos)` would not fit. Changes nothing."""
        ...

    def restore(self, parts: Parts, pos: int) -> None:
        """Take over what `save` returned, possibly from a cache of another capacity; `check` has passed."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class _Arrays:
    """Keys and values of one layer with reading and writing by position; what both caches are made of."""

    def __init__(self, n_kv_heads: int, key_len: int, value_len: int, capacity: int, dtype: npt.DTypeLike) -> None:
        self.keys = layout.zeros_on_touch((n_kv_heads, capacity // layout.TILE, key_len, layout.TILE), dtype)
        self.values = layout.zeros_on_touch((n_kv_heads, capacity, value_len), dtype)

    def read(self, lo: int, hi: int) -> tuple[layout.Rows, layout.Rows]:
        return layout.read_keys(self.keys, lo, hi), layout.read_values(self.values, lo, hi)

    def write(self, lo: int, keys: layout.Rows, values: layout.Rows) -> None:
        layout.write_keys(self.keys, lo, keys)
        layout.write_values(self.values, lo, values)

    def parts(self, lo: int, hi: int) -> Parts:
        keys, values = self.read(lo, hi)
        return {"first": np.array(lo, np.int64), "keys": keys, "values": values}

    def checked(self, parts: Parts, pos: int) -> int:
        """The first position in `parts`, after making sure that they hold rows first..pos of this shape and dtype."""
        missing = {"first", "keys", "values"} - set(parts)
        if missing:
            raise FormatError(f"A saved attention cache lacks its {', '.join(sorted(missing))}; the saved state is damaged.")
        if parts["first"].shape != () or parts["first"].dtype != np.int64:
            raise FormatError("A saved attention cache does not give its first position as an int64; the saved state is damaged.")
        first = int(parts["first"])
        if not 0 <= first <= pos:
            raise FormatError(f"A saved cache starts at position {first}, outside 0..{pos}; the saved state is damaged.")
        for name, own, width in (("keys", self.keys, self.keys.shape[2]), ("values", self.values, self.values.shape[2])):
            want, rows = (own.shape[0], pos - first, width), parts[name]
            if rows.shape != want or rows.dtype != own.dtype:
                raise FormatError(
                    f"Saved {name} are {rows.dtype} {list(rows.shape)} where this session needs {own.dtype} {list(want)}; "
                    "they belong to another model or setting."
                )
        return first


class FullCache:
    """Every position of the context at its own index; a session can go back to any of them."""

    window = 0

    def __init__(self, n_ctx: int, n_kv_heads: int, key_len: int, value_len: int, dtype: npt.DTypeLike = np.float16) -> None:
        """`n_ctx` positions of n_kv_heads x key_len keys and n_kv_heads x value_len values; dtype float16 or float32."""
        self.capacity = layout.round_up(n_ctx)
        self._arrays = _Arrays(n_kv_heads, key_len, value_len, self.capacity, dtype)
        self.keys, self.values = self._arrays.keys, self._arrays.values

    def floor(self, high: int) -> int:
        return 0

    def logical(self, lo: int, hi: int) -> tuple[layout.Rows, layout.Rows]:
        """Copies of keys and values of positions lo..hi, [G, hi - lo, d] each. ValueError outside the capacity."""
        if not 0 <= lo <= hi <= self.capacity:
            raise ValueError(f"positions {lo}..{hi} are outside a cache of {self.capacity}")
        return self._arrays.read(lo, hi)

    def store(self, lo: int, keys: layout.Rows, values: layout.Rows) -> None:
        """Write rows [G, n, d] at positions lo..lo+n."""
        self._arrays.write(lo, keys, values)

    def save(self, pos: int, high: int) -> Parts:
        return self._arrays.parts(0, pos)

    def check(self, parts: Parts, pos: int) -> None:
        if self._arrays.checked(parts, pos) != 0:
            raise FormatError("Saved rows of a full cache do not start at position 0; the saved state belongs to another model.")

    def restore(self, parts: Parts, pos: int) -> None:
        self._arrays.write(0, parts["keys"], parts["values"])

    def clear(self) -> None:
        pass


class PoolCache:
    """One row per closed group of `every` positions, each at its own index; entry e belongs to positions e * every onward."""

    window = 0

    def __init__(self, n_ctx: int, every: int, width: int, dtype: npt.DTypeLike = np.float16) -> None:
        """Entries of `width` values for a context of n_ctx positions; dtype float16, float32 or float64."""
        self.every = every
        self.capacity = layout.round_up(max(1, n_ctx // every))
        self._arrays = _Arrays(1, 0, width, self.capacity, dtype)
        self.keys, self.values = self._arrays.keys, self._arrays.values

    def floor(self, high: int) -> int:
        return 0

    def logical(self, lo: int, hi: int) -> tuple[layout.Rows, layout.Rows]:
        """Copies of the entries that count at `hi` and belong to positions from `lo` on: keys [1, n, 0], rows [1, n, width]."""
        return self._arrays.read(-(-lo // self.every), hi // self.every)

    def store(self, lo: int, keys: layout.Rows, values: layout.Rows) -> None:
        """Write entries [1, n, width] from number `lo` on; keys are [1, n, 0]."""
        self._arrays.write(lo, keys, values)

    def save(self, pos: int, high: int) -> Parts:
        return self._arrays.parts(0, pos // self.every)

    def check(self, parts: Parts, pos: int) -> None:
        if self._arrays.checked(parts, pos // self.every) != 0:
            raise FormatError("Saved entries of a pool do not start at the first; the saved state belongs to another model.")

    def restore(self, parts: Parts, pos: int) -> None:
        self._arrays.write(0, parts["keys"], parts["values"])

    def clear(self) -> None:
        pass


class SlidingCache:
    """A ring of the last window + slack positions.

    `slack` is how far a session may be taken back, and also the most rows that one forward may write minus one: all rows of a
    forward are stored before the first of them attends.
    """

    def __init__(
        self, window: int, slack: int, n_kv_heads: int, key_len: int, value_len: int, dtype: npt.DTypeLike = np.float16
    ) -> None:
        """Row p of the layer sees positions above p - window. Shapes and dtype as for FullCache."""
        self.window, self.slack = window, slack
        self.capacity = layout.round_up(window + slack)
        self._arrays = _Arrays(n_kv_heads, key_len, value_len, self.capacity, dtype)
        self.keys, self.values = self._arrays.keys, self._arrays.values
        self._first = 0  # oldest position that was restored; nothing older exists even before the ring wraps

    def first(self, high: int) -> int:
        """Oldest position that is still stored after `high` positions were written."""
        return max(self._first, high - self.window - self.slack)

    def floor(self, high: int) -> int:
        first = self.first(high)
        return first + self.window - 1 if first else 0

    def logical(self, lo: int, hi: int) -> tuple[layout.Rows, layout.Rows]:
        """Copies of keys and values of positions lo..hi, [G, hi - lo, d] each. ValueError for more than the ring holds."""
        if not 0 <= lo <= hi <= lo + self.capacity:
            raise ValueError(f"positions {lo}..{hi} are more than a ring of {self.capacity} holds")
        return self._arrays.read(lo, hi)

    def store(self, lo: int, keys: layout.Rows, values: layout.Rows) -> None:
        """Write rows [G, n, d] at positions lo..lo+n, n <= capacity."""
        self._arrays.write(lo, keys, values)

    def save(self, pos: int, high: int) -> Parts:
        return self._arrays.parts(self.first(high), pos)

    def check(self, parts: Parts, pos: int) -> None:
        first = self._arrays.checked(parts, pos)
        if first > max(0, pos - self.window + 1):
            raise FormatError(f"Saved rows start at position {first}, too late for a window of {self.window} at position {pos}.")

    def restore(self, parts: Parts, pos: int) -> None:
        # a ring with less slack than the one that was saved keeps the newest rows
        self._first = max(int(parts["first"]), pos - self.window - self.slack)
        skip = self._first - int(parts["first"])
        self._arrays.write(self._first, parts["keys"][:, skip:], parts["values"][:, skip:])

    def clear(self) -> None:
        self._first = 0
