"""What a repository holds: names, sizes and hashes, in one request.

The model's page of the API gives them together with the commit they belong to. Addresses are made for that commit, so a
repository that changes during a download of hours cannot mix two versions. The library reads the answer (`ModelInfo`) and makes
the addresses. Its `HfApi` is not asked: besides the request that is wanted it sends one of its own, about the program that runs
it, to the address that it found at its import and not to the one given here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ds4py.errors import FormatError
from ds4py.hub.connection import ask
from ds4py.hub.place import Hub
from ds4py.hub.plan import Digest, Piece
from ds4py.hub.refusals import refused


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit, in order of their names."""

    repo: str
    files: tuple[Piece, ...]

    @property
    def gguf(self) -> tuple[Piece, ...]:
        return tuple(file for file in self.files if file.path.lower().endswith(".gguf"))


def list_files(hub: Hub, repo: str) -> Listing:
    """Ask the hub once. Raises AgainError for what may pass, a Ds4Error for a refusal."""
    status, headers, body = ask(hub, f"api/models/{repo}?blobs=true")
    if status != 200:
        raise refused(status, headers, hub, repo)
    try:
        return Listing(repo, _files(hub, repo, json.loads(body)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{hub.host} did not answer with the files of {repo}; check HF_ENDPOINT and the proxy") from error


def _files(hub: Hub, repo: str, answer: Any) -> tuple[Piece, ...]:
    """The files of an answer, sorted; any exception for an answer of another shape."""
    from huggingface_hub import ModelInfo, hf_hub_url

    info = ModelInfo(**answer)  # type: ignore[no-untyped-call]
    files = []
    for entry in info.siblings or ():
        url = hf_hub_url(repo, entry.rfilename, revision=info.sha or "main", endpoint=hub.endpoint)
        size = entry.lfs.size if entry.lfs is not None else entry.size
        digest = Digest("git", entry.blob_id) if entry.blob_id else None
        if entry.lfs is not None:
            digest = Digest("sha256", entry.lfs.sha256.lower())
        if isinstance(size, int) and size >= 0:
            files.append(Piece(url, entry.rfilename, size, digest))
    return tuple(sorted(files, key=lambda file: file.path))


def local_name(path: str) -> str:
    """The name that a file of a repository gets here: its last part. FormatError for one that is no plain name."""
    name = PurePosixPath(path).name
    if not name or name.startswith(".") or "\\" in path or any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        raise FormatError(f"the repository has a file called {path!r}, which is no name for a model file")
    return name
