"""`latent.LatentOps` for the CPU: records of the kernels in streams.py, rounding.py, pools.py and latent_attention.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4py.errors import UnsupportedError
from ds4py.gguf.types import GgmlType
from ds4py.kernels.cpu import latent_attention, pools, rounding, rowwise, streams
from ds4py.kernels.cpu.packed import GROUP
from ds4py.kernels.cpu.recorder import Buffer, bits
from ds4py.kernels.cpu.weights import CpuWeight
from ds4py.latent import Pooling
from ds4py.protocols import F32

if TYPE_CHECKING:
    from ds4py.kernels.cpu.recorder import Recorder

STREAMS = (2, 4, 8)  # numbers of streams that a vector holds


class View(Buffer):
    """Another shape of a buffer's memory, which stays the buffer's."""

    def __init__(self, base: Buffer, n_rows: int, width: int) -> None:
        self.memory, self.n_rows, self.width, self.n_blocks = base.memory, n_rows, width, 0
        self.split, self.live, self.tiled, self.quantised = "own", 0, False, {}
        self.address, self.size, self._base = base.address, base.size, base

    def __del__(self) -> None:
        pass


class LatentRecorder:
    """Appends to a Recorder's program."""

    def __init__(self, recorder: Recorder) -> None:
        self._r = recorder

    # --- streams ---
    def spread(self, x: Buffer, n: int) -> Buffer:
        out = self._new(n * x.width, x.n_rows)
        at = self._kernel("place", rowwise.place)
        for j in range(n):
            self._op(at, [x.address, out.address, x.width, out.width, j * x.width, x.n_rows], "row", [x], [out])
        return out

    def mixing(self, m: Buffer, scale: F32, base: F32, n: int, n_iters: int, eps: float) -> Buffer:
        if n not in STREAMS:
            raise UnsupportedError(f"the CPU kernels mix {', '.join(map(str, STREAMS))} streams; this model has {n}")
        head = len(base) == n
        out = self._new(-(-len(base) // 4) * 4, m.n_rows)
        args = [m.address, m.width, self._r._vector(scale), self._r._vector(base), out.address, out.width, m.n_rows, n_iters]
        at = self._kernel(f"mixing_{n}{'_head' if head else ''}", lambda t: streams.mixing(t, n, head))
        self._op(at, [*args, bits(eps)], "row", [m], [out])
        return out

    def collapse(self, h: Buffer, mixing: Buffer, n: int) -> Buffer:
        out = self._new(_part(h.width, n), h.n_rows)
        args = [h.address, mixing.address, mixing.width, out.address, out.width, h.n_rows]
        at = self._kernel(f"collapse_{n}", lambda t: streams.collapse(t, n, True))
        self._op(at, args, "row", [h, mixing], [out])
        return out

    def renew(self, h: Buffer, y: Buffer, mixing: Buffer, n: int) -> Buffer:
        out = self._new(h.width, h.n_rows)
        args = [h.address, y.address, mixing.address, mixing.width, out.address, _part(h.width, n), h.n_rows]
        self._op(self._kernel(f"renew_{n}", lambda t: streams.renew(t, n)), args, "row", [h, y, mixing], [out])
        return out

    def mean(self, h: Buffer, n: int) -> Buffer:
        out = self._new(_part(h.width, n), h.n_rows)
        at = self._kernel(f"mean_{n}", lambda t: streams.collapse(t, n, False))
        self._op(at, [h.address, 0, 0, out.address, out.width, h.n_rows], "row", [h], [out])
        return out

    def stream_linear(self, h: Buffer, weight: CpuWeight, n: int) -> Buffer:
        """One product over the streams of all rows, taken as rows of their own."""
        _part(n * weight.n_rows, n)  # so that the product has no padding between streams
        out = self._r.linear(View(h, h.n_rows * n, _part(h.width, n)), weight)
        return View(out, h.n_rows, n * weight.n_rows)

    # --- rounding ---
    def fp8(self, x: Buffer, n_dims: int) -> Buffer:
        return self._rounded("fp8", x, n_dims)

    def fp4(self, x: Buffer) -> Buffer:
        return self._rounded("fp4", x, x.width)

    def _rounded(self, kind: str, x: Buffer, n_dims: int) -> Buffer:
        block = rounding.FORMATS[kind][0]
        if n_dims % block:
            raise UnsupportedError(f"{kind} rounding is done in blocks of {block} values; this model has {n_dims}")
        out = self._new(x.width, x.n_rows)
        at = self._kernel(kind, lambda t: rounding.rounding(t, kind))
        self._op(at, [x.address, out.address, x.width, n_dims, x.n_rows], "row", [x], [out])
        return out

    def hadamard(self, x: Buffer, n_heads: int) -> Buffer:
        out, n = self._new(x.width, x.n_rows), x.width // n_heads
        at = self._kernel(f"hadamard_{n}", lambda t: rounding.hadamard(t, n))
        self._op(at, [x.address, out.address, n_heads, x.n_rows], "row", [x], [out])
        return out

    # --- rows ---
    def put(self, x: Buffer, cache: int, exact: bool = False) -> None:
        b = self._r.backend
        self._r.caches.add(cache)
        args = [x.address, x.width, x.n_rows, b.pos_at, b.tables_at, cache]
        at = self._kernel(f"put_{'f32' if exact else 'f16'}", lambda t: pools.put(t, exact))
        self._op(at, args, "row", [x], [("cache", cache)])

    def pool(self, projected: int, pool: int, how: Pooling) -> None:
        b, width = self._r.backend, how.width
        if width % 16:
            raise UnsupportedError(f"the CPU kernels pool rows of a multiple of 16 values; this model has {width}")
        self._r.caches |= {projected, pool}
        table, n_rows = b.rope_table(how.rope), self._r.n_rows
        scratch = self._new(2 * width, n_rows)
        args = [projected, pool, how.every, self._r._vector(how.position_bias.ravel()), self._r._vector(how.norm), bits(how.eps)]
        args += [b.rope_cell(table), len(how.rope.inv_freq), scratch.address, n_rows, b.pos_at, b.tables_at]
        name = f"pool_{width}{'_overlap' if how.overlap else ''}_{how.rounding}"
        at = self._kernel(name, lambda t: pools.pool(t, width, how.overlap, how.rounding))
        self._op(at, args, "own", [("cache", projected)], [scratch, ("cache", pool)])

    def choose(self, q: Buffer, weights: Buffer, pool: int, every: int, n_heads: int, top_k: int) -> Buffer:
        b, n_rows, width = self._r.backend, self._r.n_rows, q.width // n_heads
        args = [q.address, n_heads, weights.address, weights.width, pool, every, top_k, n_rows, b.pos_at, b.tables_at]
        at = self._kernel(f"index_scores_{width}", lambda t: pools.scores(t, width))
        self._op(at, [*args, b.shared_cell], "own", [q, weights, ("cache", pool)], [("shared", 0)])
        out = self._new(-(-(top_k + 1) * 2 // 4) * 4, n_rows)
        out.live = top_k
        args = [b.shared_cell, every, top_k, out.address, n_rows, b.pos_at]
        self._op(self._kernel("choose", pools.choose), args, "own", [("shared", 0)], [("shared", 0), out])
        return out

    def attend(
        self,
        q: Buffer,
        ring: int,
        n_heads: int,
        scale: float,
        sinks: F32,
        pool: int | None = None,
        every: int = 0,
        chosen: Buffer | None = None,
        block: bool = False,
    ) -> Buffer:
        b, d, n = self._r.backend, q.width // n_heads, latent_attention.together(n_heads)
        if d % 16:
            raise UnsupportedError(f"the CPU attention kernel needs heads of a multiple of 16 values; this model has {d}")
        out = Buffer(self._r.memory, q.n_rows, q.width, split="own")
        pooled = "" if pool is None else "all" if chosen is None else "chosen"
        picks = (chosen.address, chosen.live) if chosen is not None else (0, 0)
        cells = b.block_cells if block else b.causal_cells
        args = [q.address, out.address, n_heads, ring, pool or 0, every, *picks, bits(scale), self._r._vector(sinks)]
        reads: list[object] = [q, ("cache", ring)]
        reads += [("cache", pool)] if pool is not None else []
        reads += [chosen] if chosen is not None else []
        at = self._kernel(f"attend_latent_{d}_{n}_{pooled}", lambda t: latent_attention.attend(t, d, n, pooled))
        self._op(at, [*args, q.n_rows, cells], "own", reads, [out])
        return out

    def grouped_linear(self, x: Buffer, weight: CpuWeight, n_groups: int) -> Buffer:
        """One product per group, over every n_groups-th row of x taken as rows of one group each."""
        r, width, n_out = self._r, x.width // n_groups, weight.n_rows // n_groups
        if weight.form is not None and n_out % GROUP:
            raise UnsupportedError(f"tensor {weight.tensor.name}: groups of {n_out} rows are no multiple of {GROUP}")
        weight.prepare()
        parts = View(x, x.n_rows * n_groups, width)
        if r.backend.squares is not None:
            r._observe(parts, weight.tensor.name)
        out = Buffer(r.memory, x.n_rows, n_groups * n_out, split="own")
        product = r._product(parts, weight, out)
        stride = weight.form.n_bytes(n_out, weight.row_len) if weight.form else n_out * weight.row_bytes
        for g in range(n_groups):
            args = list(product.args)
            args[:3] = args[0] + g * stride, args[1] + g * product.row_bytes, out.address + 4 * g * n_out
            args[product.n_word - 2] = x.n_rows
            _regroup(args, product.row_bytes, weight, n_groups, n_out, out.width)
            # the groups write different columns: only the first has to wait for anything
            self._op(product.kernel, args, "own", [product.read], [out] if g == 0 else [])
        return out

    # --- private ---
    def _new(self, width: int, n_rows: int) -> Buffer:
        return self._r._new(width, "row", n_rows)

    def _kernel(self, name: str, builder) -> int:
        return self._r.backend.kernel(name, builder)

    def _op(self, address: int, args: list[int], split: str, reads: list, writes: list) -> None:
        self._r._op(address, args, split, reads, writes)


def _part(width: int, n: int) -> int:
    if width // n % 16:
        raise UnsupportedError(f"the CPU kernels need streams of a multiple of 16 values; this model has {width // n}")
    return width // n


def _regroup(args: list[int], row_bytes: int, weight: CpuWeight, n_groups: int, n_out: int, ldy: int) -> None:
    """A product's words for one group of outputs, reading every n_groups-th row: strides and counts (see Recorder.product)."""
    args[3], args[4] = ldy, row_bytes * n_groups
    if weight.form is not None:
        args[6] = n_out // GROUP
    elif weight.type == GgmlType.IQ2_XXS:
        args[7] = n_out
    else:
        args[4] = row_bytes // 4 * n_groups  # in floats
        args[6] = n_out
