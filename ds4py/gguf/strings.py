"""String arrays of a header: found in bulk, decoded when asked.

The idea: an array of n strings is a linked list (length, text, length, text ...), and following it link by link costs a Python
step per string. But a length below 256 is a byte followed by seven zero bytes, which text hardly ever contains, so numpy finds
all *candidates* in one pass, and if each candidate's length leads exactly to the next candidate then, by induction from the
known first one, they are the true links. Where that chain breaks (an empty or long string, a NUL in a text) some links are
followed one by one. Both ways check every link against the end, so an array never reaches outside the file.
Rejected: decoding at open (most commands never look at the vocabulary), and pointer doubling over all bytes (slower than Python).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from ds4py.gguf.cursor import Cursor

_U64 = struct.Struct("<Q")
_MIN_WINDOW, _MAX_WINDOW = 4 << 10, 64 << 10  # bytes searched at a time; small enough to stay in cache
_MIN_STEPS, _MAX_STEPS = 64, 1 << 16
_GOOD_LEAP = 256  # strings that make the smallest search cheaper than as many steps


class StringArray(Sequence[str]):
    """A metadata array of strings, over the mapped file. Bytes that are not UTF-8 come out as surrogate escapes."""

    __slots__ = ("_ends", "_starts", "raw")

    def __init__(self, raw: memoryview, links: npt.NDArray[np.int64]) -> None:
        """raw: the array's bytes, lengths and texts alternating; links [n + 1]: where each length field begins, and the end."""
        self.raw = raw
        self._starts = links[:-1] + 8
        self._ends = links[1:]

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.bytes_at(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings, {len(self.raw)} bytes)"

    def bytes_at(self, index: int) -> bytes:
        """String `index` as it is stored; IndexError outside."""
        return bytes(self.raw[self._starts[index] : self._ends[index]])

    def tolist(self) -> list[str]:
        """All strings, decoded; about 0.05 s for 262,144 of them."""
        # Each length field becomes one NUL, so that one decode and one split do all the work; a NUL in a text shows in the count.
        data = np.array(np.frombuffer(self.raw, np.uint8))
        data[self._starts - 8] = 0
        joined = data[self._keep(7)].tobytes().decode("utf-8", "surrogateescape")
        strings = joined.split("\0")[1:]
        return strings if len(strings) == len(self) else self[:]

    def bytes_offsets(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """(blob, offsets [n + 1]): string i is blob[offsets[i]:offsets[i + 1]], without the length fields between."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self._ends - self._starts, out=offsets[1:])
        return np.frombuffer(self.raw, np.uint8)[self._keep(8)].tobytes(), offsets

    def _keep(self, n_dropped: int) -> npt.NDArray[np.bool_]:
        """Mask over `raw`: all bytes but the last `n_dropped` of each length field."""
        keep = np.ones(len(self.raw), np.bool_)
        for back in range(1, n_dropped + 1):
            keep[self._starts - back] = False
        return keep


def read_strings(cursor: Cursor, n: int) -> StringArray:
    """Step over `n` strings at the cursor, checking every length, without decoding any."""
    if n > (cursor.end - cursor.pos) // 8:
        cursor.overrun(f"an array of {n:,} strings", cursor.pos + 8 * n)
    cursor.spend(n, "strings")
    first = cursor.pos
    links = np.empty(n + 1, np.int64)
    links[0] = first
    done, window, n_steps = 0, _MIN_WINDOW, _MIN_STEPS
    while done < n:
        leapt, whole = _leap(cursor, links, done, n, window) if n - done >= _MIN_STEPS else (0, False)
        done += leapt
        # Windows grow while chains hold, steps grow while searches are poor: no order of strings costs much more than stepping.
        window = min(2 * window, _MAX_WINDOW) if whole else _MIN_WINDOW
        n_steps = min(2 * n_steps, _MAX_STEPS) if leapt < _GOOD_LEAP and not whole else _MIN_STEPS
        if not whole:
            done += _step(cursor, links, done, min(n, done + n_steps))
    cursor.pos = int(links[n])
    return StringArray(cursor.buf[first : cursor.pos], links - first)


def _leap(cursor: Cursor, links: npt.NDArray[np.int64], done: int, n: int, window: int) -> tuple[int, bool]:
    """Follow links from links[done] by the candidate search inside `window` bytes: how many, and whether the chain held."""
    pos = int(links[done])
    data = np.frombuffer(cursor.buf[pos : min(pos + window, cursor.end)], np.uint8)
    if len(data) < 16:
        return 0, False
    zero = data == 0
    zero2 = zero[:-1] & zero[1:]
    zero4 = zero2[:-2] & zero2[2:]
    zero7 = zero4[:-3] & zero4[3:]  # seven zero bytes begin here
    candidates = np.flatnonzero(zero7[1:])[: n - done + 1]
    if len(candidates) < 2 or candidates[0] != 0:
        return 0, False
    leads_on = candidates[:-1] + 8 + data[candidates[:-1]] == candidates[1:]
    whole = bool(leads_on.all())
    n_good = len(leads_on) if whole else int(leads_on.argmin())
    links[done + 1 : done + 1 + n_good] = candidates[1 : 1 + n_good] + pos
    return n_good, whole


def _step(cursor: Cursor, links: npt.NDArray[np.int64], done: int, stop: int) -> int:
    """Follow links[done] .. one by one until `stop` of them are known; returns how many."""
    pos, end, read = int(links[done]), cursor.end, _U64.unpack_from
    buf = cursor.buf[:end]
    found: list[int] = []
    try:
        for _ in range(done, stop):
            pos += 8 + read(buf, pos)[0]
            found.append(pos)
    except (struct.error, OverflowError):  # a link beyond the end; reported below, where links inside texts are too
        found.append(pos + 8)
    if found[-1] > end:
        index = next(i for i, link in enumerate(found) if link > end)
        cursor.overrun(f"string {done + index:,}", found[index])
    links[done + 1 : stop + 1] = found
    return stop - done
