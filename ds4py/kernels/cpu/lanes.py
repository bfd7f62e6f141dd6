"""Vector arithmetic that the kernels share, in terms of a target's lanes: int8 dot products, half floats, exp, reductions.

Each function adds instructions to the Fn it is given. What differs between hardware paths is decided here and nowhere else.
"""

from __future__ import annotations

from llvmlite import ir

from ds4py.kernels.cpu.ir import F16, F32, I1, I8, I16, I32, Fn, Val, const, vec
from ds4py.kernels.cpu.target import Target

ROUND_MAGIC = 12582912.0  # 1.5 * 2^23: adding it leaves round-to-nearest-even(x) in the low mantissa bits, |x| < 2^22
ROUND_BITS = 0x4B400000


def fma(f: Fn, t: Target, a: Val, b: Val, c: Val) -> Val:
    """a * b + c, fused where the target fuses (so one path always rounds alike)."""
    return f.fma_call(a, b, c) if t.fma else a * b + c


# --- int8 dot products ---------------------------------------------------------------------------------------------------

# by path, for people
DOT = {"avx512": "vpdpbusd, 512 bits", "avx2": "vpmaddubsw, 256 bits", "plain": "16-bit products, 128 bits"}

Planes = tuple[Val, ...]  # a weight vector, or a broadcast quad of activations, as `mac` wants it


def dot_quads(f: Fn, t: Target, weights: list[Planes], words: list[Val], q_max: int, init: Val) -> Val:
    """init + sum over quads of (4 weight bytes . 4 activation bytes), per lane -> i32 lanes.

    weights: prepared by `prepare`; words: the activation quads, each one i32 (4 signed bytes), to be broadcast.
    """
    n, total = chain(t, q_max), init
    for lo in range(0, len(weights), n):
        acc: Val | None = None if t.path == "avx2" else total
        for w, x in zip(weights[lo : lo + n], words[lo : lo + n], strict=True):
            acc = mac(f, t, acc, w, spread(f, t, x))
        assert acc is not None
        total = total + widen(f, t, acc) if t.path == "avx2" else acc
    return total


def prepare(f: Fn, t: Target, w: Val, signed: bool) -> Planes:
    """A weight vector (i32 lanes of 4 bytes): once per vector, whatever the number of rows."""
    if t.path == "avx512":
        return (w ^ 0x80808080 if signed else w,)  # as unsigned; the caller's offset makes up for the 128
    if t.path == "avx2":
        b = f.bitcast(w, vec(I8, 32))
        return (f.intrinsic("llvm.abs.v32i8", b.type, b, f.c(I1, 0)), b) if signed else (b,)
    h = f.bitcast(w, vec(I16, 2 * t.lanes))
    return ((h << 8).ashr(8), h.ashr(8)) if signed else (h & 0xFF, h >> 8)


def spread(f: Fn, t: Target, word: Val) -> Planes:
    """Four activations in all lanes."""
    x = f.splat(word, t.lanes)
    if t.path == "avx512":
        return (x,)
    if t.path == "avx2":
        return (f.bitcast(x, vec(I8, 32)),)
    h = f.bitcast(x, vec(I16, 2 * t.lanes))
    return (h << 8).ashr(8), h.ashr(8)


def mac(f: Fn, t: Target, acc: Val | None, w: Planes, x: Planes) -> Val:
    """acc + four products per lane. On AVX2 acc has 16-bit lanes, two per output, and may be used `chain` times before `widen`:
    vpmaddubsw takes one factor unsigned (the other gets the weight's sign) and saturates at 16 bits."""
    if t.path == "avx512":
        acc = f.c(vec(I32, 16), 0) if acc is None else acc
        return f.intrinsic("llvm.x86.avx512.vpdpbusd.512", acc.type, acc, w[0], x[0])
    if t.path == "avx2":
        signed = f.intrinsic("llvm.x86.avx2.psign.b", x[0].type, x[0], w[1]) if len(w) == 2 else x[0]
        p = f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", vec(I16, 16), w[0], signed)
        return p if acc is None else acc + p
    for a, b in zip(w, x, strict=True):
        p = _pair_sums(f, a, b)
        acc = p if acc is None else acc + p
    assert acc is not None
    return acc


def chain(t: Target, q_max: int) -> int:
    """How many quads `mac` may add up: |activation| <= 127, and two products go into one 16-bit lane."""
    return max(1, 32767 // (q_max * 254)) if t.path == "avx2" else 8


def widen(f: Fn, t: Target, acc: Val) -> Val:
    """What `mac` added up, as i32 lanes."""
    if t.path != "avx2":
        return acc
    return f.intrinsic("llvm.x86.avx2.pmadd.wd", vec(I32, 8), acc, f.c(acc.type, 1))


def signed_bias(t: Target) -> int:
    """What `prepare` added to signed bytes: the caller subtracts it times the activations' sum."""
    return 128 if t.path == "avx512" else 0


def _pair_sums(f: Fn, a: Val, b: Val) -> Val:
    """Products of i16 lanes, neighbours added: LLVM makes it one pmaddwd on SSE2."""
    n = a.type.count
    p = f.sext(a, vec(I32, n)) * f.sext(b, vec(I32, n))
    return f.shuffle(p, p, list(range(0, n, 2))) + f.shuffle(p, p, list(range(1, n, 2)))


def lookup16(f: Fn, t: Target, idx: Val, table: tuple[int, ...]) -> Val:
    """Each byte of `idx` (0..15) through a table of 16 signed bytes."""
    n = 4 * t.lanes
    if t.path != "plain":
        name = "llvm.x86.avx512.pshuf.b.512" if t.path == "avx512" else "llvm.x86.avx2.pshuf.b"
        bytes_ = ir.Constant(vec(I8, n), [v & 255 for v in table] * (n // 16))
        return f.bitcast(f.intrinsic(name, vec(I8, n), Val(f, bytes_), f.bitcast(idx, vec(I8, n))), idx.type)
    out = f.c(idx.type, 0)
    for byte in range(4):
        index = (idx >> (8 * byte)) & 15
        value = f.c(idx.type, 0)
        for i, v in enumerate(table):
            value = f.select(index.eq(i), f.c(idx.type, v & 255), value)
        out = out | (value << (8 * byte))
    return out


# --- half floats -----------------------------------------------------------------------------------------------------------


def load_f16(f: Fn, t: Target, addr: Val, lanes: int) -> Val:
    """`lanes` half floats as f32."""
    if t.half:
        return f.fpext(f.load(addr, vec(F16, lanes) if lanes > 1 else F16, 2), vec(F32, lanes) if lanes > 1 else F32)
    ty = vec(I32, lanes) if lanes > 1 else I32
    fl = vec(F32, lanes) if lanes > 1 else F32
    h = f.zext(f.load(addr, vec(I16, lanes) if lanes > 1 else I16, 2), ty)
    # exponent and mantissa in place, rescaled by 2^112: exact for normals and subnormals; 31 in the exponent stays inf or NaN
    finite = f.bitcast((h & 0x7FFF) << 13, fl) * f.c(fl, 2.0**112)
    special = f.bitcast(((h & 0x7FFF) << 13) | 0x7F800000, fl)
    mag = f.select((h & 0x7C00).eq(0x7C00), special, finite)
    return f.bitcast(f.bitcast(mag, ty) | ((h & 0x8000) << 16), fl)


def store_f16(f: Fn, t: Target, addr: Val, x: Val) -> None:
    """f32 vector or scalar -> half floats, round to nearest even."""
    many = isinstance(x.type, ir.VectorType)
    lanes = x.type.count if many else 1
    if t.half:
        f.store(addr, f.fptrunc(x, vec(F16, lanes) if many else F16), 2)
        return
    ty, fl = (vec(I32, lanes), vec(F32, lanes)) if many else (I32, F32)
    bits = f.bitcast(x, ty)
    mag = bits & 0x7FFFFFFF
    normal = (mag + 0xFFF + ((mag >> 13) & 1) - (112 << 23)) >> 13
    small = f.bitcast(f.bitcast(mag, fl) + f.c(fl, 0.5), ty) - 0x3F000000
    half = f.select(mag < (113 << 23), small, f.select(mag >= 0x477FF000, f.c(ty, 0x7C00), normal))
    half = f.select(mag > 0x7F800000, f.c(ty, 0x7E00), half)
    f.store(addr, f.trunc(half | ((bits >> 16) & 0x8000), vec(I16, lanes) if many else I16), 2)


def load_bf16(f: Fn, addr: Val, lanes: int) -> Val:
    """`lanes` bfloat16 values as f32."""
    ty, fl = (vec(I32, lanes), vec(F32, lanes)) if lanes > 1 else (I32, F32)
    return f.bitcast(f.zext(f.load(addr, vec(I16, lanes) if lanes > 1 else I16, 2), ty) << 16, fl)


# --- f32 -------------------------------------------------------------------------------------------------------------------


def round_even(f: Fn, x: Val) -> tuple[Val, Val]:
    """Nearest integer (ties to even) of |x| < 2^22, as (f32, i32)."""
    y = x + ROUND_MAGIC
    ty = vec(I32, x.type.count) if isinstance(x.type, ir.VectorType) else I32
    return y - ROUND_MAGIC, f.bitcast(y, ty) - ROUND_BITS


def exp(f: Fn, t: Target, x: Val) -> Val:
    """e^x, relative error about 2e-7; exactly 0 below -87 (also for -inf), NaN for NaN. Cody-Waite reduction to |r| <= ln2/2,
    then the degree-6 Taylor polynomial with its last coefficients fitted to the interval."""
    xc = f.min(f.c(x.type, 88.0), f.max(f.c(x.type, -87.0), x))  # in this order NaN passes
    n, ni = round_even(f, xc * 1.4426950408889634)
    r = fma(f, t, n, f.c(x.type, -0.693359375), xc)
    r = fma(f, t, n, f.c(x.type, 2.12194440e-4), r)
    p = f.c(x.type, 1.0 / 720)
    for c in (1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0):
        p = fma(f, t, p, r, f.c(x.type, c))
    y = p * f.bitcast((ni + 127) << 23, x.type)
    return f.select(x < -87.0, f.c(x.type, 0.0), y)


def hsum(f: Fn, x: Val) -> Val:
    """Sum of the lanes in one fixed order: halves added until one is left."""
    n = x.type.count
    while n > 1:
        n //= 2
        x = f.part(x, 0, n) + f.part(x, n, n)
    return f.lane(x, 0)


def hsums(f: Fn, xs: list[Val]) -> Val:
    """One vector of the lanes' sums of as many vectors as they have lanes: each with the bits of `hsum`, in a fraction of the
    instructions, since two vectors are halved by one addition."""
    width = n = xs[0].type.count
    while n > 1:
        n //= 2
        halves = [[lane + at for lane in range(0, 2 * width, 2 * n) for at in range(start, start + n)] for start in (0, n)]
        xs = [f.shuffle(a, b, halves[0]) + f.shuffle(a, b, halves[1]) for a, b in zip(xs[::2], xs[1::2], strict=True)]
    return xs[0]


def hmax(f: Fn, x: Val) -> Val:
    n = x.type.count
    while n > 1:
        n //= 2
        x = f.max(f.part(x, 0, n), f.part(x, n, n))
    return f.lane(x, 0)


def load_floats(f: Fn, addr: Val, lanes: int) -> Val:
    return f.load(addr, vec(F32, lanes) if lanes > 1 else F32, 4)


def fabs(f: Fn, x: Val) -> Val:
    ty = vec(I32, x.type.count) if isinstance(x.type, ir.VectorType) else I32
    return f.bitcast(f.bitcast(x, ty) & Val(f, const(ty, 0x7FFFFFFF)), x.type)
