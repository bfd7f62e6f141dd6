"""Lookup-cache files: the bytes, a round trip, and every way in which a file can lie."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED, random_text

from ds4py.drafters.lookup_file import LookupCache, pack, read_lookup_cache, write_lookup_cache
from ds4py.drafters.ngram_cache import NgramCache, open_lookup_caches
from ds4py.errors import Ds4Error, FormatError, ResourceError

V = 1000


def record(ngram: list[int], *numbers: int) -> bytes:
    return struct.pack(f"<{4 + len(numbers)}i", *ngram, *numbers)


GOOD = record([5, -1, -1, -1], 1, 6, 3) + record([3, 4, -1, -1], 2, 9, 3, 5, 1) + record([1, 2, 3, 4], 1, 999, 2147483647)


def refused(path: Path, data: bytes, vocab_size: int = V) -> str:
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_lookup_cache(path, vocab_size)
    sentence = str(caught.value)
    assert sentence.startswith(str(path)) and "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


def test_the_bytes_are_llama_cpps(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(GOOD)
    cache = read_lookup_cache(path, V)
    assert {key: dict(counts) for key, counts in cache.items()} == {
        (5,): {6: 3},
        (3, 4): {9: 3, 5: 1},
        (1, 2, 3, 4): {999: 2147483647},
    }
    copy = tmp_path / "copy.bin"
    write_lookup_cache(copy, cache)
    sorted_pairs = GOOD.replace(record([3, 4, -1, -1], 2, 9, 3, 5, 1), record([3, 4, -1, -1], 2, 5, 1, 9, 3))
    assert copy.read_bytes() == sorted_pairs
    assert sorted(os.listdir(tmp_path)) == ["cache.bin", "copy.bin"]


def test_what_a_session_learned_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    caches = open_lookup_caches(None, path, V)  # a dynamic file is made at the end of the first session
    drafter = NgramCache(caches)
    drafter.observe(random_text(500, 20, seed=3), {})
    caches.dynamic.merge(drafter.learned)
    write_lookup_cache(path, caches.dynamic)
    again = open_lookup_caches(path, path, V)
    assert list(again.dynamic.items()) == list(again.static.items())
    assert {key: dict(c) for key, c in again.dynamic.items()} == {key: dict(c) for key, c in drafter.learned.items()}
    before = path.read_bytes()
    write_lookup_cache(path, again.dynamic)
    assert path.read_bytes() == before


def test_counts_beyond_the_format_are_capped(tmp_path: Path) -> None:
    path = tmp_path / "c"
    cache = LookupCache()
    cache.add(pack([1, 2]), 2, 3, 2**31 - 1)
    cache.add(pack([1, 2]), 2, 3, 5)
    write_lookup_cache(path, cache)
    assert [dict(counts) for _, counts in read_lookup_cache(path, V).items()] == [{3: 2**31 - 1}]


def test_an_empty_file_is_an_empty_cache(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    write_lookup_cache(path, LookupCache())
    assert path.stat().st_size == 0 and len(read_lookup_cache(path, V)) == 0


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (GOOD + b"\0", "no whole number of 4-byte values"),
        (GOOD + b"\0" * 4, "record 4 at byte 92: the file ends inside it"),
        (GOOD + record([7, -1, -1, -1]), "record 4 at byte 92: the file ends inside it"),
        (GOOD + record([7, -1, -1, -1], 1), "it has 1 continuations, but the file ends before the last of them"),
        (GOOD[:-8], "it has 1 continuations, but the file ends before the last of them"),
        (GOOD[:-4], "it has 1 continuations, but the file ends before the last of them"),
        (record([7, -1, -1, -1], 0), "record 1 at byte 0: it has 0 continuations, expected 1 to 1,000"),
        (record([7, -1, -1, -1], -1, 6, 1), "it has -1 continuations"),
        (record([7, -1, -1, -1], 2147483647, 6, 1), "it has 2,147,483,647 continuations, expected 1 to 1,000"),
        (record([7, -1, -1, -1], 1000, 6, 1), "it has 1,000 continuations, but the file ends before the last of them"),
        (record([-1, -1, -1, -1], 1, 6, 1), "its n-gram -1 -1 -1 -1 is not 1 to 4 tokens followed by -1"),
        (record([-1, 5, -1, -1], 1, 6, 1), "its n-gram -1 5 -1 -1 is not 1 to 4 tokens followed by -1"),
        (record([5, -1, 5, -1], 1, 6, 1), "its n-gram 5 -1 5 -1 is not 1 to 4 tokens followed by -1"),
        (record([5, -2, -1, -1], 1, 6, 1), "token -2 is outside the vocabulary of 1,000"),
        (record([1000, -1, -1, -1], 1, 6, 1), "token 1000 is outside the vocabulary of 1,000"),
        (record([5, -1, -1, -1], 1, 1000, 1), "token 1000 is outside the vocabulary of 1,000"),
        (record([5, -1, -1, -1], 1, -1, 1), "token -1 is outside the vocabulary of 1,000"),
        (record([5, -1, -1, -1], 1, 6, 0), "token 6 has the count 0, expected 1 or more"),
        (record([5, -1, -1, -1], 1, 6, -2147483648), "token 6 has the count -2147483648, expected 1 or more"),
        (record([5, -1, -1, -1], 2, 6, 1, 6, 1), "a token is listed twice as a continuation of 5"),
        (GOOD + record([3, 4, -1, -1], 1, 6, 1), "record 4 at byte 92: its n-gram 3 4 has a record already"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_a_file_that_lies_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    assert says in refused(tmp_path / "bad.bin", data)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="1,099,511,627,776 bytes, more than the 256 MiB that are read"):
        read_lookup_cache(path, V)


def test_a_text_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "notes.txt", b"these are my notes, not a cache.")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="no such file"):
        open_lookup_caches(tmp_path / "none", None, V)
    for vocabulary in (V, 5):
        assert len(open_lookup_caches(None, tmp_path / "none", vocabulary).dynamic) == 0
    for kind in ("static", "dynamic"):
        with pytest.raises(FormatError, match="not a regular file"):
            open_lookup_caches(*((tmp_path, None) if kind == "static" else (None, tmp_path)), V)
    with pytest.raises(ResourceError, match="cannot write the file"):
        write_lookup_cache(tmp_path / "no folder" / "cache", LookupCache())
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot read the lookup cache"):
        read_lookup_cache(tmp_path / "file" / "cache", V)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_bytes(GOOD)
    cache = LookupCache()
    cache.add(pack([1]), 1, 2)
    cache.add(pack([2]), 1, 2**40)  # no int32: writing fails half-way
    with pytest.raises((OverflowError, ValueError)):
        write_lookup_cache(path, cache)
    assert path.read_bytes() == GOOD and os.listdir(tmp_path) == ["cache"]


@UNTIMED
@given(st.binary(max_size=200) | st.lists(st.integers(-2, 6), max_size=60).map(lambda n: struct.pack(f"<{len(n)}i", *n)))
def test_any_bytes_give_a_cache_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(data)
    try:
        cache = read_lookup_cache(path, 5)
    except Ds4Error as error:
        assert "\n" not in str(error)
        return
    write_lookup_cache(path, cache)
    assert len(path.read_bytes()) == len(data)
    for ngram, counts in cache.items():
        assert 1 <= len(ngram) <= 4 and counts and all(0 <= t < 5 for t in (*ngram, *counts)) and min(counts.values()) > 0


@UNTIMED
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte_or_a_lost_tail_never_crashes(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.bin"
    path.write_bytes(GOOD[:at])
    if at in (0, 28, 64):  # whole records are left
        assert len(read_lookup_cache(path, V)) == (0, 28, 64).index(at)
    else:
        with pytest.raises(FormatError):
            read_lookup_cache(path, V)
    path.write_bytes(GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])
    with suppress(FormatError):
        assert len(read_lookup_cache(path, V)) == 3
