"""The plan of a prompt covers every position once, tiles are whole and aligned, and sizes of pieces decide nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ds4py.engine.prefill import Piece, clip, pieces, reusable, whole_tiles


def path_of(plan: list[Piece]) -> list[str]:
    return [piece.path for piece in plan for _ in range(piece.start, piece.stop)]


@given(st.integers(0, 100), st.integers(0, 200), st.sampled_from([0, 1, 4, 16]), st.integers(16, 70))
def test_fresh_prompt(start: int, n: int, tile: int, max_rows: int) -> None:
    stop = start + n
    plan = list(pieces(start, stop, whole_tiles(start, stop, tile), tile, max_rows))
    assert [p for piece in plan for p in range(piece.start, piece.stop)] == list(range(start, stop))
    for piece in plan:
        assert 0 < piece.stop - piece.start <= max_rows and piece.padding == 0
        if piece.path == "prefill":
            assert piece.start % tile == 0 and piece.stop % tile == 0
    for p, path in zip(range(start, stop), path_of(plan), strict=True):
        in_whole_tile = tile > 0 and p // tile * tile >= start and p // tile * tile + tile <= stop
        assert path == ("prefill" if in_whole_tile else "row")


@given(st.integers(0, 150), st.sampled_from([4, 16]), st.integers(16, 70), st.integers(16, 70))
def test_sizes_of_pieces_do_not_change_the_path(stop: int, tile: int, a: int, b: int) -> None:
    tiled = whole_tiles(0, stop, tile)
    assert path_of(list(pieces(0, stop, tiled, tile, a))) == path_of(list(pieces(0, stop, tiled, tile, b)))


def test_a_replay_fills_up_a_tile_that_was_cut() -> None:
    plan = list(pieces(0, 30, [(0, 13), (16, 24)], 8, 16))
    assert plan == [
        Piece(0, 8, "prefill"),
        Piece(8, 13, "prefill", padding=3),
        Piece(13, 16, "row"),
        Piece(16, 24, "prefill"),
        Piece(24, 30, "row"),
    ]


def test_clip() -> None:
    assert clip([(0, 8), (16, 32), (40, 48)], 4, 41) == [(4, 8), (16, 32), (40, 41)]
    assert clip([(0, 8)], 8, 20) == []


def test_a_prefix_is_kept_unless_its_last_tile_would_be_made_otherwise() -> None:
    assert reusable(21, 100, [(0, 16)], 0) == 21  # no tiles at all
    assert reusable(16, 100, [(0, 16)], 8) == 16  # on the border of a tile
    assert reusable(21, 100, [(0, 16)], 8) == 16  # rows 16..21 belong to a tile that the new prompt fills
    assert reusable(21, 100, [(0, 24)], 8) == 16  # a tile cannot be entered in its middle
    assert reusable(21, 23, [(0, 16)], 8) == 21  # a ragged tail stays a ragged tail
    assert reusable(21, 23, [(0, 24)], 8) == 16  # what a tile made would be rows now
