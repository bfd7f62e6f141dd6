"""Mixtures of experts: which experts a row takes, and the products grouped by expert.

A row and one of its experts make a *slot*. `route` chooses per row; `group` sorts the call's slots by expert (one thread, some
hundred slots) into *segments*, so that an expert's weights are read once for all rows that take it; `each` runs any product's
kernel once per segment, as if the segment's rows were a call of their own; `combine` adds a row's slots in the order in which
they were chosen. So no bit of a row tells how its slots were grouped, or with whom.

`each` also packs an expert's weights (packed.py) when a row takes it and it is not at hand (seats.py), on the same threads and
with the same split as the product, so that a thread multiplies only what it packed itself and nobody waits. A model's experts are
most of its bytes, and a conversation may use a part of them: packing them all at start would take as long as reading the file.

Rejected: gathering row addresses for the micro kernels (one more indirection in the inner loop of every product, to spare copies
of rows that are a thousandth of the weights); floats added to the output expert by expert (the order would be the grouping's).
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu import seats
from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I8, I32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import exp, fabs, fma, hmax, hsum, load_floats
from ds4py.kernels.cpu.packed import BLOCK, TILE
from ds4py.kernels.cpu.rowwise import in_tiles, rounded_block
from ds4py.kernels.cpu.seats import RECORD, SEGMENT
from ds4py.kernels.cpu.target import Target

LANES = 4  # of a row's experts, whose number need not be a multiple of more
NONE = float("-inf")


def _args(f: Fn, n: int) -> list[Val]:
    return [f.load(f.args[0] + 8 * (i + 2), I64, 8) for i in range(n)]


def route(t: Target, score: str) -> Builder:
    """args: [2] logits [3] their row stride in floats [4] experts E [5] taken k [6] n_rows [7] out ids i32 [n_rows, k] [8] out
    weights f32 [n_rows, k] [9] bias f32 [E] or 0 [10] normalise: 0 or 1 [11] scale f32 [12] scratch f32 [n_rows, 2, E rounded up
    to 4] [13] table of ids i32 [V, k] by token, or 0 [14] tokens i64 [n_rows]. Split by rows. Of equal scores the lower id is
    first; ids are valid whatever the logits are."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        _, tid, nt = f.args
        logits, ld, n_experts, k, n_rows, ids, weights, bias, normalise, scale, scratch, table, tokens = _args(f, 13)
        width = (n_experts + (LANES - 1)) / LANES * LANES
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            scores = scratch + r * width * 8
            chances = scores + width * 4
            _scores(f, t, score, logits + r * ld * 4, n_experts, scores)
            _with_bias(f, scores, bias, n_experts, chances)
            total = f.var(f.c(F32, 0.0))
            with f.loop(0, k) as j:
                taken = f.var(_best(f, chances, n_experts, j))
                with f.when(table.ne(0)):
                    taken.set(f.zext(f.load(table + (f.load(tokens + r * 8, I64, 8) * k + j) * 4, I32, 4), I64))
                best = taken.get()
                f.store(chances + best * 4, f.c(F32, NONE), 4)
                s = load_floats(f, scores + best * 4, 1)
                total.set(total.get() + s)
                f.store(ids + (r * k + j) * 4, f.trunc(best, I32), 4)
                f.store(weights + (r * k + j) * 4, s, 4)
            factor = f.bitcast(f.trunc(scale, I32), F32)
            divisor = f.select(normalise.ne(0), total.get() + 1e-20, f.c(F32, 1.0))
            with f.loop(0, k) as j:
                at = weights + (r * k + j) * 4
                f.store(at, load_floats(f, at, 1) / divisor * factor, 4)
        f.ret()

    return build


def _scores(f: Fn, t: Target, score: str, logits: Val, n: Val, out: Val) -> None:
    """The scores (protocols.Router) of a row's logits; what lies past n in the last four means nothing."""

    def lanes(i: Val) -> Val:
        x = load_floats(f, logits + i * 4, LANES)
        counting = Val(f, ir.Constant(vec(I32, LANES), list(range(LANES))))
        return f.select(f.splat(f.trunc(i, I32), LANES) + counting < f.splat(f.trunc(n, I32), LANES), x, f.c(x.type, NONE))

    one, zero = f.c(vec(F32, LANES), 1.0), f.c(vec(F32, LANES), 0.0)
    if score == "softmax":
        top = f.var(f.c(zero.type, NONE))
        with f.loop(0, n, LANES) as i:
            top.set(f.max(top.get(), lanes(i)))
        peak, total = f.splat(hmax(f, top.get()), LANES), f.var(zero)
        with f.loop(0, n, LANES) as i:
            e = exp(f, t, lanes(i) - peak)
            total.set(total.get() + e)
            f.store(out + i * 4, e, 4)
        inverse = f.splat(f.c(F32, 1.0) / hsum(f, total.get()), LANES)
        with f.loop(0, n, LANES) as i:
            f.store(out + i * 4, load_floats(f, out + i * 4, LANES) * inverse, 4)
        return
    with f.loop(0, n, LANES) as i:
        x = load_floats(f, logits + i * 4, LANES)
        y = f.sqrt(_softplus(f, t, x)) if score == "sqrtsoftplus" else one / (exp(f, t, x * -1.0) + 1.0)
        f.store(out + i * 4, y, 4)


def _softplus(f: Fn, t: Target, x: Val) -> Val:
    """log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x|, and log(1 + e) = 2 artanh(e / (2 + e)) by its series (to 1/3)."""
    e = exp(f, t, fabs(f, x) * -1.0)
    s = e / (e + 2.0)
    z = s * s
    series = f.c(x.type, 2.0 / 19)
    for n in range(17, 0, -2):
        series = series * z + 2.0 / n
    return f.max(f.c(x.type, 0.0), x) + s * series  # in this order NaN passes


def _with_bias(f: Fn, scores: Val, bias: Val, n: Val, out: Val) -> None:
    """What experts are chosen by."""
    with f.loop(0, n) as i:
        f.store(out + i * 4, load_floats(f, scores + i * 4, 1), 4)
    with f.when(bias.ne(0)), f.loop(0, n) as i:
        f.store(out + i * 4, load_floats(f, out + i * 4, 1) + load_floats(f, bias + i * 4, 1), 4)


def _best(f: Fn, chances: Val, n: Val, fallback: Val) -> Val:
    """The first index of the largest; `fallback` where all are NaN or taken."""
    best, top = f.var(fallback), f.var(f.c(F32, NONE))
    with f.loop(0, n) as i:
        x = load_floats(f, chances + i * 4, 1)
        better = x > top.get()
        best.set(f.select(better, i, best.get()))
        top.set(f.select(better, x, top.get()))
    return best.get()


def group(t: Target) -> Builder:
    """args: [2] ids i32 [slots] [3] slots [4] experts taken per row [5] experts E [6] out: number of segments, then of each
    segment its expert, first place, number of places, first tile (up to 16 of its places make one) [7] out source: the row of
    each place [8] out place of each slot [9] scratch [E]; words of 64 bits but the ids. Done by thread 0."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        _, tid, _ = f.args
        ids, n, k, n_experts, out, source, place, counts = _args(f, 8)

        def expert(s: Val) -> Val:
            return f.zext(f.load(ids + s * 4, I32, 4), I64)

        def at(words: Val, i: Val) -> Val:
            return f.load(words + i * 8, I64, 8)

        with f.when(tid.eq(0)):
            with f.loop(0, n_experts) as e:
                f.store(counts + e * 8, f.i64(0), 8)
            with f.loop(0, n) as s:
                f.store(counts + expert(s) * 8, at(counts, expert(s)) + 1, 8)
            n_segments, start, tile = f.var(f.i64(0)), f.var(f.i64(0)), f.var(f.i64(0))
            with f.loop(0, n_experts) as e:
                size = at(counts, e)
                f.store(counts + e * 8, start.get(), 8)  # from here on: the next free place
                with f.when(size > 0):
                    for i, x in enumerate((e, start.get(), size, tile.get())):
                        f.store(out + n_segments.get() * SEGMENT + 8 * (i + 1), x, 8)
                    n_segments.set(n_segments.get() + 1)
                    tile.set(tile.get() + (size + (TILE - 1)) / TILE)
                start.set(start.get() + size)
            f.store(out, n_segments.get(), 8)
            with f.loop(0, n) as s:
                here = at(counts, expert(s))
                f.store(counts + expert(s) * 8, here + 1, 8)
                f.store(source + here * 8, s / k, 8)
                f.store(place + s * 8, here, 8)
        f.ret()

    return build


def combine(t: Target) -> Builder:
    """args: [2] y by place [3] weights f32 [n_rows, k] [4] place of each slot [5] out [6] width (a multiple of 4) [7] k [8]
    n_rows. out[r] = sum over j of weight[r, j] * y[place[r, j]], in the order of j. Split by columns, four at a time."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        _, tid, nt = f.args
        y, weights, place, out, width, k, n_rows = _args(f, 7)
        n = width / LANES
        with f.loop(0, n_rows) as r, f.loop(n * tid / nt * LANES, n * (tid + 1) / nt * LANES, LANES) as i:
            total = f.var(f.c(vec(F32, LANES), 0.0))
            with f.loop(0, k) as j:
                slot = r * k + j
                row = y + f.load(place + slot * 8, I64, 8) * width * 4
                w = f.splat(load_floats(f, weights + slot * 4, 1), LANES)
                total.set(fma(f, t, w, load_floats(f, row + i * 4, LANES), total.get()))
            f.store(out + (r * width + i) * 4, total.get(), 4)
        f.ret()

    return build


def each(t: Target) -> Builder:
    """args: [2] record of the kernel to run [3] segments (see group) [4] bytes from one expert's weights to the next [5] bytes of
    a row of x [6] bytes of a row of y [7] word of the record that holds the number of rows [8] table of the matrix (seats.py), or
    0: then the weights stay where the record says [9] plan, or 0 [10] segments that it has room for [11] record of the kernel for
    more rows than [12], or 0; it reads tiles of [13] bytes and has its number of rows in word 8. Words 2, 3, 4 of a record are
    addresses of weights (with a table: 0), x and y of expert 0 and place 0."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        _, tid, nt = f.args
        template, segments, stride, x_bytes, y_bytes, n_word, table, plan, n_max, tiled, few, tile_bytes = _args(f, 12)
        record = f.scratch(ir.ArrayType(I64, RECORD))
        with f.loop(0, f.load(segments, I64, 8)) as s:
            expert, first, n, tile = (f.load(segments + s * SEGMENT + 8 * (i + 1), I64, 8) for i in range(4))
            weights = f.var(expert * stride)
            with f.when(table.ne(0)):
                weights.set(seats.bring(f, table, plan, n_max, segments, s, record, tid, nt))
            many = tiled.ne(0) & (n > few)
            seats.copy(f, f.select(many, tiled, template), record)
            of_x = f.select(many, tile * tile_bytes, first * x_bytes)
            for word, step in ((2, weights.get()), (3, of_x), (4, first * y_bytes)):
                f.store(record + 8 * word, f.load(record + 8 * word, I64, 8) + step, 8)
            f.store(record + f.select(many, f.i64(8), n_word) * 8, n, 8)
            f.call_address(f.load(record, I64, 8), record, tid, nt)
        f.ret()

    return build


def quantize(t: Target) -> Builder:
    """Each segment's rows as tiles of their own. args: [2] x f32 by place [3] out [4] K [5] blocks per padded row (even) [6]
    segments [7] bytes of a tile. Blocks of a segment are split over threads; what fills up its last tile stays as it was."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        _, tid, nt = f.args
        x, out, row_len, n_blocks, segments, tile_bytes = _args(f, 6)
        live = row_len / BLOCK
        with f.loop(0, f.load(segments, I64, 8)) as s:
            _, first, n, tile = (f.load(segments + s * SEGMENT + 8 * (i + 1), I64, 8) for i in range(4))
            write = in_tiles(f, out + tile * tile_bytes, n)
            with f.loop(n * live * tid / nt, n * live * (tid + 1) / nt) as i:
                r, b = i / live, i % live
                write(r, b, *rounded_block(f, t, x + ((first + r) * row_len + b * BLOCK) * 4))
            with f.loop(n * tid / nt, n * (tid + 1) / nt) as r, f.loop(live, n_blocks) as b:
                write(r, b, [f.c(vec(I8, BLOCK), 0)], f.c(F32, 0.0), [f.c(I32, 0)] * 2)
        f.ret()

    return build
