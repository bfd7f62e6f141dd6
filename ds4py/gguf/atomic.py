"""Files that appear whole or not at all.

The idea: write under a temporary name in the same folder, flush it to the disk, then rename, which the system does in one step;
on any failure, Ctrl-C included, the temporary file goes. So a reader never meets half a file, and an old file under the name
stays until the new one is complete.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

from ds4py.errors import ResourceError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BufferedWriter]:
    """A binary file to write, that takes the name `path` when the block ends without an exception.

    Raises ResourceError for whatever the system refuses: no space, no permission, no such folder.
    """
    target = Path(path)
    part = target.with_name(f".{target.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        file = part.open("xb")
    except (OSError, ValueError) as error:
        raise _refused(target, error) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
        sync_folder(target.parent)
    except OSError as error:
        _remove(part)
        raise _refused(target, error) from error
    except BaseException:
        _remove(part)
        raise


def _remove(part: Path) -> None:
    with suppress(OSError):
        part.unlink()


def sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where the system can (Windows cannot open a folder)."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _refused(target: Path, error: Exception) -> ResourceError:
    reason = getattr(error, "strerror", None) or str(error)
    return ResourceError(f"{target}: cannot write the file: {reason}; nothing was left behind")
