"""A session in a file: everything needed to go on as if it had never been away, or nothing.

    8 bytes   magic "DS4SESS1"
    8 bytes   length of the header, little endian
    header    JSON: version, who made it (model, kernels, drafters), tokens' random numbers, position, names and shapes of arrays
    arrays    one after another, little endian, in the header's order
    32 bytes  BLAKE2b of all that goes before

The state is stored as it is, not evaluated again, because a replay on another day may take another path through the kernels; so
a file is good for the model and the kernels that made it, and says so when it meets others. The tokens are good for any
kernels: who asks for it gets a session that has read them again, which goes on with the same text and slightly other numbers. A
drafter's own state is stored if it has one (a draft model's caches). A drafter without, or another drafter than the one that
was saved, is told the tokens, which is all that it learned from.

A file is checked whole before a session is made of it, and made whole before it takes its name. So a damaged, truncated or
foreign file is refused and costs nothing, and a failed save leaves the old file. Rejected: pickle (runs code), npz (its checksums
are per array, so a file may be mixed from two).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ds4py.engine.saving import Arrays, saving
from ds4py.engine.session import Session
from ds4py.errors import FormatError, ResourceError
from ds4py.gguf.atomic import replacing

_MAGIC: Final = b"DS4SESS1"
_VERSION: Final = 1
_DIGEST_BYTES: Final = 32
_DTYPES: Final = ("<i8", "<i4", "<u8", "<u4", "|u1", "|i1", "|b1", "<f2", "<f4", "<f8")
_NUMBERS: Final = ("version", "pos", "seed", "choice", "epoch")
_TEXTS: Final = ("model", "kernels")


@dataclass(frozen=True)
class Saved:
    """A checked file: its header and its arrays (views of the mapped file)."""

    path: Path
    header: Mapping[str, Any]
    arrays: Arrays

    def part(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays called "{name}.*", by what follows."""
        prefix = name + "."
        return {key.removeprefix(prefix): array for key, array in self.arrays.items() if key.startswith(prefix)}


def write(path: str | os.PathLike[str], session: Session, model: str, kernels: str) -> None:
    """Save `session`, of the model and kernels so called. Raises ResourceError, and leaves an old file, if that fails."""
    session.settle()
    arrays = {"tokens": np.array(session.tokens, np.int64)}
    arrays |= {f"target.{name}": array for name, array in session.state.payload().items()}
    drafters = dict(saving(session.drafter))
    for at, drafter in drafters.items():
        arrays |= {f"{at}.{name}": array for name, array in drafter.payload().items()}
    noise = session.sampler.noise
    header = {
        "version": _VERSION,
        "model": model,
        "kernels": kernels,
        "pos": session.state.pos,
        "seed": noise.seed,
        "choice": noise.choice,
        "epoch": noise.epoch,
        "drafters": {at: drafter.identity for at, drafter in drafters.items()},
        "arrays": [[name, array.dtype.newbyteorder("<").str, list(array.shape)] for name, array in arrays.items()],
    }
    text = json.dumps(header).encode()
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with replacing(path) as file:
        for piece in _pieces(text, arrays):
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())


def read(path: str | os.PathLike[str]) -> Saved:
    """Open and check a file. Raises FormatError for one that is damaged, cut short or not ours, ResourceError for one that cannot
    be read."""
    path = Path(path)
    data = memoryview(_map(path))
    if len(data) < len(_MAGIC) + 8 + _DIGEST_BYTES or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise FormatError(f"{path}: not a saved session, or cut short")
    body = data[:-_DIGEST_BYTES]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != data[-_DIGEST_BYTES:]:
        raise FormatError(f"{path}: the saved session is damaged or cut short: its checksum does not fit")
    start = len(_MAGIC) + 8
    n = int.from_bytes(data[len(_MAGIC) : start], "little")
    if n > len(body) - start:
        raise _unsound(path)
    header = _header(path, bytes(body[start : start + n]))
    return Saved(path, header, _arrays(path, header["arrays"], body[start + n :]))


def restore(saved: Saved, session: Session, model: str, kernels: str, read_again: bool = False) -> None:
    """Bring a new `session` to where the saved one stood. Raises FormatError, and the session is not to be used, if it was made
    by another model or on other kernels, or does not fit the context. read_again: evaluate the tokens if the kernels differ."""
    header, path = saved.header, saved.path
    if header["model"] != model:
        raise FormatError(f"{path}: the session was saved with another model file")
    tokens = saved.arrays.get("tokens")
    if tokens is None or tokens.dtype != np.int64 or tokens.ndim != 1 or header["pos"] != max(len(tokens) - 1, 0):
        raise _unsound(path)
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < session.model.vocab_size:
        raise _unsound(path)
    if len(tokens) > session.limits.n_ctx:
        fits = f"the context holds {session.limits.n_ctx}: raise --ctx"
        raise FormatError(f"{path}: the saved session has {len(tokens)} tokens, but {fits}")
    if header["kernels"] != kernels:
        if not read_again:
            raise _elsewhere(path, header["kernels"], kernels, len(tokens))
        if len(tokens):
            session.sync(tokens.tolist())
        return
    session.state.load(saved.part("target"))
    if session.state.pos != header["pos"]:
        raise _unsound(path)
    for at, drafter in saving(session.drafter):
        if header["drafters"].get(at) == drafter.identity:
            drafter.load(saved.part(at))
    session.adopt(tokens.tolist())


def _pieces(header: bytes, arrays: Arrays) -> Iterator[bytes | memoryview]:
    yield _MAGIC + len(header).to_bytes(8, "little") + header
    for array in arrays.values():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        yield little.reshape(-1).view(np.uint8).data


def _map(path: Path) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
    except (OSError, ValueError) as error:
        raise ResourceError(f"{path}: cannot read the saved session: {getattr(error, 'strerror', None) or error}") from error


def _header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unsound(path) from error
    if not isinstance(header, dict) or header.get("version") != _VERSION:
        version = header.get("version") if isinstance(header, dict) else None
        raise FormatError(f"{path}: the saved session has version {version!r}; this program reads version {_VERSION}")
    sound = all(type(header.get(name)) is int for name in _NUMBERS) and all(type(header.get(name)) is str for name in _TEXTS)
    if not sound or not isinstance(header.get("drafters"), dict) or not isinstance(header.get("arrays"), list):
        raise _unsound(path)
    return header


def _arrays(path: Path, table: list[Any], data: memoryview) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    start = 0
    for row in table:
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and row[1] in _DTYPES):
            raise _unsound(path)
        name, dtype, shape = row[0], np.dtype(row[1]), row[2]
        if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape) or name in arrays:
            raise _unsound(path)
        n_values = prod(shape)
        if n_values * dtype.itemsize > len(data) - start:
            raise _unsound(path)
        arrays[name] = np.frombuffer(data, dtype, n_values, start).reshape(shape)
        start += n_values * dtype.itemsize
    if start != len(data):
        raise _unsound(path)
    return arrays


def _elsewhere(path: Path, theirs: str, ours: str, n_tokens: int) -> FormatError:
    backend = theirs.replace("cpu-", "cpu:", 1)
    return FormatError(
        f"{path}: the session was saved on the kernels {theirs}, whose numbers differ in the last bits from those of {ours}: "
        f"start with --backend {backend} to go on exactly, or have its {n_tokens:,} tokens read again; the file is untouched"
    )


def _unsound(path: Path) -> FormatError:
    return FormatError(f"{path}: the saved session contradicts itself")
