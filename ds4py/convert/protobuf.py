"""The protocol-buffer wire format, as much as reading a message takes: fields of numbers, float32 and bytes.

A message is a run of (key, value); key = field number * 8 + kind; kinds are 0 varint, 1 eight bytes, 2 length and bytes, 5 four
bytes. Every length is checked before it is followed, so a damaged file gives FormatError and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ds4py.errors import FormatError

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
Field = tuple[int, int, int | bytes]  # number, kind, value: the number of a varint, else the bytes


def fields(data: bytes, what: str) -> Iterator[Field]:
    """The fields of one message in order; `what` names it in the FormatError for a damaged one."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at, what)
        number, kind = key >> 3, key & 7
        if number == 0 or kind not in (VARINT, EIGHT, BYTES, FOUR):
            raise FormatError(f"{what} is damaged: byte {at} begins no field")
        if kind == VARINT:
            value, at = _varint(data, at, what)
            yield number, kind, value
            continue
        n_bytes = {EIGHT: 8, FOUR: 4}.get(kind, 0)
        if kind == BYTES:
            n_bytes, at = _varint(data, at, what)
        if n_bytes > len(data) - at:
            raise FormatError(f"{what} is cut short: a field of {n_bytes:,} bytes begins at byte {at:,} of {len(data):,}")
        yield number, kind, data[at : at + n_bytes]
        at += n_bytes


def float32(value: int | bytes, what: str) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise FormatError(f"{what} is damaged: a score is not a float32")
    return float(struct.unpack("<f", value)[0])


def _varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    """(value, position after it); at most ten bytes, seven bits each, low ones first."""
    value = 0
    for i in range(10):
        if at + i >= len(data):
            raise FormatError(f"{what} is cut short in the middle of a number")
        value |= (data[at + i] & 0x7F) << (7 * i)
        if data[at + i] < 0x80:
            return value, at + i + 1
    raise FormatError(f"{what} is damaged: a number has more than ten bytes at byte {at:,}")
