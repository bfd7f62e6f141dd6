"""Attention over the shared cache format (protocols.CacheView): f16 keys tiled by 16 positions, f16 values by position.

One work item is one query head of one row, computed from beginning to end by one thread in three passes over the visible
positions: scores by whole tiles (a tile's 16 scores fill vectors, so no horizontal sum), softmax, weighted sum of values. Lanes
are absolute positions modulo 16 and tiles are visited in position order, so neither the number of rows, nor threads, nor the
capacity of a ring shows in a single bit.

Rejected: online softmax by tiles (one pass less, but rescaling costs more than re-reading scores that are in L1 here);
splitting a head's positions over threads (needed only when heads are fewer than threads, and then by a fixed tile grid).
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import exp, fma, hmax, hsum, load_f16, load_floats, store_f16
from ds4py.kernels.cpu.target import Target

TILE = 16
CHUNK_VECTORS = 8  # value vectors accumulated at once


def _cache(f: Fn, tables: Val, row: Val, cache: Val) -> list[Val]:
    """keys, values, capacity, window of the row's session."""
    entry = f.load(tables + row * 8, I64, 8) + cache * 32
    return [f.load(entry + 8 * i, I64, 8) for i in range(4)]


def store_kv(t: Target) -> Builder:
    """args: [2] k [3] v [4] head width d [5] kv heads [6] n_rows [7] pos [8] tables [9] cache. Split by rows; one row's keys and
    values land in its own slots, so rows never meet."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        k, v, d, heads, n_rows, pos_at, tables, cache = (f.load(args + 8 * i, I64, 8) for i in range(2, 10))
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            keys, values, capacity, _ = _cache(f, tables, r, cache)
            slot = f.load(pos_at + r * 8, I64, 8) % capacity
            with f.loop(0, heads) as h:
                src = (r * heads + h) * d * 4
                key = keys + ((h * capacity + slot / TILE * TILE) * d + slot % TILE) * 2
                value = values + (h * capacity + slot) * d * 2
                with f.loop(0, d) as i:
                    store_f16(f, t, key + i * (2 * TILE), load_floats(f, k + src + i * 4, 1))
                with f.loop(0, d, 4) as i:
                    store_f16(f, t, value + i * 2, load_floats(f, v + src + i * 4, 4))
        f.ret()

    return build


def attend(t: Target, d: int, softcap: bool) -> Builder:
    """Attention for head width `d` (a multiple of 16).

    args: [2] q [3] out [4] heads H [5] kv heads G [6] n_rows [7] pos [8] tables [9] cache [10] scale [11] softcap
    [12] cells: address of scratch, bytes of scratch per thread [13] first [14] last: positions that each row may see, i64.
    Items (row, head) are split over threads. In a causal pass `last` is `pos` itself.
    """

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        q, out, n_heads, n_kv, n_rows, pos_at, tables, cache = (f.load(args + 8 * i, I64, 8) for i in range(2, 10))
        scale, cap = (f.load(args + 8 * i, F32, 8) for i in (10, 11))
        scratch, first_at, last_at = (f.load(args + 8 * i, I64, 8) for i in (12, 13, 14))
        scores = f.load(scratch, I64, 8) + tid * f.load(scratch + 8, I64, 8)
        n = n_rows * n_heads
        with f.loop(n * tid / nt, n * (tid + 1) / nt) as item:
            row, head = item / n_heads, item % n_heads
            keys, values, capacity, window = _cache(f, tables, row, cache)
            kv = head * n_kv / n_heads
            pos, last = f.load(pos_at + row * 8, I64, 8), f.load(last_at + row * 8, I64, 8)
            known = f.load(first_at + row * 8, I64, 8)
            first = f.select(window > 0, f.max(pos - window + 1, known), known)
            tile0, tile1 = first / TILE, last / TILE + 1
            query, n_tiles, limit = q + item * (d * 4), capacity / TILE, cap if softcap else None
            of_head = kv * capacity * (d * 2)
            _scores(f, t, d, query, keys + of_head, n_tiles, tile0, tile1, scores, scale, limit)
            _mask(f, scores, tile0, tile1, first, last)
            inv = f.c(F32, 1.0) / _softmax(f, t, scores, (tile1 - tile0) * TILE)
            _mix(f, t, d, values + of_head, capacity, first, last, tile0, scores, inv, out + item * (d * 4))
        f.ret()

    return build


def _scores(
    f: Fn, t: Target, d: int, query: Val, keys: Val, n_tiles: Val, tile0: Val, tile1: Val, scores: Val, scale: Val, cap
) -> None:
    """scores[16 (tile - tile0) + lane] = scale * q . k, four interleaved partial sums over d."""
    chains = 4 if d % 4 == 0 else 1
    with f.loop(tile0, tile1) as tile:
        at = keys + tile % n_tiles * (d * 2 * TILE)
        acc = [[f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in range(chains)] for _ in range(t.parts)]
        with f.loop(0, d, chains) as i:
            for c in range(chains):
                x = f.splat(load_floats(f, query + (i + c) * 4, 1), t.lanes)
                for p in range(t.parts):
                    key = load_f16(f, t, at + (i + c) * (2 * TILE) + 2 * t.lanes * p, t.lanes)
                    acc[p][c].set(fma(f, t, key, x, acc[p][c].get()))
        for p in range(t.parts):
            v = acc[p][0].get()
            if chains == 4:
                v = (v + acc[p][1].get()) + (acc[p][2].get() + acc[p][3].get())
            v = v * f.splat(scale, t.lanes)
            if cap is not None:
                limit = f.splat(cap, t.lanes)
                v = limit * (f.c(v.type, 1.0) - f.c(v.type, 2.0) / (exp(f, t, v / limit * 2.0) + 1.0))
            f.store(scores + ((tile - tile0) * TILE + p * t.lanes) * 4, v, 4)


def _mask(f: Fn, scores: Val, tile0: Val, tile1: Val, first: Val, last: Val) -> None:
    """Positions of the outer tiles that the row does not see."""
    hidden = f.c(F32, float("-inf"))
    with f.loop(0, first - tile0 * TILE) as i:
        f.store(scores + i * 4, hidden, 4)
    with f.loop(last + 1 - tile0 * TILE, (tile1 - tile0) * TILE) as i:
        f.store(scores + i * 4, hidden, 4)


def _softmax(f: Fn, t: Target, scores: Val, n: Val) -> Val:
    """scores -> exp(scores - max) in place; returns their sum."""
    top = f.var(f.c(vec(F32, TILE), float("-inf")))
    with f.loop(0, n, TILE) as i:
        top.set(f.max(top.get(), load_floats(f, scores + i * 4, TILE)))
    peak = f.splat(hmax(f, top.get()), t.lanes)
    acc = [f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in range(t.parts)]
    with f.loop(0, n, TILE) as i:
        for p in range(t.parts):
            at = scores + (i + p * t.lanes) * 4
            e = exp(f, t, load_floats(f, at, t.lanes) - peak)
            f.store(at, e, 4)
            acc[p].set(acc[p].get() + e)
    total = hsum(f, acc[0].get())
    for p in range(1, t.parts):
        total = total + hsum(f, acc[p].get())
    return total


def _mix(
    f: Fn, t: Target, d: int, values: Val, capacity: Val, first: Val, last: Val, tile0: Val, weights: Val, inv: Val, out: Val
) -> None:
    """out = inv * sum over positions of weight * value, positions in order; the ring's wrap is a compare."""
    lanes = min(t.lanes, 16)
    step = CHUNK_VECTORS
    n_vectors = d // lanes
    for lo in range(0, n_vectors, step):
        n = min(step, n_vectors - lo)
        acc = [f.var(f.c(vec(F32, lanes), 0.0)) for _ in range(n)]
        slot = f.var(first % capacity)
        with f.loop(first, last + 1) as p:
            w = f.splat(load_floats(f, weights + (p - tile0 * TILE) * 4, 1), lanes)
            at = values + slot.get() * (d * 2) + lo * lanes * 2
            for i in range(n):
                acc[i].set(fma(f, t, load_f16(f, t, at + i * lanes * 2, lanes), w, acc[i].get()))
            following = slot.get() + 1
            slot.set(f.select(following.eq(capacity), f.i64(0), following))
        for i in range(n):
            f.store(out + (lo + i) * lanes * 4, acc[i].get() * f.splat(inv, lanes), 4)
