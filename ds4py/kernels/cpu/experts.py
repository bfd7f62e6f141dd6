"""One tensor of experts as the CPU kernels hold it, and how products by expert are recorded.

Experts lie in one block of address space at equal distances. Quantised ones are packed one by one when a row first takes them
(moe.py `each`), and the file's pages go back to the system as that happens; what no row takes costs neither time nor memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ds4py.errors import UnsupportedError
from ds4py.gguf import Tensor
from ds4py.kernels.cpu import few as few_rows
from ds4py.kernels.cpu import matmul, moe, rowwise, unpack
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.packed import BLOCK, HALF_BYTES, TILE, pairs
from ds4py.kernels.cpu.recorder import Buffer, Recorder, bits
from ds4py.kernels.cpu.weights import CpuWeight
from ds4py.protocols import Router

if TYPE_CHECKING:
    from ds4py.kernels.cpu.backend import CpuKernels


class CpuExperts(CpuWeight):
    """Matrices [n_experts, n_rows, row_len]; `address` is the first one's, the others follow at `stride`."""

    def __init__(self, backend: CpuKernels, tensor: Tensor):
        super().__init__(backend, tensor)
        self.n_experts = tensor.shape[2]
        self.n_rows = tensor.shape[1]
        self.file_stride = tensor.nbytes // self.n_experts
        self.stride = self.form.n_bytes(self.n_rows, self.row_len) if self.form else self.file_stride
        n_threads = backend.executor.n_threads
        self.flags = np.zeros(self.n_experts * n_threads, np.uint8)  # packed by that thread
        self.counters = np.zeros(self.n_experts, np.int64)  # threads that have packed
        self.packing = np.zeros(RECORD, np.int64)

    def prepare(self) -> None:
        """Reserve address space and write the packing kernel's record; nothing is packed yet."""
        if self.form is None or self._packed is not None:
            return
        memory = np.zeros(self.n_experts * self.stride + 64, np.uint8)
        skip = -memory.ctypes.data % 64
        self._packed = memory[skip : skip + memory.nbytes - 64]
        args = (self.file_address, self.address, self.n_rows, self.row_len // BLOCK, self.row_bytes, pairs(self.row_len), 0)
        self.packing[0] = self._backend.kernel(f"repack_{self.type.name}", lambda t: unpack.repack(self.type, t))
        self.packing[2:10] = *args, self.n_rows

    def packing_args(self) -> list[int]:
        """Words 8 to 12 of moe.each."""
        if self.form is None:
            return [0] * 5
        page = mmap.PAGESIZE if hasattr(mmap, "MADV_DONTNEED") else 0
        packing, flags, counters = (int(array.ctypes.data) for array in (self.packing, self.flags, self.counters))
        return [packing, self.file_stride, flags, counters, page]

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.n_experts, self.n_rows, self.row_len

    @property
    def resident_bytes(self) -> int:
        return int((self.counters > 0).sum()) * self.stride if self.form else 0


@dataclass(frozen=True)
class Routing:
    """Which experts the rows of a call take, in buffers that `route` and `group` fill. A slot is a row and one of its experts."""

    n_used: int
    n_experts: int
    n_slots: int
    weights: Buffer  # f32 [n_rows, n_used]
    tables: Buffer  # words: segments, then the row of each place, then the place of each slot
    n_tiles: int  # at most: each segment's rows begin a tile
    segments: int  # addresses in `tables`
    source: int
    place: int


class ExpertRecorder(Recorder):
    """A Recorder that knows mixtures of experts. Between `_spread` and `_gather` a buffer has a row for each slot, by place."""

    def route(self, logits: Buffer, router: Router) -> Routing:
        n_experts, n_rows, n_used, b = logits.live or logits.width, logits.n_rows, router.n_used, self.backend
        if not 0 < n_used <= n_experts:
            raise UnsupportedError(f"a row cannot take {n_used} of {n_experts} experts")
        n_slots = n_rows * n_used
        ids, weights = (self._words(n_slots, 4) for _ in range(2))
        scratch = self._words(2 * n_rows * -(-n_experts // 4) * 4, 4)
        bias = self._vector(router.bias) if router.bias is not None else 0
        args = [logits.address, logits.width, n_experts, n_used, n_rows, ids.address, weights.address, bias, int(router.normed)]
        args += [bits(router.scale), scratch.address, *self._table(router)]
        at = b.kernel(f"route_{router.score}", lambda t: moe.route(t, router.score))
        self._op(at, args, "own", [logits], [ids, weights, scratch])
        n_segments = min(n_slots, n_experts)
        counts = (1 + 4 * n_segments, n_slots, n_slots, n_experts)  # segments, sources, places, scratch
        tables = self._words(sum(counts), 8)
        segments, source, place, free = (tables.address + 8 * sum(counts[:i]) for i in range(4))
        args = [ids.address, n_slots, n_used, n_experts, segments, source, place, free]
        self._op(b.kernel("group", moe.group), args, "own", [ids], [tables])
        n_tiles = (n_slots + (TILE - 1) * n_segments) // TILE
        return Routing(n_used, n_experts, n_slots, weights, tables, n_tiles, segments, source, place)

    def experts(
        self, x: Buffer, routing: Routing, gate: CpuExperts, up: CpuExperts, down: CpuExperts, act: str, limit: float = 0.0
    ) -> Buffer:
        h = self._spread(x, routing)
        h = self.gated(self._by_expert(h, gate, routing), self._by_expert(h, up, routing), act, limit)
        return self._gather(self._by_expert(h, down, routing), routing)

    def _table(self, router: Router) -> tuple[int, int]:
        """Addresses of a router's table of experts by token, and of the call's tokens; 0 without a table."""
        if router.table is None:
            return 0, 0
        table = np.ascontiguousarray(router.table, np.int32)
        self.keep.append(table)
        return int(table.ctypes.data), self.backend.tokens_at

    def _spread(self, x: Buffer, routing: Routing) -> Buffer:
        """A copy of a row for each expert it takes, by place."""
        out = self._new(x.width, "row", routing.n_slots)
        out.live = x.live
        args = [x.address, out.address, x.width, routing.n_slots, routing.source]
        self._op(self.backend.kernel("pick", rowwise.pick), args, "own", [x, routing.tables], [out])
        return out

    def _by_expert(self, x: Buffer, experts: CpuExperts, routing: Routing) -> Buffer:
        """Each copy times its own expert's matrix."""
        name = experts.tensor.name
        if experts.n_experts != routing.n_experts:
            raise UnsupportedError(f"tensor {name} has {experts.n_experts} experts, the router chooses among {routing.n_experts}")
        experts.prepare()
        if self.backend.squares is not None:
            sums = self.backend.sums_of(name, x.width, experts.n_experts)
            add = self.backend.kernel("add_squares", rowwise.add_squares)
            record = [add, 0, int(sums.ctypes.data), x.address, 0, x.width, x.n_rows]
            self._each(record, 6, routing, [sums.strides[0], x.width * 4, 0], [0] * 5, [x], [("squares", name)])
        out = self._new(experts.padded_rows, "own", x.n_rows)
        product = self._product(x, experts, out)
        steps = [experts.stride, product.row_bytes, out.width * 4]
        record = [product.kernel, 0, *product.args]
        tiled, few, tile_bytes, reads = 0, 0, 0, [product.read]
        limit = matmul.most_rows(self.backend.library.target, experts.form) if experts.form else 0
        if experts.form is not None and routing.n_slots // routing.n_used > limit:  # as many rows may take one expert
            q = self._in_tiles(x, routing)
            table = self.backend.few_table(experts.form)
            args = [self.backend.kernel("by_rows", lambda _: few_rows.by_rows()), 0, *self._tile_args(experts, q, out), table]
            tiled, few, tile_bytes, reads = self._template(args), limit, q.n_blocks * HALF_BYTES, [product.read, q]
        self._each(record, product.n_word, routing, steps, experts.packing_args(), reads, [out], [tiled, few, tile_bytes])
        return self._cut(out, experts.n_rows)

    def _gather(self, x: Buffer, routing: Routing) -> Buffer:
        """A row's copies times their weights, added in the order of the routing."""
        n_rows = routing.n_slots // routing.n_used
        out = self._new(x.width, "own", n_rows)
        out.live = x.live
        args = [x.address, routing.weights.address, routing.place, out.address, x.width, routing.n_used, n_rows]
        at = self.backend.kernel("combine", moe.combine)
        self._op(at, args, "own", [x, routing.weights, routing.tables], [out])
        return out

    def _in_tiles(self, x: Buffer, routing: Routing) -> Buffer:
        """Each segment's copies as int8 tiles of their own; made once per buffer however many products read it."""
        if True not in x.quantised:
            n_blocks = 2 * pairs(x.width)
            q = Buffer(self.memory, routing.n_tiles * TILE, 0, n_blocks, tiled=True)
            args = [x.address, q.address, x.width, n_blocks, routing.segments, n_blocks * HALF_BYTES]
            self._op(self.backend.kernel("quantize_each", moe.quantize), args, "own", [x, routing.tables], [q])
            x.quantised[True] = q
        return x.quantised[True]

    def _template(self, record: list[int]) -> int:
        """Address of a record that `each` fills in."""
        words = np.zeros(RECORD, np.int64)
        words[: len(record)] = record
        self.keep.append(words)
        return int(words.ctypes.data)

    def _words(self, n: int, n_bytes: int) -> Buffer:
        """Memory for n words of 4 or 8 bytes."""
        return self._new(-(-n * n_bytes // 16) * 4, "own", 1)

    def _each(
        self,
        record: list[int],
        n_word: int,
        routing: Routing,
        steps: list[int],
        packing: list[int],
        reads: list,
        writes: list,
        many: Sequence[int] = (0, 0, 0),
    ) -> None:
        """One run of `record` per segment (moe.each); steps: bytes between weights, rows of x and of y; many: words 13 to 15."""
        args = [self._template(record), routing.segments, *steps, n_word, *packing, *many]
        self._op(self.backend.kernel("each", moe.each), args, "own", [*reads, routing.tables], writes)
