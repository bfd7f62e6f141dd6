"""Decoders against llama.cpp's own C functions: the only oracle of Q8_K, and a second one of the others."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ds4py.gguf import GgmlType
from ds4py.quants import QUANTS, decode

C_NAMES = {kind: f"dequantize_row_{kind.name.lower().replace('_k', '_K')}" for kind in QUANTS if kind > GgmlType.F16}
C_NAMES.pop(GgmlType.BF16)


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    """llama.cpp's base library as llama-cpp-python ships it; the package itself is not imported."""
    spec = find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llama-cpp-python is not installed, and Q8_K has no other oracle")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    found = sorted([*folder.glob("libggml-base.so"), *folder.glob("libggml-base.dylib"), *folder.glob("ggml-base.dll")])
    if not found:
        pytest.skip(f"no ggml base library in {folder}")
    return ctypes.CDLL(str(found[0]))


def _c_decode(ggml: ctypes.CDLL, kind: GgmlType, data: npt.NDArray[np.uint8], n: int) -> npt.NDArray[np.float32]:
    try:
        function = getattr(ggml, C_NAMES[kind])
    except AttributeError:
        pytest.skip(f"this llama.cpp does not export {C_NAMES[kind]}")
    out = np.empty(n, np.float32)
    function.restype = None
    function(ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(n))
    return out


def _scaled_blocks(kind: GgmlType, n_blocks: int) -> npt.NDArray[np.uint8]:
    """Random blocks whose scales are ordinary numbers: a C compiler may contract or reorder what is infinite or NaN."""
    spec, rng = QUANTS[kind], np.random.default_rng(kind)
    blocks = rng.integers(0, 256, n_blocks * spec.block_bytes, dtype=np.uint8).view(spec.layout)
    for field in {"d", "dmin", "m"} & set(spec.layout.names or ()):
        blocks[field] = rng.normal(0, 1, n_blocks)
    if kind is GgmlType.MXFP4:
        blocks["e"] = rng.integers(110, 140, n_blocks)
    return blocks.view(np.uint8)


@pytest.mark.parametrize("kind", list(C_NAMES), ids=[kind.name for kind in C_NAMES])
def test_blocks_decode_as_in_llama_cpp(ggml: ctypes.CDLL, kind: GgmlType) -> None:
    data = _scaled_blocks(kind, 400)
    n = 400 * kind.block_len
    ours, theirs = decode(kind, data, n), _c_decode(ggml, kind, data, n)
    if kind in (GgmlType.Q8_K, GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.Q5_0):  # one product a value: nothing to contract
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    else:  # d * q - m may have been compiled as one fused operation: within an ulp of the larger term
        assert np.abs(ours - theirs).max() <= 4e-7 * np.abs(theirs).max()
    assert len(np.unique(ours)) > (100 if kind is GgmlType.MXFP4 else 1000)


def test_q8_k_blocks_made_by_llama_cpp(ggml: ctypes.CDLL) -> None:
    values = np.random.default_rng(0).normal(0, 3, 512).astype(np.float32)
    data = np.zeros(2 * GgmlType.Q8_K.block_bytes, np.uint8)
    ggml.quantize_row_q8_K_ref(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(512))
    blocks = QUANTS[GgmlType.Q8_K].blocks(data)
    assert np.array_equal(blocks["bsums"], blocks["qs"].reshape(2, 16, 16).astype(np.int16).sum(axis=2))
    decoded = decode(GgmlType.Q8_K, data, 512)
    assert np.array_equal(decoded.view(np.uint32), _c_decode(ggml, GgmlType.Q8_K, data, 512).view(np.uint32))
    assert np.abs(decoded - values).max() <= np.abs(values).max() / 127
