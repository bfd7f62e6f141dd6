"""From a name to files: rows of the table and `REPO[:QUANT]` against what the hub lists.

The invariant: one candidate or a sentence; between several nothing is guessed. The one exception has a published reason: where
a row's pattern fits several files, the published size tells which one is meant.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from ds4py.errors import FormatError, UsageError
from ds4py.hub.listing import Listing, local_name
from ds4py.hub.memory import gb
from ds4py.hub.plan import Digest, Piece, Plan
from ds4py.hub.targets import Wanted

_TOLERANCE = 0.05  # of a published, rounded size
_SHARD = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_USUAL = "Q4_K_M"  # what llama.cpp takes when no quant is named
_NO_MODEL = re.compile(r"(^|[-_.])(mmproj|imatrix)", re.IGNORECASE)


@dataclass(frozen=True)
class Reference:
    """`hf:REPO[:QUANT]`, or `hf:REPO:FILE.gguf`. `quant` "" = not named."""

    repo: str
    quant: str

    @property
    def file(self) -> str | None:
        return self.quant if self.quant.lower().endswith(".gguf") else None


def reference(text: str, file: str | None = None) -> Reference:
    """The parts of `REPO[:QUANT]`; `file` is --hf-file. UsageError if it is something else."""
    repo, _, quant = text.removeprefix("hf:").partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise UsageError(f"{text!r} is no repository: give OWNER/NAME, with :QUANT or :FILE.gguf behind it if you like")
    if file is not None and not file.lower().endswith(".gguf"):
        raise UsageError(f"--hf-file takes the name of a .gguf file, not {file!r}")
    return Reference(repo, file or quant)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def plans_for(wanted: Wanted, listing: Listing) -> tuple[Plan, ...]:
    """The files that a row of the table stands for. FormatError if the hub lists none, several, or one of another size."""
    found = [file for file in listing.files if fnmatch.fnmatchcase(_base(file.path), wanted.pattern)]
    if wanted.pieces > 1:
        return (_joined(wanted, listing, found),)
    if wanted.shards > 1:
        plans = _shards(listing.repo, found, wanted.pattern)
        if len(plans) != wanted.shards:
            raise FormatError(f"{listing.repo} has {len(plans)} files {wanted.pattern} where {wanted.shards} were published")
        return plans
    if len(found) > 1 and wanted.size:
        found = [file for file in found if abs(file.size - wanted.size) <= _TOLERANCE * wanted.size]
    if len(found) != 1:
        raise _not_one(listing, wanted.pattern, found)
    return (_single(wanted, listing.repo, found[0]),)


def _single(wanted: Wanted, repo: str, file: Piece) -> Plan:
    _check_size(wanted, file.path, file.size)
    return Plan(repo, local_name(file.path), (_pinned(file, wanted.sha256, repo),))


def _pinned(file: Piece, sha256: str | None, repo: str) -> Piece:
    """`file`, to be checked against the hash of the table where there is one. FormatError if the hub states another."""
    if sha256 is None:
        return file
    if file.digest is not None and file.digest.kind == "sha256" and file.digest.value != sha256:
        raise FormatError(
            f"{file.path} of {repo} is another file than the published one (its SHA-256 differs); "
            f"hf:{repo}:{local_name(file.path)} takes it as it is"
        )
    return Piece(file.url, file.path, file.size, Digest("sha256", sha256))


def _joined(wanted: Wanted, listing: Listing, found: list[Piece]) -> Plan:
    """A file stored in parts; the whole under its own name, should the hub have it, is simply that file."""
    name = wanted.pattern.rstrip("*")
    whole = [file for file in found if _base(file.path) == name]
    if whole:
        return _single(wanted, listing.repo, whole[0])
    if len(found) != wanted.pieces:
        raise FormatError(f"{listing.repo} has {len(found)} parts {wanted.pattern} where {wanted.pieces} were published")
    _check_size(wanted, name, sum(file.size for file in found))
    hashes = wanted.piece_sha256 or (None,) * wanted.pieces
    pieces = tuple(_pinned(file, sha256, listing.repo) for file, sha256 in zip(found, hashes, strict=True))
    return Plan(listing.repo, name, pieces, wanted.sha256)


def _check_size(wanted: Wanted, path: str, size: int) -> None:
    if wanted.exact and size != wanted.size:
        raise FormatError(
            f"{path} of {wanted.repo} has {size} bytes, where {wanted.size} were published: it is another version; "
            f"hf:{wanted.repo}:FILE takes a file as it is"
        )


def plans_of(asked: Reference, listing: Listing) -> tuple[Plan, ...]:
    """The files of the model that `asked` names. FormatError listing the candidates if it names none or several."""
    if asked.file:
        found = [file for file in listing.gguf if asked.file in (file.path, _base(file.path))]
        if len(found) != 1:
            raise _not_one(listing, asked.file, found)
        match = _SHARD.fullmatch(found[0].path)
        if match is None:
            return (Plan(listing.repo, local_name(found[0].path), (found[0],)),)
        return _shards(listing.repo, _siblings(listing, match), asked.file)
    models = _models(listing)
    names = [name for name in models if _has_quant(name, asked.quant)] if asked.quant else list(models)
    if len(names) > 1 and not asked.quant:
        names = [name for name in names if _has_quant(name, _USUAL)] or names
    if len(names) != 1:
        listed = [models[name][0] for name in (names or models)]
        raise _not_one(listing, asked.quant or "model", listed, hint=bool(models))
    files = models[names[0]]
    if _SHARD.fullmatch(files[0].path):
        return _shards(listing.repo, files, names[0])
    return (Plan(listing.repo, local_name(files[0].path), (files[0],)),)


def _models(listing: Listing) -> dict[str, list[Piece]]:
    """The models of a repository: path without the shard number -> its files."""
    found: dict[str, list[Piece]] = {}
    for file in listing.gguf:
        if not _NO_MODEL.search(_base(file.path)):
            match = _SHARD.fullmatch(file.path)
            found.setdefault(f"{match['stem']}-of-{match['count']}" if match else file.path, []).append(file)
    return found


def _siblings(listing: Listing, match: re.Match[str]) -> list[Piece]:
    key = (match["stem"], match["count"])
    shards = ((file, _SHARD.fullmatch(file.path)) for file in listing.gguf)
    return [file for file, other in shards if other is not None and (other["stem"], other["count"]) == key]


def _has_quant(name: str, quant: str) -> bool:
    """Whether a file name says `quant` as a word of its own: Q4_K is not in Q4_K_M, and Q4_K_XL is in UD-Q4_K_XL."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?!_?[A-Za-z0-9])", name, re.IGNORECASE) is not None


def _shards(repo: str, files: list[Piece], what: str) -> tuple[Plan, ...]:
    """All shards of a set, flat. FormatError if one is missing: the rest would be hours for nothing."""
    numbers = []
    for file in files:
        match = _SHARD.fullmatch(file.path)
        numbers.append((int(match["no"]), int(match["count"])) if match else (0, 0))
    count = numbers[0][1] if numbers else 0
    missing = [no for no in range(1, count + 1) if (no, count) not in numbers]
    if not files or missing or len(files) != count:
        lost = f"shard {missing[0]} of {count} is missing" if missing else "its shards do not belong together"
        raise FormatError(f"{repo} does not hold all of {what}: {lost}")
    return tuple(Plan(repo, local_name(file.path), (file,)) for file in files)


def _not_one(listing: Listing, what: str, found: list[Piece], hint: bool = False) -> FormatError:
    names = ", ".join(f"{_base(file.path)} ({gb(file.size)})" for file in found[:12]) + (", ..." if len(found) > 12 else "")
    if not listing.gguf:
        return FormatError(f"{listing.repo} holds no GGUF file; its weights would have to be converted first")
    if hint or found:
        return FormatError(f"{what} does not name one file of {listing.repo}; name one of: {names}")
    return FormatError(f"{listing.repo} has no file {what} any more; its page lists what it has")
