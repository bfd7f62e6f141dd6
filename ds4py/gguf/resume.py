"""Writing a GGUF file that takes hours, so that an interrupted run can be taken up again.

The idea: tensors are written in order and their places are known before the first byte, so how far a run came is one number. The
file grows as NAME.partial; beside it NAME.partial.json says how many of its bytes are safely on the disk and what they are the
beginning of (a hash of the header and of whatever the caller says its input is). A later run with the same beginning goes on at
that byte; one with another is refused. When the last byte is written the file takes its name and the note goes.
Rejected: trusting the partial file's length, which after a crash may be that of bytes that never reached the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any

from ds4py.errors import FormatError, ResourceError
from ds4py.gguf.atomic import replacing, sync_folder
from ds4py.gguf.writer import NewTensor, check_space, header_bytes, write_tensor

_MARK_BYTES = 64 << 20  # written between two notes


def partial_path(path: Path) -> Path:
    """Where an unfinished `path` grows."""
    return path.with_name(path.name + ".partial")


def is_written(path: str | os.PathLike[str], kv: Mapping[str, Any], tensors: Iterable[NewTensor]) -> bool:
    """Whether `path` is there and is what these make, as far as its metadata, its list of tensors and its length tell: what an
    earlier run that writes several files has finished."""
    target, table = Path(path), list(tensors)
    header, alignment = header_bytes(kv, table)
    total = len(header) + sum(tensor.nbytes + -tensor.nbytes % alignment for tensor in table)
    if not target.is_file() or target.stat().st_size != total:
        return False
    with target.open("rb") as file:
        return file.read(len(header)) == header


def write_resumable(
    path: str | os.PathLike[str], kv: Mapping[str, Any], tensors: Iterable[NewTensor], identity: str = ""
) -> None:
    """As `write_gguf`, going on where an interrupted run stopped. `identity`: what the data are made from, in any words.

    Raises what `write_gguf` raises, and FormatError if the partial file there is the beginning of another one. Whatever is
    raised, what was written stays."""
    target, table = Path(path), list(tensors)
    header, alignment = header_bytes(kv, table)
    run = _Run(target, hashlib.sha256(header + identity.encode()).hexdigest())
    total = len(header) + sum(tensor.nbytes + -tensor.nbytes % alignment for tensor in table)
    done = run.done()
    check_space(target, total - done)
    try:
        with run.opened(done) as file:
            if done < len(header):
                file.seek(0)
                file.write(header)
                run.mark(file)
            start = len(header)
            for tensor in table:
                stop = start + tensor.nbytes + -tensor.nbytes % alignment
                if done < stop:
                    write_tensor(file, tensor, alignment, max(0, done - start), run.mark_now_and_then)
                    run.mark_now_and_then(file)
                start = stop
            run.mark(file)
        run.finish()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(f"{run.part}: cannot write the file: {reason}; what there is of it stays") from error


class _Run:
    """One unfinished file and its note."""

    def __init__(self, target: Path, fingerprint: str) -> None:
        self.target, self.part = target, partial_path(target)
        self.note = self.part.with_name(self.part.name + ".json")
        self.fingerprint = fingerprint
        self._marked = 0

    def done(self) -> int:
        """Bytes that an earlier run has left, 0 if there was none."""
        if not self.note.exists():
            return 0
        try:
            told = json.loads(self.note.read_text("utf-8"))
            size = self.part.stat().st_size
        except (OSError, ValueError):
            return 0
        n = told.get("bytes") if isinstance(told, dict) else None
        if not isinstance(told, dict) or told.get("of") != self.fingerprint:
            raise FormatError(
                f"{self.part} is the beginning of another file (other options, input or program version); delete it to begin anew"
            )
        return n if isinstance(n, int) and 0 <= n <= size else 0

    def opened(self, done: int) -> BufferedRandom:
        """The partial file, cut to `done` bytes, at its end."""
        file = self.part.open("r+b" if done else "w+b")
        file.truncate(done)
        file.seek(done)
        self._marked = done
        return file

    def mark_now_and_then(self, file: BufferedRandom) -> None:
        if file.tell() - self._marked >= _MARK_BYTES:
            self.mark(file)

    def mark(self, file: BufferedRandom) -> None:
        """Note how far the file has come, once that much of it is on the disk."""
        file.flush()
        os.fsync(file.fileno())
        self._marked = file.tell()
        with replacing(self.note) as note:
            note.write(json.dumps({"of": self.fingerprint, "bytes": self._marked}).encode())

    def finish(self) -> None:
        os.replace(self.part, self.target)
        with suppress(OSError):
            self.note.unlink()
        sync_folder(self.target.parent)
