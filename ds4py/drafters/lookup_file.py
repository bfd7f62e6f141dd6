"""Lookup caches: how often which token followed a short n-gram, in memory and in llama.cpp's files.

A cache maps n-grams of 1 to 4 tokens to the tokens that followed and their counts. `LookupCache` is a mutable multiset of such
observations: whatever was added can be removed again, latest first, and the cache is then what it was, the order of first
sight (which settles ties) included. Most n-grams of a text are seen once; such an entry is the bare token, and a table of
counts is made at the second sight: a third of the memory.

The file has no head: records of little-endian int32, one per n-gram: four tokens, padded with -1 at the end; the number of
continuations; then (token, count) for each. Nothing in it can be trusted: a reader that believes a length allocates what a
stranger wrote, and an id outside the vocabulary would be proposed to the model. So every number is checked against what is left
of the file and against the vocabulary, and the first that cannot be true ends the reading with one sentence. What is written is
sorted, so equal caches make equal files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ds4py.errors import FormatError, ResourceError
from ds4py.gguf.atomic import replacing

MAX_N: Final = 4  # tokens of the longest n-gram
MAX_FILE_BYTES: Final = 256 << 20  # about ten million n-grams, one or two GB in memory
_MAX_COUNT: Final = (1 << 31) - 1
_MASKS: Final = tuple((1 << (32 * n)) - 1 for n in range(MAX_N + 1))


def pack(tokens: Sequence[int]) -> int:
    """The last MAX_N tokens as one number, 32 bits each; `packed & mask` of a shorter n-gram is that n-gram's number."""
    packed = 0
    for token in tokens[-MAX_N:]:
        packed = (packed << 32) | int(token)  # numpy's integers are too short
    return packed


def push(packed: int, token: int) -> int:
    """`packed` moved on by a token."""
    return ((packed << 32) | int(token)) & _MASKS[MAX_N]


class Continuations:
    """What followed one n-gram, in the order of first sight. Not for writing."""

    __slots__ = ("counts", "total")

    def __init__(self, counts: dict[int, int], total: int) -> None:
        self.counts = counts
        self.total = total


class LookupCache:
    """Counts of what followed n-grams. N-grams are given packed, with their length."""

    def __init__(self) -> None:
        # [n]: n-gram -> the token that followed once, or all that followed
        self._tables: list[dict[int, int | Continuations]] = [{} for _ in range(MAX_N + 1)]

    def __len__(self) -> int:
        """N-grams that something followed."""
        return sum(len(table) for table in self._tables)

    def after(self, packed: int, n: int) -> Continuations | None:
        """What followed the last n tokens of `packed`; None if nothing did."""
        entry = self._tables[n].get(packed & _MASKS[n])
        return Continuations({entry: 1}, 1) if isinstance(entry, int) else entry

    def add(self, packed: int, n: int, token: int, count: int = 1) -> None:
        table, key, token = self._tables[n], packed & _MASKS[n], int(token)
        entry = table.get(key)
        if entry is None and count == 1:
            table[key] = token
            return
        if not isinstance(entry, Continuations):
            entry = table[key] = Continuations({} if entry is None else {entry: 1}, 0 if entry is None else 1)
        entry.counts[token] = entry.counts.get(token, 0) + count
        entry.total += count

    def remove(self, packed: int, n: int, token: int) -> None:
        """Take back one observation; the latest first, so that the order of first sight stays true. KeyError if there is none."""
        table, key = self._tables[n], packed & _MASKS[n]
        entry = table[key]
        if isinstance(entry, int):
            del table[key]
            return
        entry.counts[token] -= 1
        entry.total -= 1
        if not entry.counts[token]:
            del entry.counts[token]
        if not entry.counts:
            del table[key]

    def merge(self, other: LookupCache) -> None:
        """Add another cache's counts to this one's: a session's statistics to the dynamic cache, when the session ends."""
        for n, table in enumerate(other._tables):
            for key in table:
                entry = other.after(key, n)
                for token, count in entry.counts.items() if entry else ():
                    self.add(key, n, token, count)

    @property
    def n_bytes(self) -> int:
        """Size of its file."""
        return sum(4 * (MAX_N + 1 + 2 * _n_next(entry)) for table in self._tables for entry in table.values())

    def forget_rarest(self, max_bytes: int) -> None:
        """Drop n-grams until the file has at most `max_bytes`: first all that were seen once, then up to twice, four times ..."""
        sights = 1
        while self.n_bytes > max_bytes:
            for table in self._tables:
                for key in [key for key, entry in table.items() if _n_sights(entry) <= sights]:
                    del table[key]
            sights *= 2

    def items(self) -> Iterator[tuple[tuple[int, ...], Mapping[int, int]]]:
        """(n-gram, {token: count}), in ascending order of length and n-gram."""
        for n, table in enumerate(self._tables):
            for key in sorted(table):
                entry = self.after(key, n)
                assert entry is not None
                yield tuple((key >> (32 * i)) & _MASKS[1] for i in reversed(range(n))), entry.counts


def _n_next(entry: int | Continuations) -> int:
    return 1 if isinstance(entry, int) else len(entry.counts)


def _n_sights(entry: int | Continuations) -> int:
    return 1 if isinstance(entry, int) else entry.total


def write_lookup_cache(path: str | os.PathLike[str], cache: LookupCache, mode: int | None = None) -> None:
    """Write the file whole or not at all; counts beyond int32 are capped. `mode`: its permissions, None = the system's default.
    Raises ResourceError for what the system refuses."""
    with replacing(path) as file:
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode)
        for ngram, counts in cache.items():
            padding = [-1] * (MAX_N - len(ngram))
            pairs = [number for token in sorted(counts) for number in (token, min(counts[token], _MAX_COUNT))]
            file.write(np.array([*ngram, *padding, len(counts), *pairs], "<i4").tobytes())


def read_lookup_cache(path: str | os.PathLike[str], vocab_size: int, missing_ok: bool = False) -> LookupCache:
    """Read and check a file; `missing_ok` makes an empty cache of a file that is not there (yet).

    Raises FormatError, naming the record, for anything that cannot be true of a model with `vocab_size` tokens; ResourceError
    for a file that cannot be read."""
    try:
        if missing_ok and not os.path.exists(path):
            return LookupCache()
        size = os.stat(path).st_size
        if not Path(path).is_file():
            raise FormatError(f"{path}: not a regular file")
        if size % 4 or size > MAX_FILE_BYTES:
            too_large = f"more than the {MAX_FILE_BYTES >> 20} MiB that are read"
            what = too_large if size > MAX_FILE_BYTES else "no whole number of 4-byte values"
            raise FormatError(f"{path}: not a usable lookup cache: it has {size:,} bytes, {what}")
        # copied, not mapped: a file that another process cuts short must not kill this one
        numbers = np.fromfile(path, "<i4").astype(np.int32, copy=False).data
    except FileNotFoundError as error:
        raise ResourceError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ResourceError(f"{path}: cannot read the lookup cache: {reason}") from error
    return _parse(Path(path), numbers, vocab_size)


class _Lie(Exception):
    """What cannot be true of the record at hand."""


def _parse(path: Path, numbers: memoryview, vocab_size: int) -> LookupCache:
    cache = LookupCache()
    at = n_records = 0
    while at < len(numbers):
        n_records += 1
        try:
            at = _read_record(cache, numbers, at, vocab_size)
        except _Lie as lie:
            raise FormatError(f"{path}: record {n_records:,} at byte {4 * at:,}: {lie}") from None
    return cache


def _read_record(cache: LookupCache, numbers: memoryview, at: int, vocab_size: int) -> int:
    """Add the record that begins at number `at` to the cache; returns where the next one begins."""
    if len(numbers) - at < MAX_N + 1:
        raise _Lie("the file ends inside it")
    *padded, n_next = numbers[at : at + MAX_N + 1].tolist()
    ngram = _ngram(padded, vocab_size)
    start = at + MAX_N + 1
    if not 1 <= n_next <= vocab_size:
        raise _Lie(f"it has {n_next:,} continuations, expected 1 to {vocab_size:,}")
    if 2 * n_next > len(numbers) - start:
        raise _Lie(f"it has {n_next:,} continuations, but the file ends before the last of them")
    packed, end = pack(ngram), start + 2 * n_next
    if cache.after(packed, len(ngram)):
        raise _Lie(f"its n-gram {_shown(ngram)} has a record already")
    pairs = numbers[start:end].tolist()
    tokens, counts = pairs[0::2], pairs[1::2]
    if len(set(tokens)) < n_next:
        raise _Lie(f"a token is listed twice as a continuation of {_shown(ngram)}")
    for token, count in zip(tokens, counts, strict=True):
        _check_id(token, vocab_size)
        if count < 1:
            raise _Lie(f"token {token} has the count {count}, expected 1 or more")
        cache.add(packed, len(ngram), token, count)
    return end


def _ngram(padded: Sequence[int], vocab_size: int) -> Sequence[int]:
    """The n-gram of a record without its padding."""
    n = padded.index(-1) if -1 in padded else MAX_N
    if n == 0 or any(token != -1 for token in padded[n:]):
        raise _Lie(f"its n-gram {_shown(padded)} is not 1 to {MAX_N} tokens followed by -1")
    for token in padded[:n]:
        _check_id(token, vocab_size)
    return padded[:n]


def _check_id(token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise _Lie(f"token {token} is outside the vocabulary of {vocab_size:,}: it was made for another model")


def _shown(ngram: Sequence[int]) -> str:
    return " ".join(str(token) for token in ngram)
