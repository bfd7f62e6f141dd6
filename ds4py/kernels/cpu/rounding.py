"""Rounding to 8 and 4 bits and the Hadamard transform (latent.py), over rows in memory.

A block's scale is a power of two, so everything but the one rounding is exact. Rounding to a multiple of a power of two is adding
and subtracting 1.5 * 2^23 times that step, as in lanes.round_even; the step follows from a value's own exponent. A NaN stays one.
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I32, Fn, Val, vec
from ds4py.kernels.cpu.lanes import ROUND_MAGIC, fabs, hmax, load_floats
from ds4py.kernels.cpu.streams import start
from ds4py.kernels.cpu.target import Target

# dimensions of a block, largest value, least magnitude that the scale is made for, exponents of the format, bits of mantissa
FORMATS = {"fp8": (64, 448.0, 1e-4, (-6, 8), 3), "fp4": (32, 6.0, 6 * 2.0**-126, (0, 2), 1)}


def round_blocks(f: Fn, t: Target, kind: str, x: Val, out: Val, n: Val) -> None:
    """out[0..n] = x[0..n] in blocks of the format; n is a multiple of a block. `x` and `out` may be the same address."""
    size, largest, least, exponents, mantissa = FORMATS[kind]
    with f.loop(0, n, size) as i:
        vs = [load_floats(f, x + (i + j) * 4, t.lanes) for j in range(0, size, t.lanes)]
        peak = fabs(f, vs[0])
        for v in vs[1:]:
            peak = f.max(peak, fabs(f, v))
        ratio = f.max(hmax(f, peak), f.c(F32, least)) / largest
        # up to the next power of two: a mantissa that is not zero carries into the exponent
        scale = f.bitcast((f.bitcast(ratio, I32) + 0x7FFFFF) & 0x7F800000, F32)
        inverse, scale = f.splat(f.c(F32, 1.0) / scale, t.lanes), f.splat(scale, t.lanes)
        for j, v in zip(range(0, size, t.lanes), vs, strict=True):
            f.store(out + (i + j) * 4, _rounded(f, v * inverse, exponents, mantissa) * scale, 4)


def _rounded(f: Fn, x: Val, exponents: tuple[int, int], mantissa: int) -> Val:
    """To the nearest value with so many bits of mantissa and an exponent of that range (below: its least step); ties to even."""
    ty = vec(I32, x.type.count)
    low, high = ((127 + e) << 23 for e in exponents)
    own = f.bitcast(x, ty) & 0x7F800000
    own = f.min(f.max(own, f.c(ty, low)), f.c(ty, high))
    magic = f.bitcast(own - (mantissa << 23), x.type) * ROUND_MAGIC
    return (x + magic) - magic


def rounding(t: Target, kind: str) -> Builder:
    """args: [2] x [3] out [4] width [5] dimensions that are rounded [6] n_rows. The others are copied. Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, width, n_dims, n_rows), tid, nt = start(module, name, 5)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            at = r * width * 4
            round_blocks(f, t, kind, x + at, out + at, n_dims)
            with f.loop(n_dims, width) as i:
                f.store(out + at + i * 4, load_floats(f, x + at + i * 4, 1), 4)
        f.ret()

    return build


def hadamard_rows(f: Fn, t: Target, x: Val, out: Val, n: int) -> None:
    """out = the transform of x [n], n a power of two of at least 16."""
    for i in range(0, n, t.lanes):
        v = load_floats(f, x + i * 4, t.lanes)
        half = 1
        while half < t.lanes:  # sums in the lower of two partners, differences in the upper
            partner = f.shuffle(v, v, [lane ^ half for lane in range(t.lanes)])
            signs = ir.Constant(vec(F32, t.lanes), [-1.0 if lane & half else 1.0 for lane in range(t.lanes)])
            v = partner + v * Val(f, signs)
            half *= 2
        f.store(out + i * 4, v, 4)
    half = t.lanes
    while half < n:
        for i in range(0, n, t.lanes):
            if not i & half:
                a, b = (load_floats(f, out + at * 4, t.lanes) for at in (i, i + half))
                f.store(out + i * 4, a + b, 4)
                f.store(out + (i + half) * 4, a - b, 4)
        half *= 2
    for i in range(0, n, t.lanes):
        f.store(out + i * 4, load_floats(f, out + i * 4, t.lanes) * float(n**-0.5), 4)


def hadamard(t: Target, n: int) -> Builder:
    """args: [2] x [3] out [4] heads per row [5] n_rows; heads of n values. Split by rows."""

    def build(module: ir.Module, name: str) -> None:
        f, (x, out, n_heads, n_rows), tid, nt = start(module, name, 4)
        with f.loop(n_rows * tid / nt * n_heads, n_rows * (tid + 1) / nt * n_heads) as head:
            hadamard_rows(f, t, x + head * (4 * n), out + head * (4 * n), n)
        f.ret()

    return build
