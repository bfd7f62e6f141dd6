"""Metadata values: scalars decoded at once, arrays left in the mapped file until somebody looks.

The idea: `Value` is what a file stores (type id and payload), and plain Python is what callers want, so `Metadata` maps keys to
the latter and its `typed` view keeps the former, which lets a writer copy metadata of another file without guessing types.
Arrays are sequences over the mapped bytes: opening a file therefore costs no more than checking where each of them ends.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ds4py.gguf.cursor import Cursor, shown
from ds4py.gguf.strings import read_strings
from ds4py.gguf.types import GgufType

MAX_NESTING = 4
_EAGER_TEXT_BYTES = 64 << 10  # longer texts (an embedded tokenizer.json) are checked at open but decoded on access


@dataclass(frozen=True)
class Value:
    """One metadata value with its stored type; `element` is the element type of an ARRAY.

    data: int, float, bool, str or LazyText; for arrays NumberArray, StringArray, a tuple of `Value` (nested), or - for writing -
    any sequence of Python scalars or strings (str or bytes).
    """

    type: GgufType
    data: Any
    element: GgufType | None = None

    def plain(self) -> Any:
        """The value as Python: a scalar, a str, or a sequence."""
        if isinstance(self.data, LazyText):
            return self.data.decode()
        if isinstance(self.data, tuple):
            return tuple(item.plain() if isinstance(item, Value) else item for item in self.data)
        return self.data

    def type_name(self) -> str:
        """For people: "uint32", "array of 262144 string"."""
        if self.element is None:
            return self.type.name.lower()
        return f"array of {len(self.data)} {self.element.name.lower()}"


@dataclass(frozen=True)
class LazyText:
    """A long string left in the file; known to be valid UTF-8."""

    raw: memoryview

    def decode(self) -> str:
        return str(self.raw, "utf-8")


class NumberArray(Sequence[Any]):
    """A metadata array of numbers or booleans, over the mapped file: items come out as Python scalars."""

    __slots__ = ("_array",)

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._array[index].tolist()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self._array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"NumberArray({len(self)} {self._array.dtype})"

    def tolist(self) -> list[Any]:
        values: list[Any] = self._array.tolist()
        return values

    def numpy(self) -> npt.NDArray[Any]:
        """Read-only view [n] in the stored dtype; it may be unaligned."""
        return self._array


class Metadata(Mapping[str, Any]):
    """The key/value section of a file: keys to plain Python values, in file order; `typed` has the stored types."""

    __slots__ = ("typed",)

    def __init__(self, typed: dict[str, Value]) -> None:
        self.typed: Mapping[str, Value] = MappingProxyType(typed)

    def __getitem__(self, key: str) -> Any:
        return self.typed[key].plain()

    def __contains__(self, key: object) -> bool:
        return key in self.typed

    def __iter__(self) -> Iterator[str]:
        return iter(self.typed)

    def __len__(self) -> int:
        return len(self.typed)

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys)"


def read_value(cursor: Cursor) -> Value:
    """The typed value at the cursor; FormatError if anything about it is not as the format says."""
    kind = _read_type(cursor, "its value")
    if kind is GgufType.ARRAY:
        return _read_array(cursor, 1)
    if kind is GgufType.STRING:
        return Value(kind, _read_text(cursor))
    array = _read_numbers(cursor, kind, 1)
    return Value(kind, array[0])


def _read_type(cursor: Cursor, what: str) -> GgufType:
    number = cursor.u32(f"the type of {what}")
    try:
        return GgufType(number)
    except ValueError:
        cursor.fail(f"{what} has type {number}, which the GGUF format does not define")


def _read_text(cursor: Cursor) -> str | LazyText:
    n_bytes = cursor.u64("the length of its text")
    start = cursor.take(n_bytes, "its text")
    raw = cursor.buf[start : start + n_bytes]
    try:
        if n_bytes <= _EAGER_TEXT_BYTES:
            return str(raw, "utf-8")
        decoder = codecs.getincrementaldecoder("utf-8")()
        for at in range(0, n_bytes, _EAGER_TEXT_BYTES):
            decoder.decode(raw[at : at + _EAGER_TEXT_BYTES], at + _EAGER_TEXT_BYTES >= n_bytes)
    except UnicodeDecodeError as error:
        cursor.fail(f"its text is not valid UTF-8 ({error.reason})")
    return LazyText(raw)


def _read_numbers(cursor: Cursor, kind: GgufType, n: int) -> NumberArray:
    dtype = np.dtype(kind.dtype)
    start = cursor.take(n * dtype.itemsize, f"{n:,} values of type {kind.name.lower()}" if n != 1 else "its value")
    raw = cursor.buf[start : cursor.pos]
    if kind is GgufType.BOOL and n and int(np.frombuffer(raw, np.uint8).max()) > 1:
        cursor.fail("a boolean is neither 0 nor 1")
    return NumberArray(np.frombuffer(raw, dtype))


def _read_array(cursor: Cursor, depth: int) -> Value:
    element = _read_type(cursor, "its element")
    n = cursor.u64("the length of its array")
    if element is GgufType.STRING:
        return Value(GgufType.ARRAY, read_strings(cursor, n), element)
    if element is not GgufType.ARRAY:
        return Value(GgufType.ARRAY, _read_numbers(cursor, element, n), element)
    if depth == MAX_NESTING:
        cursor.fail(f"its arrays are nested more than {MAX_NESTING} deep")
    if n > (cursor.end - cursor.pos) // 12:  # an empty array takes 12 bytes
        cursor.overrun(f"an array of {n:,} arrays", cursor.pos + 12 * n)
    cursor.spend(n, "nested arrays", 128)
    return Value(GgufType.ARRAY, tuple(_read_array(cursor, depth + 1) for _ in range(n)), element)


def describe(name: str) -> str:
    """How messages call the metadata key `name`."""
    return f"metadata key {shown(name)}"
