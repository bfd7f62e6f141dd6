"""What a finished file consists of, before any byte of it is here.

The idea: a file is a sequence of pieces, each an address with a size and a hash. A plain file is one piece. A file that the hub
stores in parts is several, and is downloaded straight into its place: piece after piece into one growing file, so that joining
needs no second copy, no extra disk and no state beyond the length of what is there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol


class Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Digest:
    """A hash that the hub (or the table) states. "git": SHA-1 over git's blob header and the bytes, for files outside LFS."""

    kind: Literal["sha256", "git"]
    value: str

    @property
    def name(self) -> str:
        return "SHA-256" if self.kind == "sha256" else "git hash"

    def hasher(self, size: int) -> Hasher:
        if self.kind == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


@dataclass(frozen=True)
class Piece:
    """`path`: in the repository. `digest` None: the hub states no hash, only the size can be checked."""

    url: str
    path: str
    size: int
    digest: Digest | None

    @property
    def identity(self) -> str:
        return f"{self.size}:{self.digest.value if self.digest else self.url}"


@dataclass(frozen=True)
class Plan:
    """One file under `name`. `sha256`: of the whole, where it is pinned."""

    repo: str
    name: str
    pieces: tuple[Piece, ...]
    sha256: str | None = None

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def digest(self) -> Digest | None:
        """The hash of the whole file, if one hash covers it."""
        if self.sha256:
            return Digest("sha256", self.sha256)
        return self.pieces[0].digest if len(self.pieces) == 1 else None

    @property
    def identity(self) -> str:
        """Equal for two plans exactly if a part of one file can go on as a part of the other."""
        return ",".join(piece.identity for piece in self.pieces)
