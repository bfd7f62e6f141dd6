"""The CPU backend: protocols.Kernels over recorded programs.

A call of the model's forward is: write tokens, positions and session tables into cells, look up the program of this shape, let
all threads replay it, hand out a view of the logits. Which kernels exist is decided by what the model's graph asks for; they
are compiled on first request and cached on disk (compile.py).
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ds4py.errors import UnsupportedError
from ds4py.gguf import Tensor
from ds4py.kernels.cpu import attention, choosing, few, iq2, latent_attention, matmul, tiles
from ds4py.kernels.cpu.arena import Arena
from ds4py.kernels.cpu.compile import Builder, Library
from ds4py.kernels.cpu.draws import Drawer
from ds4py.kernels.cpu.executor import Executor, physical_cores
from ds4py.kernels.cpu.expert_cache import ExpertCache
from ds4py.kernels.cpu.experts import CpuExperts, ExpertRecorder
from ds4py.kernels.cpu.latent import LatentRecorder
from ds4py.kernels.cpu.packed import Packed
from ds4py.kernels.cpu.recorder import Buffer, Pool, Program
from ds4py.kernels.cpu.target import Target, target_for
from ds4py.kernels.cpu.weights import CpuWeight
from ds4py.kernels.streaming import ExpertCounts, Streaming
from ds4py.protocols import F32, Ops, Out, Rope, Rows, StateView
from ds4py.quants import decode

ROPE_CHUNK = 1024  # positions by which a rotary table grows


class CpuKernels:
    """Row-invariant kernels on quantised weights. `path` forces a hardware path (target.PATHS); None takes the best one that
    computes right (choosing.py); `notes` are sentences for the user about those that were left out.
    `streaming` bounds the experts that are held."""

    prefill_tile = 0  # prompts take the row path: tiles.py has its bits

    def __init__(
        self,
        threads: int | None = None,
        max_rows: int = 64,
        path: str | None = None,
        progress: Callable[[int, int], None] | None = None,
        streaming: Streaming | None = None,
    ):
        choice = choosing.Choice(target_for(path)) if path else choosing.best(progress)
        target, self.notes = choice.target, choice.notes
        self.path = target.path
        self.name = f"cpu-{target.path}"
        self.library = Library(target, progress=progress)
        self.n_threads = threads or physical_cores()
        self.executor = Executor(self.library, self.n_threads)
        atexit.register(self.executor.close)
        self.max_rows = max_rows
        self.arena = Arena()
        self.expert_cache = ExpertCache(self, streaming) if streaming is not None else None
        self._pools: dict[object, Pool] = {}  # by graph
        self.squares: dict[str, np.ndarray] | None = None  # tensor -> f64 [K + 1]; see observe
        self._programs: dict[object, Program] = {}
        self._micro: dict[Packed, np.ndarray] = {}
        self._few: dict[Packed, np.ndarray] = {}
        self._ropes: list[Rope] = []
        self._rope_tables: list[F32] = []
        self._rope_cells = np.zeros(64, np.int64)
        # tokens, positions, session tables, picked rows, first and last seen, first of the row's span
        self._cells = np.zeros((7, max_rows), np.int64)
        self._words = self._cells.reshape(-1).data
        self._first_cells = range(0, len(self._words), max_rows)
        cells = [int(row.ctypes.data) for row in self._cells]
        self.tokens_at, self.pos_at, self.tables_at, self.picked_at, self.first_at, self.last_at, start_at = cells
        self._given: dict[int, F32] = {}  # width -> [max_rows, width]
        self._iq2_tables = iq2.tables()
        self.iq2_tables = int(self._iq2_tables.ctypes.data)
        self.draw = Drawer(self.kernel)  # protocols.Draws: engine/sampling.py in machine code
        self._scratch = np.zeros(0, np.float32)
        self._scratch_cells = np.zeros(2, np.int64)  # address, bytes per thread
        self.scratch_cell = int(self._scratch_cells.ctypes.data)
        self._slots = np.zeros(0, np.float32)
        self._slots_cells = np.zeros(3, np.int64)  # chunks of attention: address, bytes of a query's, how many it may have
        self._slots_needed = (0, 0)  # queries, width of a head
        self._fits: Callable[[], StateView | None] = lambda: None  # the session for which all this was last seen to suffice,
        self._fits_below = 0  # up to this position
        self._shared = np.zeros(0, np.float32)
        self._shared_cells = np.zeros(2, np.int64)  # scores that threads make together: address, bytes of a row
        self.shared_cell = int(self._shared_cells.ctypes.data)
        # what latent_attention.attend reads of a call: with each row's own position as its first and last, or its span's
        both = [[self.pos_at, self.pos_at], [start_at, self.last_at]]
        self._spans = np.array([[self.pos_at, self.tables_at, self.scratch_cell, self.first_at, *ends] for ends in both])
        self.causal_cells, self.block_cells = (int(row.ctypes.data) for row in self._spans)

    # --- protocols.Kernels ---
    def weight(self, tensor: Tensor) -> CpuWeight:
        return CpuWeight(self, tensor)

    def experts(self, tensor: Tensor) -> CpuExperts:
        return CpuExperts(self, tensor)

    def vector(self, tensor: Tensor) -> F32:
        return decode(tensor.type, tensor.data, tensor.n_values)

    def ready(self, key: object, graph: Callable[[Ops], Buffer]) -> None:
        """Record the one-row program now: weights are packed and kernels compiled before the first token is asked for."""
        self._program(graph, (key, 1, 1, ()))

    def run(self, key: object, graph: Callable[[Ops], Buffer], rows: Rows, taps: Sequence[int] = ()) -> Out:
        n, n_logits = len(rows.tokens), len(rows.logit_rows)
        if n > self.max_rows:
            raise UnsupportedError(f"{n} rows in one forward call; this backend was opened for at most {self.max_rows}")
        shape = key, n, n_logits, tuple(taps)
        program = self._programs.get(shape) or self._program(graph, shape)
        if self.expert_cache is not None:
            self.expert_cache.settle()
        reach = int(rows.pos[-1]) if len(rows.states) == 1 else int(np.max(rows.pos))
        spans = self._fill(rows, n, n_logits, reach)
        if rows.given is not None:
            self.given_at(rows.given.shape[1])
            self._given[rows.given.shape[1]][:n] = rows.given
        if reach >= self._fits_below or self._fits() is not rows.states[0] or len(rows.states) > 1:
            self._grow_tables(reach)
            self._grow_scratch(rows.states, reach)
        self.executor.run(program.ops, program.ops_at)
        if self.expert_cache is not None:
            self.expert_cache.check()
        return Out(program.logits, spans, program.taps)

    def preload(self) -> None:
        """streaming.Streams."""
        if self.expert_cache is not None:
            self.expert_cache.preload()

    def expert_counts(self) -> ExpertCounts | None:
        """streaming.Streams."""
        return self.expert_cache.counts() if self.expert_cache is not None else None

    def observe(self) -> dict[str, np.ndarray]:
        """From now on, sum the squares of the inputs of every product: tensor name -> f64 [K + 1], the last item counts rows
        (experts: [n_experts, K + 1]).

        Programs recorded before do not observe and are not used again; a backend that is never asked pays nothing."""
        if self.squares is None:
            self.squares = {}
            self._programs.clear()
        return self.squares

    # --- for the recorder ---
    def sums_of(self, name: str, width: int, n_experts: int = 0) -> np.ndarray:
        assert self.squares is not None
        return self.squares.setdefault(name, np.zeros((n_experts, width + 1) if n_experts else width + 1, np.float64))

    def kernel(self, name: str, builder: Callable[[Target], Builder]) -> int:
        return self.library.load({name: builder(self.library.target)})[name]

    def record(self, key: object, graph: Callable[[Ops], Buffer], n_rows: int) -> Program:
        """The program of `graph` for `n_rows` rows that are all asked for."""
        return self._program(graph, (key, n_rows, n_rows, ()))

    def micro_kernel(self, form: Packed, m: int) -> int:
        """Address of the micro kernel for m rows."""
        return self.kernel(f"micro_{form.name}_{m}", lambda t: matmul.micro(form, m, t))

    def few_kernel(self, form: Packed, n_rows: int) -> int:
        """Address of the kernel for n rows in tiles."""
        return self.kernel(f"few_{form.name}_{n_rows}", lambda t: few.product(form, n_rows, t))

    def tiles_kernel(self, form: Packed) -> int:
        """Address of the kernel for any number of rows in tiles."""
        return self.kernel(f"tiles_{form.name}", lambda t: tiles.product(form, t))

    def few_table(self, form: Packed) -> int:
        """Address of the table of few.by_rows."""
        if form not in self._few:
            table = np.full(few.MOST_ROWS + 1, self.tiles_kernel(form), np.int64)
            for n in few.counts(self.library.target, form)[: few.MOST_ROWS - 1]:
                table[n] = self.few_kernel(form, n)
            self._few[form] = table
        return int(self._few[form].ctypes.data)

    def driver(self, form: Packed) -> int:
        """Address of the driver of `form`'s micro kernels."""
        sizes = matmul.chunks(self.library.target, form)
        return self.kernel(f"driver_{max(sizes)}", lambda _: matmul.driver(sizes))

    def micro_table(self, form: Packed) -> int:
        """Address of the driver's table: entry m is the micro kernel for m rows."""
        if form not in self._micro:
            t = self.library.target
            sizes = matmul.chunks(t, form)
            at = self.library.load({f"micro_{form.name}_{m}": matmul.micro(form, m, t) for m in sizes})
            table = np.zeros(max(sizes) + 1, np.int64)
            for m in sizes:
                table[m] = at[f"micro_{form.name}_{m}"]
            self._micro[form] = table
        return int(self._micro[form].ctypes.data)

    def slots(self, n_queries: int, d: int) -> int:
        """Address of the cells that tell where chunks of attention go; from now on calls have room for so many queries."""
        n, width = self._slots_needed
        self._slots_needed = max(n, n_queries), max(width, d)
        self._fits_below = 0
        return int(self._slots_cells.ctypes.data)

    def given_at(self, width: int) -> int:
        """Address of the input vectors of calls that bring rows of `width`."""
        memory = self._given.setdefault(width, np.zeros((self.max_rows, width), np.float32))
        return int(memory.ctypes.data)

    def rope_table(self, rope: Rope) -> int:
        """Index of the table of cosines and sines for `rope`; equal ropes share one."""
        for i, other in enumerate(self._ropes):
            if other.magnitude == rope.magnitude and np.array_equal(other.inv_freq, rope.inv_freq):
                return i
        if len(self._ropes) == len(self._rope_cells):
            raise UnsupportedError(f"more than {len(self._rope_cells)} kinds of rotary embedding in one model")
        self._ropes.append(rope)
        self._rope_tables.append(np.zeros((0, 2 * len(rope.inv_freq)), np.float32))
        self._fits_below = 0
        return len(self._ropes) - 1

    def rope_cell(self, table: int) -> int:
        return int(self._rope_cells[table:].ctypes.data)

    # --- private ---
    def _fill(self, rows: Rows, n: int, n_logits: int, reach: int) -> list[int]:
        """Tell programs their n rows, up to position `reach`; gives where each session's rows of logits begin, and where the last
        one's end.

        The usual calls are short cuts: what passes here between two tokens is time in which no thread computes."""
        cells = self._cells
        if n == n_logits == 1 and rows.first is None:
            row = int(rows.tokens[0]), reach, rows.states[0].table_at, 0, 0, reach, reach
            for at, cell in zip(self._first_cells, row, strict=True):
                self._words[at] = cell
            return [0, 1]
        cells[0, :n], cells[1, :n] = rows.tokens, rows.pos
        cells[3, :n_logits] = rows.logit_rows
        cells[4, :n] = 0 if rows.first is None else rows.first
        if len(rows.states) == 1:
            cells[2, :n], cells[5, :n], cells[6, :n] = rows.states[0].table_at, rows.pos[-1], rows.pos[0]
            return [0, n_logits]
        tables = np.array([s.table_at for s in rows.states], np.int64)
        cells[2, :n] = tables[rows.span_of]
        last = np.searchsorted(rows.span_of, np.arange(len(rows.states)), side="right") - 1
        pos = np.asarray(rows.pos)
        cells[5, :n] = pos[last][rows.span_of]
        first = np.searchsorted(rows.span_of, np.arange(len(rows.states)))
        cells[6, :n] = pos[np.minimum(first, n - 1)][rows.span_of]
        found: list[int] = np.searchsorted(rows.span_of[rows.logit_rows], np.arange(len(rows.states) + 1)).tolist()
        return found

    def _program(self, graph: Callable[[Ops], Buffer], shape: tuple[object, int, int, tuple[int, ...]]) -> Program:
        """The recording of `graph` for a shape: the graph's key, rows, rows of logits, taps."""
        if shape not in self._programs:
            key, n, n_logits, taps = shape
            recorder = ExpertRecorder(self, self._pools.setdefault(key, Pool()), n, n_logits, taps)
            recorder.latent = LatentRecorder(recorder)
            self._programs[shape] = recorder.finish(graph(cast(Ops, recorder)))
        return self._programs[shape]

    def _grow_tables(self, pos: int) -> None:
        """Angles are formed in float64: at position 100,000 a float32 angle is off by 0.004 rad."""
        for i, rope in enumerate(self._ropes):
            have = len(self._rope_tables[i])
            if pos < have:
                continue
            n = (pos // ROPE_CHUNK + 1) * ROPE_CHUNK
            angle = np.arange(have, n)[:, None] * rope.inv_freq[None]
            rows = np.concatenate([np.cos(angle), np.sin(angle)], 1) * rope.magnitude
            self._rope_tables[i] = np.concatenate([self._rope_tables[i], rows.astype(np.float32)])
            self._rope_cells[i] = self._rope_tables[i].ctypes.data

    def _grow_scratch(self, states: Sequence[StateView], reach: int) -> None:
        """Per thread the scores of some heads over a ring and a pool, or weights of a query's chunks; for all threads, the scores
        of each row over a pool, and what chunks of attention give up to position `reach`."""
        n_queries, d = self._slots_needed
        room = max(int(self._slots_cells[2]), (reach // attention.CHUNK // 16 + 1) * 16)
        longest, ring, pool = (max(each) for each in zip(*map(_lengths, states), strict=True))
        per_thread = -(-(longest + 48) // 16) * 16
        if ring + pool:
            per_thread = max(per_thread, -(-(ring + pool + 48) // 16) * 16 * latent_attention.WORDS)
        if self._scratch_cells[1] < per_thread * 4:
            self._scratch = np.zeros(per_thread * self.executor.n_threads, np.float32)
            self._scratch_cells[:] = self._scratch.ctypes.data, per_thread * 4
        size = attention.slot_bytes(d, room)
        if self._slots.nbytes < n_queries * size or self._slots_cells[2] < room:
            self._slots = np.zeros(n_queries * size // 4, np.float32)
            self._slots_cells[:] = self._slots.ctypes.data, size, room
        if self._shared_cells[1] < pool * 4:
            self._shared = np.zeros(self.max_rows * pool, np.float32)
            self._shared_cells[:] = self._shared.ctypes.data, pool * 4
        self._fits, self._fits_below = weakref.ref(states[0]), min([room * attention.CHUNK, *map(len, self._rope_tables)])


def _lengths(state: StateView) -> tuple[int, int, int]:
    """Of a session: entries of its longest cache, and of the longest ring and pool if it has caches of latents."""
    caches = state.caches
    latents = any(not cache.keys.size for cache in caches)
    rings = [cache.capacity for cache in caches if latents and cache.window]
    pools = [cache.capacity for cache in caches if not cache.keys.size and not cache.window]
    return max((cache.capacity for cache in caches), default=0), max(rings, default=0), max(pools, default=0)
