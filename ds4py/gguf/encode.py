"""Metadata values to bytes: the inverse of values.py.

The idea: `Value` names a type exactly, plain Python gets the type that converters use for it (int: uint32 where it fits, then
int32, uint64, int64; float: float32; a list: the one type that holds all its items). A value that does not fit its type is an
error, never a wrapped number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.gguf.strings import StringArray
from ds4py.gguf.types import GgufType
from ds4py.gguf.values import LazyText, NumberArray, Value

_INT_TYPES = (GgufType.UINT32, GgufType.INT32, GgufType.UINT64, GgufType.INT64)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def typed(value: Any) -> Value:
    """`value` with a type chosen for it; ValueError if no GGUF type holds it."""
    if isinstance(value, Value):
        return value
    if isinstance(value, (list, tuple, np.ndarray, NumberArray, StringArray)):
        return _typed_array(value)
    return Value(_type_of([value]), value)


def encode(value: Value) -> bytes:
    """Type id and payload, as they stand in a file after the key. ValueError if the data does not fit the type."""
    return _U32.pack(value.type) + _payload(value)


def encode_text(text: str | bytes) -> bytes:
    """Length and bytes; surrogate escapes become the bytes that they stand for."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return _U64.pack(len(raw)) + raw


def _typed_array(values: Any) -> Value:
    if isinstance(values, StringArray):
        return Value(GgufType.ARRAY, values, GgufType.STRING)
    if isinstance(values, (np.ndarray, NumberArray)):
        array = np.asarray(values)
        element = next((t for t in GgufType if t.dtype and np.dtype(t.dtype) == array.dtype), None)
        if element is None or array.ndim != 1:
            raise ValueError(f"no GGUF array holds a numpy array {array.dtype} with {array.ndim} dimensions")
        return Value(GgufType.ARRAY, array, element)
    if not len(values):
        raise ValueError("the element type of an empty array cannot be guessed: give a Value")
    if all(isinstance(item, (list, tuple, Value)) for item in values):
        return Value(GgufType.ARRAY, tuple(typed(item) for item in values), GgufType.ARRAY)
    return Value(GgufType.ARRAY, values, _type_of(values))


def _type_of(items: Sequence[Any]) -> GgufType:
    """The one type that holds all items."""
    if all(isinstance(item, (bool, np.bool_)) for item in items):
        return GgufType.BOOL
    if all(isinstance(item, (str, bytes)) for item in items):
        return GgufType.STRING
    if all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in items):
        low, high = min(map(int, items)), max(map(int, items))
        for kind in _INT_TYPES:
            limits = np.iinfo(kind.dtype)
            if limits.min <= low and high <= limits.max:
                return kind
    elif all(isinstance(item, (int, float, np.integer, np.floating)) and not isinstance(item, bool) for item in items):
        return GgufType.FLOAT32
    raise ValueError(f"no GGUF type holds {items[0]!r}" if len(items) == 1 else "no GGUF array type holds all items")


def _payload(value: Value) -> bytes:
    if value.type is GgufType.STRING:
        if isinstance(value.data, LazyText):
            return _U64.pack(len(value.data.raw)) + bytes(value.data.raw)
        return encode_text(value.data)
    if value.type is not GgufType.ARRAY:
        return _numbers([value.data], value.type)
    if value.element is None:
        raise ValueError("an array needs an element type")
    return _U32.pack(value.element) + _U64.pack(len(value.data)) + _elements(value.data, value.element)


def _elements(data: Any, element: GgufType) -> bytes:
    if element is GgufType.STRING:
        if isinstance(data, StringArray):
            return bytes(data.raw)  # it has the file's own form already
        return b"".join(map(encode_text, data))
    if element is not GgufType.ARRAY:
        return _numbers(data, element)
    parts = [typed(item) for item in data]
    if any(part.type is not GgufType.ARRAY for part in parts):
        raise ValueError("an array of arrays has an item that is no array")
    return b"".join(map(_payload, parts))


def _numbers(data: Any, kind: GgufType) -> bytes:
    """Numbers in the type's dtype; ValueError if one does not fit."""
    dtype = np.dtype(kind.dtype)
    source = np.asarray(data) if len(data) else np.empty(0, dtype)
    if source.ndim != 1 or not _fits(source, dtype):
        raise ValueError(f"{kind.name.lower()} cannot hold {data!r:.80}")
    return source.astype(dtype).tobytes()


def _fits(source: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether the numbers keep their meaning in `dtype`: integers exactly, floats but for rounding."""
    if dtype.kind == "b":
        return source.dtype.kind == "b"
    if source.dtype.kind not in ("iuf" if dtype.kind == "f" else "iu"):
        return False
    if not source.size:
        return True
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return bool((np.isfinite(source.astype(dtype)) == np.isfinite(source)).all())
    limits = np.iinfo(dtype)
    return bool(limits.min <= int(source.min()) and int(source.max()) <= limits.max)
