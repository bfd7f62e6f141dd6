"""Importance matrices: both formats, to the byte where llama.cpp's is fixed, and files that are damaged, hostile or foreign."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.errors import Ds4Error, FormatError, ResourceError
from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.quantize import Entry, Imatrix, read_imatrix, write_imatrix

DENSE = Entry(np.array([40, 10, 0, 5], np.float32), np.array([1024], np.float32))
EXPERTS = Entry(np.arange(6, dtype=np.float32), np.array([4, 0, 2], np.float32))
MATRIX = Imatrix({"blk.0.attn_q.weight": DENSE, "blk.0.ffn_up_exps.weight": EXPERTS}, ("a.txt",), 2, 512)


def entry(name: bytes, calls: int, *values: float) -> bytes:
    return struct.pack(f"<i{len(name)}sii{len(values)}f", len(name), name, calls, len(values), *values)


SOUND = struct.pack("<i", 2) + entry(b"one", 4, 8, 2) + entry(b"two", 1, 3) + struct.pack("<ii5s", 7, 5, b"a.txt")


@pytest.fixture
def put(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        (tmp_path / "im.dat").write_bytes(data)
        return tmp_path / "im.dat"

    return write


def test_the_legacy_format_is_read_as_it_is_defined(put: Callable[[bytes], Path]) -> None:
    found = read_imatrix(put(SOUND))
    assert {name: list(e.mean()) for name, e in found.entries.items()} == {"one": [2.0, 0.5], "two": [3.0]}
    assert found.datasets == ("a.txt",) and found.n_chunks == 7
    assert list(read_imatrix(put(SOUND[: -(8 + 5)])).entries) == ["one", "two"]  # older files end after the entries


def test_the_legacy_format_is_written_as_it_is_defined(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "im.dat", MATRIX)
    means = [40 / 1024, 10 / 1024, 0, 5 / 1024]
    expected = struct.pack("<i", 2) + entry(b"blk.0.attn_q.weight", 2, *(2 * x for x in means))
    expected += entry(b"blk.0.ffn_up_exps.weight", 1, 0, 0.25, 1, 1, 2, 2.5) + struct.pack("<ii5s", 2, 5, b"a.txt")
    assert (tmp_path / "im.dat").read_bytes() == expected


@pytest.mark.parametrize("name", ["im.dat", "im.gguf", "im"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    write_imatrix(tmp_path / name, MATRIX)
    found = read_imatrix(tmp_path / name)
    assert (tmp_path / name).read_bytes()[:4] == (b"GGUF" if name == "im.gguf" else struct.pack("<i", 2))
    for key, original in MATRIX.entries.items():
        assert np.allclose(found.entries[key].mean(), original.mean(), rtol=1e-6)
    assert tuple(found.datasets) == ("a.txt",) and found.n_chunks == 2
    again = tmp_path / "again.dat"
    write_imatrix(again, found)
    assert np.allclose(read_imatrix(again).entries["blk.0.attn_q.weight"].mean(), DENSE.mean(), rtol=1e-6)


def test_the_gguf_form_has_the_names_that_llama_cpp_reads(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "im.gguf", MATRIX)
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(tmp_path / "im.gguf")
    shapes = {t.name: (t.tensor_type.name, list(map(int, t.shape))) for t in reader.tensors}
    assert shapes == {
        "blk.0.attn_q.weight.in_sum2": ("F32", [4, 1]),
        "blk.0.attn_q.weight.counts": ("F32", [1, 1]),
        "blk.0.ffn_up_exps.weight.in_sum2": ("F32", [2, 3]),
        "blk.0.ffn_up_exps.weight.counts": ("F32", [1, 3]),
    }
    assert reader.fields["general.type"].contents() == "imatrix" and reader.fields["imatrix.datasets"].contents() == ["a.txt"]
    numbers = [reader.fields[f"imatrix.{key}"] for key in ("chunk_count", "chunk_size")]
    assert [(f.types[0].name, f.contents()) for f in numbers] == [("UINT32", 2), ("UINT32", 512)]


def test_an_expert_without_samples_is_neutral() -> None:
    assert EXPERTS.mean().tolist() == [0, 0.25, 1, 1, 2, 2.5]


def test_importance_fits_the_tensor_or_is_refused() -> None:
    assert MATRIX.importance("blk.9.attn_q.weight", 1, 4) is None
    by_expert = MATRIX.importance("blk.0.ffn_up_exps.weight", 3, 2)
    assert by_expert is not None and by_expert.tolist() == [[0, 0.25], [1, 1], [2, 2.5]]
    shared = MATRIX.importance("blk.0.attn_q.weight", 5, 4)
    assert shared is not None and shared.shape == (5, 4) and (shared == DENSE.mean()).all()
    with pytest.raises(FormatError, match="attn_q.weight has 4 columns, the tensor needs 8: .*another model"):
        MATRIX.importance("blk.0.attn_q.weight", 1, 8)
    with pytest.raises(FormatError, match="has 6 columns, the tensor needs 4 x 2"):
        MATRIX.importance("blk.0.ffn_up_exps.weight", 4, 2)


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "ends inside"),
        (struct.pack("<i", 0), "number of entries is 0"),
        (struct.pack("<i", -1), "number of entries is -1"),
        (struct.pack("<i", 2**31 - 1), "number of entries is 2147483647"),
        (struct.pack("<ii", 1, -5), "length of a name is -5"),
        (struct.pack("<ii", 1, 2**30), "length of a name"),
        (struct.pack("<ii3s", 1, 5, b"abc"), "ends inside a name"),
        (struct.pack("<ii2sii", 1, 2, b"\xff\xfe", 1, 1), "is no text"),
        (struct.pack("<ii3sii", 1, 3, b"abc", 1, 2**31 - 1), "number of values of abc"),
        (struct.pack("<ii3sii", 1, 3, b"abc", 1, 0), "number of values of abc is 0"),
        (struct.pack("<ii3sii", 1, 3, b"abc", -1, 1) + bytes(4), "number of calls of abc is -1"),
        (struct.pack("<i", 2) + entry(b"one", 1, 1) + entry(b"one", 1, 1), "one is there twice"),
        (struct.pack("<i", 1) + entry(b"one", 1, float("nan")), "negative or not finite"),
        (struct.pack("<i", 1) + entry(b"one", 1, float("inf")), "negative or not finite"),
        (struct.pack("<i", 1) + entry(b"one", 1, -1), "negative or not finite"),
        (SOUND + b"x", "1 bytes follow its end"),
        (SOUND[:-2], "ends inside the name of the data set"),
        (b"PK\x03\x04 and so on, a zip", "number of entries"),
    ],
)
def test_damaged_files_are_refused(put: Callable[[bytes], Path], data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        read_imatrix(put(data))


@pytest.mark.parametrize("end", range(4, len(SOUND) - 1))
def test_every_cut_is_noticed(put: Callable[[bytes], Path], end: int) -> None:
    path = put(SOUND[:end])
    if end == len(SOUND) - 13:  # what an older file looks like
        assert len(read_imatrix(path).entries) == 2
    else:
        with pytest.raises(FormatError):
            read_imatrix(path)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_never_end_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(SOUND)
    for at, byte in changes:
        data[at] = byte
    path = tmp_path_factory.mktemp("fuzz") / "im.dat"
    path.write_bytes(data)
    try:
        read_imatrix(path)
    except Ds4Error as error:
        assert str(path) in str(error)


def test_foreign_gguf_files_are_refused(tmp_path: Path) -> None:
    sums = NewTensor.of("a.in_sum2", np.ones((1, 4), np.float32))
    cases = {
        "no importance matrix": [NewTensor.of("token_embd.weight", np.ones((4, 32), np.float32))],
        "tensor 'a.counts' is missing": [sums],
        "do not fit together": [sums, NewTensor.of("a.counts", np.ones((3, 1), np.float32))],
        "no business": [
            sums,
            NewTensor.of("a.counts", np.ones((1, 1), np.float32)),
            NewTensor.of("b.counts", np.ones((1, 1), np.float32)),
        ],
        "not finite": [
            NewTensor.of("a.in_sum2", np.full((1, 4), np.nan, np.float32)),
            NewTensor.of("a.counts", np.ones((1, 1), np.float32)),
        ],
    }
    for why, tensors in cases.items():
        write_gguf(tmp_path / "im.gguf", {"general.type": "imatrix"}, tensors)
        with pytest.raises(FormatError, match=why):
            read_imatrix(tmp_path / "im.gguf")
    assert open_gguf(tmp_path / "im.gguf")
    with pytest.raises(ResourceError, match="cannot read the importance matrix"):
        read_imatrix(tmp_path / "nothing.dat")
