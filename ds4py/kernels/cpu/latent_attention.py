"""Attention over rows that are keys and values at once (latent.py), for several heads together.

One work item is a few heads of one row. What the row sees is first written down as a list of addresses: the window by position,
then pool entries, all or the chosen ones, ascending. The rest does not know where a row lies: scores (a row is read and widened
once for the item's heads), a softmax with the sink, a weighted sum in the order of the list. The list is a function of the row's
position, so neither the number of rows in the call nor a ring's capacity shows.

Rejected: tiled keys as in attention.py, which would store every row twice to spare one horizontal sum per head and 512 products.
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I64, Fn, Val, Var, vec
from ds4py.kernels.cpu.lanes import exp, fma, hmax, hsum, load_f16, load_floats
from ds4py.kernels.cpu.pools import cache_rows
from ds4py.kernels.cpu.streams import as_f32, start
from ds4py.kernels.cpu.target import Target

TOGETHER = 4  # heads of an item, at most
PAD = 16  # scores of a head are padded to a multiple
WORDS = 2 + TOGETHER  # f32 of scratch per visible row: its address and a score for each head


def together(n_heads: int) -> int:
    """Heads of an item."""
    return next(n for n in (TOGETHER, 2, 1) if n_heads % n == 0)


def attend(t: Target, d: int, n: int, pooled: str) -> Builder:
    """Attention for rows of `d` values (a multiple of 16) and `n` heads at a time. pooled: "" (none), "all", "chosen".

    args: [2] q [3] out [4] heads [5] ring [6] pool [7] positions per entry [8] chosen i64 (see pools.choose) [9] its top_k [10]
    scale [11] sinks f32 [heads] [12] n_rows [13] cells: see `CELLS`. Items are split over threads."""

    def build(module: ir.Module, name: str) -> None:
        f, args, tid, nt = start(module, name, 12)
        q, out, n_heads, ring, pool, every, chosen, top_k, scale, sinks, n_rows, cells = args
        pos_at, tables, scratch, first_at, start_at, last_at = (f.load(cells + 8 * i, I64, 8) for i in range(6))
        mine = f.load(scratch, I64, 8) + tid * f.load(scratch + 8, I64, 8)
        capacity = f.load(scratch + 8, I64, 8) / (4 * WORDS) / PAD * PAD  # visible rows that fit
        per_row = n_heads / n
        items = n_rows * per_row
        with f.loop(items * tid / nt, items * (tid + 1) / nt) as item:
            row, head = item / per_row, item % per_row * n
            count = f.var(f.i64(0))
            rows, ring_len, window = cache_rows(f, tables, row, ring)
            begin = f.max(f.load(start_at + row * 8, I64, 8) - window + 1, f.load(first_at + row * 8, I64, 8))
            with f.loop(begin, f.load(last_at + row * 8, I64, 8) + 1) as p:
                _list(f, mine, count, rows + p % ring_len * (2 * d))
            if pooled:
                rows, pool_len, _ = cache_rows(f, tables, row, pool)
                picks = chosen + row * (top_k + 1) * 8
                total = f.load(picks, I64, 8) if pooled == "chosen" else (f.load(pos_at + row * 8, I64, 8) + 1) / every
                with f.loop(0, total) as i:
                    e = f.load(picks + i * 8 + 8, I64, 8) if pooled == "chosen" else i
                    _list(f, mine, count, rows + e % pool_len * (2 * d))
            scores = [mine + capacity * (8 + 4 * h) for h in range(n)]
            at = (row * n_heads + head) * (4 * d)
            _scores(f, t, d, mine, count.get(), q + at, scores, as_f32(f, scale))
            inverse = [_softmax(f, t, scores[h], count.get(), load_floats(f, sinks + (head + h) * 4, 1)) for h in range(n)]
            _mix(f, t, d, mine, count.get(), scores, inverse, out + at)
        f.ret()

    return build


def _list(f: Fn, addresses: Val, count: Var, row: Val) -> None:
    f.store(addresses + count.get() * 8, row, 8)
    count.set(count.get() + 1)


def _scores(f: Fn, t: Target, d: int, addresses: Val, count: Val, q: Val, scores: list[Val], scale: Val) -> None:
    """scores[h][i] = scale * q_h . row i."""
    with f.loop(0, count) as i:
        row = f.load(addresses + i * 8, I64, 8)
        acc = [f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in scores]
        with f.loop(0, d, t.lanes) as c:
            key = load_f16(f, t, row + c * 2, t.lanes)
            for h, total in enumerate(acc):
                total.set(fma(f, t, key, load_floats(f, q + (c + h * d) * 4, t.lanes), total.get()))
        for at, total in zip(scores, acc, strict=True):
            f.store(at + i * 4, hsum(f, total.get()) * scale, 4)


def _softmax(f: Fn, t: Target, scores: Val, count: Val, sink: Val) -> Val:
    """scores -> exp(scores - max) in place; returns 1 / (their sum and the sink's)."""
    end = (count + (PAD - 1)) / PAD * PAD
    with f.loop(count, end) as i:
        f.store(scores + i * 4, f.c(F32, float("-inf")), 4)
    top = f.var(f.c(vec(F32, PAD), float("-inf")))
    with f.loop(0, end, PAD) as i:
        top.set(f.max(top.get(), load_floats(f, scores + i * 4, PAD)))
    peak = f.max(hmax(f, top.get()), sink)
    acc = f.var(f.c(vec(F32, t.lanes), 0.0))
    with f.loop(0, end, t.lanes) as i:
        e = exp(f, t, load_floats(f, scores + i * 4, t.lanes) - f.splat(peak, t.lanes))
        f.store(scores + i * 4, e, 4)
        acc.set(acc.get() + e)
    return f.c(F32, 1.0) / (hsum(f, acc.get()) + exp(f, t, sink - peak))


def _mix(f: Fn, t: Target, d: int, addresses: Val, count: Val, weights: list[Val], inverse: list[Val], out: Val) -> None:
    """out_h = inverse_h * sum over i of weights[h][i] * row i; two vectors of each head at a time."""
    for lo in range(0, d, 2 * t.lanes):
        parts = [c for c in (lo, lo + t.lanes) if c < d]
        acc = {(h, c): f.var(f.c(vec(F32, t.lanes), 0.0)) for h in range(len(weights)) for c in parts}
        with f.loop(0, count) as i:
            row = f.load(addresses + i * 8, I64, 8)
            values = {c: load_f16(f, t, row + 2 * c, t.lanes) for c in parts}
            for h, at in enumerate(weights):
                w = f.splat(load_floats(f, at + i * 4, 1), t.lanes)
                for c in parts:
                    acc[h, c].set(fma(f, t, values[c], w, acc[h, c].get()))
        for (h, c), total in acc.items():
            f.store(out + 4 * (h * d + c), total.get() * f.splat(inverse[h], t.lanes), 4)
