"""Reading the file's quant blocks in compiled code: the one place that knows their byte layouts here.

`unpack` yields 32 inputs of one row as eight words of four byte-sized quants, with their scales and minimums in f32; repacking a
matrix and looking up an embedding row are two consumers of it. Four quants are handled per instruction (SWAR), never one.
The layouts are those of ds4py/quants, which tests them against independent decoders; this file is tested against that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from ds4py.gguf.types import GgmlType
from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import F32, I8, I32, I64, Fn, Val
from ds4py.kernels.cpu.lanes import load_bf16, load_f16, load_floats, store_f16
from ds4py.kernels.cpu.packed import BLOCK, FORM_OF, GROUP, Packed
from ds4py.kernels.cpu.target import Target

LOW4 = 0x0F0F0F0F


@dataclass(frozen=True)
class Quants:
    """32 inputs of a row: words[j] holds quants 4j..4j+3; one scale (and minimum) per sub-block."""

    words: list[Val]
    scales: list[Val]  # f32
    mins: list[Val]  # f32, added; empty for forms without


class _Block:
    """Loads relative to one block of the file."""

    def __init__(self, f: Fn, t: Target, at: Val, sub: Val):
        self.f, self.t, self.at, self.sub = f, t, at, sub  # sub: which 32 of a 256-block

    def word(self, off: int | Val) -> Val:
        return self.f.load(self.at + off, I32)

    def byte(self, off: int | Val) -> Val:
        return self.f.zext(self.f.load(self.at + off, I8), I32)

    def half(self, off: int) -> Val:
        return load_f16(self.f, self.t, self.at + off, 1)

    def i32(self, x: Val) -> Val:
        return self.f.trunc(x, I32)


def _nibbles(b: _Block, off: int | Val) -> list[Val]:
    """16 bytes: low nibbles are inputs 0..15, high nibbles 16..31."""
    z = [b.word(off + 4 * j if isinstance(off, int) else off + 4 * j) for j in range(4)]
    return [v & LOW4 for v in z] + [(v >> 4) & LOW4 for v in z]


def _spread(bits: Val) -> Val:
    """Four low bits to the low bits of four bytes."""
    return ((bits & 15) * 0x00204081) & 0x01010101


def _q4_0(b: _Block) -> Quants:
    return Quants(_nibbles(b, 2), [b.half(0)], [])


def _q4_1(b: _Block) -> Quants:
    return Quants(_nibbles(b, 4), [b.half(0)], [b.half(2)])


def _q5(b: _Block, off: int) -> list[Val]:
    high = b.word(off)
    return [q | (_spread(high >> (4 * j)) << 4) for j, q in enumerate(_nibbles(b, off + 4))]


def _q5_0(b: _Block) -> Quants:
    return Quants(_q5(b, 2), [b.half(0)], [])


def _q5_1(b: _Block) -> Quants:
    return Quants(_q5(b, 4), [b.half(0)], [b.half(2)])


def _q8_0(b: _Block) -> Quants:
    return Quants([b.word(2 + 4 * j) for j in range(8)], [b.half(0)], [])


def _scale_min_6bit(b: _Block) -> tuple[Val, Val]:
    """Q4_K and Q5_K: 8 six-bit scales and minimums in 12 bytes at offset 4, for this sub-block."""
    f, s = b.f, b.sub
    low = s & 3
    first, second, third = b.byte(low + 4), b.byte(low + 8), b.byte(low + 12)
    early = s < 4
    scale = f.select(early, first & 63, (third & 15) | ((first >> 6) << 4))
    minimum = f.select(early, second & 63, (third >> 4) | ((second >> 6) << 4))
    return b.half(0) * f.to_float(scale), b.half(2) * f.to_float(minimum)


def _k_nibbles(b: _Block, off: int) -> list[Val]:
    """Q4_K and Q5_K: 32 bytes serve two sub-blocks, low nibbles the even one."""
    shift = b.i32((b.sub & 1) * 4)
    return [(b.word((b.sub >> 1) * 32 + (off + 4 * j)) >> shift) & LOW4 for j in range(8)]


def _q4_k(b: _Block) -> Quants:
    scale, minimum = _scale_min_6bit(b)
    return Quants(_k_nibbles(b, 16), [scale], [b.f.c(F32, -0.0) - minimum])


def _q5_k(b: _Block) -> Quants:
    scale, minimum = _scale_min_6bit(b)
    bit = b.i32(b.sub)
    words = [q | (((b.word(16 + 4 * j) >> bit) & 0x01010101) << 4) for j, q in enumerate(_k_nibbles(b, 48))]
    return Quants(words, [scale], [b.f.c(F32, -0.0) - minimum])


def _q6_k(b: _Block) -> Quants:
    f, half, quarter = b.f, b.sub >> 2, b.sub & 3
    low_at = half * 64 + (quarter & 1) * 32
    shift, shift_high = b.i32((quarter >> 1) * 4), b.i32(quarter * 2)
    words = []
    for j in range(8):
        low = (b.word(low_at + 4 * j) >> shift) & LOW4
        words.append(low | (((b.word(half * 32 + (128 + 4 * j)) >> shift_high) & 0x03030303) << 4))
    d = b.half(208)
    scales = [d * f.to_float(f.sext(f.load(b.at + (half * 8 + quarter * 2 + (192 + u)), I8), I32)) for u in range(2)]
    return Quants(words, scales, [])


def _two_bits(b: _Block, off: int) -> list[Val]:
    """Q2_K and Q3_K: four bit pairs of 32 bytes serve the four quarters of a half."""
    shift = b.i32((b.sub & 3) * 2)
    return [(b.word((b.sub >> 2) * 32 + (off + 4 * j)) >> shift) & 0x03030303 for j in range(8)]


def _q2_k(b: _Block) -> Quants:
    f = b.f
    codes = [b.byte(b.sub * 2 + u) for u in range(2)]
    d, dmin = b.half(80), b.half(82)
    return Quants(
        _two_bits(b, 16), [d * f.to_float(c & 15) for c in codes], [f.c(F32, -0.0) - dmin * f.to_float(c >> 4) for c in codes]
    )


def _q3_k(b: _Block) -> Quants:
    f, bit = b.f, b.i32(b.sub)
    words = [q | (((b.word(4 * j) >> bit) & 0x01010101) << 2) for j, q in enumerate(_two_bits(b, 32))]
    scales = []
    for u in range(2):
        i = b.sub * 2 + u  # 16 six-bit scales: low nibbles in bytes 0..7, two high bits in bytes 8..11
        low = (b.byte((i & 7) + 96) >> b.i32((i >> 3) * 4)) & 15
        high = (b.byte((i & 3) + 104) >> b.i32((i >> 2) * 2)) & 3
        scales.append(b.half(108) * f.to_float((low | (high << 4)) - 32))
    return Quants(words, scales, [])


def _iq4_nl(b: _Block) -> Quants:
    return Quants(_nibbles(b, 2), [b.half(0)], [])


def _iq4_xs(b: _Block) -> Quants:
    f, s = b.f, b.sub
    low = (b.byte((s >> 1) + 4) >> b.i32((s & 1) * 4)) & 15
    high = ((b.byte(2) | (b.byte(3) << 8)) >> b.i32(s * 2)) & 3
    return Quants(_nibbles(b, s * 16 + 8), [b.half(0) * f.to_float((low | (high << 4)) - 32)], [])


def _mxfp4(b: _Block) -> Quants:
    """The form's values are doubled, so the scale is 2^(e - 128): as float bits, subnormal for e < 2."""
    f, e = b.f, b.byte(0)
    bits = f.select(e < 2, f.c(I32, 0x00200000) << e, (e - 1) << 23)
    return Quants(_nibbles(b, 1), [f.bitcast(bits, F32)], [])


UNPACK: dict[GgmlType, tuple[int, int, Callable[[_Block], Quants]]] = {  # values per block, bytes per block, reader
    GgmlType.Q4_0: (32, 18, _q4_0),
    GgmlType.Q4_1: (32, 20, _q4_1),
    GgmlType.Q5_0: (32, 22, _q5_0),
    GgmlType.Q5_1: (32, 24, _q5_1),
    GgmlType.Q8_0: (32, 34, _q8_0),
    GgmlType.IQ4_NL: (32, 18, _iq4_nl),
    GgmlType.MXFP4: (32, 17, _mxfp4),
    GgmlType.Q2_K: (256, 84, _q2_k),
    GgmlType.Q3_K: (256, 110, _q3_k),
    GgmlType.Q4_K: (256, 144, _q4_k),
    GgmlType.Q5_K: (256, 176, _q5_k),
    GgmlType.Q6_K: (256, 210, _q6_k),
    GgmlType.IQ4_XS: (256, 136, _iq4_xs),
}


def unpack(f: Fn, t: Target, kind: GgmlType, row: Val, block: Val) -> Quants:
    """Inputs 32*block .. of the row of file blocks that starts at address `row`."""
    n_values, n_bytes, reader = UNPACK[kind]
    if n_values == BLOCK:
        return reader(_Block(f, t, row + block * n_bytes, f.i64(0)))
    return reader(_Block(f, t, row + (block >> 3) * n_bytes, block & 7))


def repack(kind: GgmlType, t: Target) -> Builder:
    """void(args, tid, nt): file rows -> packed form. args: [2] source [3] destination (zeroed) [4] n_rows [5] blocks of 32 per
    row [6] bytes per source row [7] n_pairs [8] first row [9] rows in this call (a multiple of 16, or up to the end)."""
    form = FORM_OF[kind]

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        src, dst, n_rows, n_blocks, row_bytes, n_pairs, row0, count = (f.load(args + 8 * i, I64, 8) for i in range(2, 10))
        first, n = row0 / GROUP, (count + (GROUP - 1)) / GROUP
        with (
            f.loop(first + n * tid / nt, first + n * (tid + 1) / nt) as g,
            f.loop(0, n_blocks) as block,
            f.loop(0, GROUP) as lane,
        ):
            row = g * GROUP + lane
            with f.when(row < n_rows):
                q = unpack(f, t, kind, src + row * row_bytes, block)
                _place(f, t, form, dst + (g * n_pairs + (block >> 1)) * form.pair_bytes, block & 1, lane, q)
        f.ret()

    return build


def _place(f: Fn, t: Target, form: Packed, pair: Val, half: Val, lane: Val, q: Quants) -> None:
    """One row's 32 inputs into their lane of a pair (layout: packed.py)."""
    low = pair + half * form.low_bytes + lane * 4
    if form.low == 8:
        out = q.words
    elif form.low == 4:
        out = [(q.words[j] & LOW4) | ((q.words[j + 4] & LOW4) << 4) for j in range(4)]
    else:
        out = [_merge([q.words[4 * k + i] & 0x03030303 for i in range(4)], 2) for k in range(2)]
    for j, word in enumerate(out):
        f.store(low + 64 * j, word, 4)
    high = pair + (2 * form.low_bytes) + half * form.high_bytes + lane * 4
    if form.high == 1:
        f.store(high, _merge([(w >> form.low) & 0x01010101 for w in q.words], 1), 4)
    elif form.high == 2:
        for k in range(2):
            f.store(high + 64 * k, _merge([(q.words[4 * k + i] >> form.low) & 0x03030303 for i in range(4)], 2), 4)
    scales = pair + (2 * (form.low_bytes + form.high_bytes)) + half * form.scale_bytes + lane * 2
    for u, x in enumerate([*q.scales, *q.mins]):
        if form.bf16:
            f.store(scales + 32 * u, f.trunc(f.bitcast(x, I32) >> 16, ir.IntType(16)), 2)
        else:
            store_f16(f, t, scales + 32 * u, x)


def _merge(words: list[Val], step: int) -> Val:
    out = words[0]
    for i, w in enumerate(words[1:], 1):
        out = out | (w << (step * i))
    return out


def embed(kind: GgmlType, t: Target) -> Builder:
    """void(args, tid, nt): rows of a matrix in the file's layout, as f32 times a scale.

    args: [2] weights [3] tokens i64 [n_rows] [4] out [5] K [6] bytes per row [7] n_rows [8] scale (f32 bits). Split by rows.
    """

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        w, tokens, out, row_len, row_bytes, n_rows = (f.load(args + 8 * i, I64, 8) for i in range(2, 8))
        scale = f.load(args + 64, F32, 8)
        with f.loop(n_rows * tid / nt, n_rows * (tid + 1) / nt) as r:
            row = w + f.load(tokens + r * 8, I64, 8) * row_bytes
            y = out + r * row_len * 4
            if kind in UNPACK:
                with f.loop(0, row_len / BLOCK) as block:
                    _expand(f, FORM_OF[kind], unpack(f, t, kind, row, block), y + block * (4 * BLOCK), scale)
            else:
                width = {GgmlType.F32: 4, GgmlType.F16: 2, GgmlType.BF16: 2}[kind]
                with f.loop(0, row_len) as i:
                    f.store(y + i * 4, _float(f, t, kind, row + i * width) * scale, 4)
        f.ret()

    return build


def _float(f: Fn, t: Target, kind: GgmlType, at: Val) -> Val:
    if kind == GgmlType.F32:
        return load_floats(f, at, 1)
    return load_bf16(f, at, 1) if kind == GgmlType.BF16 else load_f16(f, t, at, 1)


def _expand(f: Fn, form: Packed, q: Quants, y: Val, scale: Val) -> None:
    if form.lut:
        table = f.scratch(ir.ArrayType(I32, 16))
        for i, value in enumerate(form.lut):
            f.store(table + 4 * i, f.c(I32, value), 4)
    for j, word in enumerate(q.words):
        for byte in range(4):
            v = (word >> (8 * byte)) & 255
            if form.lut:
                v = f.load(table + f.zext(v, I64) * 4, I32, 4)
            elif form.signed:
                v = (v << 24).ashr(24)
            u = j * form.subs // 8
            x = f.to_float(v - form.offset) * q.scales[u]
            f.store(y + 4 * (4 * j + byte), (x + q.mins[u] if form.has_min else x) * scale, 4)
