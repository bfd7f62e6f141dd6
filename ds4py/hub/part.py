"""The unfinished file: `FILE.part`, and beside it `FILE.part.json`, which tells what it is a part of and is the lock.

The idea: the only state of a download is how long the part is. Bytes are appended in order and unbuffered, so whatever ends the
process (Ctrl-C, kill -9, a full disk) leaves a prefix of the file, and going on means reading the prefix to hash it and asking
for the rest. The note holds the plan's identity; a part of another version of the file is emptied, never continued. A part
without a note (curl's, or an older ds4's) is continued if there are hashes to decide in the end whether it was worth it.

The invariant: `FILE` appears by one rename, after every hash was right and the bytes were flushed to the disk. The lock is held
from before the part is looked at until after the rename; since it lies on the note, whoever waited for it checks that the note
is still the file under that name. Rejected: a lock on the part itself, which after the rename is a lock on the finished file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from ds4py.errors import ResourceError
from ds4py.hub.plan import Digest, Hasher, Piece, Plan

_READ_LEN = 1 << 20

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Position:
    """Where to go on: piece `index` begins at byte `base` of the file and `have` bytes of it are there, hashed by `hasher`."""

    index: int
    base: int
    have: int
    hasher: Hasher


@dataclass(frozen=True)
class Part:
    path: Path
    file: FileIO

    def length(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def append(self, data: bytes | memoryview) -> None:
        """Write all of `data`. OSError (with everything before it written) when the disk refuses."""
        view = memoryview(data)
        while view:
            view = view[self.file.write(view) :]

    def cut(self, length: int) -> None:
        self.file.truncate(length)
        self.file.seek(length)

    def resume(self, plan: Plan, progress: Progress) -> Position | None:
        """Hash what is there; a whole piece whose hash is wrong is cut off, with all that follows. None: every piece is right."""
        length, base = self.length(), 0
        if length > plan.size:
            self.cut(0)
            length = 0
        self.file.seek(0)
        for index, piece in enumerate(plan.pieces):
            have = min(length - base, piece.size)
            hasher = hasher_of(piece)
            self._read(have, hasher, base, length, progress)
            if have < piece.size:
                return Position(index, base, have, hasher)
            if piece.digest is not None and hasher.hexdigest() != piece.digest.value:
                self.cut(base)
                return Position(index, base, 0, hasher_of(piece))
            base += piece.size
        return None

    def checked(self, plan: Plan, progress: Progress) -> bool:
        """Whether the bytes are the plan's; nothing is changed."""
        self.file.seek(0)
        base = 0
        for piece in plan.pieces:
            hasher = hasher_of(piece)
            self._read(piece.size, hasher, base, plan.size, progress)
            if piece.digest is not None and hasher.hexdigest() != piece.digest.value:
                return False
            base += piece.size
        return True

    def _read(self, n_bytes: int, hasher: Hasher, base: int, total: int, progress: Progress) -> None:
        done = 0
        while done < n_bytes:
            chunk = self.file.read(min(_READ_LEN, n_bytes - done))
            if not chunk:
                raise ResourceError(f"{self.path} became shorter while it was read; another program writes to it")
            hasher.update(chunk)
            done += len(chunk)
            progress(base + done, total)

    def finish(self, final: Path) -> None:
        """Flush, then give the file its name."""
        os.fsync(self.file.fileno())
        os.replace(self.path, final)
        with suppress(OSError):  # some filesystems cannot sync a folder; the data itself is synced
            folder = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def hasher_of(piece: Piece) -> Hasher:
    """A fresh hash of the kind that the hub states for the piece."""
    return (piece.digest or Digest("sha256", "")).hasher(piece.size)


def part_path(final: Path) -> Path:
    return final.with_name(final.name + ".part")


def part_len(final: Path) -> int:
    """Bytes of the part that lies there already."""
    with suppress(OSError):
        return part_path(final).stat().st_size
    return 0


def right(path: Path, plan: Plan, progress: Progress) -> bool:
    """Whether a finished file is the plan's: size, and the hash of each piece. Reads all of it. OSError if it cannot be read."""
    if path.stat().st_size != plan.size:
        return False
    with FileIO(path, "r") as file:
        return Part(path, file).checked(plan, progress)


@contextmanager
def open_part(final: Path, plan: Plan, say: Say) -> Iterator[Part]:
    """The part of `final`, locked, and emptied if it belongs to something else. Waits for another process that has it."""
    path, note = part_path(final), final.with_name(final.name + ".part.json")
    lock = _locked(note, final, say)
    try:
        _adapt(path, lock, plan, say)
        with FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+") as file:
            yield Part(path, file)
    finally:
        with suppress(OSError):
            if path.exists() and path.stat().st_size == 0:
                path.unlink()
            if not path.exists():
                note.unlink()
        os.close(lock)


def _locked(note: Path, final: Path, say: Say) -> int:
    """A file descriptor of the note, with the lock held."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # no such locks on this system; two downloads of one file would then meet a wrong hash, not a wrong file
        return os.open(note, os.O_RDWR | os.O_CREAT, 0o666)
    while True:
        lock = os.open(note, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                say(f"another process is downloading {final.name}; waiting for it")
                flock(lock, LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(note)):
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _adapt(path: Path, lock: int, plan: Plan, say: Say) -> None:
    """Compare the note with the plan, empty a part that is not of this plan, and write the note."""
    known = _identity(os.pread(lock, 1 << 16, 0))
    length = path.stat().st_size if path.exists() else 0
    hashed = all(piece.digest is not None for piece in plan.pieces)
    if length and (known != plan.identity if known is not None else not hashed):
        changed = "belongs to another version of the file" if known is not None else "cannot be checked"
        say(f"{path.name} {changed}; starting over")
        os.truncate(path, 0)
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"repo": plan.repo, "identity": plan.identity}).encode(), 0)


def _identity(note: bytes) -> str | None:
    try:
        found = json.loads(note)["identity"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
