"""A model file of any size that takes no room on the disk: its one large matrix is a hole, which reads as zeros."""

from __future__ import annotations

import struct
from pathlib import Path

ROW_LEN = 2048


def sparse_model(path: Path, n_bytes: int) -> Path:
    """Write a GGUF of about n_bytes at `path` with one F32 matrix, blk.0.ffn_up.weight."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    n_rows = n_bytes // (4 * ROW_LEN)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("blk.0.ffn_up.weight") + struct.pack("<IQQIQ", 2, ROW_LEN, n_rows, 0, 0)
    head += bytes(-len(head) % 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * ROW_LEN * n_rows)
    return path
