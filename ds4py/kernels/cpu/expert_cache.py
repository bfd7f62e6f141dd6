"""A bounded cache of experts for all mixtures of a backend: how its seats are dealt, and what lies in them.

A layer is known once a program with it is recorded; a draft may bring more layers later. Programs hold only the addresses of the
layers' tables, so the tables are written, and written anew, between calls (`settle`): dealing again empties the seats and changes
nothing else. Everything that happens inside a call is in seats.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ds4py.errors import ResourceError, UnsupportedError
from ds4py.kernels.cpu import seats
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.experts import CpuExperts, aligned
from ds4py.kernels.streaming import ExpertCounts, Geometry, Shelf, Streaming, deal

if TYPE_CHECKING:
    from ds4py.kernels.cpu.backend import CpuKernels

Parts = tuple[CpuExperts, CpuExperts, CpuExperts]


class Layer:
    """A layer's three tensors, and its table for seats.plan."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.n_experts = parts[0].n_experts
        self.table = np.zeros(seats.LAYER_PARTS + seats.PARTS, np.int64)

    @property
    def address(self) -> int:
        return int(self.table.ctypes.data)

    @property
    def file_bytes(self) -> int:
        """Of one expert."""
        return sum(part.file_stride for part in self.parts)

    @property
    def geometry(self) -> Geometry:
        return Geometry(sum(part.stride for part in self.parts), self.n_experts)


class ExpertCache:
    """All layers' seats within one limit."""

    def __init__(self, backend: CpuKernels, limit: Streaming) -> None:
        self._backend, self._limit = backend, limit
        self._layers: dict[int, Layer] = {}  # by the identity of the first tensor
        self._counts = np.zeros(seats.FAILURES + 1, np.int64)
        self._keep: list[np.ndarray] = []
        self._n_settled = 0
        self._shelves: list[Shelf] = []
        self._preloaded = 0

    def layer(self, parts: Parts) -> Layer:
        """The layer of these tensors, new if no program had it. UnsupportedError if they cannot be read piece by piece."""
        for part in parts:
            if part.tensor.fileno is None:
                raise UnsupportedError(f"tensor {part.tensor.name} is not in a file, so that its experts cannot be streamed")
        return self._layers.setdefault(id(parts[0]), Layer(parts))

    def settle(self) -> None:
        """Deal the seats anew if layers have come. UsageError if there is no room for one expert."""
        if len(self._layers) == self._n_settled:
            return
        layers = list(self._layers.values())
        self._shelves = deal([layer.geometry for layer in layers], self._limit)
        self._n_settled, self._preloaded, self._keep = len(layers), 0, []
        bases = np.cumsum([0, *(layer.n_experts for layer in layers)])
        where = self._zeros(1 + int(bases[-1]))
        buffers = [self._buffer(max(layer.parts[p].file_stride for layer in layers)) for p in range(seats.PARTS)]
        for shelf in self._shelves:
            owners, used = self._zeros(shelf.n_seats), self._zeros(shelf.n_seats)
            for i in shelf.layers:
                counts, layer = int(self._counts.ctypes.data), layers[i]
                layer.table[: seats.LAYER_PARTS] = shelf.n_seats, owners, used, where, counts, layer.file_bytes
                layer.table[seats.LAYER_PARTS :] = [part.table.ctypes.data for part in layer.parts]
                for p, part in enumerate(layer.parts):
                    part.table[[seats.BASE, seats.BUFFER]] = bases[i], buffers[p]
            for p in range(seats.PARTS):
                self._seat([layers[i].parts[p] for i in shelf.layers], shelf.n_seats)

    def check(self) -> None:
        """ResourceError if something could not be read; it will be tried again."""
        if self._counts[seats.FAILURES]:
            self._counts[seats.FAILURES] = 0
            raise ResourceError("an expert could not be read from the model file: is the disk or the network drive still there?")

    def preload(self) -> None:
        """Read as many experts as the limit asks for and the seats hold: from every layer equally many, the first ones."""
        self.settle()
        layers, n = list(self._layers.values()), self._limit.preload
        for shelf in self._shelves:
            for i in shelf.layers[:1]:
                share = n * (i + 1) // len(layers) - n * i // len(layers) if len(shelf.layers) == 1 else min(n, 1)
                share = min(share, shelf.n_seats)
                self._fill(layers[i], share)
                self._preloaded += share

    def counts(self) -> ExpertCounts:
        """What was done so far with the layers that there are now."""
        self.settle()
        hits, misses, n_bytes = (int(n) for n in self._counts[:3])
        layers = list(self._layers.values())
        n_seats = sum(shelf.n_seats for shelf in self._shelves)
        n_experts = sum(layer.n_experts for layer in layers)
        seat_bytes = sum(shelf.n_seats * max(layers[i].geometry.seat_bytes for i in shelf.layers) for shelf in self._shelves)
        return ExpertCounts(hits, misses, n_bytes, n_seats, n_experts, seat_bytes, self._preloaded)

    # --- private ---
    def _seat(self, parts: list[CpuExperts], n_seats: int) -> None:
        """Memory of a shelf for one part of its experts, told to the parts' tables."""
        stride = max(part.stride for part in parts)
        memory = self._buffer(n_seats * stride)
        held = self._zeros(n_seats * self._backend.executor.n_threads)
        failed = int(self._counts[seats.FAILURES :].ctypes.data)
        for part in parts:
            part.table[[seats.SEATS, seats.SEAT_STRIDE, seats.HELD, seats.FAILED]] = memory, stride, held, failed
            part.table[[seats.FD, seats.OFFSET]] = part.tensor.fileno or 0, part.tensor.start  # None: refused by `layer`
            part.table[seats.CLEAR] = part.stride // part.n_groups if part.form and len(parts) > 1 else 0

    def _fill(self, layer: Layer, n: int) -> None:
        """Bring the layer's first n experts, as a call would in which no row takes them."""
        if not n:
            return
        segments = np.zeros(1 + n * seats.SEGMENT // 8, np.int64)
        segments[0], segments[1 :: seats.SEGMENT // 8] = n, np.arange(n)
        plan = np.zeros(2 * n, np.int64)
        ops = np.zeros((1 + seats.PARTS, RECORD), np.int64)
        at = self._backend.kernel("plan_seats", seats.plan)
        ops[0, :6] = at, 1, segments.ctypes.data, layer.address, plan.ctypes.data, n
        for p, part in enumerate(layer.parts):
            op = part.product[0]
            ops[1 + p, : len(op)] = op
            ops[1 + p, [1, 3, 9, 10]] = 1, segments.ctypes.data, plan.ctypes.data, n
        before = self._counts.copy()
        self._backend.executor.run(ops)
        self.check()
        self._counts[:3] = before[:3]  # nobody asked for them

    def _zeros(self, n: int) -> int:
        """Address of n words that live as long as this deal."""
        self._keep.append(np.zeros(n, np.int64))
        return int(self._keep[-1].ctypes.data)

    def _buffer(self, n_bytes: int) -> int:
        """Address of so many bytes that live as long as this deal."""
        self._keep.append(aligned(n_bytes))
        return int(self._keep[-1].ctypes.data)
