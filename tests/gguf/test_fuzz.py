"""Mutated, cut, spliced and random bytes: the reader opens them or raises one of our errors, whatever they are.

A file that does open is then used up: every key, every array in every form, every tensor's bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4py.errors import Ds4Error
from ds4py.gguf import GgmlType, GgufType, NewTensor, StringArray, Value, open_gguf, write_gguf

FUZZ = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
_SPECIAL = [0, 1, 7, 8, 9, 13, 31, 33, 64, 255, 2**16]
_SPECIAL += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def sound(folder: Path) -> bytes:
    """A small file with every kind of value, an alignment, and tensors of several types."""
    kv = {
        "general.architecture": "llama",
        "general.alignment": 16,
        "llama.block_count": 1,
        "llama.rope.freq_base": 1e4,
        "split.count": Value(GgufType.UINT16, 0),
        "on": True,
        "words": ["a", "bc", "", "ü" * 4] * 30,
        "scores": [0.0, -1.5, 2.0],
        "kinds": Value(GgufType.ARRAY, [1, 2, 3], GgufType.INT8),
        "flags": [True, False],
        "nested": [[1, 2], ["x", "y"], [[1.0]]],
    }
    tensors = [
        NewTensor("q", (32, 3), GgmlType.Q4_0, bytes(54)),
        NewTensor.of("f", np.arange(12, dtype=np.float32).reshape(3, 4)),
        NewTensor.of("h", np.arange(5, dtype=np.float16)),
    ]
    write_gguf(folder / "sound.gguf", kv, tensors)
    return (folder / "sound.gguf").read_bytes()


def _use_up(folder: Path, data: bytes) -> bool:
    """Open and read everything; True if the file was taken."""
    path = folder / "fuzzed.gguf"
    path.unlink(missing_ok=True)  # never write into a file that an earlier example may have mapped
    path.write_bytes(data)
    try:
        g = open_gguf(path)
        for key in g.kv:
            value = g.kv[key]
            assert g.kv.typed[key].type_name()
            if hasattr(value, "tolist"):
                assert len(value.tolist()) == len(value)
            if isinstance(value, StringArray):
                blob, offsets = value.bytes_offsets()
                assert len(blob) == offsets[-1]
        for tensor in g.tensors.values():
            assert int(tensor.data.sum(dtype=np.uint64)) >= 0 and len(tensor.data) == tensor.nbytes
            tensor.release()
        _ = g.architecture, g.get("block_count", kind=int), g.require("rope.freq_base", float)
    except Ds4Error as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return False
    return True


def test_the_sound_file_is_taken(folder: Path, sound: bytes) -> None:
    assert _use_up(folder, sound)


@FUZZ
@given(edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(folder: Path, sound: bytes, edits: list[tuple[int, int]]) -> None:
    data = bytearray(sound)
    for at, byte in edits:
        data[at % len(data)] = byte
    _use_up(folder, bytes(data))


@FUZZ
@given(at=st.integers(0, 10_000), value=st.sampled_from(_SPECIAL), size=st.sampled_from([4, 8]))
def test_counts_and_lengths_of_every_size(folder: Path, sound: bytes, at: int, value: int, size: int) -> None:
    at %= len(sound) - 8
    word = struct.pack("<Q", value)[:size]
    _use_up(folder, sound[:at] + word + sound[at + size :])


@FUZZ
@given(a=st.integers(0, 10_000), b=st.integers(0, 10_000), c=st.integers(0, 10_000))
def test_cut_and_spliced(folder: Path, sound: bytes, a: int, b: int, c: int) -> None:
    a, b, c = (x % len(sound) for x in (a, b, c))
    _use_up(folder, sound[:a] + sound[b:c] + sound[c if a % 2 else a :])


@FUZZ
@given(n_tensors=st.integers(0, 3), n_kv=st.integers(0, 3), rest=st.binary(max_size=200))
def test_random_bytes_after_a_sound_start(folder: Path, n_tensors: int, n_kv: int, rest: bytes) -> None:
    _use_up(folder, b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + rest)


_NAME = st.binary(max_size=4).map(lambda raw: struct.pack("<Q", len(raw)) + raw)
_ENTRY = st.tuples(_NAME, st.sampled_from([*range(14), 99]), st.binary(max_size=40)).map(
    lambda parts: parts[0] + struct.pack("<I", parts[1]) + parts[2]
)
_DIMS = st.lists(st.sampled_from(_SPECIAL), max_size=5)
_ROW = st.tuples(_NAME, st.integers(0, 5), _DIMS, st.integers(0, 42), st.sampled_from(_SPECIAL)).map(
    lambda parts: parts[0] + struct.pack(f"<I{len(parts[2])}QIQ", parts[1], *parts[2], parts[3], parts[4])
)


@FUZZ
@given(entries=st.lists(_ENTRY, max_size=2), rows=st.lists(_ROW, max_size=3), data=st.binary(max_size=100))
def test_random_fields(folder: Path, entries: list[bytes], rows: list[bytes], data: bytes) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(entries)) + b"".join(entries) + b"".join(rows)
    _use_up(folder, head + data)


@FUZZ
@given(data=st.binary(max_size=300))
def test_random_bytes(folder: Path, data: bytes) -> None:
    _use_up(folder, data)
