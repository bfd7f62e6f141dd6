"""Encoders at the edges: odd values, odd shapes, bad input; the same bytes however the rows are cut; what importance does."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from encode_samples import F32, TYPES, importance_for, relative_error, synthetic_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgmlType
from ds4py.quants import ENCODABLE, QUANTS, decode, encode

ALL = (*TYPES, GgmlType.F32, GgmlType.F16, GgmlType.BF16)
IDS = [kind.name for kind in ALL]


def _coded(kind: GgmlType, rows: F32, importance: F32 | None = None) -> F32:
    """Encoded and decoded, with any warning of numpy an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = encode(kind, rows, importance)
    assert data.dtype == np.uint8 and data.shape == (kind.nbytes(rows.size),)
    values = decode(kind, data, rows.size).reshape(rows.shape)
    assert np.isfinite(values).all()
    return values


def _rows(*values: float | npt.ArrayLike, n: int = 256) -> F32:
    """One row of n per value."""
    return np.stack([np.broadcast_to(np.asarray(value, np.float32), (n,)) for value in values])


def test_the_types_of_the_format_that_we_write() -> None:
    assert ENCODABLE == set(ALL) and set(QUANTS) - ENCODABLE == {GgmlType.Q8_K, GgmlType.IQ4_XS}


# --- values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=IDS)
@pytest.mark.parametrize("importance", [None, importance_for(512), np.zeros(512, np.float32)], ids=["plain", "weighted", "zero"])
def test_zeros_stay_zeros(kind: GgmlType, importance: F32 | None) -> None:
    assert not _coded(kind, np.zeros((3, 512), np.float32), importance).any()
    assert not _coded(kind, np.full((3, 512), -0.0, np.float32), importance).any()


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_a_zero_block_between_others(kind: GgmlType) -> None:
    rows = np.random.default_rng(0).normal(0, 1, (1, 768)).astype(np.float32)
    rows[:, 256:512] = 0
    values = _coded(kind, rows)
    assert not values[:, 256:512].any() and values[:, :256].any() and values[:, 512:].any()


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_constant_rows(kind: GgmlType) -> None:
    """A constant is a level times a scale, where the scale is not a power of two."""
    rows = _rows(1.0, -1.0, 0.37, -123.0, 3e-3)
    assert np.abs(_coded(kind, rows) / rows - 1).max() < (0.25 if kind is GgmlType.MXFP4 else 0.01)


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_magnitudes_beyond_the_type_are_cut(kind: GgmlType) -> None:
    """Types with float16 scales end far below 1e38: what comes out is finite, has the right sign and is their largest."""
    noise = np.random.default_rng(1).uniform(0.5, 1, 256)
    rows = _rows(1e38 * noise, -1e38 * noise, 3.4e38 * noise * np.where(np.arange(256) % 4 < 2, 1, -1), np.finfo(np.float32).max)
    values = _coded(kind, rows)
    assert (values * np.sign(rows) >= 0).mean() > 0.7 and (values * np.sign(rows))[[0, 1, 3]].min() >= 0
    assert np.abs(values).max(axis=1).min() >= 65504
    if kind in (GgmlType.F32, GgmlType.BF16, GgmlType.MXFP4):
        assert np.abs(values / rows - 1).max() < 0.3


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_magnitudes_within_the_type_are_kept(kind: GgmlType) -> None:
    rows = (np.random.default_rng(2).uniform(-1, 1, (4, 512)) * 60000).astype(np.float32)
    small = rows / np.float32(2**20)
    expected = relative_error(small, _coded(kind, small), None)
    assert relative_error(rows, _coded(kind, rows), None) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_denormals_and_tiny_values(kind: GgmlType) -> None:
    """No warning, nothing infinite, and no block that is worse off than as zeros: there is no float16 below 6e-8."""
    noise = np.random.default_rng(3).normal(0, 1, 256)
    rows = _rows(1e-45, 1e-40 * noise, 1e-38 * noise, 1e-30 * noise, 1e-12 * noise, 1e-8 * noise)
    off = (_coded(kind, rows).astype(np.float64) - rows) ** 2
    assert (off.sum(axis=1) <= (rows.astype(np.float64) ** 2).sum(axis=1)).all()


@pytest.mark.parametrize("kind", TYPES, ids=[kind.name for kind in TYPES])
def test_small_weights_are_not_lost_to_a_vanished_scale(kind: GgmlType) -> None:
    """Weights of 2e-6: a K-quant's block scale would be 3e-8 / 63 and round to zero, and the whole block with it."""
    rows = (np.random.default_rng(4).normal(0, 2e-6, (4, 512))).astype(np.float32)
    assert relative_error(rows, _coded(kind, rows), None) < 0.2


@pytest.mark.parametrize("kind", TYPES, ids=[kind.name for kind in TYPES])
def test_one_outlier(kind: GgmlType) -> None:
    """It is kept, and the blocks beside its own do not notice it. IQ2_XXS has no level near zero: the 31 others would suffer."""
    rows = np.random.default_rng(5).normal(0, 0.01, (1, 1024)).astype(np.float32)
    plain = _coded(kind, rows)
    rows[0, 300] = 5
    values = _coded(kind, rows)
    assert values[0, 300] == pytest.approx(5, rel={GgmlType.MXFP4: 0.26, GgmlType.IQ2_XXS: 0.6}.get(kind, 0.06))
    assert np.array_equal(values[0, :256], plain[0, :256]) and np.array_equal(values[0, 512:], plain[0, 512:])
    assert relative_error(rows, values, None) < (0.6 if kind is GgmlType.IQ2_XXS else 0.05)


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_a_single_block(kind: GgmlType) -> None:
    rows = np.random.default_rng(6).normal(0, 1, (1, kind.block_len)).astype(np.float32)
    two = encode(kind, np.concatenate([rows, rows]))
    assert np.array_equal(np.tile(encode(kind, rows), 2), two)
    assert relative_error(rows, _coded(kind, rows), None) < 0.2


@pytest.mark.parametrize("kind", TYPES, ids=[kind.name for kind in TYPES])
def test_encoding_again_adds_next_to_nothing(kind: GgmlType) -> None:
    for rows in synthetic_rows(8).values():
        once = _coded(kind, rows)
        again = relative_error(once, _coded(kind, once), None)
        assert again <= 0.02 * relative_error(rows, once, None)
        if kind in (GgmlType.Q4_0, GgmlType.Q5_0, GgmlType.IQ4_NL, GgmlType.MXFP4, GgmlType.IQ2_XXS):
            assert again <= 1e-9  # one scale, and it is found again


def test_a_type_with_more_bits_is_never_worse() -> None:
    chains = ["Q2_K Q3_K Q4_K Q5_K Q6_K Q8_0 F16 F32", "Q4_0 Q5_0 Q8_0", "Q4_1 Q5_1 Q8_0", "IQ2_XXS Q2_K IQ4_NL Q5_0"]
    rows = synthetic_rows(8)["gaussian"]
    for chain in chains:
        errors = [relative_error(rows, _coded(GgmlType[name], rows), None) for name in chain.split()]
        assert errors == sorted(errors, reverse=True) and len(set(errors)) == len(errors)


# --- numbers as they are -------------------------------------------------------------------------------------------------


def test_f32_is_the_input() -> None:
    bits = np.random.default_rng(7).integers(0, 1 << 32, 4096, dtype=np.uint32)
    rows = bits[np.isfinite(bits.view(np.float32))][:3584].view(np.float32).reshape(7, 512)
    assert np.array_equal(encode(GgmlType.F32, rows), rows.reshape(-1).view(np.uint8))


def test_f16_rounds_to_even_and_is_cut_at_its_end() -> None:
    rows = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, 1e30, -1e30, 2**-25, 2**-24]], np.float32)
    halves = encode(GgmlType.F16, rows).view(np.float16)
    assert halves.tolist() == [1, 1 + 2**-9, 65504, 65504, 65504, -65504, 0, 2**-24]


def test_bf16_rounds_to_even_and_is_cut_at_its_end() -> None:
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(8).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    rows = values[np.isfinite(values) & (np.abs(values) < 3.38e38)][None]
    theirs = torch.from_numpy(rows).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint8).reshape(-1)
    assert np.array_equal(encode(GgmlType.BF16, rows), theirs) and rows.size > 100_000
    ends = decode(GgmlType.BF16, encode(GgmlType.BF16, np.array([[3.4028e38, -3.4028e38]], np.float32)), 2)
    assert np.isfinite(ends).all() and abs(ends[0]) > 3.38e38 and ends[1] == -ends[0]


# --- importance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES, ids=[kind.name for kind in TYPES])
def test_importance_matters(kind: GgmlType) -> None:
    """What counts gets better by a lot, at the cost of what does not count."""
    rows = synthetic_rows(8)["gaussian"]
    importance = np.where(np.random.default_rng(9).random(2048) < 0.15, 100, 1).astype(np.float32)
    plain, weighted = _coded(kind, rows), _coded(kind, rows, importance)
    gain = relative_error(rows, weighted, importance) / relative_error(rows, plain, importance)
    assert gain < (0.99 if kind is GgmlType.MXFP4 else 0.93), gain
    assert relative_error(rows, weighted, None) > relative_error(rows, plain, None)


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_only_relations_of_importances_count(kind: GgmlType) -> None:
    rows, importance = synthetic_rows(2)["uneven"], importance_for(2048)
    data = encode(kind, rows, importance)
    for factor in (2.0**-100, 2.0**90):
        assert np.array_equal(data, encode(kind, rows, importance * np.float32(factor)))
    even, none = (_coded(kind, rows, value) for value in (np.full(2048, 3, np.float32), None))
    assert relative_error(rows, even, None) == pytest.approx(relative_error(rows, none, None), rel=0.001)


# --- the same bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=IDS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_the_same_bytes_however_rows_are_cut(kind: GgmlType, weighted: bool) -> None:
    """In one call, again, row by row, in uneven slabs and from many threads; 68 rows of 1024 are more than one batch."""
    rows = np.random.default_rng(10).standard_t(4, (68, 1024)).astype(np.float32)
    importance = importance_for(1024) if weighted else None
    whole = encode(kind, rows, importance)
    assert np.array_equal(whole, encode(kind, rows.copy(order="F"), importance))
    assert np.array_equal(whole, np.concatenate([encode(kind, row[None], importance) for row in rows]))
    slabs = np.split(rows, [1, 3, 7, 20, 41])
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda slab: encode(kind, slab, importance), slabs))
    assert np.array_equal(whole, np.concatenate(parts))


@settings(deadline=None, max_examples=80)
@given(data=st.data(), kind=st.sampled_from(ALL), n_rows=st.integers(0, 5), n_blocks=st.integers(0, 4), weighted=st.booleans())
def test_any_shape_and_values(data: st.DataObject, kind: GgmlType, n_rows: int, n_blocks: int, weighted: bool) -> None:
    """Finite values come out whatever goes in, and no row depends on those around it."""
    row_len, seed = n_blocks * kind.block_len, data.draw(st.integers(0, 1 << 30))
    rng = np.random.default_rng(seed)
    magnitude = data.draw(st.sampled_from([1e-40, 1e-20, 1e-5, 1, 1e5, 1e30]))
    rows = (rng.standard_cauchy((n_rows, row_len)).clip(-1e6, 1e6) * magnitude).astype(np.float32)
    rows[rng.random(rows.shape) < data.draw(st.sampled_from([0, 0.5, 0.99]))] = 0
    importance = rng.random(row_len).astype(np.float32) ** 8 if weighted else None
    values = _coded(kind, rows, importance)
    assert values.shape == rows.shape
    if n_rows:
        assert np.array_equal(values[-1:], _coded(kind, rows[-1:], importance))


# --- bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=IDS)
def test_nan_and_infinity_are_refused_with_their_number(kind: GgmlType) -> None:
    rows = np.ones((4, 256), np.float32)
    rows[1, 3], rows[2, 7], rows[3, 0] = np.nan, np.inf, -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FormatError, match="^3 of 1024 values are NaN or infinite, and such numbers cannot be quantized$"):
            encode(kind, rows)
        with pytest.raises(FormatError, match="^1 of 256 importance values are NaN or infinite"):
            encode(kind, rows[:1], np.where(np.arange(256) == 9, np.nan, 1).astype(np.float32))
        with pytest.raises(FormatError, match="^2 of 256 importance values are negative"):
            encode(kind, rows[:1], np.where(np.arange(256) < 2, -1, 1).astype(np.float32))
        assert len(encode(kind, np.full((1, 256), np.finfo(np.float32).max, np.float32))) == kind.nbytes(256)


def test_what_is_not_rows() -> None:
    good = np.ones((2, 256), np.float32)
    with pytest.raises(ValueError, match="rows of 288 values are no multiple of Q4_K's blocks of 256"):
        encode(GgmlType.Q4_K, np.ones((2, 288), np.float32))
    with pytest.raises(ValueError, match="no multiple of Q4_0's blocks of 32"):
        encode(GgmlType.Q4_0, np.ones((2, 48), np.float32))
    for rows in (good[0], good[None], good.astype(np.float64), good.astype(np.float16)):
        with pytest.raises(ValueError, match="rows must be float32"):
            encode(GgmlType.Q8_0, rows)
    for importance in (np.ones(255, np.float32), np.ones((1, 256), np.float32), np.ones(256)):
        for kind in (GgmlType.Q8_0, GgmlType.F16):
            with pytest.raises(ValueError, match="importance must be float32"):
                encode(kind, good, importance)
    for kind in (GgmlType.Q8_K, GgmlType.IQ4_XS, GgmlType.IQ1_S):
        with pytest.raises(UnsupportedError, match=f"tensor type {kind.name} cannot be written: supported are BF16, F16"):
            encode(kind, good)
