"""Matrix products of a few rows, as in a verify of a draft, where registers are many: the bits of matmul.py and tiles.py.

tiles.py unpacks a pair of blocks to scratch memory, because 64 rows use it, and keeps their sums there too. For up to 8 rows both
stay in registers: the weights of one block as they come out of the unpacking, and a sum per row. What is left in memory is read
once: activations, in tiles (packed.py), are operands of the dot products themselves, broadcast by the load.

Measured with AVX-512 (8 rows): half of the time of rows one after another, as matmul.py has them, where eight addresses and the
sums of activations take all general registers and the float sums spill. Two groups of outputs at once: twice as slow.
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import fma
from ds4py.kernels.cpu.matmul import prefetch
from ds4py.kernels.cpu.packed import GROUP, HALF_BYTES, SCALES, TILE, Packed
from ds4py.kernels.cpu.target import Target
from ds4py.kernels.cpu.tiles import Held

MOST_ROWS = 8  # at once: two registers a row, eight for weights, and some to work with


def counts(t: Target, form: Packed) -> range:
    """Numbers of rows in tiles for which `product` is the fastest. It does not fit 16 registers, or outputs in two parts; more
    than 8 rows unpack a block twice, which pays where that is little work."""
    return range(2, (TILE if form.subs == 1 else MOST_ROWS) + 1) if t.path == "avx512" else range(0)


def by_rows() -> Builder:
    """void(args, tid, nt): `product` or tiles.product, for a number of rows that is only known now. Arguments are theirs, and [9]
    a table of addresses: entry n is the kernel for n rows, entry 0 that for more than the table has."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        n_rows, table = f.load(args + 64, I64, 8), f.load(args + 72, I64, 8)
        entry = f.select(n_rows > MOST_ROWS, f.i64(0), n_rows)
        f.call_address(f.load(table + entry * 8, I64, 8), args, tid, nt)
        f.ret()

    return build


def product(form: Packed, m: int, t: Target) -> Builder:
    """void(args, tid, nt): y = x w^T for m rows, 16 at most. Arguments and split are those of tiles.product."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        w, x, y, ldy, n_pairs, n_groups = (f.load(args + 8 * i, I64, 8) for i in range(2, 8))
        with f.loop(n_groups * tid / nt, n_groups * (tid + 1) / nt) as g:
            for first in range(0, m, MOST_ROWS):
                rows = range(first, min(first + MOST_ROWS, m))
                _group(f, t, form, rows, w + g * n_pairs * form.pair_bytes, x, y + g * (GROUP * 4), ldy, n_pairs)
        f.ret()

    return build


def _group(f: Fn, t: Target, form: Packed, rows: range, w: Val, x: Val, y: Val, ldy: Val, n_pairs: Val) -> None:
    """The 16 outputs whose weights begin at w, for some rows of the tile."""
    acc = {(r, part): f.var(f.c(vec(F32, t.lanes), 0.0)) for r in range(len(rows)) for part in range(t.parts)}
    with f.loop(0, n_pairs) as i:
        pair = w + i * form.pair_bytes
        prefetch(f, t, form, pair, once=True)
        for half in range(2):
            at = x + i * (2 * HALF_BYTES) + half * HALF_BYTES
            for (r, part), total in Held(f, t, form, pair, half).block(half, at, f.i64(rows.start), len(rows)).items():
                d = f.splat(f.load(at + (SCALES + 4 * (rows.start + r)), F32, 4), t.lanes)
                acc[r, part].set(fma(f, t, total, d, acc[r, part].get()))
    for (r, part), v in acc.items():
        f.store(y + (ldy * (rows.start + r) + part * t.lanes) * 4, v.get(), 4)
