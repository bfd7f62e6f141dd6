"""Writing several files that make sense only together, and copying tensors as they are stored.

The idea: each file is written whole under a temporary name; when the last one is complete all take their names, the first shard,
by which the others are found, last. A failure on the way, Ctrl-C included, leaves the folder as it was.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.errors import ResourceError
from ds4py.gguf import NewTensor, Tensor, write_gguf

COPY_BYTES = 8 << 20
OutFile = tuple[Path, Mapping[str, Any], Sequence[NewTensor]]


def write_together(files: Sequence[OutFile]) -> Sequence[Path]:
    """Write (path, metadata, tensors) each; returns the paths. Raises ResourceError, and what the tensors' data raise."""
    if len(files) == 1:
        path, kv, tensors = files[0]
        write_gguf(path, kv, tensors)
        return [path]
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    parts = [path.with_name(f".{path.name[:200]}.{token}.part") for path, _, _ in files]
    try:
        for part, (_, kv, tensors) in zip(parts, files, strict=True):
            write_gguf(part, kv, tensors)
        for part, (path, _, _) in reversed(list(zip(parts, files, strict=True))):  # the first, by which all are found, is last
            try:
                os.replace(part, path)
            except OSError as error:
                raise ResourceError(f"{path}: cannot write the file: {error.strerror or error}") from error
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink()
    return [path for path, _, _ in files]


def stored(tensor: Tensor, start: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """The tensor's bytes from byte `start` on, in pieces; the pages of a piece are given back when the next one is asked for."""
    for first in range(start, tensor.nbytes, COPY_BYTES):
        piece = tensor.read(first, first + COPY_BYTES)
        yield piece
        tensor.release(first, first + len(piece))


def copied(tensor: Tensor) -> NewTensor:
    """`tensor` to be written again, byte for byte."""
    return NewTensor(tensor.name, tensor.shape, tensor.type, lambda: stored(tensor))
