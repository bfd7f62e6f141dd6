"""How many experts a backend may hold at a time, and how that room is dealt to the layers.

A mixture's experts are most of its bytes and a token takes few of them, so they may stay in the file: a backend keeps a bounded
number of *seats*, each with room for one expert of one layer (gate, up and down together), and fills a seat when a row takes an
expert that is in none. Layers run one after the other, so one list of the seats used last would be emptied by every pass that
takes more experts than there are seats. Therefore each layer has seats of its own, equally many; only when there are fewer seats
than layers do neighbouring layers share.

The invariant that makes all of this a matter of speed: which experts are held changes no bit of any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ds4py.errors import UsageError


@dataclass(frozen=True)
class Streaming:
    """What is asked: room for so many experts or bytes (None: for all), the first layers' experts all held if they fit, and how
    many experts to read before the first token."""

    n_experts: int | None = None
    n_bytes: int | None = None
    full_layers: int = 0
    preload: int = 0


@dataclass(frozen=True)
class ExpertCounts:
    """What a cache of experts did so far."""

    hits: int
    misses: int
    bytes_read: int  # of the file, for misses
    n_seats: int
    n_experts: int  # of all layers
    seat_bytes: int  # memory of all seats when they are full
    preloaded: int

    def room(self) -> str:
        """Its size, for people."""
        size = f"{self.seat_bytes / 1e9:.2f} GB" if self.seat_bytes >= 1e8 else f"{self.seat_bytes / 1e6:.2f} MB"
        return f"room for {self.n_seats:,} of {self.n_experts:,} ({size})"

    def line(self) -> str:
        """What it did, for people."""
        taken = self.hits + self.misses
        share = 100 * self.hits / max(1, taken)
        return f"experts: {taken:,} taken, {share:.1f} % of them there, {self.bytes_read / 1e9:.3f} GB read"


@runtime_checkable
class Streams(Protocol):
    """What kernels may be besides: ones that can bound the experts they hold."""

    def preload(self) -> None:
        """Read the experts that are asked for before the first token; models and drafts are ready."""
        ...

    def expert_counts(self) -> ExpertCounts | None:
        """What was done so far; None if nothing is bounded."""
        ...


@dataclass(frozen=True)
class Geometry:
    """One layer: bytes that an expert takes in memory, and how many there are."""

    seat_bytes: int
    n_experts: int


@dataclass(frozen=True)
class Shelf:
    """Seats of one layer, or of a few neighbouring ones."""

    layers: tuple[int, ...]
    n_seats: int


def deal(layers: Sequence[Geometry], limit: Streaming) -> list[Shelf]:
    """Seats for every layer within the limit. UsageError if it has no room for a single expert."""
    costs = [1 if limit.n_bytes is None else layer.seat_bytes for layer in layers]
    room = limit.n_bytes if limit.n_bytes is not None else limit.n_experts
    if room is None:
        room = sum(layer.n_experts for layer in layers)
    if room < max(costs, default=0):
        raise UsageError(f"an expert of this model takes {max(costs) / 1e6:.2f} MB: the cache of experts must have room for one")
    shelves: list[Shelf] = []
    for i in range(min(limit.full_layers, len(layers))):
        whole = costs[i] * layers[i].n_experts
        if whole + max(costs[i + 1 :], default=0) > room:
            break  # what is asked is reduced to what fits
        shelves.append(Shelf((i,), layers[i].n_experts))
        room -= whole
    rest = range(len(shelves), len(layers))
    if sum(costs[i] for i in rest) <= room:
        return shelves + _own(rest, layers, costs, room)
    return shelves + _shared(rest, costs, room)


def _own(rest: range, layers: Sequence[Geometry], costs: Sequence[int], room: int) -> list[Shelf]:
    """A seat for every layer, then another one in turn while they fit."""
    seats = dict.fromkeys(rest, 0)
    given = True
    while given:
        given = False
        for i in rest:
            if seats[i] < layers[i].n_experts and costs[i] <= room:
                seats[i], room, given = seats[i] + 1, room - costs[i], True
    return [Shelf((i,), n) for i, n in seats.items()]


def _shared(rest: range, costs: Sequence[int], room: int) -> list[Shelf]:
    """As many single seats as there is room for, each of a few layers; at least one, for which there is room."""
    for n in range(len(rest) - 1, 0, -1):
        bounds = [rest.start + len(rest) * j // n for j in range(n + 1)]
        parts = [tuple(range(lo, hi)) for lo, hi in zip(bounds[:-1], bounds[1:], strict=True)]
        if sum(max(costs[i] for i in part) for part in parts) <= room:
            break
    return [Shelf(part, 1) for part in parts]
