"""By which path each position of a prompt is evaluated, and in which pieces.

Two paths give slightly different last bits (DESIGN of the numerics: the prefill path may use library products over whole tiles,
the row path may not). What a session says must not depend on that by accident, so the choice is a function of positions alone:
whole tiles of prompt tokens, aligned to the backend's tile, take the prefill path, and everything else takes the row path.
Pieces group whole tiles or any number of rows; their size decides speed and how often progress is shown, never a result.

The state records which path made each position (`StateView.tiles`), and whoever evaluates the same tokens again obeys the
record. A tile may have been cut since (a rewind into the prompt); it is replayed whole, filled up with any token, and cut
again, since a row depends on earlier rows only.

Rejected: letting a new prompt continue in the middle of a tile wherever the old one differed. One prompt would then have as
many results as it has histories. A common prefix is given up down to the start of its last tile when the new prompt would make
that tile by the other path: at most a tile of tokens is evaluated again, and a prompt edited warm equals the same prompt read
cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Ranges = Sequence[tuple[int, int]]  # half-open ranges of positions, ascending


@dataclass(frozen=True)
class Piece:
    """Positions start..stop of one forward call. `padding` further rows fill up a tile and are forgotten afterwards."""

    start: int
    stop: int
    path: str
    padding: int = 0


def whole_tiles(start: int, stop: int, tile: int) -> Ranges:
    """The part of start..stop that consists of whole aligned tiles (tile 0: none)."""
    if not tile:
        return []
    first, last = -(-start // tile) * tile, stop // tile * tile
    return [(first, last)] if first < last else []


def clip(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The parts of `ranges` inside start..stop."""
    cut = [(max(lo, start), min(hi, stop)) for lo, hi in ranges]
    return [(lo, hi) for lo, hi in cut if lo < hi]


def pieces(start: int, stop: int, tiled: Ranges, tile: int, max_rows: int) -> Iterator[Piece]:
    """Positions start..stop in order, at most max_rows each; those in `tiled` (ranges of tiles) by the prefill path."""
    pos = start
    for lo, hi in [*clip(tiled, start, stop), (stop, stop)]:
        for at in range(pos, lo, max_rows):
            yield Piece(at, min(lo, at + max_rows), "row")
        whole = lo + (hi - lo) // tile * tile if tile else lo
        group = max_rows // tile * tile if tile else 1
        for at in range(lo, whole, group):
            yield Piece(at, min(whole, at + group), "prefill")
        if whole < hi:
            yield Piece(whole, hi, "prefill", padding=tile - (hi - whole))
        pos = hi


def reusable(pos: int, stop: int, tiled: Ranges, tile: int) -> int:
    """How much of a common prefix of `pos` positions a prompt that feeds `stop` positions keeps: `pos`, or the start of its tile.

    `tiled` is the record of the prefix. Kept are positions that the prompt would make by the same path."""
    if not tile or pos % tile == 0:
        return pos
    first = pos // tile * tile
    if first + tile <= stop:
        return first  # the prompt fills the tile: the prefill path needs all of it
    return first if clip(tiled, first, pos) else pos
