"""Files that we write: read back by us and by the `gguf` package, byte-equal to a real file, whole or not there at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.errors import ResourceError
from ds4py.gguf import GgmlType, GgufType, NewTensor, Value, open_gguf, write_gguf

KV: dict[str, Any] = {
    "general.architecture": "llama",
    "t.u8": Value(GgufType.UINT8, 255),
    "t.i8": Value(GgufType.INT8, -128),
    "t.u16": Value(GgufType.UINT16, 65_535),
    "t.i16": Value(GgufType.INT16, -1),
    "t.u32": 4_000_000_000,
    "t.i32": -5,
    "t.u64": 2**64 - 1,
    "t.i64": -(2**40),
    "t.f32": 0.5,
    "t.f64": Value(GgufType.FLOAT64, 0.1),
    "t.bool": True,
    "t.text": "ü🦙",
    "t.words": ["a", "", "ü"],
    "t.floats": [1.0, 2],
    "t.ints": [1, -1],
    "t.flags": [True, False],
    "t.bytes": np.arange(3, dtype=np.uint8),
    "t.none": Value(GgufType.ARRAY, [], GgufType.STRING),
    "t.nested": [[1, 2], [3]],
}


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return _plain(value.data)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def test_every_type_is_read_back_by_us_and_by_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, KV, [NewTensor.of("w", np.arange(24, dtype=np.float32).reshape(2, 3, 4))])
    g = open_gguf(path)
    assert {key: _plain(g.kv[key]) for key in g.kv} == {key: _plain(value) for key, value in KV.items()}
    types = [g.kv.typed[f"t.{key}"].type.name for key in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64")]
    assert types == ["UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT32", "FLOAT64"]
    reader = oracle.GGUFReader(path)
    for key in set(KV) - {"t.nested", "t.none"}:  # the package's reader flattens nested arrays
        assert reader.fields[key].contents() == _plain(KV[key]), key
    tensor = reader.tensors[0]
    assert tensor.name == "w" and tensor.shape.tolist() == [4, 3, 2] and np.array_equal(tensor.data.ravel(), np.arange(24))


def test_metadata_of_a_read_file_is_written_unchanged(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", KV | {"t.long": "x" * 100_000, "general.alignment": Value(GgufType.UINT64, 64)})
    write_gguf(tmp_path / "b.gguf", open_gguf(tmp_path / "a.gguf").kv.typed)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_real_model_is_copied_byte_for_byte(smollm2_path: Path, tmp_path: Path) -> None:
    g = open_gguf(smollm2_path)
    write_gguf(tmp_path / "copy.gguf", g.kv.typed, [NewTensor(t.name, t.shape, t.type, t.data) for t in g.tensors.values()])
    with smollm2_path.open("rb") as theirs, (tmp_path / "copy.gguf").open("rb") as ours:
        while chunk := theirs.read(1 << 22):
            assert ours.read(1 << 22) == chunk
        assert not ours.read(1)


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignment_is_obeyed(tmp_path: Path, alignment: int) -> None:
    tensors = [NewTensor.of(f"t{n}", np.arange(n, dtype=np.float32)) for n in (3, 33, 100)]
    write_gguf(tmp_path / "a.gguf", {"general.alignment": alignment}, tensors)
    g = open_gguf(tmp_path / "a.gguf")
    assert g.alignment == alignment
    for tensor in g.tensors.values():
        assert tensor.start % alignment == 0 and np.array_equal(tensor.data.view(np.float32), np.arange(tensor.row_len))


_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_LEAF = st.one_of(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4), st.lists(_TEXT, min_size=1, max_size=4), st.just([True])
)
_VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(width=32), st.booleans(), _TEXT, _LEAF, st.lists(_LEAF, min_size=1, max_size=3)
)
_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(deadline=None, max_examples=80)
@given(kv=st.dictionaries(_NAMES, _VALUES, max_size=5), names=st.sets(_NAMES, max_size=3))
def test_anything_written_is_read_back(folder: Path, kv: dict[str, Any], names: set[str]) -> None:
    path = folder / "a.gguf"
    tensors = [NewTensor.of(name, np.arange(i + 1, dtype=np.int16)) for i, name in enumerate(names)]
    write_gguf(path, kv, tensors)
    g = open_gguf(path)
    assert repr([_plain(g.kv[key]) for key in g.kv]) == repr(list(kv.values())) and list(g.kv) == list(kv)
    assert [t.data.view(np.int16).tolist() for t in g.tensors.values()] == [list(range(i + 1)) for i in range(len(names))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def test_tensor_data_is_streamed_in_the_memory_of_one_piece(tmp_path: Path) -> None:
    piece = np.arange(1 << 18, dtype=np.float32)
    calls: list[int] = []

    def pieces() -> Iterator[np.ndarray]:
        for i in range(16):
            calls.append(i)
            yield piece + i

    tracemalloc.start()
    write_gguf(tmp_path / "a.gguf", {}, [NewTensor(f"t{n}", (1 << 18, 16), GgmlType.F32, pieces) for n in range(2)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(calls) == 32 and peak < 4 * piece.nbytes  # 32 MB written
    data = open_gguf(tmp_path / "a.gguf").tensors["t1"].data.view(np.float32)
    assert data[-1] == piece[-1] + 15


# --- what a caller gets wrong --------------------------------------------------------------------------------------------


def _tensor(name: str = "t", shape: tuple[int, ...] = (4,), kind: GgmlType = GgmlType.F32, data: Any = bytes(16)) -> NewTensor:
    return NewTensor(name, shape, kind, data)


@pytest.mark.parametrize(
    "kv, tensors, fragment",
    [
        ({}, [_tensor(), _tensor()], "tensor 't' is given twice"),
        ({}, [_tensor(data=bytes(15))], "has 15 bytes, its shape needs 16"),
        ({}, [_tensor(data=bytes(17))], "has at least 17 bytes"),
        ({}, [_tensor(data=lambda: [bytes(16), bytes(16)])], "has at least 32 bytes"),
        ({}, [_tensor(shape=())], "cannot be stored"),
        ({}, [_tensor(shape=(4, 0))], "cannot be stored"),
        ({}, [_tensor(shape=(1, 1, 1, 1, 4))], "cannot be stored"),
        ({}, [_tensor(shape=(33,), kind=GgmlType.Q4_0)], "cannot be stored as Q4_0"),
        ({}, [_tensor(name="")], "is no name"),
        ({}, [_tensor(name="a\0")], "is no name"),
        ({"": 1}, [], "is no name"),
        ({"k": []}, [], "metadata key 'k': the element type of an empty array"),
        ({"k": [1, "a"]}, [], "no GGUF array type holds all items"),
        ({"k": None}, [], "no GGUF type holds None"),
        ({"k": 2**64}, [], "no GGUF type holds"),
        ({"k": [2**63, -1]}, [], "no GGUF array type"),
        ({"k": [True, 1]}, [], "no GGUF array type"),
        ({"k": Value(GgufType.UINT8, 256)}, [], "uint8 cannot hold"),
        ({"k": Value(GgufType.UINT32, -1)}, [], "uint32 cannot hold"),
        ({"k": Value(GgufType.UINT32, 1.0)}, [], "uint32 cannot hold"),
        ({"k": Value(GgufType.FLOAT32, 1e300)}, [], "float32 cannot hold"),
        ({"k": Value(GgufType.BOOL, 1)}, [], "bool cannot hold"),
        ({"k": Value(GgufType.ARRAY, [1])}, [], "needs an element type"),
        ({"k": Value(GgufType.ARRAY, [1], GgufType.ARRAY)}, [], "no array"),
        ({"k": np.zeros((2, 2))}, [], "no GGUF array holds"),
        ({"general.alignment": 12}, [], "multiple of 8"),
    ],
)
def test_what_no_file_can_hold_is_refused_and_leaves_nothing(tmp_path: Path, kv: Any, tensors: Any, fragment: str) -> None:
    with pytest.raises(ValueError, match="(?s).*") as caught:
        write_gguf(tmp_path / "a.gguf", kv, tensors)
    assert fragment in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- what the system refuses ------------------------------------------------------------------------------------------------


def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {"old": 1})

    def interrupted() -> Iterator[bytes]:
        yield bytes(8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, {"new": 1}, [_tensor(data=interrupted)])
    assert list(tmp_path.iterdir()) == [path] and "old" in open_gguf(path).kv


_LIMITED = """
import resource, sys
from ds4py.errors import ResourceError
from ds4py.gguf import GgmlType, NewTensor, write_gguf
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    write_gguf(sys.argv[1], {}, [NewTensor("t", (1 << 20,), GgmlType.F32, lambda: (bytes(1 << 16) for _ in range(64)))])
except ResourceError as error:
    print(error)
"""


def test_a_disk_that_fills_up_leaves_no_partial_file(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)  # the limit stands for the full disk: write() fails half way
    result = subprocess.run([sys.executable, "-c", _LIMITED, tmp_path / "a.gguf"], capture_output=True, text=True, check=True)
    assert "a.gguf: cannot write the file: File too large" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_fit_is_refused_before_any_data_is_made(tmp_path: Path) -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("the data was asked for")
        yield b""

    with pytest.raises(ResourceError, match="bytes are needed, but the disk has"):
        write_gguf(tmp_path / "a.gguf", {}, [_tensor(shape=(1 << 40, 1 << 10), data=never)])
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", Path("/proc")):
        with pytest.raises(ResourceError, match="cannot write the file"):
            write_gguf(folder / "a.gguf", {})
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o555)
        with pytest.raises(ResourceError, match="Permission denied"):
            write_gguf(tmp_path / "a.gguf", {})
        tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == []
