"""Reading texts and writing results: whole files or none.

The idea: a result has its final name only when all of it is on the disk. The temporary file (gguf/atomic.py) is opened before
the model is loaded, so a read-only directory is reported in a second and not after an hour of work. A device or a pipe
(`/dev/stdout`, `-`) is written to directly, since it cannot be replaced by a rename.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ds4py.errors import FormatError, ResourceError
from ds4py.gguf.atomic import replacing


def read_text(path: str) -> str:
    """The UTF-8 text of a file, `-` for standard input; line ends and the last newline stay as they are.
    ResourceError if it cannot be read, FormatError if it is not text."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-" and sys.stdin is None:
            return ""
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ResourceError(f"cannot read {name}: {reason(error)}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name} is not UTF-8 text: the byte at offset {error.start} is 0x{data[error.start]:02x}") from error
    return text.removeprefix("\ufeff")


def change_directory(path: str) -> None:
    """--chdir, before anything is read. ResourceError if it cannot be."""
    try:
        os.chdir(path)
    except OSError as error:
        raise ResourceError(f"cannot change to {path}: {reason(error)}") from error


@contextlib.contextmanager
def result_file(path: str) -> Iterator[TextIO]:
    """A text file that takes the name `path` when the block ends without an error, and leaves nothing behind otherwise.
    ResourceError if the directory or the disk refuses."""
    target = Path(path)
    if path == "-":
        yield sys.stdout
    elif target.exists() and not target.is_file():
        try:
            with target.open("w", encoding="utf-8") as stream:
                yield stream
        except OSError as error:
            raise ResourceError(f"{path}: cannot write: {reason(error)}") from error
    else:
        with replacing(target.resolve()) as file:  # through a symbolic link, so that the link stays
            text = io.TextIOWrapper(file, encoding="utf-8")
            yield text
            text.detach()  # flushes, and leaves the file open for `replacing`


def reason(error: OSError) -> str:
    return error.strerror or str(error)
