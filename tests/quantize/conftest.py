"""Small model files made for one test: `make(name=array, ...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ds4py.gguf import GgufFile, NewTensor, open_gguf, write_gguf

Make = Callable[..., GgufFile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(arrays, name="in.gguf", **keys) -> an opened llama file of these numpy arrays [.., row]."""

    def made(arrays: Mapping[str, Any], name: str = "in.gguf", **keys: Any) -> GgufFile:
        kv = {"general.architecture": "llama", "general.file_type": 1} | {f"llama.{key}": value for key, value in keys.items()}
        write_gguf(tmp_path / name, kv, [NewTensor.of(tensor, array) for tensor, array in arrays.items()])
        return open_gguf(tmp_path / name)

    return made
