"""Matrix products of a few rows: int8 activations times packed weights; and products with float weights, of any number of rows.

`micro(form, m)` is the kernel for m rows at once (m in `chunks`); `driver` cuts a call's rows into such chunks, and walks a
panel of weights through all chunks before it goes on, so that a panel is read from memory once. Row i's arithmetic is the same
sequence of operations in every micro kernel, and in tiles.py for many rows: integer sums are exact, and each block adds one
fused multiply-add per row and lane, in block order. That is all there is to row-invariance here.

Activations: a row of K inputs is [int8 q: 32 nb][f32 d: nb][i32 sums of 16: 2 nb], x = d q with d = max|x| / 127 in each block of
32; nb is even. 44 nb bytes.

What mattered, in order (measured): lanes are output rows (packed.py); on AVX2 several groups at once, so that more than one
stream of addresses is open, with AVX-512 one; a prefetch 1 to 4 KB ahead; a block's weights are unpacked once for all rows; large
pages (arena.py); and the prefetch's hint that a line will not be wanted again, which leaves activations, keys and the Python of
the decode loop in the caches (3 to 5 % of a token).
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import dot_quads, fma, hsum, load_bf16, load_f16, load_floats, lookup16, prepare, signed_bias
from ds4py.kernels.cpu.packed import BLOCK, GROUP, Packed
from ds4py.kernels.cpu.target import Target

ROW_BYTES = BLOCK + 4 + 8  # of a quantised activation row, per block


def prefetch(f: Fn, t: Target, form: Packed, pair: Val, once: bool) -> None:
    """Ask for the pair of blocks that lies some way ahead. `once`: no other rows will be multiplied with it in this pass."""
    ahead = 4096 if t.path == "avx512" else 1024
    for o in range(0, form.pair_bytes, 64):
        f.prefetch(pair + (ahead + o), once)


def chunks(t: Target, form: Packed) -> tuple[int, ...]:
    """Row counts that have a micro kernel, 1, 2, ... ascending. More rows than `most_rows` go to few.py or tiles.py."""
    if t.path == "avx512":
        return (1,)
    return (1, 2, 3) if t.path == "avx2" and not form.signed else (1, 2, 3, 4)


def most_rows(t: Target, form: Packed) -> int:
    """Up to how many rows these kernels are at least as fast as tiles.py's, or few.py's (measured)."""
    if t.path == "avx2":
        return 7 if form.signed else 3
    return 1 if t.path == "avx512" else 5


def cut(n_rows: int, sizes: tuple[int, ...]) -> list[int]:
    """How `driver` cuts a call's rows into chunks."""
    parts = []
    while n_rows:
        parts.append(max(m for m in sizes if m <= n_rows))
        n_rows -= parts[-1]
    return parts


def streams(t: Target, m: int) -> int:
    """Groups walked at once: many for one row (bandwidth), few for many (registers). A core with AVX-512 follows one stream of
    addresses at the full rate, and four at 60 % of it."""
    return 1 if t.path == "avx512" else {1: 4, 2: 2}.get(m, 1)


def micro(form: Packed, m: int, t: Target) -> Builder:
    """void(w, x, y, ldy, xstride, n_pairs, g0, g1): y[row, 16 g + lane] for groups g0..g1 and m rows. ldy in floats."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 8)
        w, x, y, ldy, xstride, n_pairs, g0, g1 = f.args
        group_bytes = n_pairs * form.pair_bytes
        n_blocks = n_pairs * 2
        sizes = chunks(t, form)
        once = m < max(sizes) or most_rows(t, form) <= m
        many = streams(t, m)
        split = g0 + (g1 - g0) / many * many
        for n_groups, lo, hi in ((many, g0, split), (1, split, g1)):
            if many == 1 and n_groups == 1 and lo is split:
                break  # nothing is left over
            with f.loop(lo, hi, n_groups) as g:
                acc = {
                    (r, k, s): f.var(f.c(vec(F32, t.lanes), 0.0))
                    for r in range(m)
                    for k in range(n_groups)
                    for s in range(t.parts)
                }
                base = w + g * group_bytes
                with f.loop(0, n_pairs) as i:
                    for k in range(n_groups):
                        at = base + group_bytes * k + i * form.pair_bytes
                        prefetch(f, t, form, at, once)
                        for half in range(2):
                            _block(
                                f,
                                t,
                                form,
                                m,
                                at,
                                half,
                                x,
                                xstride,
                                i * 2 + half,
                                n_blocks,
                                {(r, s): acc[r, k, s] for r in range(m) for s in range(t.parts)},
                            )
                for (r, k, s), v in acc.items():
                    f.store(y + (ldy * r + (g + k) * GROUP + s * t.lanes) * 4, v.get(), 4)
        f.ret()

    return build


def _block(
    f: Fn, t: Target, form: Packed, m: int, pair: Val, half: int, x: Val, xstride: Val, block: Val, n_blocks: Val, acc
) -> None:
    """acc[row, part] += this block's contribution."""
    scales_at = pair + (2 * (form.low_bytes + form.high_bytes) + half * form.scale_bytes)
    bias = form.offset + (signed_bias(t) if form.signed else 0)
    quads_per_sub = 8 // form.subs
    rows = []
    for r in range(m):
        row = x + xstride * r
        tail = row + n_blocks * BLOCK
        sums = [f.load(tail + n_blocks * 4 + block * 8 + 4 * h, I32, 4) for h in range(2)]
        if form.subs == 1:
            sums = [sums[0] + sums[1]]
        words = [f.load(row + block * BLOCK + 4 * j, I32, 4) for j in range(8)]
        rows.append((words, f.load(tail + block * 4, F32, 4), sums))
    for s in range(t.parts):
        quads = [prepare(f, t, q, form.signed) for q in block_quads(f, t, form, pair, half, s)]
        scale = [
            block_scale(f, t, form, scales_at + (32 * u + 2 * t.lanes * s)) for u in range(form.subs * (2 if form.has_min else 1))
        ]
        for r, (words, d, sums) in enumerate(rows):
            total: Val | None = None
            for u in range(form.subs):
                cut = slice(u * quads_per_sub, (u + 1) * quads_per_sub)
                init = f.splat(sums[u] * -bias, t.lanes) if bias else f.c(vec(I32, t.lanes), 0)
                part = f.to_float(dot_quads(f, t, quads[cut], words[cut], form.q_max, init))
                total = part * scale[u] if total is None else fma(f, t, part, scale[u], total)
                if form.has_min:  # the minimum applies to every input: times the sum of the activations
                    total = fma(f, t, scale[form.subs + u], f.splat(f.to_float(sums[u]), t.lanes), total)
            assert total is not None
            acc[r, s].set(fma(f, t, total, f.splat(d, t.lanes), acc[r, s].get()))


def block_scale(f: Fn, t: Target, form: Packed, addr: Val) -> Val:
    """One scale or minimum for each of a part's outputs, as f32."""
    return load_bf16(f, addr, t.lanes) if form.bf16 else load_f16(f, t, addr, t.lanes)


def block_quads(f: Fn, t: Target, form: Packed, pair: Val, half: int, part: int) -> list[Val]:
    """The block's 8 quads for one part of the lanes, each [lanes] i32 of 4 bytes."""
    ty = vec(I32, t.lanes)
    off = 4 * t.lanes * part

    def plane(base: int, j: int) -> Val:
        return f.load(pair + (base + 64 * j + off), ty, min(64, 4 * t.lanes))

    low, high = half * form.low_bytes, 2 * form.low_bytes + half * form.high_bytes
    if form.low == 8:
        q = [plane(low, j) for j in range(8)]
    elif form.low == 4:
        z = [plane(low, j) for j in range(4)]
        q = [v & 0x0F0F0F0F for v in z] + [(v >> 4) & 0x0F0F0F0F for v in z]
    else:
        z = [plane(low, k) for k in range(2)]
        q = [(z[j // 4] >> (2 * (j % 4))) & 0x03030303 for j in range(8)]
    if form.high == 1:
        h = plane(high, 0)
        q = [v | _move(h, j, form.low, 0x01010101) for j, v in enumerate(q)]
    elif form.high == 2:
        hs = [plane(high, k) for k in range(2)]
        q = [v | _move(hs[j // 4], 2 * (j % 4), form.low, 0x03030303) for j, v in enumerate(q)]
    if form.lut:
        q = [lookup16(f, t, v, form.lut) for v in q]
    return q


def _move(h: Val, at: int, to: int, mask: int) -> Val:
    """Bits `mask << at` of h moved to `mask << to`, with one shift and one mask."""
    moved = h << (to - at) if to > at else h >> (at - to)
    return moved & ((mask << to) & 0xFFFFFFFF)


def driver(sizes: tuple[int, ...]) -> Builder:
    """void(args, tid, nt): the op of a packed product of few rows, cut into chunks of these sizes.

    args: [2] w [3] x [4] y [5] ldy [6] xstride [7] n_pairs [8] n_groups [9] n_rows [10] panel (groups) [11] table of micro
    kernels, entry m = address of the kernel for m rows. Threads take contiguous ranges of groups.
    """

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        w, x, y, ldy, xstride, n_pairs, n_groups, n_rows, panel, table = (f.load(args + 8 * i, I64, 8) for i in range(2, 12))
        lo, hi = n_groups * tid / nt, n_groups * (tid + 1) / nt
        at = f.var(lo)
        with f.spin(lambda: at.get() < hi):
            end = f.min(at.get() + panel, hi)
            row = f.var(f.i64(0))
            with f.spin(lambda: row.get() < n_rows):
                left = n_rows - row.get()
                m = f.i64(1)
                for size in sizes[1:]:
                    m = f.select(left >= size, f.i64(size), m)
                kernel = f.load(table + m * 8, I64, 8)
                f.call_address(kernel, w, x + row.get() * xstride, y + row.get() * ldy * 4, ldy, xstride, n_pairs, at.get(), end)
                row.set(row.get() + m)
            at.set(end)
        f.ret()

    return build


def float_product(kind: str, t: Target) -> Builder:
    """void(args, tid, nt): float weights [N, K] row-major as in the file (kind f32, f16, bf16) times float activations.

    args: [2] w [3] x [4] y [5] ldy [6] ldx [7] K [8] N [9] n_rows. Each product sums K in vector lanes, lanes in a fixed order,
    then the ragged tail; a weight row is read once for all activation rows.
    """
    width = {"f32": 4, "f16": 2, "bf16": 2}[kind]

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        w, x, y, ldy, ldx, row_len, n_out, n_rows = (f.load(args + 8 * i, I64, 8) for i in range(2, 10))

        def weights(addr: Val, lanes: int) -> Val:
            return (
                load_floats(f, addr, lanes)
                if kind == "f32"
                else load_bf16(f, addr, lanes)
                if kind == "bf16"
                else load_f16(f, t, addr, lanes)
            )

        body = row_len / (2 * t.lanes) * (2 * t.lanes)
        with f.loop(n_out * tid / nt, n_out * (tid + 1) / nt) as n:
            row = w + n * row_len * width
            with f.loop(0, n_rows) as r:
                xr = x + r * ldx * 4
                acc = [f.var(f.c(vec(F32, t.lanes), 0.0)) for _ in range(2)]
                with f.loop(0, body, 2 * t.lanes) as i:
                    for u in range(2):
                        at = i + u * t.lanes
                        acc[u].set(
                            fma(f, t, weights(row + at * width, t.lanes), load_floats(f, xr + at * 4, t.lanes), acc[u].get())
                        )
                total = f.var(hsum(f, acc[0].get() + acc[1].get()))
                with f.loop(body, row_len) as i:
                    total.set(fma(f, t, weights(row + i * width, 1), load_floats(f, xr + i * 4, 1), total.get()))
                f.store(y + (r * ldy + n) * 4, total.get(), 4)
        f.ret()

    return build
