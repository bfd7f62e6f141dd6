"""config.json, read with suspicion: counts are counts, and an error names the key.

The idea: architectures ask for values by the names the checkpoints use, and get numbers that fit each other or an error. The text
part of a multimodal model is looked into, so that an architecture sees only the text model. Two generations of spelling exist
for rotary embedding (`rope_theta` with `rope_scaling`, and `rope_parameters`, by kind of layer or not); `rope` gives one form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ds4py.convert.checkpoint import read_json
from ds4py.errors import FormatError, UnsupportedError

MAX_COUNT = 1 << 24
_PACKED = "dequantise it first, or take the original checkpoint"


@dataclass(frozen=True)
class Config:
    """The values of one config.json. `text`: those of the text model; `whole`: all of them."""

    path: Path
    whole: Mapping[str, Any]
    text: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """The class that the checkpoint names, such as "LlamaForCausalLM"."""
        names = self.whole.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise self.fail("architectures", f"is {names!r:.80}, not a list with one name")
        return names[0]

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """The same, with values that the checkpoint's own program takes for granted."""
        return replace(self, text={**defaults, **self.text})

    def fail(self, key: str, problem: str) -> FormatError:
        return FormatError(f"{self.path}: {key} {problem}")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.text.get(key)
        return self.whole.get(key, default) if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
            raise self.fail(key, f"is {value!r:.40}, not a whole number from 1 to {MAX_COUNT:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        return default if value is None and default is not None else self._positive(key, value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r:.40}, not true or false")
        return value

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads, head length."""
        n_embd, n_head = self.count("hidden_size"), self.count("num_attention_heads")
        n_head_kv = self.count("num_key_value_heads", n_head)
        if n_head % n_head_kv:
            raise self.fail("num_attention_heads", f"is {n_head}, not a multiple of num_key_value_heads {n_head_kv}")
        if self.get("head_dim") is None and n_embd % n_head:
            raise self.fail("hidden_size", f"is {n_embd}, not a multiple of num_attention_heads {n_head}")
        return n_head, n_head_kv, self.count("head_dim", n_embd // n_head)

    def rope(self, kind: str | None = None, default_base: float = 10000.0) -> Rope:
        """Rotary embedding of layers of one `kind` ("full_attention" ...), or of all."""
        table = self.get("rope_parameters")
        if isinstance(table, dict) and kind is not None and isinstance(table.get(kind), dict):
            table = table[kind]
        if not isinstance(table, dict):
            table = self.get("rope_scaling")
        table = table if isinstance(table, dict) else {}
        name = table.get("rope_type", table.get("type")) or "default"
        base = table.get("rope_theta")
        base = self.number("rope_theta", default_base) if base is None else self._positive("rope_theta", base)
        return Rope(str(name), base, table, self)

    def block(self) -> tuple[int, int]:
        """Rows and columns of an FP8 matrix that share a scale. UnsupportedError for weights packed in a way not read here."""
        how = self.whole.get("quantization_config") or self.text.get("quantization_config")
        if not how:
            return 128, 128
        method = how.get("quant_method") if isinstance(how, dict) else how
        if method != "fp8" or not isinstance(how, dict):
            raise UnsupportedError(f"{self.path}: weights packed by {method!r:.40} are not read here; {_PACKED}")
        size = how.get("weight_block_size") or [128, 128]
        if not isinstance(size, list) or len(size) != 2 or not all(isinstance(n, int) and 1 <= n <= MAX_COUNT for n in size):
            raise self.fail("weight_block_size", f"is {size!r:.40}, not two sizes")
        return size[0], size[1]

    def _positive(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise self.fail(key, f"is {value!r:.40}, not a number above 0")
        return float(value)


@dataclass(frozen=True)
class Rope:
    """One rotary embedding: its kind of scaling ("default", "linear", "llama3", "yarn" ...), base and the scaling's numbers."""

    kind: str
    base: float
    table: Mapping[str, Any]
    config: Config

    def number(self, key: str, default: float | None = None) -> float:
        value = self.table.get(key)
        if value is None and default is not None:
            return default
        return self.config._positive(key, value)


def read_config(folder: Path) -> Config:
    """The folder's config.json; FormatError or ResourceError if there is none that can be read."""
    if not folder.is_dir():
        raise FormatError(f"{folder}: this is no folder; give the folder that holds config.json and the safetensors files")
    path = folder / "config.json"
    whole = read_json(path)
    text = whole.get("text_config")
    return Config(path, whole, text if isinstance(text, dict) else whole)
