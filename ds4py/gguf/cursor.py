"""A position in a file's header that can only move inside it.

The idea: every read of the header goes through `take`, which compares with the end before it moves, so no parser above needs a
bounds check of its own and none can forget one. The cursor also knows what is being read (`subject`), so that each refusal is one
sentence naming file and key or tensor. Two budgets, bytes and items, bound the time and memory that any header can cost; they lie
far above real files (the largest vocabularies have some 800,000 strings in 20 MB). Rejected: trusting the counts and catching
struct.error or MemoryError afterwards, because by then a hostile count has already been allocated.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from ds4py.errors import FormatError

MAX_HEADER_BYTES = 256 << 20
MAX_ITEMS = 1 << 21  # strings of one header; a nested array costs as much as 128 of them
MAX_NAME_BYTES = 65_535  # the format's own limit for keys

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def shown(name: str) -> str:
    """`name` quoted for a message: control characters escaped, cut at 80 characters."""
    return repr(name if len(name) <= 80 else name[:80] + "...")


class Cursor:
    """Reads little-endian values of `buf`; FormatError instead of a step past its end."""

    __slots__ = ("buf", "end", "items_left", "path", "pos", "size", "subject")

    def __init__(self, buf: memoryview, path: str) -> None:
        self.buf = buf
        self.path = path
        self.pos = 0
        self.size = len(buf)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self.items_left = MAX_ITEMS
        self.subject = "header"

    def fail(self, text: str) -> NoReturn:
        """Refuse the file: `text` says what is wrong with the current subject."""
        raise FormatError(f"{self.path}: {self.subject}: {text}")

    def overrun(self, what: str, needed: int) -> NoReturn:
        """Refuse the file because `what` would end at byte `needed`."""
        if self.end < self.size and needed <= self.size:
            self.fail(f"{what} ends at byte {needed:,}, beyond the {self.end:,} bytes that a header may have")
        self.fail(f"{what} ends at byte {needed:,} but the file has {self.size:,} bytes: it is cut short or damaged")

    def take(self, n_bytes: int, what: str) -> int:
        """Step over `n_bytes` and return where they begin."""
        start = self.pos
        if n_bytes > self.end - start:
            self.overrun(what, start + n_bytes)
        self.pos = start + n_bytes
        return start

    def spend(self, n: int, what: str, cost: int = 1) -> None:
        """Take `n` things of `cost` items each from the budget."""
        self.items_left -= n * cost
        if self.items_left < 0:
            self.fail(f"with {n:,} {what} the header has more than the {MAX_ITEMS // cost:,} allowed")

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buf, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buf, self.take(8, what))[0]
        return value

    def name(self, what: str) -> str:
        """A key or tensor name: not empty, valid UTF-8, no NUL, at most 65,535 bytes."""
        n_bytes = self.u64(f"length of the {what}")
        if n_bytes == 0:
            self.fail(f"the {what} is empty")
        if n_bytes > MAX_NAME_BYTES:
            self.fail(f"the {what} claims {n_bytes:,} bytes, more than the {MAX_NAME_BYTES:,} allowed")
        start = self.take(n_bytes, what)
        raw = bytes(self.buf[start : start + n_bytes])
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            self.fail(f"the {what} {raw[:40]!r} is not valid UTF-8")
        if "\0" in name:
            self.fail(f"the {what} {shown(name)} has a NUL character in it")
        return name
