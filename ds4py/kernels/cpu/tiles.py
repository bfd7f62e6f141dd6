"""Matrix products of many rows: prompts, and drafts that are long enough. The bits of matmul.py, faster.

There a block of weights is unpacked for at most 8 rows. Here it is unpacked once for 64: a pair of blocks of 16 output rows goes
to scratch memory that stays in L1, and all activation rows walk past it. Integer sums are exact, and the float operations on a
row and an output are those of matmul.py in their order:

    sum over blocks, in order, of   d * (scale * (int8 dot product - offset * sum of activations) + min * sum of activations)

so a prompt may be cut in any way, and a position may be evaluated alone or in a tile: the bits are the same, and nobody needs to
remember who made them. That is why `Kernels.prefill_tile` is 0 on the CPU: there is no prefill path of its own, only this one.
The offset's term is taken off in float: both integers are below 2^24 (32 inputs x 127 x 255), so the difference is exact too.

Activations lie in tiles of 16 rows (packed.py), in the order in which they are read; rows that fill up a step are multiplied and
dropped. Rejected: rows as matmul.py has them (one to four streams per row; 8 % slower, more where strides meet in one L1 set); a
bf16 path with its own rounding (it needs a record of the positions that it made; whether it would be faster on matrix units
is not measured).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.dots import Engine, Registers, engine
from ds4py.kernels.cpu.ir import F32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import fma
from ds4py.kernels.cpu.matmul import block_quads, block_scale, prefetch
from ds4py.kernels.cpu.packed import BLOCK, GROUP, HALF_BYTES, SCALES, SUMS_16, SUMS_32, TILE, Packed
from ds4py.kernels.cpu.target import Target

AT_ONCE = 64  # rows that one unpacking serves: their sums (4 KB) stay in L1


def product(form: Packed, t: Target) -> Builder:
    """void(args, tid, nt): y = x w^T. Threads take contiguous ranges of groups.

    args: [2] w, packed [3] x, in tiles [4] y [5] ldy, floats [6] n_pairs [7] n_groups [8] n_rows.
    """

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        w, x, y, ldy, n_pairs, n_groups, n_rows = (f.load(args + 8 * i, I64, 8) for i in range(2, 9))
        kernel = _Scratch(f, t, form)
        pair_stride = (n_rows + (TILE - 1)) / TILE * (2 * HALF_BYTES)
        with f.loop(n_groups * tid / nt, n_groups * (tid + 1) / nt) as g, f.loop(0, n_rows, AT_ONCE) as first:
            n = f.min(n_rows - first, f.i64(AT_ONCE))
            kernel.clear(n)
            with f.loop(0, n_pairs) as i:
                kernel.unpack(w + (g * n_pairs + i) * form.pair_bytes)
                kernel.add(x + i * pair_stride + first * (2 * HALF_BYTES // TILE), n)
            kernel.write(y + (first * ldy + g * GROUP) * 4, ldy, n)
        kernel.engine.end()
        f.ret()

    return build


class _Blocks(ABC):
    """The arithmetic of a block, wherever its weights and scales are kept."""

    engine: Engine

    def __init__(self, f: Fn, t: Target, form: Packed):
        self.f, self.t, self.form = f, t, form
        self.floats = vec(F32, t.lanes)
        self.n_scales = form.subs * (2 if form.has_min else 1)

    def block(self, half: int, x: Val, r: Val, n: int) -> dict[tuple[int, int], Val]:
        """What d is multiplied with in the module's formula, by row and part; x: this half of the tile, n rows from r."""
        f, t, form, engine = self.f, self.t, self.form, self.engine
        offset = form.offset + engine.bias
        totals: dict[tuple[int, int], Val] = {}
        for u in range(form.subs):
            sums_at = x + r * 4 + SUMS_32 if form.subs == 1 else x + r * 8 + (SUMS_16 + 4 * u)
            for i, dots in enumerate(engine.sums(half, u, x + r * BLOCK, n)):
                given = f.splat(f.load(sums_at + (4 if form.subs == 1 else 8) * i, F32, 4), t.lanes)
                for part, dot in enumerate(dots):
                    v = f.to_float(dot)
                    if offset:
                        v = fma(f, t, given, f.c(v.type, -offset), v)
                    scale = self.scale(half, u, part)
                    v = v * scale if u == 0 else fma(f, t, v, scale, totals[i, part])
                    if form.has_min:
                        v = fma(f, t, self.scale(half, form.subs + u, part), given, v)
                    totals[i, part] = v
        return totals

    @abstractmethod
    def scale(self, half: int, u: int, part: int) -> Val:
        """Scale or minimum `u` of a block, as f32 lanes."""

    def quads_and_scales(self, pair: Val, half: int, part: int) -> tuple[list[Val], list[Val]]:
        """A block as it comes from memory, for one part of the outputs."""
        f, t, form = self.f, self.t, self.form
        at = pair + (2 * (form.low_bytes + form.high_bytes) + half * form.scale_bytes + 2 * t.lanes * part)
        return block_quads(f, t, form, pair, half, part), [block_scale(f, t, form, at + 32 * u) for u in range(self.n_scales)]


class Held(_Blocks):
    """One block in registers."""

    def __init__(self, f: Fn, t: Target, form: Packed, pair: Val, half: int):
        super().__init__(f, t, form)
        self.engine = Registers(f, t, form)
        self._scales = []
        for part in range(t.parts):
            quads, scales = self.quads_and_scales(pair, half, part)
            self.engine.put(half, part, quads)
            self._scales.append(scales)

    def scale(self, half: int, u: int, part: int) -> Val:
        return self._scales[part][u]


class _Scratch(_Blocks):
    """The parts of `product`'s loop, and the scratch memory between them."""

    def __init__(self, f: Fn, t: Target, form: Packed):
        super().__init__(f, t, form)
        self.engine: Engine = engine(f, t, form)
        self.scales = f.scratch(ir.ArrayType(F32, 2 * self.n_scales * GROUP))
        self.acc = f.scratch(ir.ArrayType(F32, AT_ONCE * GROUP))

    def clear(self, n: Val) -> None:
        """Sums of n rows, and of those that fill up a step, to zero."""
        with self.f.loop(0, (n + (TILE - 1)) / TILE * (TILE * GROUP * 4), 4 * self.t.lanes) as i:
            self.f.store(self.acc + i, self.f.c(self.floats, 0.0), 4 * self.t.lanes)

    def unpack(self, pair: Val) -> None:
        """A pair of blocks to scratch memory: bytes as the engine wants them, scales as f32."""
        f, t = self.f, self.t
        prefetch(f, t, self.form, pair, once=True)
        for half in range(2):
            for part in range(t.parts):
                quads, scales = self.quads_and_scales(pair, half, part)
                self.engine.put(half, part, quads)
                for u, scale in enumerate(scales):
                    f.store(self._scale_at(half, u, part), scale, 4 * t.lanes)
        self.engine.ready()

    def add(self, x: Val, n: Val) -> None:
        """The pair's part of the sums of n rows; x: the first of their tiles."""
        f, (many, few) = self.f, self.engine.steps
        with f.loop(0, n, TILE) as tile:
            at, acc, left = x + tile * (2 * HALF_BYTES // TILE), self.acc + tile * (GROUP * 4), f.min(n - tile, f.i64(TILE))
            first = (left + (many - few - 1)) / many * many if many > few else f.i64(0)
            for lo, hi, step in ((f.i64(0), first, many), (first, left, few))[many == few :]:
                with f.loop(lo, hi, step) as r:
                    self._step(at, r, acc + r * (GROUP * 4), step)

    def write(self, y: Val, ldy: Val, n: Val) -> None:
        with self.f.loop(0, n) as r:
            for part in range(self.t.parts):
                v = self._load(self.acc + (r * (GROUP * 4) + part * 4 * self.t.lanes))
                self.f.store(y + (r * ldy + part * self.t.lanes) * 4, v, 4)

    def _step(self, x: Val, r: Val, acc: Val, n: int) -> None:
        """n rows from r on of the tile at x."""
        f, t = self.f, self.t
        for half in range(2):
            at = x + half * HALF_BYTES
            for (i, part), total in self.block(half, at, r, n).items():
                d = f.splat(f.load(at + r * 4 + (SCALES + 4 * i), F32, 4), t.lanes)
                sum_at = acc + (i * GROUP + part * t.lanes) * 4
                f.store(sum_at, fma(f, t, total, d, self._load(sum_at)), 4 * t.lanes)

    def scale(self, half: int, u: int, part: int) -> Val:
        return self._load(self._scale_at(half, u, part))

    def _load(self, at: Val) -> Val:
        return self.f.load(at, self.floats, 4 * self.t.lanes)

    def _scale_at(self, half: int, u: int, part: int) -> Val:
        return self.scales + ((half * self.n_scales + u) * GROUP + part * self.t.lanes) * 4
