"""All caches of one model for one session.

The invariant: positions below `pos` are true in every cache, the rest is garbage, and `high` counts the positions ever written.
Truncating is an assignment to `pos`; `high` stays, because a ring has already lost what the rejected rows overwrote. So the floor
follows from `high`, and a draft of at most `slack` rows can always be taken back.

Beside the caches the state records which positions the prefill path made, as a short list of ranges. The two paths differ in the
last bits, so whoever feeds the same tokens again (a rewind below the floor, a saved session) must take the same path at the same
positions to reach the same text.

A copy of the rows (`snapshot`) is the one way back below the floor. Copying lazily, page by page, was rejected: a snapshot must
stay valid while the session runs on and overwrites its rings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.errors import FormatError
from ds4py.protocols import I64, CacheView
from ds4py.state.caches import Cache, Parts, PoolCache

Ranges = tuple[tuple[int, int], ...]  # half-open, ascending, not touching


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that counts at `pos`; immutable, and independent of the state it was taken from."""

    pos: int
    tiles: Ranges
    parts: Sequence[Parts | None]  # None: a cache that has not forgotten these rows (checkpoints only)

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for part in self.parts if part for array in part.values())


class State:
    """One session's caches. See `protocols.StateView` and `protocols.Timeline` for the contract."""

    def __init__(self, caches: Sequence[Cache], n_ctx: int) -> None:
        """`caches` in the order of the cache numbers that the model's graph uses; at most `n_ctx` positions may be written."""
        self._caches = tuple(caches)
        self._rings = tuple(cache for cache in caches if cache.window)  # the only ones that forget
        self.caches: Sequence[CacheView] = self._caches
        self.n_ctx = n_ctx
        self.table: I64 = np.array(
            [[c.keys.ctypes.data, c.values.ctypes.data, c.capacity, c.window] for c in self._caches], np.int64
        ).reshape(len(self._caches), 4)
        self.table_at = int(self.table.ctypes.data)
        self.pos = 0  # read by everyone, several times a token; changed by the methods of this class alone
        self._high = 0
        self._tiles: list[tuple[int, int]] = []

    @property
    def high(self) -> int:
        """Number of positions ever written, whether or not they still count."""
        return self._high

    @property
    def floor(self) -> int:
        return max((cache.floor(self._high) for cache in self._rings), default=0)

    @property
    def tiles(self) -> Ranges:
        """The positions below `pos` that the prefill path made."""
        return tuple(self._tiles)

    @property
    def n_bytes(self) -> int:
        """Address space of the caches; memory is taken only as positions are written."""
        return sum(cache.keys.nbytes + cache.values.nbytes for cache in self._caches)

    def truncate(self, pos: int) -> None:
        """Forget positions >= `pos`. ValueError unless floor <= pos <= self.pos."""
        if pos == self.pos:
            return
        if not self.floor <= pos <= self.pos:
            raise ValueError(f"cannot truncate to {pos}: reachable are {self.floor}..{self.pos}")
        self.pos = pos
        while self._tiles and self._tiles[-1][1] > pos:
            lo, _ = self._tiles.pop()
            if lo < pos:
                self._tiles.append((lo, pos))

    @property
    def pooled(self) -> tuple[int, int]:
        """Of the pools, which keep an entry for a group of positions: their part of n_bytes, and the entries of the largest."""
        pools = [cache for cache in self._caches if isinstance(cache, PoolCache)]
        n_bytes = sum(cache.keys.nbytes + cache.values.nbytes for cache in pools)
        return n_bytes, max((self.n_ctx // cache.every for cache in pools), default=0)

    def retreat(self, pos: int) -> int:
        """Truncate to `pos` even below the floor, for a user who can do without what is lost: rows from the returned position on
        are still there. ValueError past self.pos."""
        if not 0 <= pos <= self.pos:
            raise ValueError(f"cannot retreat to {pos} from {self.pos}")
        if pos >= self.floor:
            self.truncate(pos)
            return 0
        lost = max(cache.floor(self._high) - cache.window + 1 for cache in self._rings)
        self.clear()
        self.advance(pos, False)
        return min(lost, pos)

    def advance(self, n: int, tiled: bool) -> None:
        """`n` rows were written at pos..pos+n; `tiled` says that the prefill path made them. ValueError past n_ctx."""
        lo, hi = self.pos, self.pos + n
        if n < 0 or hi > self.n_ctx:
            raise ValueError(f"cannot advance by {n} from {lo}: the context holds {self.n_ctx}")
        self.pos, self._high = hi, max(self._high, hi)
        if tiled and n:
            if self._tiles and self._tiles[-1][1] == lo:
                lo, _ = self._tiles.pop()
            self._tiles.append((lo, hi))

    def clear(self) -> None:
        """Start over at position 0, which is possible at any time; the memory stays."""
        self.pos = self._high = 0
        self._tiles = []
        for cache in self._caches:
            cache.clear()

    def snapshot(self) -> Snapshot:
        """Copy what counts at `pos`: all rows of full caches, the last window + slack of rings."""
        return Snapshot(self.pos, self.tiles, tuple(cache.save(self.pos, self._high) for cache in self._caches))

    def checkpoint(self) -> Snapshot:
        """Copy what truncating loses, rings but not full caches. Only this state can restore it, and only while the tokens below
        its position are the same and `clear` was not called."""
        parts = tuple(cache.save(self.pos, self._high) if cache.window else None for cache in self._caches)
        return Snapshot(self.pos, self.tiles, parts)

    def restore(self, snapshot: Snapshot) -> None:
        """Stand where `snapshot` was taken. FormatError, and nothing changed, if it does not fit this state's caches."""
        if snapshot.pos > self.n_ctx:
            raise FormatError(f"The saved session has {snapshot.pos} positions, the context holds {self.n_ctx}.")
        if len(snapshot.parts) != len(self._caches):
            raise FormatError(f"The saved session has {len(snapshot.parts)} caches, this model has {len(self._caches)}.")
        for cache, parts in zip(self._caches, snapshot.parts, strict=True):
            if parts is not None:
                cache.check(parts, snapshot.pos)
        for cache, parts in zip(self._caches, snapshot.parts, strict=True):
            if parts is not None:
                cache.restore(parts, snapshot.pos)
        self.pos = self._high = snapshot.pos
        self._tiles = list(snapshot.tiles)

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """The snapshot as named arrays for a file: "pos" int64, "tiles" int64 [n, 2], and "cache.<i>.<part>" per cache."""
        snapshot = self.snapshot()
        out: dict[str, npt.NDArray[Any]] = {
            "pos": np.array(snapshot.pos, np.int64),
            "tiles": np.array(snapshot.tiles, np.int64).reshape(-1, 2),
        }
        for i, parts in enumerate(snapshot.parts):
            out.update({f"cache.{i}.{name}": array for name, array in (parts or {}).items()})
        return out

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `payload` gave, of any session of the same model. FormatError, and nothing changed, if it does not fit."""
        for name, shape in (("pos", ()), ("tiles", (-1, 2))):
            array = payload.get(name)
            if array is None or array.dtype != np.int64 or array.ndim != len(shape) or array.shape[1:] != shape[1:]:
                raise FormatError(f"The saved session has no sound entry {name!r}; it is damaged.")
        pos, tiles = int(payload["pos"]), tuple((int(lo), int(hi)) for lo, hi in payload["tiles"])
        edges = [edge for pair in tiles for edge in pair]
        if pos < 0 or sorted(set(edges)) != edges or any(not 0 <= edge <= pos for edge in edges):
            raise FormatError(f"The saved session's ranges {tiles} do not lie in order below position {pos}; it is damaged.")
        parts = [
            {name.removeprefix(prefix): array for name, array in payload.items() if name.startswith(prefix)}
            for prefix in (f"cache.{i}." for i in range(len(self._caches)))
        ]
        if len(payload) != 2 + sum(len(part) for part in parts):
            raise FormatError(f"The saved session holds other entries than this model's {len(self._caches)} caches need.")
        self.restore(Snapshot(pos, tiles, parts))
