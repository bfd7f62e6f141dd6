"""String arrays: the bulk search for links against the plain walk, and the forms that they come out in."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.errors import FormatError
from ds4py.gguf.cursor import Cursor
from ds4py.gguf.strings import StringArray, read_strings


def _pack(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(s)) + s for s in strings)


def _read(strings: list[bytes], tail: bytes = b"") -> StringArray:
    packed = _pack(strings)
    cursor = Cursor(memoryview(packed + tail), "test.gguf")
    array = read_strings(cursor, len(strings))
    assert cursor.pos == len(packed)
    return array


def _check(strings: list[bytes], tail: bytes = b"") -> None:
    array = _read(strings, tail)
    texts = [s.decode("utf-8", "surrogateescape") for s in strings]
    assert len(array) == len(strings)
    assert array.tolist() == list(array) == texts
    assert [array.bytes_at(i) for i in range(len(array))] == strings
    blob, offsets = array.bytes_offsets()
    assert offsets.dtype == np.int64 and len(offsets) == len(strings) + 1
    assert [blob[a:b] for a, b in zip(offsets, offsets[1:], strict=False)] == strings


# Whatever breaks a chain of short lengths: NULs in a text, nothing, more than 255 bytes, bytes that are not UTF-8.
_WORDS = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6).map(str.encode),
    st.just(b""),
    st.just(bytes(9)),
    st.just(b"\1" + bytes(7) + b"\1" + bytes(7)),
    st.sampled_from([b"a" * 255, b"a" * 256, b"\0" * 300]),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(_WORDS, max_size=40), st.integers(1, 60), st.binary(max_size=20))
def test_any_strings_come_back(words: list[bytes], repeat: int, tail: bytes) -> None:
    _check(words * repeat, tail)


@pytest.mark.parametrize("every", [1, 65, 700, 20_000])
def test_broken_chains_at_any_distance_come_back(every: int) -> None:
    words = [b"word %d" % i for i in range(30_000)]
    for i in range(every - 1, len(words), every):
        words[i] = [b"", bytes(20), b"x" * 3000, b"\xff\xfe"][i % 4]
    _check(words, b"\0" * 64)


@settings(deadline=None, max_examples=200)
@given(st.lists(_WORDS, min_size=1, max_size=30), st.integers(1, 30), st.data())
def test_an_array_cut_anywhere_is_refused(words: list[bytes], repeat: int, data: st.DataObject) -> None:
    packed = _pack(words * repeat)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(FormatError, match="cut short"):
        read_strings(Cursor(memoryview(packed[:cut]), "test.gguf"), len(words) * repeat)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400), st.integers(0, 60))
def test_any_bytes_give_strings_inside_them_or_a_refusal(data: bytes, n: int) -> None:
    cursor = Cursor(memoryview(data * 3), "test.gguf")
    try:
        array = read_strings(cursor, n)
    except FormatError:
        return
    assert cursor.pos <= len(data) * 3
    assert _pack([array.bytes_at(i) for i in range(n)]) == (data * 3)[: cursor.pos]


def test_items_slices_and_errors() -> None:
    array = _read([b"a", b"\xff", "é".encode()])
    assert (array[0], array[-1], array[1]) == ("a", "é", "\udcff")
    assert array[1:] == ["\udcff", "é"] and array[::-1] == ["é", "\udcff", "a"]
    assert "é" in array and array.index("é") == 2
    with pytest.raises(IndexError):
        array[3]
    assert "3 strings" in repr(array)


def test_no_strings() -> None:
    _check([])
