"""Reading fields of a JSON object that a stranger sent.

The idea: a reader asks for each field it knows, by name and kind; what is wrong is said with the field's path
(`messages[3].content`), and what nobody asked for is left over, to be reported in one line and otherwise ignored. Clients send
many fields of their own, so an unknown one is no error; null counts as absent everywhere. Rejected: schemas generated from
classes, whose messages name types of ours and which cannot tell "harmless and unknown" from "cannot be obeyed".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ds4py.server.asked import Refusal, bad

_MAX_INT: Final = 2**63


class Fields:
    """One object. Getters give None for a field that is absent or null, and raise Refusal for one of another kind."""

    def __init__(self, table: Any, where: str = "") -> None:
        if not isinstance(table, Mapping):
            raise bad(f"{where or 'the request body'} must be a JSON object, not {kind_of(table)}", where or None)
        self.table: Mapping[str, Any] = table
        self.where = where
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def any(self, name: str) -> Any:
        self._read.add(name)
        return self.table.get(name)

    def skip(self, *names: str) -> None:
        """These are known and mean nothing here; no line is logged for them."""
        self._read |= set(names)

    def text(self, name: str) -> str | None:
        value = self.any(name)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, "a string", value)

    def flag(self, name: str) -> bool | None:
        value = self.any(name)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false", value)

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        value = self.any(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._wrong(name, _between("a number", low, high), value)
        return float(value)

    def integer(self, name: str, low: int = -_MAX_INT, high: int = _MAX_INT) -> int | None:
        value = self.any(name)
        if value is None:
            return None
        whole = isinstance(value, float) and value.is_integer()  # clients in JavaScript write 5.0
        if isinstance(value, bool) or not (isinstance(value, int) or whole) or not low <= value <= high:
            raise self._wrong(name, _between("a whole number", low, high), value)
        return int(value)

    def items(self, name: str) -> Sequence[Any] | None:
        value = self.any(name)
        if value is None or isinstance(value, list):
            return value
        raise self._wrong(name, "a list", value)

    def object(self, name: str) -> Fields | None:
        value = self.any(name)
        return None if value is None else Fields(value, self.path(name))

    def objects(self, name: str) -> Iterator[Fields]:
        for i, item in enumerate(self.items(name) or ()):
            yield Fields(item, f"{self.path(name)}[{i}]")

    def unread(self) -> tuple[str, ...]:
        """Fields that nobody asked for."""
        return tuple(self.path(name) for name, value in self.table.items() if name not in self._read and value is not None)

    def _wrong(self, name: str, wanted: str, value: Any) -> Refusal:
        shown = f"{value!r:.40}" if isinstance(value, str | int | float) else kind_of(value)
        return bad(f"{self.path(name)} must be {wanted}, not {shown}", self.path(name))


def read_json(body: bytes) -> Any:
    """The value in a request body. Raises Refusal for what is no JSON, and for what is nested too deeply."""
    if not body.strip():
        raise bad("the request body is empty; it must be a JSON object")
    try:
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError:
            return json.loads(body, parse_constant=_no_constant)  # it takes half surrogates, which JavaScript lets through
    except RecursionError:
        raise bad("the request body is nested too deeply") from None
    except ValueError as error:
        raise bad(f"the request body is not valid JSON: {error}") from None


def kind_of(value: Any) -> str:
    """A JSON value's kind, for people."""
    kinds: Mapping[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _between(noun: str, low: float, high: float) -> str:
    if low > -_MAX_INT and high < _MAX_INT:
        return f"{noun} from {low} to {high}"
    return f"{noun} of at least {low}" if low > -_MAX_INT else noun
