"""Attention over the shared cache format (protocols.CacheView): f16 keys tiled by 16 positions, f16 values by position.

Positions are cut into chunks of 128 at absolute multiples of 128. `attend` does one kv head, one chunk and one row at a time, for
all query heads that share the kv head: scores by whole tiles (a tile's 16 scores fill vectors, so no horizontal sum), the chunk's
own softmax, a weighted sum of values; a key or value is read and converted once for those heads, and stays in L1 for the rows
that follow. Threads share (kv head, chunk, row) evenly, so a deep context keeps them all busy even with one row and one kv head.
`combine` then adds a query's chunks in position order, each scaled by e^(its maximum - the largest).

A query's arithmetic depends on its own visible positions alone: lanes are absolute positions modulo 16, chunks and tiles are
visited in position order, and sums are formed alike whatever else is computed beside them. So neither the number of rows, nor
threads, nor the capacity of a ring shows in a single bit.

Rejected: a head from beginning to end by one thread (twice as slow at 8 rows and 2,000 positions: each head converted all keys
and values again, and threads had 5 and 4 of 9 heads); a maximum carried from chunk to chunk (it chains what can be shared).
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import exp, fma, hmax, hsum, load_f16, load_floats, store_f16
from ds4py.kernels.cpu.target import Target

TILE = 16
CHUNK = 128  # positions; a multiple of TILE
ROWS_AT_ONCE = 16  # of one pair of ops: it bounds the memory of what chunks give
MINUS = float("-inf")
COLUMNS = 32  # of a share of `combine`, as in rowwise.py


def _cache(f: Fn, tables: Val, row: Val, cache: Val) -> list[Val]:
    """keys, values, capacity, window of the row's session."""
    entry = f.load(tables + row * 8, I64, 8) + cache * 32
    return [f.load(entry + 8 * i, I64, 8) for i in range(4)]


def store_kv(t: Target, split: str) -> Builder:
    """args: [2] k [3] v [4] head width d [5] kv heads [6] n_rows [7] pos [8] tables [9] cache. A row's keys and values land in
    its own slots, so rows never meet. But neighbours' keys share lines of the cache, which two threads would take from each
    other: so threads share several rows by columns, 16 at a time ("own"); one may stay with the thread that made it ("row")."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        k, v, d, heads, n_rows, pos_at, tables, cache = (f.load(args + 8 * i, I64, 8) for i in range(2, 10))

        def columns(r: Val, first: Val, last: Val) -> None:
            """first..last, multiples of 16, of a row of all heads."""
            keys, values, capacity, _ = _cache(f, tables, r, cache)
            slot = f.load(pos_at + r * 8, I64, 8) % capacity
            with f.loop(first, last, 16) as c:
                h, src, within = c / d, (r * heads * d + c) * 4, c % d
                key = keys + ((h * capacity + slot / TILE * TILE) * d + within * TILE + slot % TILE) * 2
                value = values + ((h * capacity + slot) * d + within) * 2
                for i in range(16):
                    store_f16(f, t, key + i * (2 * TILE), load_floats(f, k + src + i * 4, 1))
                for i in range(0, 16, t.lanes):
                    store_f16(f, t, value + i * 2, load_floats(f, v + src + i * 4, t.lanes))

        n = heads * d
        if split == "row":
            with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
                columns(r, f.i64(0), n)
        else:
            first, last = n / 16 * tid / nt * 16, n / 16 * (tid + 1) / nt * 16
            with f.loop(0, n_rows) as r:
                columns(r, first, last)
        f.ret()

    return build


def slot_bytes(d: int, n_chunks: int) -> int:
    """Memory of what a query's chunks give: maximums, sums, weighted sums of values [n_chunks, d]; n_chunks a multiple of 16."""
    return n_chunks * (d + 2) * 4


class _Slot:
    """Where the chunks of query number `i` of a call are."""

    def __init__(self, cells: Val, f: Fn, d: int, i: Val):
        room = f.load(cells + 16, I64, 8)
        self.peaks = f.load(cells, I64, 8) + i * f.load(cells + 8, I64, 8)
        self.totals = self.peaks + room * 4
        self.sums = self.totals + room * 4
        self.d = d

    def mixed(self, chunk: Val) -> Val:
        return self.sums + chunk * (self.d * 4)


def attend(t: Target, d: int, n_q: int, softcap: bool) -> Builder:
    """The chunks of all queries, for head width `d` (a multiple of 16) and `n_q` query heads for each kv head.

    args: [2] q [3] unused [4] heads H [5] kv heads G [6] n_rows [7] pos [8] tables [9] cache [10] scale [11] softcap
    [12] cells: address of slots, bytes of a slot, chunks that a slot holds [13] first [14] last: positions that each row may see,
    i64. In a causal pass `last` is `pos` itself.
    """

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        q, _, n_heads, n_kv, n_rows, pos_at, tables, cache = (f.load(args + 8 * i, I64, 8) for i in range(2, 10))
        scale, cap = (f.load(args + 8 * i, F32, 8) for i in (10, 11))
        cells, first_at, last_at = (f.load(args + 8 * i, I64, 8) for i in (12, 13, 14))
        lowest, highest = f.var(f.i64(1 << 62)), f.var(f.i64(0))
        with f.loop(0, n_rows) as row:
            first, last = _seen(f, row, pos_at, tables, cache, first_at, last_at)
            lowest.set(f.min(lowest.get(), first / CHUNK))
            highest.set(f.max(highest.get(), last / CHUNK + 1))
        n_chunks = highest.get() - lowest.get()
        scores = f.scratch(ir.ArrayType(F32, at_once(t, n_q) * CHUNK))
        n = n_kv * n_chunks * n_rows
        begin = n * tid / nt
        with f.loop(begin, n * (tid + 1) / nt) as unit:
            row, chunk = unit % n_rows, unit / n_rows % n_chunks + lowest.get()
            kv = unit / n_rows / n_chunks
            first, last = _seen(f, row, pos_at, tables, cache, first_at, last_at)
            nth = chunk - first / CHUNK
            lo, hi = f.max(first, chunk * CHUNK), f.min(last + 1, chunk * CHUNK + CHUNK)
            with f.when(lo < hi):
                keys, values, capacity, _ = _cache(f, tables, row, cache)
                of_head = kv * capacity * (d * 2)
                part = _Part(f, t, d, keys + of_head, values + of_head, capacity, lo, hi, scores)
                part.cold = row.eq(0) | unit.eq(begin)
                for q0 in range(0, n_q, at_once(t, n_q)):
                    some = min(at_once(t, n_q), n_q - q0)
                    head = row * n_heads + kv * n_q + q0
                    part.scores(q + head * (d * 4), some, scale, cap if softcap else None, q0 == 0 and some > 4)
                    slots = [_Slot(cells, f, d, head + i) for i in range(some)]
                    for i, slot in enumerate(slots):
                        peak, total = part.softmax(i)
                        f.store(slot.peaks + nth * 4, peak, 4)
                        f.store(slot.totals + nth * 4, total, 4)
                    part.mix([slot.mixed(nth) for slot in slots])
        f.ret()

    return build


def at_once(t: Target, n_q: int) -> int:
    """Query heads that share one reading of keys and values: what registers hold, in equal shares."""
    most = 8 if t.path == "avx512" else 4
    return -(-n_q // -(-n_q // most))


def _seen(f: Fn, row: Val, pos_at: Val, tables: Val, cache: Val, first_at: Val, last_at: Val) -> tuple[Val, Val]:
    """First and last position that a row sees."""
    window = _cache(f, tables, row, cache)[3]
    pos, known = f.load(pos_at + row * 8, I64, 8), f.load(first_at + row * 8, I64, 8)
    return f.select(window > 0, f.max(pos - window + 1, known), known), f.load(last_at + row * 8, I64, 8)


class _Part:
    """Positions lo..hi of one chunk for some queries, whose scores lie one chunk after another."""

    cold: Val  # whether keys and values come from memory: a token's worth of weights has passed through the caches since

    def __init__(self, f: Fn, t: Target, d: int, keys: Val, values: Val, capacity: Val, lo: Val, hi: Val, scores: Val):
        self.f, self.t, self.d, self.keys, self.values = f, t, d, keys, values
        self.n_tiles, self.lo, self.hi, self._scores = capacity / TILE, lo, hi, scores
        self._tiles_at_once = 2 if t.parts == 1 else 1
        wide = TILE * self._tiles_at_once  # divides a chunk
        self.tile0, self.tile1 = (at / wide * self._tiles_at_once for at in (lo, hi + (wide - 1)))

    def scores(self, queries: Val, n: int, scale: Val, cap: Val | None, fetch: bool) -> None:
        """scale * q . k of n queries; unseen positions of the outer tiles get minus infinity. fetch: values are next."""
        f = self.f
        with f.b.if_else(self.cold.v) as (cold, warm):
            with cold:
                self._by_tiles(queries, n, scale, cap, 1, fetch)
            with warm:
                self._by_tiles(queries, n, scale, cap, self._tiles_at_once)
        begin, end = self.lo - self.tile0 * TILE, self.hi - self.tile0 * TILE
        for i in range(n):
            for first, last in ((f.i64(0), begin), (end, (self.tile1 - self.tile0) * TILE)):
                with f.loop(first, last) as p:
                    f.store(self._at(i, p), f.c(F32, MINUS), 4)

    def _by_tiles(self, queries: Val, n: int, scale: Val, cap: Val | None, step: int, fetch: bool = False) -> None:
        """By `step` tiles: two share a query's value; one after another is what the processor foresees when it reads memory (a
        third faster there)."""
        f, t, d = self.f, self.t, self.d
        vectors = [(tile, part) for tile in range(step) for part in range(t.parts)]
        with f.loop(self.tile0, self.tile1, step) as tile:
            offsets = [(tile + i) % self.n_tiles * (d * 2 * TILE) for i in range(step)]
            if fetch:
                self._prefetch(offsets)
            keys = [self.keys + offset for offset in offsets]
            for some in (vectors[i : i + 2] for i in range(0, len(vectors), 2)):
                sums = self._products(queries, [keys[i] + 2 * t.lanes * part for i, part in some], n)
                for (i, part), of_vector in zip(some, sums, strict=True):
                    for k, v in enumerate(of_vector):
                        v = v * f.splat(scale, t.lanes)
                        if cap is not None:
                            limit = f.splat(cap, t.lanes)
                            v = limit * (f.c(v.type, 1.0) - f.c(v.type, 2.0) / (exp(f, t, v / limit * 2.0) + 1.0))
                        f.store(self._at(k, (tile + i - self.tile0) * TILE + part * t.lanes), v, 4)

    def _prefetch(self, offsets: list[Val]) -> None:
        """Ask for these tiles' values. That pays where scores take long enough to bring them (measured: 7 queries, not 3)."""
        for offset in offsets:
            for o in range(0, TILE * self.d * 2, 64):
                self.f.prefetch(self.values + offset + o)

    def _products(self, queries: Val, keys: list[Val], n: int) -> list[list[Val]]:
        """q . k of n queries for each vector of keys, in one sum over d, or two interleaved ones where that leaves units idle."""
        f, t, d = self.f, self.t, self.d
        chains, vectors = 1 if n > 4 or t.path != "avx512" else 2, range(len(keys))
        acc = [[[f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in range(chains)] for _ in range(n)] for _ in vectors]
        with f.loop(0, d, chains) as i:
            for c in range(chains):
                lanes = [load_f16(f, t, at + (i + c) * (2 * TILE), t.lanes) for at in keys]
                for k in range(n):
                    x = f.splat(load_floats(f, queries + (i + (c + k * d)) * 4, 1), t.lanes)
                    for v in vectors:
                        acc[v][k][c].set(fma(f, t, lanes[v], x, acc[v][k][c].get()))
        return [[sums[0].get() + sums[1].get() if chains == 2 else sums[0].get() for sums in acc[v]] for v in vectors]

    def softmax(self, i: int) -> tuple[Val, Val]:
        """Scores of query i -> exp(score - maximum) in place; returns maximum and sum."""
        f, t = self.f, self.t
        n = (self.tile1 - self.tile0) * TILE
        top = f.var(f.c(vec(F32, TILE), MINUS))
        with f.loop(0, n, TILE) as p:
            top.set(f.max(top.get(), load_floats(f, self._at(i, p), TILE)))
        peak = hmax(f, top.get())
        acc = [f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in range(t.parts)]
        with f.loop(0, n, TILE) as p:
            for part in range(t.parts):
                at = self._at(i, p + part * t.lanes)
                e = exp(f, t, load_floats(f, at, t.lanes) - f.splat(peak, t.lanes))
                f.store(at, e, 4)
                acc[part].set(acc[part].get() + e)
        total = hsum(f, acc[0].get())
        for part in range(1, t.parts):
            total = total + hsum(f, acc[part].get())
        return peak, total

    def mix(self, outs: list[Val]) -> None:
        """outs[i] = sum over positions of query i's weight * value, positions in order."""
        f, t, n = self.f, self.t, len(outs)
        n_vectors = self.d // t.lanes
        step = max(1, (20 if t.path == "avx512" else 8) // n)
        for first in range(0, n_vectors, step):
            some = range(first, min(first + step, n_vectors))
            acc = {(i, v): f.var(f.c(vec(F32, t.lanes), 0.0)) for i in range(n) for v in some}
            with f.loop(self.tile0, self.tile1) as tile:
                at = self.values + tile % self.n_tiles * (TILE * self.d * 2)
                start, end = f.max(self.lo - tile * TILE, f.i64(0)), f.min(self.hi - tile * TILE, f.i64(TILE))
                with f.loop(start, end) as p:
                    values = [load_f16(f, t, at + p * (self.d * 2) + v * t.lanes * 2, t.lanes) for v in some]
                    for i in range(n):
                        w = f.splat(load_floats(f, self._at(i, (tile - self.tile0) * TILE + p), 1), t.lanes)
                        for v, value in zip(some, values, strict=True):
                            acc[i, v].set(fma(f, t, value, w, acc[i, v].get()))
            for (i, v), total in acc.items():
                f.store(outs[i] + v * t.lanes * 4, total.get(), 4)

    def _at(self, i: int, position: Val) -> Val:
        return self._scores + (position + i * CHUNK) * 4


def combine(t: Target, d: int) -> Builder:
    """What queries attend to, from their chunks. args: [2] out [3] heads H [4] n_rows [5] pos [6] tables [7] cache [8] cells of
    slots (see attend) [9] first [10] last [11] cells: address of scratch, bytes of scratch per thread. Split by columns."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        out, n_heads, n_rows, pos_at, tables, cache, cells, first_at, last_at, scratch = (
            f.load(args + 8 * i, I64, 8) for i in range(2, 12)
        )
        weights = f.load(scratch, I64, 8) + tid * f.load(scratch + 8, I64, 8)
        n = n_rows * n_heads * d / COLUMNS
        before = f.var(f.i64(-1))  # the query whose weights are at hand
        inverse = f.var(f.c(F32, 0.0))
        with f.loop(n * tid / nt * (COLUMNS // TILE), n * (tid + 1) / nt * (COLUMNS // TILE)) as i:
            query, column = i / (d // TILE), i % (d // TILE) * TILE
            slot = _Slot(cells, f, d, query)
            first, last = _seen(f, query / n_heads, pos_at, tables, cache, first_at, last_at)
            n_chunks = last / CHUNK - first / CHUNK + 1
            with f.when(query.ne(before.get())):
                inverse.set(_weights(f, t, slot, n_chunks, weights))
                before.set(query)
            for lane in range(0, TILE, t.lanes):
                acc = f.var(f.c(vec(F32, t.lanes), 0.0))
                with f.loop(0, n_chunks) as chunk:
                    w = f.splat(load_floats(f, weights + chunk * 4, 1), t.lanes)
                    mixed = load_floats(f, slot.mixed(chunk) + (column + lane) * 4, t.lanes)
                    acc.set(fma(f, t, mixed, w, acc.get()))
                f.store(out + (query * d + column + lane) * 4, acc.get() * f.splat(inverse.get(), t.lanes), 4)
        f.ret()

    return build


def _weights(f: Fn, t: Target, slot: _Slot, n: Val, out: Val) -> Val:
    """Each chunk's factor e^(its maximum - the largest); returns the inverse of the sum over all positions."""
    lanes = Val(f, ir.Constant(vec(I32, t.lanes), list(range(t.lanes))))

    def live(i: Val, at: Val, rest: float) -> Val:
        inside = f.splat(f.trunc(i, I32), t.lanes) + lanes < f.splat(f.trunc(n, I32), t.lanes)
        return f.select(inside, load_floats(f, at + i * 4, t.lanes), f.c(vec(F32, t.lanes), rest))

    top, total = f.var(f.c(vec(F32, t.lanes), MINUS)), f.var(f.c(vec(F32, t.lanes), 0.0))
    with f.loop(0, n, t.lanes) as i:
        top.set(f.max(top.get(), live(i, slot.peaks, MINUS)))
    peak = f.splat(hmax(f, top.get()), t.lanes)
    with f.loop(0, n, t.lanes) as i:
        e = exp(f, t, live(i, slot.peaks, MINUS) - peak)
        f.store(out + i * 4, e, 4)
        total.set(fma(f, t, e, live(i, slot.totals, 0.0), total.get()))
    return f.c(F32, 1.0) / hsum(f, total.get())
