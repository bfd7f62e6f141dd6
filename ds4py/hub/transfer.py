"""The loop that makes a part whole: ask for what is missing, append what comes, ask again.

The idea: every failure that may pass is the same event, "the answer ended", and the next request starts at the length of the
part. A server that ignores ranges sends all of the piece; the bytes that are there already are read over. A server that sends a
wrong range, or says that there is none, is asked for the whole next. So no fault ever appends a byte at a wrong place, and none
throws away bytes that may be right; the hash has the last word.

What ends the loop: a refusal; `Patience.tries` failures in a row without a new byte; a hash that is wrong after all bytes came,
for which the piece is emptied and `WrongHashError` tells the caller to look at the listing again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from ds4py.errors import ResourceError
from ds4py.hub import records
from ds4py.hub.connection import open_bytes
from ds4py.hub.part import Part, Position, Progress, hasher_of, open_part
from ds4py.hub.place import Hub, Patience
from ds4py.hub.plan import Piece, Plan
from ds4py.hub.refusals import AgainError, RangeError, WrongHashError

Say = Callable[[str], None]


class UnreachableError(ResourceError):
    """The hub gave no usable answer for as long as patience lasted; files that are here already may still do."""


def pause(patience: Patience, failures: int, error: AgainError, say: Say) -> None:
    """Wait before the next try. UnreachableError if the failures are too many, or the server asks for too long a wait."""
    if failures >= patience.tries:
        raise UnreachableError(f"{error}, {failures} times in a row") from error
    if error.wait is not None and error.wait > patience.longest_asked:
        raise UnreachableError(f"{error} and asks for a pause of {error.wait / 60:.0f} minutes; try again then") from error
    wait = min(patience.pause * 2 ** max(0, failures - 1), patience.longest) * random.uniform(0.75, 1.25)
    wait = max(wait, error.wait or 0.0)
    if failures > 1 or error.wait:
        say(f"{error}; trying again in {wait:.0f} s")
    time.sleep(wait)


def download(
    hub: Hub, plan: Plan, final: Path, say: Say, progress: Progress, checking: Progress, done: Callable[[], bool]
) -> None:
    """Bring `final` about. `done()` is asked once the lock is held: another process may have finished it meanwhile. Raises
    Ds4Error, StaleError, or OSError when the disk refuses; whatever happens, what came so far stays in the part."""
    with open_part(final, plan, say) as part:
        if done():
            part.path.unlink()
            return
        place = part.resume(plan, checking)
        while place is not None:
            _complete(hub, plan, part, place, say, progress)
            base, index = place.base + plan.pieces[place.index].size, place.index + 1
            place = Position(index, base, 0, hasher_of(plan.pieces[index])) if index < len(plan.pieces) else None
        _check_whole(part, plan, checking)
        part.finish(final)
        records.remember(final, plan)  # before the lock goes: who waits for it looks here


def _complete(hub: Hub, plan: Plan, part: Part, place: Position, say: Say, progress: Progress) -> None:
    """Append until the piece is whole, then check its hash."""
    piece, have, failures, ranged = plan.pieces[place.index], place.have, 0, True
    while have < piece.size:
        before = have
        try:
            have = _append(hub, plan, part, place, have if ranged else 0, have, progress)
            ranged = True
            if have < piece.size:
                raise AgainError(f"{hub.host} ended {piece.path} {piece.size - have} bytes too early")
        except AgainError as error:
            have = part.length() - place.base
            failures = 0 if have > before else failures + 1
            ranged = not isinstance(error, RangeError)
            pause(hub.patience, failures, error, say)
    if piece.digest is not None and place.hasher.hexdigest() != piece.digest.value:
        part.cut(place.base)
        if place.base == 0:
            part.path.unlink()
        raise WrongHashError(f"what came for {piece.path} does not have the {piece.digest.name} that the hub states")


def _append(hub: Hub, plan: Plan, part: Part, place: Position, start: int, have: int, progress: Progress) -> int:
    """One request: append what it brings behind the `have` bytes that are there; the new count."""
    piece = plan.pieces[place.index]
    with open_bytes(hub, piece, start, f"{piece.path} of {plan.repo}") as answer:
        known = have - answer.start  # bytes of the answer that are here already
        for chunk in answer.chunks:
            fresh = memoryview(chunk)[known:] if known < len(chunk) else memoryview(b"")
            known = max(0, known - len(chunk))
            fresh = fresh[: piece.size - have]
            part.append(fresh)
            place.hasher.update(fresh)
            have += len(fresh)
            progress(place.base + have, plan.size)
            if have == piece.size:
                break
    return have


def _check_whole(part: Part, plan: Plan, checking: Progress) -> None:
    """The hash over all pieces, where one is pinned."""
    if plan.sha256 is None:
        return
    whole = Piece("", plan.name, plan.size, plan.digest)
    if not part.checked(Plan(plan.repo, plan.name, (whole,)), checking):
        part.cut(0)
        part.path.unlink()
        raise WrongHashError(f"{plan.name}, joined, does not have the SHA-256 that was published")
