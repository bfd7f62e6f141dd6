"""Hand-made GGUF bytes: what a sound writer would never produce has to be put together field by field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


class Raw:
    """Pieces of a GGUF file; `order` "<" or ">" is the byte order of the fixed parts."""

    text = staticmethod(text)

    @staticmethod
    def kv(key: str | bytes, type_id: int, payload: bytes) -> bytes:
        return text(key) + struct.pack("<I", type_id) + payload

    @staticmethod
    def u32(key: str | bytes, value: int) -> bytes:
        return Raw.kv(key, 4, struct.pack("<I", value))

    @staticmethod
    def string(key: str | bytes, value: str | bytes) -> bytes:
        return Raw.kv(key, 8, text(value))

    @staticmethod
    def array(key: str | bytes, element: int, count: int, payload: bytes) -> bytes:
        return Raw.kv(key, 9, struct.pack("<IQ", element, count) + payload)

    @staticmethod
    def tensor(name: str | bytes, dims: tuple[int, ...], type_id: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
        n = len(dims) if n_dims is None else n_dims
        return text(name) + struct.pack(f"<I{len(dims)}QIQ", n, *dims, type_id, offset)

    @staticmethod
    def file(
        kvs: tuple[bytes, ...] = (),
        tensors: tuple[bytes, ...] = (),
        data: bytes = b"",
        *,
        version: int = 3,
        n_kv: int | None = None,
        n_tensors: int | None = None,
        alignment: int = 32,
        order: str = "<",
    ) -> bytes:
        n_kv = len(kvs) if n_kv is None else n_kv
        n_tensors = len(tensors) if n_tensors is None else n_tensors
        head = b"GGUF" + struct.pack(f"{order}IQQ", version, n_tensors, n_kv) + b"".join(kvs) + b"".join(tensors)
        return head + bytes(-len(head) % alignment) + data if data else head


@pytest.fixture(scope="session")
def raw() -> type[Raw]:
    return Raw


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """put(data, name="model.gguf") -> path of a file with these bytes."""

    def write(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write
