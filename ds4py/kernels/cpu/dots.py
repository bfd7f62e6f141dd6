"""Int8 dot products of several activation rows with one block of weights: what differs between processors in tiles.py.

A block of weights lies unpacked in scratch memory (16 output rows x 32 inputs, a byte each); an engine says in which form it
wants it there (`put`), and multiplies some activation rows with it (`sums`). Every sum is an exact integer, so engines differ in
speed and never in a bit. `bias` is what `put` added to each weight on top of the form's own offset: the caller takes it, times
the sum of the activations, off again.

What mattered on AVX2 (measured, 4-bit weights, 64 rows: 68 to 105 GMAC/s on one core): 4 rows x 16 outputs at once, so that a
weight vector serves 4 rows and a broadcast 2 vectors; and `Fn.pinned`, without which LLVM turns the chains into trees and spills.
Rejected: vpaddsw, which LLVM leaves alone too (half as many of them per cycle on AMD); the signed weights of 8-bit forms widened
to 16 bits for vpmaddwd (as fast as vpsignb, more code); hand-written assembly for the inner loop (not faster than pinned sums).
"""

from __future__ import annotations

from typing import Protocol

from llvmlite import ir

from ds4py.kernels.cpu.ir import I8, I16, I32, I64, VOID, Fn, Val, const, vec
from ds4py.kernels.cpu.lanes import Planes, chain, mac, prepare, signed_bias, spread, widen
from ds4py.kernels.cpu.packed import Packed
from ds4py.kernels.cpu.target import Target

QUADS = 8  # of a block: vectors of four inputs
WORDS = QUADS * 16  # of a block, 4 bytes each

Sums = list[list[Val]]  # [row][part of the lanes] i32 vectors


class Engine(Protocol):
    """How one kind of processor multiplies. One engine builds one kernel; halves are the two blocks of a pair."""

    steps: tuple[int, int]  # activation rows at once: many, and few for what is left over; both divide 16
    bias: int  # see the module

    def put(self, half: int, part: int, quads: list[Val]) -> None:
        """Keep a block's weights: `quads` are its 8 vectors of i32 lanes, four bytes each, for one part of the 16 outputs."""
        ...

    def ready(self) -> None:
        """Both halves have been put."""
        ...

    def end(self) -> None:
        """Nothing more is multiplied in this kernel."""
        ...

    def sums(self, half: int, sub: int, rows: Val, n: int) -> Sums:
        """Dot products of sub-block `sub` of a block with n activation rows; row r's 32 bytes begin at `rows` + 32 r."""
        ...


_STEPS = {"avx512": (8, 4), "avx2": (4, 2), "plain": (2, 2)}  # as many as the registers hold; AVX2's signed weights take two


class Vectors:
    """Lanes are outputs, an activation quad is broadcast to all of them: the row path's own instructions, in a better order."""

    def __init__(self, f: Fn, t: Target, form: Packed):
        self.f, self.t, self.form = f, t, form
        self.bias = signed_bias(t) if form.signed else 0
        self.steps = _STEPS[t.path] if not form.signed or t.path != "avx2" else (2, 2)
        self._planes: list[ir.Type] = []  # of a prepared weight vector
        self._memory: list[Val] = []

    def put(self, half: int, part: int, quads: list[Val]) -> None:
        for j, quad in enumerate(quads):
            planes = prepare(self.f, self.t, quad, self.form.signed)
            if not self._planes:
                self._planes = [plane.type for plane in planes]
                self._memory = [self.f.scratch(ir.ArrayType(I32, 2 * WORDS)) for _ in planes]
            for at, plane in zip(self._at(half, j, part), planes, strict=True):
                self.f.store(at, plane, 4 * self.t.lanes)

    def ready(self) -> None:
        pass

    def end(self) -> None:
        pass

    def sums(self, half: int, sub: int, rows: Val, n: int) -> Sums:
        f, t, parts = self.f, self.t, range(self.t.parts)
        quads, at_once = cut(self.form, sub), chain(t, self.form.q_max)
        total: dict[tuple[int, int], Val] = {}
        for first in range(0, len(quads), at_once):
            acc: dict[tuple[int, int], Val] = {}
            for j in quads[first : first + at_once]:
                weights = [self._load(half, j, part) for part in parts]
                for r in range(n):
                    x = spread(f, t, f.load(rows + (32 * r + 4 * j), I32, 4))
                    for part in parts:
                        so_far = acc.get((r, part))
                        v = mac(f, t, so_far, weights[part], x)
                        acc[r, part] = f.pinned(v) if t.path == "avx2" and so_far else v
            for key, v in acc.items():
                wide = widen(f, t, v)
                total[key] = total[key] + wide if key in total else wide
        return [[total[r, part] for part in parts] for r in range(n)]

    def _load(self, half: int, quad: int, part: int) -> Planes:
        at = self._at(half, quad, part)
        return tuple(self.f.load(a, ty, 4 * self.t.lanes) for a, ty in zip(at, self._planes, strict=True))

    def _at(self, half: int, quad: int, part: int) -> list[Val]:
        offset = ((half * QUADS + quad) * self.t.parts + part) * 4 * self.t.lanes
        return [memory + offset for memory in self._memory]


class Registers(Vectors):
    """The same with the weights of a block in registers, for as long as the block is multiplied."""

    def __init__(self, f: Fn, t: Target, form: Packed):
        super().__init__(f, t, form)
        self._held: dict[tuple[int, int, int], Planes] = {}

    def put(self, half: int, part: int, quads: list[Val]) -> None:
        for j, quad in enumerate(quads):
            self._held[half, j, part] = prepare(self.f, self.t, quad, self.form.signed)

    def _load(self, half: int, quad: int, part: int) -> Planes:
        return self._held[half, quad, part]


class Amx:
    """TDPBSSD: 16 activation rows x a sub-block x 16 outputs in one instruction. A tile of weights is the sub-block's quads as
    they lie; a tile of sums is stored and read back by rows. The unit could take two blocks at once, but each has its scale."""

    steps = (16, 16)

    def __init__(self, f: Fn, form: Packed):
        self.f, self.form = f, form
        self.bias = -form.offset  # `put` takes the offset off: what is left fits a signed byte
        self._weights = f.scratch(ir.ArrayType(I32, 2 * WORDS))
        self._sums = f.scratch(ir.ArrayType(I32, 2 * form.subs * 256))
        config, n = f.scratch(ir.ArrayType(I8, 64)), QUADS // form.subs
        shapes = [(16, 64)] * 2 + [(16, 4 * n)] * 2 + [(n, 64)] * 4  # sums, activations, weights by half and sub-block
        f.store(config, f.c(vec(I8, 64), 0), 64)
        f.store(config, f.c(I8, 1), 1)
        for tile, (rows, row_bytes) in enumerate(shapes):
            f.store(config + (16 + 2 * tile), f.c(I16, row_bytes), 2)
            f.store(config + (48 + tile), f.c(I8, rows), 1)
        self._run("ldtilecfg", self._pointer(config))

    def put(self, half: int, part: int, quads: list[Val]) -> None:
        for j, quad in enumerate(quads):
            weights = self.f.bitcast(quad, vec(I8, 64)) - self.form.offset
            self.f.store(self._weights + (half * QUADS + j) * 64, weights, 64)

    def ready(self) -> None:
        for half in range(2):
            for sub in range(self.form.subs):
                at = self._weights + (half * QUADS + cut(self.form, sub)[0]) * 64
                self._run("tileloadd64", const(I8, self._tile(half, sub)), self._pointer(at), const(I64, 64))

    def sums(self, half: int, sub: int, rows: Val, n: int) -> Sums:
        weights = self._tile(half, sub)
        sums, activations = weights % 2, 2 + weights % 2
        out = self._sums + (half * self.form.subs + sub) * 1024
        self._run("tilezero", const(I8, sums))
        self._run("tileloadd64", const(I8, activations), self._pointer(rows + 4 * cut(self.form, sub)[0]), const(I64, 32))
        self._run("tdpbssd", *(const(I8, tile) for tile in (sums, activations, weights)))
        self._run("tilestored64", const(I8, sums), self._pointer(out), const(I64, 64))
        return [[self.f.load(out + 64 * r, vec(I32, 16), 64)] for r in range(n)]

    def end(self) -> None:
        self._run("tilerelease")

    def _tile(self, half: int, sub: int) -> int:
        return 4 + half * self.form.subs + sub

    def _pointer(self, at: Val) -> ir.Value:
        return self.f.b.inttoptr(at.v, ir.PointerType(I8))

    def _run(self, name: str, *args: ir.Value) -> None:
        self.f.b.call(self.f.declare(f"llvm.x86.{name}", VOID, [a.type for a in args]), list(args))


def cut(form: Packed, sub: int) -> range:
    """The quads of a sub-block."""
    n = QUADS // form.subs
    return range(sub * n, (sub + 1) * n)


def engine(f: Fn, t: Target, form: Packed) -> Engine:
    """The fastest engine of the target."""
    return Amx(f, form) if t.matrix else Vectors(f, t, form)
