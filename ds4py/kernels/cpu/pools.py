"""Rows in caches, pool entries, and the choice among them (latent.py).

A cache of single rows has its address in the second word of its entry in the session's table. Rings of projected rows are f32,
everything else f16. An entry is made by one thread from beginning to end; scores of the indexer are split by entries, the choice
by rows; so neither threads nor the number of rows shows in a bit.

The choice needs no sorting: 32 halvings of the range of a float's bits find the value of the last entry to keep, and one pass
takes what is above it and, of what equals it, the first. Scores are made for as many entries at once as a vector has lanes, so
that a query is read once for all of them and their sums come out side by side (60,000 positions: half of the time).
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import exp, fma, hsum, hsums, load_f16, load_floats, store_f16
from ds4py.kernels.cpu.rounding import hadamard_rows, round_blocks
from ds4py.kernels.cpu.streams import as_f32, start
from ds4py.kernels.cpu.target import Target

NONE = float("-inf")


def cache_rows(f: Fn, tables: Val, row: Val, cache: Val) -> tuple[Val, Val, Val]:
    """Address of the rows, capacity and window of a cache of the row's session."""
    entry = f.load(tables + row * 8, I64, 8) + cache * 32
    address, capacity, window = (f.load(entry + 8 * i, I64, 8) for i in (1, 2, 3))
    return address, capacity, window


def put(t: Target, exact: bool) -> Builder:
    """args: [2] x [3] width (a multiple of 4) [4] n_rows [5] pos [6] tables [7] cache. Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, width, n_rows, pos, tables, cache), tid, nt = start(module, name, 6)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            rows, capacity, _ = cache_rows(f, tables, r, cache)
            to = rows + f.load(pos + r * 8, I64, 8) % capacity * width * (4 if exact else 2)
            with f.loop(0, width, 4) as i:
                v = load_floats(f, x + (r * width + i) * 4, 4)
                if exact:
                    f.store(to + i * 4, v, 4)
                else:
                    store_f16(f, t, to + i * 2, v)
        f.ret()

    return build


def pool(t: Target, width: int, overlap: bool, kind: str) -> Builder:
    """args: [2] ring [3] pool [4] positions per group [5] bias f32 [every, W] [6] norm f32 [width] [7] eps [8] cell: address of
    the rope table [9] n_rot / 2 [10] scratch f32 [n_rows, 2 * width] [11] n_rows [12] pos [13] tables. Split by rows: a row that
    closes a group makes its entry. width: a multiple of 16; kind: "", "fp8", "fp4"."""
    w = width * (2 if overlap else 1)  # values of a projected row; as many scores follow

    def build(module: ir.Module, name: str) -> None:
        f, args, tid, nt = start(module, name, 12)
        ring, entries, every, bias, norm, eps, cell, half, scratch, n_rows, pos_at, tables = args
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            pos = f.load(pos_at + r * 8, I64, 8)
            with f.when(((pos + 1) % every).eq(0)):
                source, capacity, _ = cache_rows(f, tables, r, ring)
                first, z = pos - every + 1, scratch + r * (8 * width)
                # (offset of the channels, first position, positions); the first group has no group before it
                groups = [(width, first, every)] if overlap else [(0, first, every)]
                if overlap:
                    groups.insert(0, (0, first - every, f.select(first > 0, every, f.i64(0))))
                with f.loop(0, width, t.lanes) as c:
                    f.store(z + c * 4, _channels(f, t, source, capacity, bias, groups, every, w, c), 4)
                _normed(f, t, z, norm, as_f32(f, eps), width)
                _turned(f, z + (f.i64(width) - half * 2) * 4, f.load(cell, I64, 8) + first * half * 8, half)
                if kind == "fp8":
                    round_blocks(f, t, kind, z, z, f.i64(width) - half * 2)
                elif kind == "fp4":
                    hadamard_rows(f, t, z, z + 4 * width, width)
                    round_blocks(f, t, kind, z + 4 * width, z, f.i64(width))
                rows, n, _ = cache_rows(f, tables, r, entries)
                to = rows + pos / every % n * (2 * width)
                with f.loop(0, width, t.lanes) as c:
                    store_f16(f, t, to + c * 2, load_floats(f, z + c * 4, t.lanes))
        f.ret()

    return build


def _channels(
    f: Fn, t: Target, ring: Val, capacity: Val, bias: Val, groups: list[tuple[int, Val, Val]], every: Val, w: int, c: Val
) -> Val:
    """Softmax of the scores over the values, for channels c .. c + lanes; groups in order."""

    def score(at: int, first: Val, i: Val) -> tuple[Val, Val]:
        row = ring + (first + i) % capacity * (8 * w) + (c + at) * 4
        own = load_floats(f, row + 4 * w, t.lanes) + load_floats(f, bias + (i * w + c + at) * 4, t.lanes)
        return own, row

    top = f.var(f.c(vec(F32, t.lanes), NONE))
    for at, first, n in groups:
        with f.loop(0, n) as i:
            top.set(f.max(top.get(), score(at, first, i)[0]))
    total, mixed = (f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in range(2))
    for at, first, n in groups:
        with f.loop(0, n) as i:
            s, row = score(at, first, i)
            e = exp(f, t, s - top.get())
            total.set(total.get() + e)
            mixed.set(fma(f, t, e, load_floats(f, row, t.lanes), mixed.get()))
    return mixed.get() / total.get()


def _normed(f: Fn, t: Target, z: Val, norm: Val, eps: Val, width: int) -> None:
    """z [width] by its root mean square, times `norm`, in place."""
    acc = f.var(f.c(vec(F32, t.lanes), 0.0))
    with f.loop(0, width, t.lanes) as c:
        v = load_floats(f, z + c * 4, t.lanes)
        acc.set(fma(f, t, v, v, acc.get()))
    inverse = f.splat(f.c(F32, 1.0) / f.sqrt(hsum(f, acc.get()) / float(width) + eps), t.lanes)
    with f.loop(0, width, t.lanes) as c:
        v = load_floats(f, z + c * 4, t.lanes) * inverse * load_floats(f, norm + c * 4, t.lanes)
        f.store(z + c * 4, v, 4)


def _turned(f: Fn, x: Val, cos: Val, half: Val) -> None:
    """Neighbouring pairs of x turned by a row of a rope table, in place."""
    with f.loop(0, half) as i:
        a, b = load_floats(f, x + i * 8, 1), load_floats(f, x + i * 8 + 4, 1)
        c, s = load_floats(f, cos + i * 4, 1), load_floats(f, cos + (half + i) * 4, 1)
        f.store(x + i * 8, a * c - b * s, 4)
        f.store(x + i * 8 + 4, a * s + b * c, 4)


def scores(t: Target, width: int) -> Builder:
    """args: [2] q [3] heads [4] weights [5] their row stride [6] pool [7] positions per entry [8] top_k [9] n_rows [10] pos
    [11] tables [12] cells: address of scores f32, bytes of a row of them. Of every row that sees more than top_k entries; split
    by groups of entries, a vector's lanes at a time. width: a multiple of 16."""

    def build(module: ir.Module, name: str) -> None:
        f, args, tid, nt = start(module, name, 11)
        q, n_heads, weights, ld, entries, every, top_k, n_rows, pos_at, tables, cells = args
        out, stride = f.load(cells, I64, 8), f.load(cells + 8, I64, 8)
        keys, made = f.scratch(ir.ArrayType(F32, width * t.lanes)), f.scratch(ir.ArrayType(F32, t.lanes))
        with f.loop(0, n_rows) as r:
            n = (f.load(pos_at + r * 8, I64, 8) + 1) / every
            rows, capacity, _ = cache_rows(f, tables, r, entries)
            groups = (n + (t.lanes - 1)) / t.lanes
            with f.when(n > top_k), f.loop(groups * tid / nt, groups * (tid + 1) / nt) as g:
                with f.loop(0, t.lanes) as i:  # what would lie past the end is the last one again
                    at = rows + f.min(g * t.lanes + i, n - 1) % capacity * (2 * width)
                    for c in range(0, width, t.lanes):
                        f.store(keys + (i * width + c) * 4, load_f16(f, t, at + 2 * c, t.lanes), 4)
                total = f.var(f.c(vec(F32, t.lanes), 0.0))
                with f.loop(0, n_heads) as h:
                    dots = f.max(_dots(f, t, width, q + (r * n_heads + h) * (4 * width), keys), f.c(vec(F32, t.lanes), 0.0))
                    weight = f.splat(load_floats(f, weights + (r * ld + h) * 4, 1), t.lanes)
                    total.set(fma(f, t, weight, dots, total.get()))
                f.store(made, total.get(), 4)
                with f.loop(0, f.min(n - g * t.lanes, f.i64(t.lanes))) as i:
                    f.store(out + r * stride + (g * t.lanes + i) * 4, load_floats(f, made + i * 4, 1), 4)
        f.ret()

    return build


def _dots(f: Fn, t: Target, width: int, q: Val, keys: Val) -> Val:
    """q [width] times as many keys as a vector has lanes: a lane for each. A part of q is loaded once for all of them."""
    acc = [f.c(vec(F32, t.lanes), 0.0)] * t.lanes
    for c in range(0, width, t.lanes):
        part = load_floats(f, q + 4 * c, t.lanes)
        acc = [fma(f, t, part, load_floats(f, keys + (i * width + c) * 4, t.lanes), total) for i, total in enumerate(acc)]
    return hsums(f, acc)


def choose(t: Target) -> Builder:
    """args: [2] cells as in `scores` [3] positions per entry [4] top_k [5] out: per row a count and so many entries, ascending,
    i64 [1 + top_k] [6] n_rows [7] pos. Split by rows. The scores are overwritten."""

    def build(module: ir.Module, name: str) -> None:
        f, (cells, every, top_k, out, n_rows, pos_at), tid, nt = start(module, name, 6)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            n = (f.load(pos_at + r * 8, I64, 8) + 1) / every
            to = out + r * (top_k + 1) * 8
            f.store(to, f.min(n, top_k), 8)
            with f.when(n <= top_k), f.loop(0, n) as e:
                f.store(to + e * 8 + 8, e, 8)
            with f.when(n > top_k):
                _keep(f, t, f.load(cells, I64, 8) + r * f.load(cells + 8, I64, 8), n, top_k, to)
        f.ret()

    return build


def _keep(f: Fn, t: Target, values: Val, n: Val, k: Val, to: Val) -> None:
    """The k largest of n floats, of equals the first: their indices, ascending, from the second word of `to` on. There is room
    up to a multiple of 16 of them."""
    ints = vec(I32, t.lanes)
    end = (n + (t.lanes - 1)) / t.lanes * t.lanes
    with f.loop(n, end) as e:
        f.store(values + e * 4, f.c(F32, NONE), 4)
    with f.loop(0, end, t.lanes) as e:  # bits that order as the numbers do; -0 as 0
        bits = f.bitcast(load_floats(f, values + e * 4, t.lanes) + 0.0, ints)
        f.store(values + e * 4, bits ^ (bits.ashr(31) & 0x7FFFFFFF), 4)
    with f.loop(n, end) as e:
        f.store(values + e * 4, f.c(I32, -(1 << 31)), 4)  # below every number, and above no level

    def above(level: Val) -> Val:
        """How many are higher."""
        acc = f.var(f.c(ints, 0))
        least = f.splat(f.trunc(level, I32), t.lanes)
        with f.loop(0, end, t.lanes) as e:
            acc.set(acc.get() - f.sext(f.load(values + e * 4, ints, 4) > least, ints))
        return f.sext(hsum(f, acc.get()), I64)

    low, high = f.var(f.i64(-(1 << 31))), f.var(f.i64((1 << 31) - 1))  # at least k are >= low; the last to keep is <= high
    with f.loop(0, 32):
        middle = low.get() + (high.get() - low.get() + 1).ashr(1)
        enough = above(middle - 1) >= k
        low.set(f.select(enough, middle, low.get()))
        high.set(f.select(enough, high.get(), middle - 1))
    level = low.get()
    equals, at = f.var(k - above(level)), f.var(to + 8)  # of those that equal the level so many are kept
    with f.loop(0, n) as e:
        x = f.sext(f.load(values + e * 4, I32, 4), I64)
        same = x.eq(level) & (equals.get() > 0)
        with f.when((x > level) | same):
            f.store(at.get(), e, 8)
            at.set(at.get() + 8)
        equals.set(equals.get() - f.zext(same, I64))
