"""Metadata of a model file, read with suspicion: every value is checked where it is read, and an error names the key.

A wrong count that is believed ends as a crash inside a kernel or, worse, as fluent nonsense. The checks live in these readers and
not in the architecture files, which then read like a table of what the architecture has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgufFile

MAX_COUNT = 1 << 24  # above any real width, layer count or context: a damaged number, not a large model


@dataclass(frozen=True)
class Heads:
    """Attention shape: n_head query heads share n_head_kv key/value heads of head_len dimensions."""

    n_head: int
    n_head_kv: int
    head_len: int

    @property
    def q_len(self) -> int:
        return self.n_head * self.head_len

    @property
    def kv_len(self) -> int:
        return self.n_head_kv * self.head_len


class Header:
    """Checked access to the keys `<architecture>.<name>` of one file."""

    def __init__(self, g: GgufFile) -> None:
        self._g = g

    def key(self, name: str) -> str:
        return f"{self._g.architecture}.{name}"

    def fail(self, name: str, problem: str) -> FormatError:
        """The error to raise about a key of this architecture."""
        return FormatError(f"{self._g.path}: {self.key(name)} {problem}.")

    def raw(self, name: str) -> Any:
        """The value as stored, or None."""
        return self._g.get(name, None)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 up; an array is accepted when all its entries agree (a file may give one entry per layer)."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise self.fail(name, "is missing")
            return default
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value):
            if any(entry != value[0] for entry in value):
                raise UnsupportedError(f"{self._g.path}: {self.key(name)} differs between layers, which is not supported.")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"is {value!r}, not a whole number")
        if not 1 <= value <= MAX_COUNT:
            raise self.fail(name, f"is {value}; it must be between 1 and {MAX_COUNT}")
        return value

    def number(self, name: str, default: float | None = None, positive: bool = True) -> float:
        """A finite number, above 0 unless `positive` is False."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise self.fail(name, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fail(name, f"is {value!r}, not a finite number")
        if positive and value <= 0:
            raise self.fail(name, f"is {value}; it must be above 0")
        return float(value)

    def numbers(self, name: str, n: int) -> list[float]:
        """The first n entries of an array of finite numbers; a single number stands for all entries."""
        value = self.raw(name)
        if value is None:
            raise self.fail(name, "is missing")
        entries = list(value)[:n] if isinstance(value, Sequence) and not isinstance(value, str) else [value] * n
        if len(entries) < n:
            raise self.fail(name, f"has {len(entries)} entries, fewer than the {n} layers")
        bad = next((x for x in entries if isinstance(x, bool) or not isinstance(x, (int, float)) or not math.isfinite(x)), None)
        if bad is not None:
            raise self.fail(name, f"holds {bad!r}, not a finite number")
        return entries

    def heads(self, n_embd: int) -> Heads:
        """`attention.head_count`, `head_count_kv` and `key_length`, which must fit each other and the hidden size `n_embd`."""
        n_head = self.count("attention.head_count")
        n_head_kv = self.count("attention.head_count_kv", n_head)
        if n_head % n_head_kv:
            raise self.fail("attention.head_count", f"is {n_head}, not a multiple of attention.head_count_kv {n_head_kv}")
        if self.raw("attention.key_length") is None and n_embd % n_head:
            raise self.fail("embedding_length", f"is {n_embd}, not a multiple of attention.head_count {n_head}")
        head_len = self.count("attention.key_length", n_embd // n_head)
        if self.count("attention.value_length", head_len) != head_len:
            raise UnsupportedError(
                f"{self._g.path}: {self.key('attention.value_length')} differs from attention.key_length {head_len}, "
                "which is not supported for this architecture."
            )
        return Heads(n_head, n_head_kv, head_len)

    def refuse(self, name: str, what: str) -> None:
        """Raise UnsupportedError if the file has a value other than 0 or False under `name`, a part that is not built."""
        if self.raw(name):
            raise UnsupportedError(f"{self._g.path}: {self.key(name)} asks for {what}, which {self._g.architecture} lacks here.")
