"""One tensor of experts as the CPU kernels hold it, and how products by expert are recorded.

Quantised experts are packed one by one when a row first takes them (moe.py `each`), and the file's pages go back to the system as
that happens; what no row takes costs neither time nor memory. They stay, unless a cache of experts (expert_cache.py) bounds them.
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
from ds4py.kernels.cpu import matmul, moe, rowwise, seats, unpack
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.packed import BLOCK, HALF_BYTES, TILE, pairs
from ds4py.kernels.cpu.recorder import Buffer, Recorder, bits
from ds4py.kernels.cpu.weights import CpuWeight
from ds4py.protocols import Router

if TYPE_CHECKING:
    from ds4py.kernels.cpu.backend import CpuKernels


REACH = 2 << 20  # bytes that one page fault maps at most (Linux, from a cache of large folios)


class CpuExperts(CpuWeight):
    """Matrices [n_experts, n_rows, row_len]. `table` is what seats.py reads: each expert has a seat of its own, until a cache of
    experts (expert_cache.py) deals the seats."""

    def __init__(self, backend: CpuKernels, tensor: Tensor):
        super().__init__(backend, tensor)
        self.n_experts = tensor.shape[2]
        self.n_rows = tensor.shape[1]
        self.file_stride = tensor.nbytes // self.n_experts
        # bytes of an expert in its seat; one that is multiplied as it lies in the file has a seat only in a cache
        self.stride = self.form.n_bytes(self.n_rows, self.row_len) if self.form else -(-self.file_stride // 64) * 64
        self.counters = np.zeros(self.n_experts, np.int64)  # threads that have packed
        self.table = np.zeros(seats.TABLE_WORDS, np.int64)
        self.product: tuple[list[int], object] = ([], None)  # some program's op with it, and what that refers to
        self._held = np.zeros(0, np.int64)
        self._packing = np.zeros(RECORD, np.int64)
        self._pages = np.zeros((0, 2), np.int64)

    def prepare(self) -> None:
        """Write the table and the packing kernel's record, and reserve address space; nothing is packed yet."""
        if self.table[seats.FILE]:
            return
        table, form = self.table, self.form
        table[[seats.FILE, seats.FILE_STRIDE]] = self.file_address, self.file_stride
        table[[seats.N_ROWS, seats.ROW_BYTES]] = self.n_rows, self.row_bytes
        if form is None:
            return
        args = (self.file_address, 0, self.n_rows, self.row_len // BLOCK, self.row_bytes, pairs(self.row_len), 0)
        self._packing[0] = self._backend.kernel(f"repack_{self.type.name}", lambda t: unpack.repack(self.type, t))
        self._packing[2:10] = *args, self.n_rows
        table[[seats.PACKING, seats.N_GROUPS]] = self._packing.ctypes.data, self.n_groups
        if self._backend.expert_cache is not None:
            return
        self._packed = aligned(self.n_experts * self.stride)
        self._held = np.zeros(self.n_experts * self._backend.executor.n_threads, np.int64)
        self._pages = self._pages_in_file()
        table[[seats.SEATS, seats.SEAT_STRIDE]] = self._packed.ctypes.data, self.stride
        table[[seats.HELD, seats.COUNTERS]] = self._held.ctypes.data, self.counters.ctypes.data
        table[seats.PAGES] = self._pages.ctypes.data

    def _pages_in_file(self) -> np.ndarray:
        """int64 [n_experts, 2]: first page of each expert and bytes of its pages, 0 if it is not mapped. They are whole `REACH`es
        around the expert, since the system maps that many when one is touched, but none that another tensor lies in."""
        pages = np.zeros((self.n_experts, 2), np.int64)
        if self.tensor.is_mapped and hasattr(mmap, "MADV_DONTNEED"):
            begin, size = self.file_address, mmap.PAGESIZE
            first = begin + np.arange(self.n_experts) * self.file_stride
            lo = np.maximum(first // REACH * REACH, -(-begin // size) * size)
            hi = np.minimum(-(-(first + self.file_stride) // REACH) * REACH, (begin + self.tensor.nbytes) // size * size)
            pages[:, 0], pages[:, 1] = lo, np.maximum(hi - lo, 0)
        return pages

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.n_experts, self.n_rows, self.row_len

    @property
    def address(self) -> int:
        return 0  # the table tells

    @property
    def resident_bytes(self) -> int:
        return int((self.counters > 0).sum()) * self.stride if self.form else 0


def aligned(n_bytes: int) -> np.ndarray:
    """Zeros that begin at a cache line; pages are taken when they are touched."""
    memory = np.zeros(n_bytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + n_bytes]


@dataclass(frozen=True)
class Routing:
    """Which experts the rows of a call take, in buffers that `route` and `group` fill. A slot is a row and one of its experts."""

    n_used: int
    n_experts: int
    n_slots: int
    n_segments: int  # at most
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
        return Routing(n_used, n_experts, n_slots, n_segments, weights, tables, n_tiles, segments, source, place)

    def experts(
        self, x: Buffer, routing: Routing, gate: CpuExperts, up: CpuExperts, down: CpuExperts, act: str, limit: float = 0.0
    ) -> Buffer:
        plan = self._plan(routing, (gate, up, down))
        h = self._spread(x, routing)
        h = self.gated(self._by_expert(h, gate, routing, plan), self._by_expert(h, up, routing, plan), act, limit)
        return self._gather(self._by_expert(h, down, routing, plan), routing)

    def _plan(self, routing: Routing, parts: tuple[CpuExperts, CpuExperts, CpuExperts]) -> Buffer | None:
        """Seats for the call's experts, where seats are fewer than experts."""
        cache = self.backend.expert_cache
        if cache is None:
            return None
        plan = self._words(2 * routing.n_segments, 8)
        args = [routing.segments, cache.layer(parts).address, plan.address, routing.n_segments]
        self._op(self.backend.kernel("plan_seats", seats.plan), args, "own", [routing.tables], [plan])
        return plan

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

    def _by_expert(self, x: Buffer, experts: CpuExperts, routing: Routing, plan: Buffer | None) -> Buffer:
        """Each copy times its own expert's matrix."""
        name = experts.tensor.name
        if experts.n_experts != routing.n_experts:
            raise UnsupportedError(f"tensor {name} has {experts.n_experts} experts, the router chooses among {routing.n_experts}")
        experts.prepare()
        if self.backend.squares is not None:
            sums = self.backend.sums_of(name, x.width, experts.n_experts)
            add = self.backend.kernel("add_squares", rowwise.add_squares)
            record = [add, 0, int(sums.ctypes.data), x.address, 0, x.width, x.n_rows]
            self._each(record, 6, routing, [sums.strides[0], x.width * 4, 0], (0, 0, 0), [x], [("squares", name)])
        out = self._new(experts.padded_rows, "own", x.n_rows)
        product = self._product(x, experts, out)
        record = [product.kernel, 0, 0, *product.args[1:]]
        where = [int(experts.table.ctypes.data), plan.address if plan is not None else 0, routing.n_segments]
        tiled, few, tile_bytes, reads = 0, 0, 0, [product.read, plan] if plan is not None else [product.read]
        limit = matmul.most_rows(self.backend.library.target, experts.form) if experts.form else 0
        if experts.form is not None and routing.n_slots // routing.n_used > limit:  # as many rows may take one expert
            q = self._in_tiles(x, routing)
            table = self.backend.few_table(experts.form)
            args = [self.backend.kernel("by_rows", lambda _: few_rows.by_rows()), 0, *self._tile_args(experts, q, out), table]
            tiled, few, tile_bytes, reads = self._template(args), limit, q.n_blocks * HALF_BYTES, [*reads, q]
        steps = [0, product.row_bytes, out.width * 4]
        self._each(record, product.n_word, routing, steps, where, reads, [out], [tiled, few, tile_bytes])
        if self.backend.expert_cache is not None:
            experts.product = self.ops[-1], self.keep[-1]
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
        where: Sequence[int],
        reads: list,
        writes: list,
        many: Sequence[int] = (0, 0, 0),
    ) -> None:
        """One run of `record` per segment (moe.each); steps: bytes between weights, rows of x and of y; where: words 8 to 10;
        many: words 11 to 13."""
        args = [self._template(record), routing.segments, *steps, n_word, *where, *many]
        self._op(self.backend.kernel("each", moe.each), args, "own", [*reads, routing.tables], writes)
