"""What sessions of ngram-cache add to the dynamic lookup file when they end.

The file is shared by processes that know nothing of each other, so nothing is kept of what it held at the start: at the end it is
read again, the new counts are added, and the sum takes its name in one step (gguf/atomic.py). A lock on the folder makes two
processes that end at once do this one after the other, so that neither loses the other's counts. Where a system has no such locks
the later one wins; a half-written file cannot come about either way, and whatever fails leaves the old file as it was.

A file that is new belongs to its owner alone, since it tells what was said; one that is there keeps its permissions. A cache that
would outgrow what is read (lookup_file.MAX_FILE_BYTES) loses the n-grams that were seen least often. Rejected: a lock file beside
the cache, which stays behind; adding records at the end of the file, which no other program reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ds4py.drafters.lookup_file import MAX_FILE_BYTES, LookupCache, read_lookup_cache, write_lookup_cache
from ds4py.drafters.ngram_cache import NgramCache
from ds4py.protocols import Drafter

_PATIENCE: Final = 10.0  # seconds to wait for another process; writing a cache takes less than one
_PRIVATE: Final = 0o600


class Learned:
    """Counts of one process's sessions on their way to `path`."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path = path
        self._vocab_size = vocab_size
        self._cache = LookupCache()

    def take(self, drafter: Drafter) -> None:
        """Take over what an ngram-cache in `drafter` has learned since it was last asked."""
        for member in getattr(drafter, "members", (drafter,)):
            if isinstance(member, NgramCache):
                self._cache.merge(member.take_learned())

    def write(self) -> None:
        """Add it to the file, which is made if it is not there. FormatError or ResourceError, and the file as before, if not."""
        if not len(self._cache):
            return
        path = Path(os.path.realpath(self.path))  # a link stays a link
        with _alone(path.parent):
            cache = read_lookup_cache(path, self._vocab_size, missing_ok=True)
            cache.merge(self._cache)
            cache.forget_rarest(MAX_FILE_BYTES)
            write_lookup_cache(path, cache, os.stat(path).st_mode & 0o7777 if path.exists() else _PRIVATE)
        self._cache = LookupCache()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, if there are such locks here and nobody holds it for longer than that takes."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # no such folder: writing will say so
        yield
        return
    try:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                flock(handle, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(handle)
