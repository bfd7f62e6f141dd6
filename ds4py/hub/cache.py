"""Files that other tools of the hub have fetched already: no second download and, where the system allows, no second copy.

The hub's cache keeps a file under its hash (`models--OWNER--NAME/blobs/SHA256`). One that is there with the right size is read
and checked, then given its name here as a hard link, else a symbolic link, else a copy. A hard link comes first since it stays
whole when the cache is cleaned. The copy is written and renamed like every file.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from ds4py.hub.plan import Plan


def cached(cache: Path, plan: Plan) -> Path | None:
    """The file that the cache holds for this plan by name and size; its bytes are not checked yet."""
    digest = plan.digest
    if digest is None:
        return None
    folder = cache / ("models--" + plan.repo.replace("/", "--"))
    with suppress(OSError):
        blob = (folder / "blobs" / digest.value).resolve(strict=True)
        if blob.is_file() and blob.stat().st_size == plan.size:
            return blob
    return None


def adopt(source: Path, path: Path) -> str:
    """Give `source` the name `path`; the words for how. An existing `path` is replaced in one step. OSError if nothing works."""
    fresh = path.with_name(f".{path.name[:200]}.{os.getpid()}.adopted")
    try:
        how = _place(source, fresh)
        os.replace(fresh, path)
        return how
    finally:
        with suppress(OSError):
            fresh.unlink()


def _place(source: Path, fresh: Path) -> str:
    with suppress(OSError, NotImplementedError):
        os.link(source, fresh)
        return "as a hard link"
    with suppress(OSError, NotImplementedError):
        fresh.symlink_to(source)
        return "as a symbolic link"
    with source.open("rb") as old, fresh.open("xb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    return "as a copy"
