"""Operations on activation rows: norms, quantisation, rotary embedding, gates, sums.

Each is void(args, tid, nt). Work is split in one of two ways, and the recorder relies on it: "row" gives thread `tid` the rows
n tid/nt .. n (tid+1)/nt; "col" gives it a contiguous range of the 32-wide blocks of all rows together. Two ops with the same
split need no barrier between them, since a thread reads only what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, F64, I8, I32, I64, Fn, Val, vec
from ds4py.kernels.cpu.lanes import exp, fabs, fma, hmax, hsum, load_floats, round_even
from ds4py.kernels.cpu.packed import BLOCK, HALF_BYTES, SCALES, SUMS_16, SUMS_32, TILE
from ds4py.kernels.cpu.target import Target


def _op(module: ir.Module, name: str, n_args: int) -> tuple[Fn, list[Val], Val, Val]:
    f = Fn(module, name, [I64] * 3)
    args, tid, nt = f.args
    return f, [f.load(args + 8 * (i + 2), I64, 8) for i in range(n_args)], tid, nt


def _f32(f: Fn, bits: Val) -> Val:
    return f.bitcast(f.trunc(bits, I32), F32)


def rms_norm(t: Target) -> Builder:
    """args: [2] x [3] weight [4] out [5] width of a head [6] heads per row [7] n_rows [8] eps. Split by rows.

    Sum of squares in `lanes` partial sums, then the fixed order of hsum. width must be a multiple of 4.
    """

    def build(module: ir.Module, name: str) -> None:
        f, (x, w, out, width, n_heads, n_rows, eps), tid, nt = _op(module, name, 7)
        body = width / t.lanes * t.lanes
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r, f.loop(0, n_heads) as h:
            at = (r * n_heads + h) * width * 4
            acc = f.var(f.c(vec(F32, t.lanes), 0.0))
            with f.loop(0, body, t.lanes) as i:
                v = load_floats(f, x + at + i * 4, t.lanes)
                acc.set(fma(f, t, v, v, acc.get()))
            total = f.var(hsum(f, acc.get()))
            with f.loop(body, width) as i:
                v = load_floats(f, x + at + i * 4, 1)
                total.set(fma(f, t, v, v, total.get()))
            inv = f.c(F32, 1.0) / f.sqrt(total.get() / f.to_float(f.trunc(width, I32)) + _f32(f, eps))
            with f.loop(0, body, t.lanes) as i:
                v = load_floats(f, x + at + i * 4, t.lanes) * f.splat(inv, t.lanes) * load_floats(f, w + i * 4, t.lanes)
                f.store(out + at + i * 4, v, 4)
            with f.loop(body, width) as i:
                f.store(out + at + i * 4, load_floats(f, x + at + i * 4, 1) * inv * load_floats(f, w + i * 4, 1), 4)
        f.ret()

    return build


def quantize(t: Target, split: str) -> Builder:
    """args: [2] x f32 [3] out [4] K (a multiple of 32) [5] blocks per padded row (even) [6] n_rows. Row form: matmul.py; or, with
    split "tiles", tiles (packed.py), shared by pairs of blocks: all rows of a pair lie in the same lines of the cache, which two
    threads would take from each other. What fills up the last tile stays as it was.

    The padding blocks are zeroed before, by another op: their scale and quants stay zero.
    """

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, row_len, n_blocks, n_rows), tid, nt = _op(module, name, 5)
        live = row_len / BLOCK
        write = in_tiles(f, out, n_rows) if split == "tiles" else _in_rows(f, out, n_blocks)

        def block(r: Val, b: Val) -> None:
            q, d, sums = rounded_block(f, t, x + (r * row_len + b * BLOCK) * 4)
            write(r, b, q, d, sums)

        if split == "row":
            with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r, f.loop(0, live) as b:
                block(r, b)
        elif split == "col":
            n = n_rows * live
            with f.loop(n * tid / nt, n * (tid + 1) / nt) as i:
                block(i / live, i % live)
        else:
            n = (live + 1) / 2
            with f.loop(n * tid / nt * 2, f.min(n * (tid + 1) / nt * 2, live)) as b, f.loop(0, n_rows) as r:
                block(r, b)
        f.ret()

    return build


def rounded_block(f: Fn, t: Target, src: Val) -> tuple[list[Val], Val, list[Val]]:
    """32 floats at `src` as int8 vectors in order, their scale d = max|x| / 127, and the sums of the two halves (i32)."""
    vs = [load_floats(f, src + 4 * t.lanes * i, t.lanes) for i in range(BLOCK // t.lanes)]
    peak = fabs(f, vs[0])
    for v in vs[1:]:
        peak = f.max(peak, fabs(f, v))
    top = hmax(f, peak)
    # A NaN anywhere must reach the logits, where it is reported; max() would drop it.
    nan = vs[0] * 0.0
    for v in vs[1:]:
        nan = nan + v * 0.0
    d = top / 127.0 + hsum(f, nan)
    inv = f.select(top > 0.0, f.c(F32, 127.0) / top, f.c(F32, 0.0))
    quants, sums = [], []
    for half in range(2):
        total = None
        for i in range(half * len(vs) // 2, (half + 1) * len(vs) // 2):
            _, q = round_even(f, vs[i] * f.splat(inv, t.lanes))
            quants.append(f.trunc(q, vec(I8, t.lanes)))
            total = q if total is None else total + q
        assert total is not None
        sums.append(hsum(f, total))
    return quants, d, sums


Write = Callable[[Val, Val, list[Val], Val, list[Val]], None]  # row, block, quants, d, sums


def _in_rows(f: Fn, out: Val, n_blocks: Val) -> Write:
    def write(r: Val, b: Val, quants: list[Val], d: Val, sums: list[Val]) -> None:
        row = out + r * n_blocks * (BLOCK + 12)
        for i, q in enumerate(quants):
            f.store(row + b * BLOCK + i * q.type.count, q, 1)
        tail = row + n_blocks * BLOCK
        f.store(tail + b * 4, d, 4)
        for half, s in enumerate(sums):
            f.store(tail + n_blocks * 4 + b * 8 + 4 * half, s, 4)

    return write


def in_tiles(f: Fn, out: Val, n_rows: Val) -> Write:
    n_tiles = (n_rows + (TILE - 1)) / TILE

    def write(r: Val, b: Val, quants: list[Val], d: Val, sums: list[Val]) -> None:
        half = out + (((b >> 1) * n_tiles + (r >> 4)) * 2 + (b & 1)) * HALF_BYTES
        i = r & (TILE - 1)
        for n, q in enumerate(quants):
            f.store(half + i * BLOCK + n * q.type.count, q, 1)
        f.store(half + i * 4 + SCALES, d, 4)
        for n, s in enumerate(sums):
            f.store(half + i * 8 + (SUMS_16 + 4 * n), f.to_float(s), 4)
        f.store(half + i * 4 + SUMS_32, f.to_float(sums[0] + sums[1]), 4)

    return write


def rope(t: Target, interleaved: bool, inverse: bool) -> Builder:
    """args: [2] x [3] out [4] head width [5] heads [6] n_rows [7] pos i64[n_rows] [8] cell: address of the table [9] n_rot / 2
    [10] first dimension that turns.

    Table row p: n_rot/2 cosines, then n_rot/2 sines, f32. The rest of each head is copied. Split by rows.
    """

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, width, n_heads, n_rows, pos, cell, half, skip), tid, nt = _op(module, name, 9)
        table = f.load(cell, I64, 8)
        body = f.i64(0) if interleaved else half / t.lanes * t.lanes
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            cos = table + f.load(pos + r * 8, I64, 8) * half * 8
            sin = cos + half * 4
            with f.loop(0, n_heads) as h:
                head = (r * n_heads + h) * width * 4
                at = head + skip * 4

                def rotate(i: Val, lanes: int, first: Val, second: Val) -> None:
                    a, b = load_floats(f, x + first, lanes), load_floats(f, x + second, lanes)  # noqa: B023
                    c, s = load_floats(f, cos + i * 4, lanes), load_floats(f, sin + i * 4, lanes)  # noqa: B023
                    s = s * -1.0 if inverse else s
                    f.store(out + first, a * c - b * s, 4)
                    f.store(out + second, a * s + b * c, 4)

                if not interleaved:
                    with f.loop(0, body, t.lanes) as i:
                        rotate(i, t.lanes, at + i * 4, at + (i + half) * 4)
                with f.loop(body, half) as i:
                    rotate(i, 1, at + (i * 8 if interleaved else i * 4), at + (i * 8 + 4 if interleaved else (i + half) * 4))
                for lo, hi in ((f.i64(0), skip), (skip + half * 2, width)):
                    with f.loop(lo, hi) as i:
                        f.store(out + head + i * 4, load_floats(f, x + head + i * 4, 1), 4)
        f.ret()

    return build


def elementwise(t: Target, n_in: int, fn: Callable[[Fn, list[Val]], Val], split: str) -> Builder:
    """out = fn(inputs), element by element. args: [2..] inputs, out, width (a multiple of 32), n_rows [, f32 parameter].

    fn gets the input vectors and, last, the parameter splat to the lanes.
    """

    def build(module: ir.Module, name: str) -> None:
        f, loaded, tid, nt = _op(module, name, n_in + 4)
        inputs, (out, width, n_rows, param) = loaded[:n_in], loaded[n_in:]
        p = f.splat(_f32(f, param), t.lanes)
        if split == "row":
            lo, hi = n_rows * tid / nt * width, n_rows * (tid + 1) / nt * width
        else:
            n = n_rows * (width / BLOCK)
            lo, hi = n * tid / nt * BLOCK, n * (tid + 1) / nt * BLOCK
        with f.loop(lo, hi, t.lanes) as i:
            f.store(out + i * 4, fn(f, [load_floats(f, x + i * 4, t.lanes) for x in inputs] + [p]), 4)
        f.ret()

    return build


def _limited(f: Fn, v: list[Val], limited: bool) -> tuple[Val, Val]:
    """gate and up; with a limit (the parameter), gate is cut above it and up on both sides. NaN passes."""
    gate, up, limit = v
    if not limited:
        return gate, up
    return f.min(limit, gate), f.min(limit, f.max(limit * -1.0, up))


def silu_gate(t: Target, limited: bool = False) -> Callable[[Fn, list[Val]], Val]:
    """gate * sigmoid(gate) * up."""

    def fn(f: Fn, v: list[Val]) -> Val:
        gate, up = _limited(f, v, limited)
        return gate / (exp(f, t, gate * -1.0) + 1.0) * up

    return fn


def gelu_gate(t: Target, limited: bool = False) -> Callable[[Fn, list[Val]], Val]:
    """gelu(gate) * up, tanh form: 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)."""

    def fn(f: Fn, v: list[Val]) -> Val:
        gate, up = _limited(f, v, limited)
        u = gate * 0.7978845608028654 * (gate * gate * 0.044715 + 1.0)
        return gate / (exp(f, t, u * -2.0) + 1.0) * up

    return fn


def softcap(t: Target) -> Callable[[Fn, list[Val]], Val]:
    """cap * tanh(x / cap), with tanh(u) = 1 - 2 / (e^(2u) + 1)."""

    def fn(f: Fn, v: list[Val]) -> Val:
        x, cap = v
        return cap * (f.c(x.type, 1.0) - f.c(x.type, 2.0) / (exp(f, t, x / cap * 2.0) + 1.0))

    return fn


def add(f: Fn, v: list[Val]) -> Val:
    return v[0] + v[1]


def scale(f: Fn, v: list[Val]) -> Val:
    return v[0] * v[1]


def add_bias(t: Target) -> Builder:
    """args: [2] x (changed in place) [3] bias [4] width [5] n_rows. Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, bias, width, n_rows), tid, nt = _op(module, name, 4)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r, f.loop(0, width, 4) as i:
            at = x + (r * width + i) * 4
            f.store(at, load_floats(f, at, 4) + load_floats(f, bias + i * 4, 4), 4)
        f.ret()

    return build


def pick(t: Target) -> Builder:
    """Copy rows. args: [2] x [3] out [4] width [5] n picked [6] indices i64. Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, width, n, index), tid, nt = _op(module, name, 5)
        with f.loop(n * tid / nt, n * (tid + 1) / nt) as r:
            src = x + f.load(index + r * 8, I64, 8) * width * 4
            with f.loop(0, width, 4) as i:
                f.store(out + (r * width + i) * 4, load_floats(f, src + i * 4, 4), 4)
        f.ret()

    return build


def narrow(t: Target) -> Builder:
    """The first columns of each row. args: [2] x [3] out [4] width of x [5] width of out [6] n_rows. Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, wide, width, n_rows), tid, nt = _op(module, name, 5)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r, f.loop(0, width, 4) as i:
            f.store(out + (r * width + i) * 4, load_floats(f, x + (r * wide + i) * 4, 4), 4)
        f.ret()

    return build


def place(t: Target) -> Builder:
    """Copy rows into columns of wider rows. args: [2] x [3] out [4] width of x [5] width of out [6] first column [7] n_rows.
    Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, width, wide, column, n_rows), tid, nt = _op(module, name, 6)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r, f.loop(0, width, 4) as i:
            f.store(out + (r * wide + column + i) * 4, load_floats(f, x + (r * width + i) * 4, 4), 4)
        f.ret()

    return build


def add_squares(t: Target) -> Builder:
    """sums[c] += x[r, c]^2 over all rows, in f64, and sums[width] += n_rows. args: [2] sums f64[width + 1] [3] x [4] unused
    [5] width [6] n_rows. Split by columns, so that the order of a column's sum is that of the rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (sums, x, _, width, n_rows), tid, nt = _op(module, name, 5)
        with f.loop(width / 4 * tid / nt * 4, width / 4 * (tid + 1) / nt * 4, 4) as c:
            at = sums + c * 8
            total = f.var(f.load(at, vec(F64, 4), 8))
            with f.loop(0, n_rows) as r:
                v = f.fpext(load_floats(f, x + (r * width + c) * 4, 4), vec(F64, 4))
                total.set(total.get() + v * v)
            f.store(at, total.get(), 8)
        with f.when(tid.eq(0)):
            count = sums + width * 8
            f.store(count, f.load(count, F64, 8) + f.fpext(f.to_float(f.trunc(n_rows, I32)), F64), 8)
        f.ret()

    return build


def clear(t: Target) -> Builder:
    """Zero memory. args: [2] address [3] bytes (a multiple of 8). Done by thread 0."""

    def build(module: ir.Module, name: str) -> None:
        f, (at, n_bytes), tid, _ = _op(module, name, 2)
        with f.when(tid.eq(0)), f.loop(0, n_bytes, 8) as i:
            f.store(at + i, f.i64(0), 4)
        f.ret()

    return build
