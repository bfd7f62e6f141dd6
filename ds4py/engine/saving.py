"""Drafters with a state of their own: what is saved with a session, and what a forked session takes over.

Most drafters learn from the tokens alone and are simply told them. A draft model's caches, and the context of a draft that
listened to the target's layers, could only be had again by evaluating the text once more; so they are copied, if the other
drafter is of the same file and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from ds4py.protocols import Drafter

Arrays = Mapping[str, npt.NDArray[Any]]


@runtime_checkable
class Saves(Protocol):
    """A drafter with a state of its own to save."""

    identity: str  # of what made the state: another one must not load it

    def payload(self) -> dict[str, npt.NDArray[Any]]: ...

    def load(self, payload: Arrays) -> None: ...


def saving(drafter: Drafter) -> Iterator[tuple[str, Saves]]:
    """The drafters inside `drafter` that have something to save, each with a name for its place."""
    for i, member in enumerate(getattr(drafter, "members", (drafter,))):
        if isinstance(member, Saves):
            yield f"drafter{i}", member


def hand_over(source: Drafter, heir: Drafter) -> None:
    """Give `heir`, a new drafter, what `source` knows beyond the tokens, as far as both are made of the same."""
    known = dict(saving(source))
    for at, drafter in saving(heir):
        other = known.get(at)
        if other is not None and type(other) is type(drafter) and other.identity == drafter.identity:
            drafter.load(other.payload())
