"""engine/sampling.py `draw` in machine code: the same token for every row and setting, in a fraction of the time.

The idea: every set of tokens that a draw looks at is a prefix of one order (likelier first, the lower id first among equals), so
it is told by a border (b, m): the tokens with x > b, and those with x == b whose id is at most m. Top-k, min-p, the reach of the
noise and "what comes before this winner" are such borders; nothing is copied or sorted. The row is read in blocks of 64 whose
maxima are kept from the first look: a block whose maximum lies behind the border, or too low for any noise to win, is skipped.

* argmax and broken logits: the first look.
* top-k: the k-th largest of the block maxima is a border that at least k tokens reach; those few are collected and their k-th
  found by counting digits (radix 256).
* the draw: the random bits of a block are compared with a number that they must reach (coarse by a factor of at most 2, always on
  the safe side); only tokens that do get their noise, in the exact arithmetic of kernels/exact.py.
* top-p: weights are added on their grid, so in whatever order, and the winner's predecessors are weighed as there.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir

from ds4py.kernels import exact
from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, F64, I32, I64, Fn, Val, const, vec
from ds4py.kernels.cpu.lanes import fabs, hmax, hsum, load_floats
from ds4py.kernels.cpu.target import Target
from ds4py.protocols import F32 as Floats
from ds4py.protocols import SamplingParams

BLOCK = 64
DIGITS = 256
HIGHEST = 22.88  # above all noise
COLDEST = 1e-9  # lower temperatures are the argmax
REACH = 26.02  # from the lowest noise to the highest, and a little
WORDS = 12  # of the argument
_FLOATS = np.dtype(np.float32)


class Drawer:
    """Calls the compiled draw, with memory for rows of any length. One call at a time."""

    def __init__(self, kernel: Callable[[str, Callable[[Target], Builder]], int]):
        self._run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(kernel("draw", draw))
        self._args = np.zeros(WORDS, np.int64)
        self._words: Any = self._args.data  # memoryviews: an item is set in a fraction of numpy's time
        self._floats: Any = self._args.view(np.float64).data
        self._settings: tuple[SamplingParams | None, int] = None, 0  # of the last call, and the length of its row
        self._at = int(self._args.ctypes.data)
        self._memory = np.zeros(0, np.float32)
        self._room = 0  # tokens that it has a word for
        self._lock = threading.Lock()

    def __call__(self, row: Floats, params: SamplingParams, key: int) -> int:
        """protocols.Draws.draw"""
        if row.dtype != _FLOATS:
            row = row.astype(np.float32)
        with self._lock:
            if self._settings[0] is not params or self._settings[1] != len(row):
                self._set(params, len(row))
            try:
                at = ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, row)))  # a fifth of the time of row.ctypes
            except TypeError:  # read-only, or not contiguous
                row = np.array(row)
                at = row.ctypes.data
            self._words[0], self._words[2] = at, key - (key >> 63 << 64)
            return int(self._run(self._at))

    def _set(self, params: SamplingParams, n: int) -> None:
        """Arguments that stay the same from token to token."""
        if n > self._room:
            self._grow(n)
        words, floats, p = self._words, self._floats, params.top_p
        words[1], words[4] = n, min(params.top_k, n)
        floats[3], floats[5] = params.temperature, p
        floats[6] = math.log(params.min_p) if params.min_p > 0 else -math.inf
        floats[7] = min(REACH, math.log(n / (1 - p)) + 1) if p <= 1 - 1e-4 else REACH
        self._settings = params, n

    def _grow(self, n: int) -> None:
        """Memory for a padded block, the block maxima, and a word for every token."""
        n_blocks = -(-n // BLOCK)
        self._memory = np.zeros(BLOCK * (2 + n_blocks) + n_blocks, np.float32)
        self._room = n
        at = int(self._memory.ctypes.data)
        at += -at % 64
        self._args[8:11] = at, at + 4 * BLOCK, at + 4 * BLOCK * (1 + n_blocks)


class _Row:
    """The row of the call, block by block. The last block, if it is cut short, is a copy padded with -inf."""

    def __init__(self, f: Fn, t: Target, args: Val):
        self.f, self.t = f, t
        self.at, self.n, self.key = (f.load(args + 8 * i, I64, 8) for i in range(3))
        self.temperature = f.load(args + 24, F64, 8)
        self.tail, self.words, self.maxima = (f.load(args + 8 * i, I64, 8) for i in range(8, 11))
        self.n_blocks = (self.n + (BLOCK - 1)) / BLOCK

    def block(self, b: Val) -> Val:
        """Address of block b's floats."""
        return self.f.select((b + 1) * BLOCK <= self.n, self.at + b * (4 * BLOCK), self.tail)

    def value(self, i: Val) -> Val:
        return load_floats(self.f, self.at + i * 4, 1)

    def maximum(self, b: Val) -> Val:
        return load_floats(self.f, self.maxima + b * 4, 1)

    def depth(self, x: Val, largest: Val) -> Val:
        """(x - largest) / temperature, f64."""
        return (self.f.fpext(x, F64) - self.f.fpext(largest, F64)) / self.temperature

    def noise(self, i: Val) -> Val:
        """Gumbel noise of id i, f64."""
        x = _mixed(i * exact.GOLDEN + (self.key + exact.GOLDEN)) >> 32
        u = (_double(self.f, x) + 0.5) * 2.0**-32
        return _minus(_log(self.f, _minus(_log(self.f, u))))


def _mixed(x: Val) -> Val:
    """splitmix64's finaliser, of a scalar or of lanes."""
    x = (x ^ (x >> 30)) * exact.MUL_1
    x = (x ^ (x >> 27)) * exact.MUL_2
    return x ^ (x >> 31)


def _double(f: Fn, x: Val) -> Val:
    return Val(f, f.b.sitofp(x.v, F64))


def _minus(x: Val) -> Val:
    return x.fn.c(F64, -0.0) - x


def _log(f: Fn, x: Val) -> Val:
    """exact.log"""
    bits = f.bitcast(x, I64)
    e = (bits - exact.SQRT_HALF_BITS).ashr(52)
    m = f.bitcast(bits - (e << 52), F64) - 1.0
    s = m / (m + 2.0)
    z = s * s
    series = f.c(F64, exact.SERIES[0])
    for c in exact.SERIES[1:]:
        series = series * z + c
    n = _double(f, e)
    return n * exact.LN2_HIGH + (n * exact.LN2_LOW + (s * 2.0 + s * (z * series)))


def _weight(f: Fn, x: Val, largest: Val, temperature: Val) -> tuple[Val, Val]:
    """exact.weights, f64 lanes of f32 lanes, and which of them are too light to count (their number means nothing)."""
    z = (x - largest) / temperature
    light = z < exact.LIGHTEST
    z = f.select(light, f.c(z.type, 0.0), z)
    y = z * exact.LOG2_E + exact.EXP_MAGIC
    n = y - exact.EXP_MAGIC
    r = (z - n * exact.EXP_HIGH) - n * exact.EXP_LOW
    p = f.c(r.type, exact.EXP_SERIES[0])
    for c in exact.EXP_SERIES[1:]:
        p = p * r + c
    lanes = x.type.count
    power = f.bitcast((f.bitcast(y, vec(I32, lanes)) - (exact.EXP_MAGIC_BITS - 127)) << 23, vec(F32, lanes))
    return f.fpext(p * power, vec(F64, lanes)) + exact.GRID - exact.GRID, light


def _digits(f: Fn, x: Val) -> Val:
    """A float as an unsigned word of the same order; -0 is 0."""
    bits = f.bitcast(x + 0.0, I32)
    return bits ^ (bits.ashr(31) | 0x80000000)


def _float(f: Fn, word: Val) -> Val:
    """The float that `_digits` made a word of."""
    return f.bitcast(word ^ ((word ^ 0xFFFFFFFF).ashr(31) | 0x80000000), F32)


def _any(f: Fn, mask: Val) -> Val:
    """Whether any lane of an i1 vector is set; as an integer of that many bits, bit i for lane i."""
    return f.bitcast(mask, ir.IntType(mask.type.count))


def _inner(module: ir.Module, name: str, args: list[ir.Type], ret: ir.Type) -> Fn:
    f = Fn(module, name, args, ret)
    f.func.linkage = "internal"
    return f


def _look(module: ir.Module, t: Target) -> ir.Function:
    """i64(args): the lowest id of the largest logit, or -1 if there is NaN, infinity or nothing; notes the blocks' maxima."""
    f = _inner(module, "look", [I64], I64)
    row = _Row(f, t, f.args[0])
    whole = row.n / BLOCK * BLOCK
    with f.loop(0, BLOCK) as i:
        f.store(row.tail + i * 4, f.c(F32, -math.inf), 4)
    with f.loop(whole, row.n) as i:
        f.store(row.tail + (i - whole) * 4, row.value(i), 4)
    largest, where = f.var(f.c(F32, -math.inf)), f.var(f.i64(0))
    broken = f.var(f.c(vec(I32, t.lanes), 0))
    with f.loop(0, row.n_blocks) as b:
        xs = [load_floats(f, row.block(b) + 4 * t.lanes * i, t.lanes) for i in range(BLOCK // t.lanes)]
        top = xs[0]
        for x in xs:
            top = f.max(top, x)
            unordered = Val(f, f.b.fcmp_unordered("uno", x.v, x.v))
            broken.set(broken.get() | f.sext(unordered, vec(I32, t.lanes)))
        highest = hmax(f, top)
        f.store(row.maxima + b * 4, highest, 4)
        with f.when(highest > largest.get()):
            largest.set(highest)
            where.set(b)
    with f.when(_any(f, broken.get().ne(0)).ne(0)):
        f.ret(f.i64(-1))
    with f.when((f.bitcast(largest.get(), I32) & 0x7FFFFFFF).eq(0x7F800000)):
        f.ret(f.i64(-1))
    best = f.var(where.get() * BLOCK)
    with f.spin(lambda: row.value(best.get()).ne(largest.get())):
        best.set(best.get() + 1)
    f.ret(best.get())
    return f.func


def _kth(module: ir.Module) -> ir.Function:
    """i32(words, n, k, out): the k-th largest of n words; out becomes how many of those equal to it are among the first k."""
    f = _inner(module, "kth", [I64] * 4, I32)
    words, n, k, out = f.args
    counts = f.scratch(ir.ArrayType(I64, DIGITS))
    prefix, left = f.var(f.c(I32, 0)), f.var(k)
    for shift in (24, 16, 8, 0):
        with f.loop(0, DIGITS) as i:
            f.store(counts + i * 8, f.i64(0), 8)
        with f.loop(0, n) as i:
            word = f.load(words + i * 4, I32, 4)
            same = f.c(ir.IntType(1), 1) if shift == 24 else (word >> (shift + 8)).eq(prefix.get())
            with f.when(same):
                at = counts + f.zext((word >> shift) & (DIGITS - 1), I64) * 8
                f.store(at, f.load(at, I64, 8) + 1, 8)
        digit = f.var(f.i64(DIGITS - 1))
        with f.spin(lambda: f.load(counts + digit.get() * 8, I64, 8) < left.get()):  # noqa: B023
            left.set(left.get() - f.load(counts + digit.get() * 8, I64, 8))
            digit.set(digit.get() - 1)
        prefix.set((prefix.get() << 8) | f.trunc(digit.get(), I32))
    f.store(out, left.get(), 8)
    f.ret(prefix.get())
    return f.func


def _top_k(module: ir.Module, t: Target, kth: ir.Function) -> ir.Function:
    """void(args, k, out): the border of the k first tokens, f32 b at out and i64 m at out + 8. 0 < k < n."""
    f = _inner(module, "top_k", [I64] * 3, ir.VoidType())
    args, k, out = f.args
    row = _Row(f, t, args)
    least = f.var(f.c(F32, -math.inf))
    with f.when(k <= row.n_blocks):
        with f.loop(0, row.n_blocks) as b:
            f.store(row.words + b * 4, _digits(f, row.maximum(b)), 4)
        least.set(_float(f, f.call(kth, row.words, row.n_blocks, k, out)))
    n = f.var(f.i64(0))
    with f.loop(0, row.n_blocks) as b, f.when(row.maximum(b) >= least.get()):
        end = f.min((b + 1) * BLOCK, row.n)
        with f.loop(b * BLOCK, end) as i:
            x = row.value(i)
            f.store(row.words + n.get() * 4, _digits(f, x), 4)
            n.set(n.get() + f.zext(x >= least.get(), I64))
    border = _float(f, f.call(kth, row.words, n.get(), k, out))
    left, at = f.var(f.load(out, I64, 8)), f.var(f.i64(-1))
    with f.spin(lambda: left.get() > 0):  # the ids of those that are equal to the border, up to the last that belongs
        at.set(at.get() + 1)
        left.set(left.get() - f.zext(row.value(at.get()).eq(border), I64))
    f.store(out, border, 4)
    f.store(out + 8, at.get(), 8)
    f.ret()
    return f.func


def _mass(module: ir.Module, t: Target) -> ir.Function:
    """f64(args, b, m, largest): the weight of all tokens inside the border."""
    f = _inner(module, "mass", [I64, F32, I64, F32], F64)
    args, border, last, largest = f.args
    row, lanes = _Row(f, t, args), t.lanes
    limit = f.fptrunc(f.min(row.temperature, f.c(F64, 3e38)), F32)
    total = f.var(f.c(vec(F64, lanes), 0.0))
    with f.loop(0, row.n_blocks) as b:
        top = row.maximum(b)
        heavy = ((top - largest) / limit >= exact.LIGHTEST) & (top >= border)
        with f.when(heavy):
            for i in range(BLOCK // lanes):
                x = load_floats(f, row.block(b) + 4 * lanes * i, lanes)
                ids = f.splat(f.trunc(b * BLOCK + i * lanes, I32), lanes) + _counting(f, I32, lanes)
                first = x > f.splat(border, lanes)
                inside = first | (x.eq(f.splat(border, lanes)) & (ids <= f.splat(f.trunc(last, I32), lanes)))
                w, light = _weight(f, x, f.splat(largest, lanes), f.splat(limit, lanes))
                w = f.select(inside, f.select(light, f.c(w.type, 0.0), w), f.c(w.type, 0.0))
                total.set(total.get() + w)
    f.ret(hsum(f, total.get()))
    return f.func


def _counting(f: Fn, ty: ir.Type, lanes: int, factor: int = 1) -> Val:
    """0, factor, 2 factor, ... in lanes."""
    mask = (1 << ty.width) - 1
    return Val(f, ir.Constant(vec(ty, lanes), [(i * factor) & mask for i in range(lanes)]))


def _noisy(module: ir.Module, t: Target) -> ir.Function:
    """i64(args, b, m, best): the id inside the border with the largest depth + noise, the lowest of equals."""
    f = _inner(module, "noisy", [I64, F32, I64, I64], I64)
    args, border, last, best = f.args
    row, lanes = _Row(f, t, args), t.lanes
    largest = row.value(best)
    winner, score = f.var(best), f.var(row.noise(best) + 0.0)

    def consider(i: Val) -> None:
        x = row.value(i)
        with f.when((x > border) | (x.eq(border) & (i <= last))):
            s = row.depth(x, largest) + row.noise(i)
            with f.when((s > score.get()) | (s.eq(score.get()) & (i < winner.get()))):
                score.set(s)
                winner.set(i)

    with f.loop(0, row.n_blocks) as b, f.when(row.maximum(b) >= border):
        need = score.get() - row.depth(row.maximum(b), largest)
        with f.when(need < HIGHEST):
            least = _bits_reaching(f, need) << 32
            start = f.splat(b * BLOCK * exact.GOLDEN + (row.key + exact.GOLDEN), lanes)
            for v in range(BLOCK // lanes):
                x = _mixed(start + _counting(f, I64, lanes, exact.GOLDEN) + v * lanes * exact.GOLDEN)
                able = _any(f, Val(f, f.b.icmp_unsigned(">=", x.v, f.splat(least, lanes).v)))
                with f.when(able.ne(0)):
                    bits = f.zext(able, I64)
                    first = b * BLOCK + v * lanes
                    with f.loop(0, f.min(row.n - first, f.i64(lanes))) as lane:
                        with f.when(((bits >> lane) & 1).ne(0)):
                            consider(first + lane)
    f.ret(winner.get())
    return f.func


def _bits_reaching(f: Fn, need: Val) -> Val:
    """Random bits below which no noise reaches `need` < HIGHEST: 1 - u < e^-need <= 2^-j with j = floor(need / ln 2)."""
    j = Val(f, f.b.fptosi(((need - 1e-6) * exact.LOG2_E).v, I64))
    j = f.min(f.max(j, f.i64(0)), f.i64(32))
    return f.max(f.i64((1 << 32) - 1) - Val(f, f.b.shl(const(I64, 1), (f.i64(32) - j).v)), f.i64(0))


def draw(t: Target) -> Builder:
    """i64(args): the token, or -1. args: [0] row [1] n [2] key [3] temperature f64 [4] k [5] top-p f64 [6] log of min-p f64
    [7] reach f64 [8] a padded block [9] n words [10] block maxima."""

    def build(module: ir.Module, name: str) -> None:
        look, kth, mass, noisy = _look(module, t), _kth(module), _mass(module, t), _noisy(module, t)
        top_k = _top_k(module, t, kth)
        f = Fn(module, name, [I64], I64)
        (args,) = f.args
        row, k = _Row(f, t, args), f.load(args + 32, I64, 8)
        top_p, log_min_p, reach = (f.load(args + 8 * i, F64, 8) for i in (5, 6, 7))
        best = f.call(look, args)
        with f.when((best < 0) | (row.temperature < COLDEST)):
            f.ret(best)
        largest = row.value(best)
        border, last = f.var(f.c(F32, -math.inf)), f.var(row.n)
        with f.when((k > 0) & (k < row.n)):
            found = f.scratch(ir.ArrayType(I64, 2))
            f.call(top_k, args, k, found)
            border.set(f.load(found, F32, 8))
            last.set(f.load(found + 8, I64, 8))
        nucleus = f.var(f.c(F64, math.inf))
        with f.when(top_p < 1.0):
            nucleus.set(top_p * f.call(mass, args, border.get(), last.get(), largest))
        cut = _cut(f, row.temperature, largest, log_min_p, reach)
        with f.when(cut > border.get()):
            border.set(cut)
            last.set(row.n)
        winner = f.var(f.call(noisy, args, border.get(), last.get(), best))

        def outside() -> Val:
            """Whether the winner lies outside the nucleus; then what comes before it is the new border."""
            border.set(row.value(winner.get()))
            last.set(winner.get() - 1)
            return winner.get().ne(best) & (f.call(mass, args, border.get(), last.get(), largest) >= nucleus.get())

        with f.when(top_p < 1.0), f.spin(outside):
            winner.set(f.call(noisy, args, border.get(), last.get(), best))
        f.ret(winner.get())

    return build


def _cut(f: Fn, temperature: Val, largest: Val, log_min_p: Val, reach: Val) -> Val:
    """The logit below which a token fails min-p or cannot be drawn (engine/sampling.py)."""
    top = f.fpext(largest, F64)
    far = f.fptrunc(top - reach * temperature, F32)
    far = far - fabs(f, far) * 2.0**-20 - 1e-30
    return f.max(f.fptrunc(top + temperature * log_min_p, F32), far)
