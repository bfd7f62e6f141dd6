"""From wishes to files: look at the listing, use what is here, refuse what cannot fit, download the rest.

Order of thrift: a file that is here and right; a file in the hub's cache that is right; a part that can go on; the network.
Before the first byte the disk is asked for what is still missing (sizes minus parts), and the caller gets the plans to tell the
user. A hash that turns out wrong, or a file that changed, sends us back to the listing, a few times at most.

The invariant: a name in the folder that we did not finish is never touched, unless `force`; then the old file stays until the new
one is whole.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ds4py.errors import FormatError, ResourceError
from ds4py.hub import cache, records
from ds4py.hub.listing import Listing, list_files
from ds4py.hub.memory import gb
from ds4py.hub.part import part_len, part_path, right
from ds4py.hub.place import Hub
from ds4py.hub.plan import Piece, Plan
from ds4py.hub.refusals import AgainError, StaleError, WrongHashError
from ds4py.hub.transfer import UnreachableError, download, pause

_LOOKS = 3

Wish = tuple[str, Callable[[Listing], tuple[Plan, ...]]]  # a repository, and what to take from it


def _nothing(*arguments: object) -> None:
    """The default listener: nobody."""


@dataclass(frozen=True)
class Listeners:
    """say: a sentence for the user. progress, checking: (file, bytes done, bytes in all). planned: (files to download, bytes
    still missing, free bytes of the disk), before the first byte; not called when nothing is missing."""

    say: Callable[[str], None] = _nothing
    progress: Callable[[str, int, int], None] = _nothing
    checking: Callable[[str, int, int], None] = _nothing
    planned: Callable[[Sequence[Plan], int, int], None] = _nothing


@dataclass(frozen=True)
class Policy:
    """force: replace files that are something else. verify: read finished files again although they are noted as right. keep: use
    what was fetched before although the hub has a newer version. offline: ask nobody."""

    force: bool = False
    verify: bool = False
    keep: bool = False
    offline: bool = False


@dataclass(frozen=True)
class Fetched:
    path: Path
    how: str  # "downloaded", "already here", "taken from the hub's cache as a hard link", and what was checked


def fetch_files(
    hub: Hub, wishes: Sequence[Wish], folder: Path, listeners: Listeners, policy: Policy | None = None
) -> tuple[Fetched, ...]:
    """Make sure that `folder` holds the files of all wishes, in order. Without a network, files that were fetched before are
    used, and that is said. Raises Ds4Error."""
    policy = policy or Policy()
    here = () if policy.verify or policy.force else _fetched_before(wishes, folder)
    if here and (policy.offline or hub.offline):
        return here
    if policy.offline:
        raise ResourceError(f"{wishes[0][0]} is not in {folder}, and the network is not to be used")
    hasty = replace(hub, patience=replace(hub.patience, tries=1)) if here else hub
    try:
        return _fetch(hasty, wishes, folder, listeners, policy)
    except UnreachableError as error:
        if not here:
            raise
        listeners.say(f"{error}; using what is in {folder}")
        return here


def _fetch(hub: Hub, wishes: Sequence[Wish], folder: Path, listeners: Listeners, policy: Policy) -> tuple[Fetched, ...]:
    """The same by the hub's listing, which is looked at again when it turns out stale."""
    reason, wrong = "", 0
    for _ in range(_LOOKS):
        plans = [plan for repo, choose in wishes for plan in choose(_listed(hub, repo, listeners))]
        _distinct(plans)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _obtain(hub, plans, folder, listeners, policy)
        except StaleError as error:
            reason, wrong = str(error), wrong + isinstance(error, WrongHashError)
            if wrong == 2:
                break
            listeners.say(f"{reason}; looking at the repository again")
        except OSError as error:
            raise _disk_error(error, folder, plans) from error
    raise FormatError(f"{reason}, again; nothing was kept under its final name: try later, or another mirror (HF_ENDPOINT)")


def _fetched_before(wishes: Sequence[Wish], folder: Path) -> tuple[Fetched, ...]:
    """The files of all wishes, if all were fetched before and have not changed since; else none."""
    noted = list(records.recorded(folder))
    files = []
    try:
        for repo, choose in wishes:
            known = {record.source: (path, record) for path, record in noted if record.repo == repo}
            if not known:
                return ()
            listing = Listing(repo, tuple(Piece("", source, known[source][1].size, None) for source in sorted(known)))
            files += [Fetched(known[plan.pieces[0].path][0], "already here") for plan in choose(listing)]
    except FormatError:
        return ()
    return tuple(files)


def survey(hub: Hub, wishes: Sequence[Wish], folder: Path, listeners: Listeners) -> None:
    """Tell what `fetch_files` would download, from the hub's listing, without a byte of it."""
    plans = [plan for repo, choose in wishes for plan in choose(_listed(hub, repo, listeners))]
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    listeners.planned(plans, _missing(plans, folder), shutil.disk_usage(place).free)


def _missing(plans: Sequence[Plan], folder: Path) -> int:
    """Bytes still to come: sizes minus the parts that are here."""
    return sum(max(0, plan.size - part_len(folder / plan.name)) for plan in plans)


def _listed(hub: Hub, repo: str, listeners: Listeners) -> Listing:
    failures = 0
    while True:
        try:
            return list_files(hub, repo)
        except AgainError as error:
            failures += 1
            pause(hub.patience, failures, error, listeners.say)


def _distinct(plans: Sequence[Plan]) -> None:
    names = [plan.name for plan in plans]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise FormatError(f"{plans[0].repo} has several files called {twice[0]} in different folders, and they would meet in one")


def _obtain(hub: Hub, plans: Sequence[Plan], folder: Path, listeners: Listeners, policy: Policy) -> tuple[Fetched, ...]:
    found = {plan.name: _here(hub, plan, folder / plan.name, listeners, policy) for plan in plans}
    missing = [plan for plan in plans if found[plan.name] is None]
    if missing:
        _refuse_foreign(missing, folder)
        need = _missing(missing, folder)
        free = shutil.disk_usage(folder).free
        listeners.planned(missing, need, free)
        if need > free:
            raise ResourceError(
                f"{folder} has {gb(free)} free and {gb(need)} are still to come; free some space or choose another folder "
                "(DS4_GGUF_DIR, --gguf-dir)"
            )
    return tuple(found[plan.name] or _downloaded(hub, plan, folder / plan.name, listeners) for plan in plans)


def _here(hub: Hub, plan: Plan, path: Path, listeners: Listeners, policy: Policy) -> Fetched | None:
    """The file without any download: under its name, or in the hub's cache. FormatError if its name is taken by another file."""
    if not (path.exists() or path.is_symlink()):
        return _from_cache(hub, plan, path, listeners)
    record = records.recall(path)
    if record is not None and record.identity == plan.identity and not policy.verify:
        return Fetched(path, f"already here{_checked(plan)}")
    if path.is_file() and right(path, plan, lambda done, total: listeners.checking(plan.name, done, total)):
        records.remember(path, plan)
        return Fetched(path, f"already here{_checked(plan)}")
    if record is not None and (record.repo, record.source) == (plan.repo, plan.pieces[0].path):  # an older version, and ours
        if policy.keep:
            listeners.say(f"the hub has a newer {plan.name}; `ds4-download hf:{plan.repo}:{plan.name}` gets it")
            return Fetched(path, "already here")
        listeners.say(f"the hub has a newer {plan.name}; the old one stays until it is here")
        return None
    if not policy.force:
        size = gb(path.stat().st_size) if path.exists() else "a link that leads nowhere"
        raise FormatError(
            f"{path} ({size}) is not the file that the hub has now ({gb(plan.size)}): move it away, or let --force replace it"
        )
    return None


def _checked(plan: Plan) -> str:
    return ", its hash is right" if all(piece.digest for piece in plan.pieces) else "; the hub states no hash, its size is right"


def _from_cache(hub: Hub, plan: Plan, path: Path, listeners: Listeners) -> Fetched | None:
    source = cache.cached(hub.cache, plan)
    if source is None:
        return None
    try:
        if not right(source, plan, lambda done, total: listeners.checking(plan.name, done, total)):
            listeners.say(f"the hub's cache holds {plan.name}, but damaged; downloading it")
            return None
    except OSError:
        return None  # a cache that cannot be read is no cache
    how = cache.adopt(source, path)
    records.remember(path, plan)
    return Fetched(path, f"taken from the hub's cache {how}{_checked(plan)}")


def _refuse_foreign(plans: Sequence[Plan], folder: Path) -> None:
    """aria2 fills its files out of order: what it left is no prefix, whatever its length says."""
    for plan in plans:
        for path in (folder / f"{plan.name}.aria2", folder / f"{plan.name}.part.aria2"):
            if path.exists():
                raise FormatError(f"{path} belongs to an unfinished download of aria2: finish it there, or delete both files")


def _downloaded(hub: Hub, plan: Plan, path: Path, listeners: Listeners) -> Fetched:
    def progress(done: int, total: int) -> None:
        listeners.progress(plan.name, done, total)

    def checking(done: int, total: int) -> None:
        listeners.checking(plan.name, done, total)

    def finished() -> bool:
        record = records.recall(path)
        return record is not None and record.identity == plan.identity

    download(hub, plan, path, listeners.say, progress, checking, finished)
    return Fetched(path, f"downloaded{_checked(plan)}")


def _disk_error(error: OSError, folder: Path, plans: Sequence[Plan]) -> ResourceError:
    parts = [part_path(folder / plan.name) for plan in plans if part_len(folder / plan.name)]
    kept = "nothing was kept"
    if parts:
        kept = f"what came so far is in {parts[0]}: the same command goes on from there, or delete it"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError(f"the disk of {folder} is full; {kept}")
    return ResourceError(f"cannot write in {folder}: {error.strerror or error}; {kept}")
