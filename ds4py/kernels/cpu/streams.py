"""Streams (latent.py): the weights of a hyper-connection, and the passes that apply them. All are split by rows.

A row's mixing matrix is n vectors of n lanes, so a column sum is an addition of vectors and a row sum one horizontal sum; for
n = 4 all of it stays in registers. n is known when the kernel is built.
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I32, I64, Fn, Val
from ds4py.kernels.cpu.lanes import exp, fma, hmax, hsum, load_floats
from ds4py.kernels.cpu.target import Target


def start(module: ir.Module, name: str, n_args: int) -> tuple[Fn, list[Val], Val, Val]:
    """A kernel's function, its arguments from word 2 on, its thread and the number of threads."""
    f = Fn(module, name, [I64] * 3)
    args, tid, nt = f.args
    return f, [f.load(args + 8 * (i + 2), I64, 8) for i in range(n_args)], tid, nt


def as_f32(f: Fn, word: Val) -> Val:
    return f.bitcast(f.trunc(word, I32), F32)


def mixing(t: Target, n: int, head: bool) -> Builder:
    """args: [2] m [3] its row stride in floats [4] scale f32 [3] (head: [1]) [5] base f32 [6] out [7] its stride [8] n_rows
    [9] iterations [10] eps. A row of out: enter [n], get [n], matrix [n, n]; a head's: enter."""

    def build(module: ir.Module, name: str) -> None:
        f, (m, ld, scale, base, out, ldo, n_rows, n_iters, eps), tid, nt = start(module, name, 9)
        e = f.splat(as_f32(f, eps), n)

        def affine(row: Val, i: int, which: int) -> Val:
            """n values from number i on, times their scale, plus their base."""
            factor = f.splat(load_floats(f, scale + 4 * which, 1), n)
            return load_floats(f, row + 4 * i, n) * factor + load_floats(f, base + 4 * i, n)

        def sigmoid(x: Val) -> Val:
            return f.c(x.type, 1.0) / (exp(f, t, x * -1.0) + 1.0)

        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            row, to = m + r * ld * 4, out + r * ldo * 4
            f.store(to, sigmoid(affine(row, 0, 0)) + e, 4)
            if not head:
                f.store(to + 4 * n, sigmoid(affine(row, n, 1)) * 2.0, 4)
                lines = [f.var(_softmax(f, t, affine(row, n * (2 + j), 2)) + e) for j in range(n)]
                _columns(f, lines, e)
                with f.loop(1, n_iters):
                    for line in lines:
                        v = line.get()
                        line.set(v / (f.splat(hsum(f, v), n) + e))
                    _columns(f, lines, e)
                for j, line in enumerate(lines):
                    f.store(to + 4 * n * (2 + j), line.get(), 4)
        f.ret()

    return build


def _softmax(f: Fn, t: Target, x: Val) -> Val:
    y = exp(f, t, x - f.splat(hmax(f, x), x.type.count))
    return y / f.splat(hsum(f, y), x.type.count)


def _columns(f: Fn, lines: list, eps: Val) -> None:
    """Divide by the sums over the first index, plus eps."""
    total = lines[0].get()
    for line in lines[1:]:
        total = total + line.get()
    total = total + eps
    for line in lines:
        line.set(line.get() / total)


def collapse(t: Target, n: int, weighted: bool) -> Builder:
    """args: [2] h [3] mixing [4] its stride [5] out [6] width of a stream [7] n_rows. The streams' sum, weighted by the first n
    values of a row of mixing, or their mean. width: a multiple of 16."""

    def build(module: ir.Module, name: str) -> None:
        f, (h, mix, ld, out, width, n_rows), tid, nt = start(module, name, 6)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            weights = [f.splat(load_floats(f, mix + r * ld * 4 + 4 * j, 1), t.lanes) for j in range(n)] if weighted else []
            with f.loop(0, width, t.lanes) as i:
                streams = [load_floats(f, h + ((r * n + j) * width + i) * 4, t.lanes) for j in range(n)]
                total = streams[0] * weights[0] if weighted else streams[0]
                for j in range(1, n):
                    total = fma(f, t, weights[j], streams[j], total) if weighted else total + streams[j]
                f.store(out + (r * width + i) * 4, total if weighted else total * (1.0 / n), 4)
        f.ret()

    return build


def renew(t: Target, n: int) -> Builder:
    """args: [2] h [3] y [4] mixing [5] its stride [6] out [7] width of a stream (a multiple of 16) [8] n_rows. Stream k of out is
    get_k y + sum over j of matrix[j, k] h_j, in this order."""

    def build(module: ir.Module, name: str) -> None:
        f, (h, y, mix, ld, out, width, n_rows), tid, nt = start(module, name, 7)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            row = mix + r * ld * 4
            with f.loop(0, width, t.lanes) as i:
                streams = [load_floats(f, h + ((r * n + j) * width + i) * 4, t.lanes) for j in range(n)]
                new = load_floats(f, y + (r * width + i) * 4, t.lanes)
                for k in range(n):
                    total = f.splat(load_floats(f, row + 4 * (n + k), 1), t.lanes) * new
                    for j in range(n):
                        total = fma(f, t, f.splat(load_floats(f, row + 4 * (2 * n + j * n + k), 1), t.lanes), streams[j], total)
                    f.store(out + ((r * n + k) * width + i) * 4, total, 4)
        f.ret()

    return build
