"""Decoders against the `gguf` package, bit for bit: on random bytes, on chosen scales, and on the tensors of real models."""

from __future__ import annotations

from pathlib import Path

import gguf as oracle
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgmlType, open_gguf
from ds4py.quants import QUANTS, decode, quant
from ds4py.quants.iq2_xxs import GRID, SIGNS

WITH_ORACLE = [q.type for q in QUANTS.values() if q.type is not GgmlType.Q8_K]  # the package has no Q8_K
IDS = [kind.name for kind in WITH_ORACLE]


def _theirs(kind: GgmlType, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        rows = oracle.dequantize(data.reshape(-1, kind.block_bytes), oracle.GGMLQuantizationType(int(kind)))
    return np.asarray(rows, np.float32).reshape(-1)


def _assert_same_bits(kind: GgmlType, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Both decode `data` alike: equal bits, where any NaN equals any other."""
    n_values = len(data) // kind.block_bytes * kind.block_len
    ours, theirs = decode(kind, data, n_values), _theirs(kind, data)
    assert ours.dtype == np.float32 and ours.shape == theirs.shape == (n_values,)
    different = (ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs))
    assert not different.any(), f"{kind.name}: {different.sum()} of {n_values} values differ, first at {different.argmax()}"
    return ours


def test_the_types_of_the_issue_are_all_there() -> None:
    names = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ4_NL IQ4_XS MXFP4 Q8_K"
    assert {q.name for q in QUANTS.values()} == set(names.split())


@pytest.mark.parametrize("kind", WITH_ORACLE, ids=IDS)
def test_random_blocks(kind: GgmlType) -> None:
    rng = np.random.default_rng(kind)
    values = _assert_same_bits(kind, rng.integers(0, 256, 1500 * kind.block_bytes, dtype=np.uint8))
    assert len(np.unique(values[np.isfinite(values)])) > min(1000, len(values) // 2)  # the data did vary


@pytest.mark.parametrize("kind", WITH_ORACLE, ids=IDS)
def test_chosen_scales(kind: GgmlType) -> None:
    """Every 16-bit pattern that is odd in some way, in every aligned 16-bit place of the block, so surely in the scales."""
    odd = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0xFE00, 0x3C00], np.uint16)
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (len(odd), kind.block_bytes), dtype=np.uint8)
    places = [at for at in range(0, kind.block_bytes - 1, 2) if at < 8 or at >= kind.block_bytes - 8]
    data = np.repeat(blocks[None], max(1, len(places)), axis=0)
    for i, at in enumerate(places):
        data[i, :, at : at + 2] = odd.view(np.uint8).reshape(-1, 2)
    _assert_same_bits(kind, data.reshape(-1))


@pytest.mark.parametrize("kind", WITH_ORACLE, ids=IDS)
def test_every_value_of_every_byte(kind: GgmlType) -> None:
    """Blocks that are zero, or 0x3C bytes (scales of about one), but for one byte that takes all its values."""
    for fill in (0, 0x3C):
        places = range(0, kind.block_bytes, max(1, kind.block_bytes // 24))
        data = np.full((len(places), 256, kind.block_bytes), fill, np.uint8)
        for i, at in enumerate(places):
            data[i, :, at] = np.arange(256)
        _assert_same_bits(kind, data.reshape(-1))


@settings(deadline=None, max_examples=60)
@given(kind=st.sampled_from(WITH_ORACLE), data=st.data())
def test_any_blocks(kind: GgmlType, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    raw = data.draw(st.binary(min_size=n * kind.block_bytes, max_size=n * kind.block_bytes))
    _assert_same_bits(kind, np.frombuffer(raw, np.uint8))


def test_mxfp4_scales_are_all_powers_of_two() -> None:
    blocks = np.full((256, 17), 0x22, np.uint8)  # code 2 is 1.0
    blocks[:, 0] = np.arange(256)
    values = decode(GgmlType.MXFP4, blocks.reshape(-1), 256 * 32).reshape(256, 32)
    powers = 2.0 ** (np.arange(255) - 127.0)
    assert np.array_equal(values[:255, 0].astype(np.float64), powers) and np.isinf(values[255, 0])  # 2^128 is no float32


def test_bf16_is_the_upper_half_of_a_float32() -> None:
    all_halves = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(decode(GgmlType.BF16, all_halves.view(np.uint8), 1 << 16).view(np.uint32) >> 16, all_halves)


def test_iq2_xxs_constants_are_the_formats() -> None:
    table = oracle.quants.IQ2_XXS
    table.init_grid()
    assert np.array_equal(GRID, np.asarray(table.grid).reshape(256, 8))
    bits = np.unpackbits(np.frombuffer(table.ksigns, np.uint8)[:, None], axis=1, bitorder="little")
    assert np.array_equal(SIGNS < 0, bits == 1) and set(np.unique(SIGNS)) == {-1, 1}


def test_sizes_are_the_formats() -> None:
    for kind, (block_len, block_bytes) in oracle.constants.GGML_QUANT_SIZES.items():
        ours = GgmlType(int(kind))
        assert (ours.name, ours.block_len, ours.block_bytes) == (kind.name, block_len, block_bytes)
    for spec in QUANTS.values():
        assert spec.layout.itemsize == spec.block_bytes == spec.type.block_bytes


def test_a_layout_tells_where_its_fields_lie() -> None:
    assert quant(GgmlType.Q4_K).offset("qs") == 16 and quant(GgmlType.Q6_K).offset("d") == 208
    blocks = np.zeros(2, quant(GgmlType.Q8_0).layout)
    blocks["d"], blocks["qs"] = [[1, 2], np.arange(64, dtype=np.int8).reshape(2, 32)]
    values = decode(GgmlType.Q8_0, blocks.view(np.uint8), 64)
    assert np.array_equal(values, np.arange(64) * np.repeat([1, 2], 32))


def test_a_large_tensor_is_decoded_without_large_temporaries() -> None:
    import tracemalloc

    data = np.random.default_rng(0).integers(0, 256, (1 << 22) // 256 * 210, dtype=np.uint8)
    tracemalloc.start()
    values = decode(GgmlType.Q6_K, data, 1 << 22)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes + (4 << 20)
    assert np.array_equal(values[-256:], decode(GgmlType.Q6_K, data[-210:], 256), equal_nan=True)


def test_what_cannot_be_decoded() -> None:
    assert len(decode(GgmlType.Q4_K, np.empty(0, np.uint8), 0)) == 0
    with pytest.raises(UnsupportedError, match="tensor type IQ1_S cannot be decoded: supported are F32, F16"):
        decode(GgmlType.IQ1_S, np.zeros(50, np.uint8), 256)
    for n_bytes, n_values in ((17, 32), (36, 32), (18, 31), (18, -32)):
        with pytest.raises(ValueError):
            decode(GgmlType.Q4_0, np.zeros(n_bytes, np.uint8), n_values)
    with pytest.raises(ValueError):
        decode(GgmlType.Q4_0, np.zeros(18, np.int8), 32)


# --- real models ---------------------------------------------------------------------------------------------------------


def _sample_model(path: Path) -> set[GgmlType]:
    """The first and last rows of every tensor, decoded alike; returns the types met."""
    seen = set()
    for tensor in open_gguf(path).tensors.values():
        n_rows = min(4, tensor.n_rows)
        row_bytes = tensor.nbytes // tensor.n_rows
        for rows in (tensor.data[: n_rows * row_bytes], tensor.data[-n_rows * row_bytes :]):
            values = _assert_same_bits(tensor.type, rows)
            assert np.isfinite(values).all() and values.any(), tensor.name
        seen.add(tensor.type)
    return seen


def test_smollm2(smollm2_path: Path) -> None:
    assert _sample_model(smollm2_path) == {GgmlType.Q4_1, GgmlType.Q8_0, GgmlType.F32}


def test_gemma(gemma_path: Path) -> None:
    assert _sample_model(gemma_path) == {GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q5_0, GgmlType.Q8_0, GgmlType.F32}


def test_qwen(qwen_path: Path) -> None:
    assert _sample_model(qwen_path) == {GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q5_0, GgmlType.Q8_0, GgmlType.F32}
