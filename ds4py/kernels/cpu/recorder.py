"""Recording a model's forward as a flat program.

The model's graph runs once, in Python, against a Recorder: each operation allocates its result and appends one record. Nothing is
computed. The program is then replayed for every call with the same number of rows; what changes from call to call (tokens,
positions, which session a row belongs to) lies in cells whose addresses are baked in.

Memory: a buffer's block goes back to the pool when the model drops its last reference, exactly as in eager Python, so the program
reuses memory the way the source reads. The programs of one graph share a pool, since only one runs at a time; those of another
graph (a draft model's) have their own, so that they may run while the results of this one are being read.

Barriers: an op needs one only if it touches memory that another thread may have written (or may still be reading) since the last
barrier. Ops split alike over the same buffer stay on their thread and need none; that drops a layer from about 20 barriers to 10.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ds4py.errors import UnsupportedError
from ds4py.gguf.types import GgmlType
from ds4py.kernels.cpu import attention, few, iq2, matmul, rowwise, unpack
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.packed import BLOCK, Packed, pairs, tile_bytes
from ds4py.kernels.cpu.weights import FLOATS, CpuWeight
from ds4py.protocols import F32, Rope

if TYPE_CHECKING:
    from ds4py.kernels.cpu.backend import CpuKernels
    from ds4py.kernels.cpu.latent import LatentRecorder

PANEL_BYTES = 96 << 10  # weights walked through all chunks of rows before the next panel: about a quarter of an L2 cache


class Pool:
    """Blocks of activation memory in power-of-two sizes; zeroed when first made."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, np.ndarray]] = []  # (address, memory), kept for ever

    def sizes(self) -> list[tuple[int, int]]:
        return [(memory.nbytes - 64, address) for address, memory in self._blocks]

    def grow(self, size: int) -> int:
        memory = np.zeros(size + 64, np.uint8)
        address = memory.ctypes.data + (-memory.ctypes.data % 64)
        self._blocks.append((address, memory))
        return address


class Memory:
    """One recording's view of the pool: which blocks are free at this point of the program."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._free: dict[int, list[int]] = {}
        for size, address in pool.sizes():
            self._free.setdefault(size, []).append(address)

    def take(self, n_bytes: int) -> tuple[int, int]:
        size = max(4096, 1 << (n_bytes - 1).bit_length())
        free = self._free.get(size)
        return (free.pop() if free else self._pool.grow(size)), size

    def give(self, size: int, address: int) -> None:
        self._free.setdefault(size, []).append(address)


@dataclass(eq=False)
class Buffer:
    """An activation matrix [n_rows, width] f32, or (width 0) quantised rows of n_blocks blocks: one after another, or tiled."""

    memory: Memory
    n_rows: int
    width: int
    n_blocks: int = 0
    split: str = "own"  # how its writer was split: "row", "col", or "own"
    live: int = 0  # columns that mean something; the rest is padding
    tiled: bool = False
    quantised: dict[bool, Buffer] = field(default_factory=dict)  # tiled or not -> the same rows in int8
    address: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        in_rows = self.n_rows * (self.width * 4 if self.width else self.n_blocks * matmul.ROW_BYTES)
        n_bytes = tile_bytes(self.n_rows, self.n_blocks) if self.tiled else in_rows
        self.address, self.size = self.memory.take(n_bytes)

    def __del__(self) -> None:
        self.memory.give(self.size, self.address)


@dataclass(frozen=True)
class Program:
    """A finished recording. `logits` and `taps` are views of pool memory, overwritten when its graph runs again."""

    ops: np.ndarray  # int64 [n, RECORD]
    ops_at: int  # its address
    logits: F32
    taps: dict[int, F32]
    caches: frozenset[int]
    keep: tuple[object, ...]


@dataclass(frozen=True)
class Product:
    """A product's kernel and its arguments: addresses of weights, input and output come first."""

    kernel: int
    args: list[int]
    read: Buffer  # the input in the form that is read
    row_bytes: int  # of the input
    n_word: int  # word of the record that holds the number of rows


class Recorder:
    """protocols.Ops for the CPU: appends records instead of computing."""

    latent: LatentRecorder  # of the same program; the backend sets it

    def __init__(self, backend: CpuKernels, pool: Pool, n_rows: int, n_logits: int, taps: tuple[int, ...]):
        self.backend, self.n_rows, self.n_logits, self.wanted = backend, n_rows, n_logits, taps
        self.memory = Memory(pool)
        self.ops: list[list[int]] = []
        self.taps: dict[int, Buffer] = {}
        self.caches: set[int] = set()
        self.keep: list[object] = []
        self._written: dict[object, tuple[str, object]] = {}  # since the last barrier: what -> (split, geometry)
        self._read: dict[object, set[tuple[str, object]]] = {}

    # --- the protocol ---
    def embed(self, weight: CpuWeight, scale: float = 1.0) -> Buffer:
        if weight.form is None and weight.type not in FLOATS:
            raise UnsupportedError(f"tensor {weight.tensor.name}: the CPU kernels cannot look up rows of type {weight.type.name}")
        out = self._new(weight.row_len, "row")
        at = self.backend.kernel(f"embed_{weight.type.name}", lambda t: unpack.embed(weight.type, t))
        args = [
            weight.file_address,
            self.backend.tokens_at,
            out.address,
            weight.row_len,
            weight.row_bytes,
            self.n_rows,
            bits(scale),
        ]
        self._op(at, args, "row", [], [out])
        return out

    def given(self, width: int) -> Buffer:
        out = self._new(width, "row")
        at = self.backend.kernel("narrow", rowwise.narrow)
        self._op(at, [self.backend.given_at(width), out.address, width, width, self.n_rows], "row", [], [out])
        return out

    def rms_norm(self, x: Buffer, weight: F32 | None, eps: float, n_heads: int = 1) -> Buffer:
        width = x.width // n_heads
        weight = np.ones(width, np.float32) if weight is None else weight
        if width % 4 or len(weight) != width:
            raise UnsupportedError(f"the CPU kernels normalise rows of a multiple of 4 values; this model has {width}")
        out = self._new(x.width, "row", x.n_rows)
        at = self.backend.kernel("rms_norm", rowwise.rms_norm)
        self._op(at, [x.address, self._vector(weight), out.address, width, n_heads, x.n_rows, bits(eps)], "row", [x], [out])
        return out

    def linear(self, x: Buffer, weight: CpuWeight, bias: F32 | None = None) -> Buffer:
        weight.prepare()
        if self.backend.squares is not None:
            self._observe(x, weight.tensor.name)
        out = self._new(weight.padded_rows, "own", x.n_rows)
        if weight.form is not None and x.n_rows > matmul.most_rows(self.backend.library.target, weight.form):
            q = self._quantised(x, tiled=True)
            self._op(self._many_rows(weight.form, x.n_rows), self._tile_args(weight, q, out), "own", [q], [out])
        else:
            product = self._product(x, weight, out)
            self._op(product.kernel, product.args, "own", [product.read], [out])
        out = self._cut(out, weight.n_rows)
        if bias is not None:
            at = self.backend.kernel("add_bias", rowwise.add_bias)
            self._op(at, [out.address, self._vector(bias), out.width, x.n_rows], "row", [out], [out])
            out.split = "row"
        return out

    def rope(self, x: Buffer, rope: Rope, n_heads: int, inverse: bool = False) -> Buffer:
        out = self._new(x.width, "row", x.n_rows)
        table = self.backend.rope_table(rope)
        name = f"rope_{int(rope.interleaved)}{int(inverse)}"
        at = self.backend.kernel(name, lambda t: rowwise.rope(t, rope.interleaved, inverse))
        width = x.width // n_heads
        args = [
            x.address,
            out.address,
            width,
            n_heads,
            x.n_rows,
            self.backend.pos_at,
            self.backend.rope_cell(table),
            len(rope.inv_freq),
            width - 2 * len(rope.inv_freq) if rope.tail else 0,
        ]
        self._op(at, args, "row", [x], [out])
        return out

    def attend(
        self,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        cache: int,
        n_heads: int,
        n_kv_heads: int,
        scale: float,
        softcap: float = 0.0,
        block: bool = False,
    ) -> Buffer:
        b, d = self.backend, q.width // n_heads
        if d % 16:
            raise UnsupportedError(f"the CPU attention kernel needs heads of a multiple of 16 values; this model has {d}")
        if d * n_heads % BLOCK or n_heads % n_kv_heads:
            raise UnsupportedError(f"the CPU attention kernel cannot share {n_heads} heads of {d} values among {n_kv_heads}")
        self.store(k, v, cache, n_kv_heads)
        out, n_q = self._new(q.width, "col"), n_heads // n_kv_heads
        name = f"attend_{d}_{n_q}{'_cap' if softcap else ''}"
        chunks = b.kernel(name, lambda t: attention.attend(t, d, n_q, bool(softcap)))
        combine = b.kernel(f"combine_{d}", lambda t: attention.combine(t, d))
        for row in range(0, self.n_rows, attention.ROWS_AT_ONCE):
            n = min(attention.ROWS_AT_ONCE, self.n_rows - row)
            slots = b.slots(n * n_heads, d)
            pos, tables, first = (cell + 8 * row for cell in (b.pos_at, b.tables_at, b.first_at))
            last = b.last_at + 8 * row if block else pos
            args = [q.address + row * q.width * 4, 0, n_heads, n_kv_heads, n, pos, tables, cache, bits(scale)]
            self._op(chunks, [*args, bits(softcap or 1.0), slots, first, last], "own", [q, ("cache", cache)], ["slots"])
            args = [out.address + row * q.width * 4, n_heads, n, pos, tables, cache, slots, first, last, b.scratch_cell]
            self._op(combine, args, "col" if n == self.n_rows else "own", ["slots"], [out])
        out.split = "col" if self.n_rows <= attention.ROWS_AT_ONCE else "own"
        return out

    def store(self, k: Buffer, v: Buffer, cache: int, n_kv_heads: int) -> None:
        b = self.backend
        self.caches.add(cache)
        args = [k.address, v.address, k.width // n_kv_heads, n_kv_heads, self.n_rows, b.pos_at, b.tables_at, cache]
        split = "row" if self.n_rows == 1 else "own"
        at = b.kernel(f"store_kv_{split}", lambda t: attention.store_kv(t, split))
        self._op(at, args, split, [k, v], [("cache", cache)])

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        return self._elementwise("add", lambda t: rowwise.elementwise(t, 2, rowwise.add, "row"), [a, b], "row")

    def scale(self, x: Buffer, factor: float) -> Buffer:
        return self._elementwise("scale", lambda t: rowwise.elementwise(t, 1, rowwise.scale, "row"), [x], "row", factor)

    def concat(self, a: Buffer, b: Buffer) -> Buffer:
        out = self._new(a.width + b.width, "row", a.n_rows)
        at = self.backend.kernel("place", rowwise.place)
        for part, column in ((a, 0), (b, a.width)):
            self._op(at, [part.address, out.address, part.width, out.width, column, a.n_rows], "row", [part], [out])
        return out

    def gated(self, gate: Buffer, up: Buffer, act: str, limit: float = 0.0) -> Buffer:
        fn = {"silu": rowwise.silu_gate, "gelu": rowwise.gelu_gate}[act]
        name = f"gate_{act}{'_limited' if limit else ''}"
        return self._elementwise(name, lambda t: rowwise.elementwise(t, 2, fn(t, bool(limit)), "col"), [gate, up], "col", limit)

    def softcap(self, x: Buffer, cap: float) -> Buffer:
        return self._elementwise("softcap", lambda t: rowwise.elementwise(t, 1, rowwise.softcap(t), "col"), [x], "col", cap)

    def pick(self, x: Buffer) -> Buffer:
        if self.n_logits == self.n_rows:
            return x
        out = self._new(x.width, "row", self.n_logits)
        at = self.backend.kernel("pick", rowwise.pick)
        # a thread's share of the picked rows is no share of x's rows: they are read after a barrier
        self._op(at, [x.address, out.address, x.width, self.n_logits, self.backend.picked_at], "own", [x], [out])
        return out

    def wants(self, layer: int) -> bool:
        return layer in self.wanted

    def tap(self, layer: int, x: Buffer) -> None:
        if layer in self.wanted:
            self.taps[layer] = x

    # --- building ---
    def finish(self, logits: Buffer) -> Program:
        ops = np.zeros((len(self.ops), RECORD), np.int64)
        for i, record in enumerate(self.ops):
            ops[i, : len(record)] = record
        taps = {layer: _view(x)[: self.n_rows] for layer, x in self.taps.items()}
        live = logits.live or logits.width
        at, rows = int(ops.ctypes.data), _view(logits)[:, :live]
        return Program(ops, at, rows, taps, frozenset(self.caches), (*self.keep,))

    def _new(self, width: int, split: str, n_rows: int | None = None) -> Buffer:
        if width % 4:
            raise UnsupportedError(f"the CPU kernels need widths of a multiple of 4 values; this model has {width}")
        return Buffer(self.memory, self.n_rows if n_rows is None else n_rows, width, split=split)

    def _vector(self, x: F32) -> int:
        x = np.ascontiguousarray(x, np.float32)
        self.keep.append(x)
        return int(x.ctypes.data)

    def _product(self, x: Buffer, weight: CpuWeight, out: Buffer) -> Product:
        """The call that multiplies a few rows of x by `weight`, or any number where the weights have no packed form."""
        b = self.backend
        if weight.form is not None:
            q = self._quantised(x)
            table, row_bytes = b.micro_table(weight.form), q.n_blocks * matmul.ROW_BYTES
            panel = max(4, PANEL_BYTES // (pairs(weight.row_len) * weight.form.pair_bytes) // 4 * 4)
            args = [weight.address, q.address, out.address, weight.padded_rows, row_bytes]
            args += [pairs(weight.row_len), weight.n_groups, x.n_rows, panel, table]
            return Product(b.driver(weight.form), args, q, row_bytes, 9)
        if weight.type == GgmlType.IQ2_XXS:
            q = self._quantised(x)
            row_bytes = q.n_blocks * matmul.ROW_BYTES
            args = [weight.file_address, q.address, out.address, weight.padded_rows, row_bytes, q.n_blocks]
            args += [weight.row_len // 256, weight.n_rows, x.n_rows, b.iq2_tables]
            return Product(b.kernel("iq2_xxs", iq2.product), args, q, row_bytes, 10)
        kind = weight.type.name.lower()
        at = b.kernel(f"float_{kind}", lambda t: matmul.float_product(kind, t))
        args = [weight.file_address, x.address, out.address, weight.padded_rows, x.width, weight.row_len, weight.n_rows, x.n_rows]
        return Product(at, args, x, x.width * 4, 9)

    def _tile_args(self, weight: CpuWeight, q: Buffer, out: Buffer) -> list[int]:
        """Arguments of a product of rows in tiles."""
        return [weight.address, q.address, out.address, weight.padded_rows, pairs(weight.row_len), weight.n_groups, out.n_rows]

    def _many_rows(self, form: Packed, n_rows: int) -> int:
        """The kernel for rows in tiles."""
        if n_rows in few.counts(self.backend.library.target, form):
            return self.backend.few_kernel(form, n_rows)
        return self.backend.tiles_kernel(form)

    def _cut(self, out: Buffer, n: int) -> Buffer:
        """A product's buffer without the padding columns beyond the next multiple of 4."""
        if out.width - n >= 4:
            out = self._narrow(out, n)
        out.live = n
        return out

    def _quantised(self, x: Buffer, tiled: bool = False) -> Buffer:
        """x as int8 rows; made once per buffer however many products read it."""
        if tiled not in x.quantised:
            if x.width % BLOCK:
                raise UnsupportedError(
                    f"quantised products need inputs of a multiple of {BLOCK} values; this model has {x.width}"
                )
            n_blocks = 2 * pairs(x.width)
            q = Buffer(self.memory, x.n_rows, 0, n_blocks, tiled=tiled)
            split = "tiles" if tiled else x.split if x.split != "own" else "col"
            if n_blocks * BLOCK != x.width:
                n_bytes = tile_bytes(x.n_rows, n_blocks) if tiled else x.n_rows * n_blocks * matmul.ROW_BYTES
                self._op(self.backend.kernel("clear", rowwise.clear), [q.address, n_bytes], "own", [], [q])
            at = self.backend.kernel(f"quantize_{split}", lambda t: rowwise.quantize(t, split))
            self._op(at, [x.address, q.address, x.width, n_blocks, x.n_rows], "own" if tiled else split, [x], [q])
            x.quantised[tiled] = q
        return x.quantised[tiled]

    def _observe(self, x: Buffer, name: str) -> None:
        """Add the squares of a product's inputs to the backend's sums for the tensor `name`."""
        sums = self.backend.sums_of(name, x.width)
        at = self.backend.kernel("add_squares", rowwise.add_squares)
        self._op(at, [int(sums.ctypes.data), x.address, 0, x.width, x.n_rows], "own", [x], [("squares", name)])

    def _elementwise(self, name: str, builder, inputs: list[Buffer], split: str, param: float = 0.0) -> Buffer:
        x = inputs[0]
        if x.width % BLOCK:
            raise UnsupportedError(f"the CPU kernels need widths of a multiple of {BLOCK} values; this model has {x.width}")
        out = self._new(x.width, split, x.n_rows)
        out.live = x.live
        args = [*(i.address for i in inputs), out.address, x.width, x.n_rows, bits(param)]
        self._op(self.backend.kernel(name, builder), args, split, list(inputs), [out])
        return out

    def _narrow(self, x: Buffer, width: int) -> Buffer:
        """Drop the padding columns of a product whose output is not a multiple of 16."""
        out = self._new(-(-width // 4) * 4, "row", x.n_rows)
        at = self.backend.kernel("narrow", rowwise.narrow)
        self._op(at, [x.address, out.address, x.width, out.width, x.n_rows], "row", [x], [out])
        return out

    def _op(self, address: int, args: list[int], split: str, reads: list, writes: list) -> None:
        barrier = self._must_wait(split, reads, writes)
        if barrier:
            self._written.clear()
            self._read.clear()
        for x in reads:
            self._read.setdefault(_what(x), set()).add((split, _shape(x)))
        for x in writes:
            self._written[_what(x)] = (split, _shape(x))
        self.ops.append([address, int(barrier), *args])

    def _must_wait(self, split: str, reads: list, writes: list) -> bool:
        def safe(x, other: tuple[str, object]) -> bool:
            return split != "own" and other == (split, _shape(x))

        for x in [*reads, *writes]:
            earlier = self._written.get(_what(x))
            if earlier is not None and not safe(x, earlier):
                return True
        return any(not safe(x, earlier) for x in writes for earlier in self._read.get(_what(x), ()))


def _what(x) -> object:
    return x.address if isinstance(x, Buffer) else x


def _shape(x) -> object:
    return (x.n_rows, x.width, x.n_blocks) if isinstance(x, Buffer) else None


def bits(x: float) -> int:
    return int(np.float32(x).view(np.int32)) & 0xFFFFFFFF


def _view(x: Buffer) -> F32:
    n = x.n_rows * x.width
    array = np.ctypeslib.as_array((ctypes.c_float * n).from_address(x.address))
    return array.reshape(x.n_rows, x.width)
