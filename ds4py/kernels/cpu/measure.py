"""How fast a quantised product is, and which code makes it: what `ds4-bench --kernels` prints.

The idea: nothing is described from memory. A case records the program that a model's forward would record, and says which
kernels its records call; so a fallback that somebody adds shows under its own name, and a type without a kernel shows as its
refusal. Weights are walked cold: copies that add up to more than the caches hold, one after another, as a model's layers are.
A rate counts the bytes of the weights as they lie in memory, once for each pass, however many rows the pass has.

The measure of all rates is `read_limit`: the same threads adding up the words of a large array, several streams each.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from llvmlite import ir

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgmlType, Mapped, Tensor
from ds4py.kernels.cpu import few, iq2, matmul
from ds4py.kernels.cpu.backend import CpuKernels
from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.ir import I64, Fn, vec
from ds4py.kernels.cpu.lanes import DOT
from ds4py.kernels.cpu.packed import FORM_OF
from ds4py.kernels.cpu.recorder import Program
from ds4py.kernels.cpu.target import Target, describe
from ds4py.kernels.cpu.weights import CpuWeight

N_OUT, ROW_LEN = 2048, 1024  # of one matrix: like a projection of a small model
STREAMS = 4  # addresses that a thread of the read loop walks at once
STEP = 64 * STREAMS


@dataclass(frozen=True)
class Figure:
    """One product. `implementation` names the kernels that its program calls; `refusal` says why there is none, or
    why it was not measured."""

    path: str  # of the hardware
    type: str
    rows: int
    implementation: str = ""
    seconds: float = 0.0  # of one matrix and all rows, the median
    gb_per_s: float = 0.0  # 10^9 bytes of weights
    refusal: str = ""


def read_loop(t: Target) -> Builder:
    """args: [2] memory [3] bytes [4] where sums go, 64 bytes per thread. Threads add up contiguous shares in 64-bit words."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        args, tid, nt = f.args
        at, n_bytes, out = (f.load(args + 8 * i, I64, 8) for i in range(2, 5))
        share = n_bytes / nt / STEP * STEP
        mine, part = at + tid * share, share / STREAMS
        words = vec(I64, 8)
        sums = [f.var(f.c(words, 0)) for _ in range(STREAMS)]
        with f.loop(0, part, 64) as i:
            for s in range(STREAMS):
                here = mine + part * s + i
                f.prefetch(here + 1024)
                sums[s].set(sums[s].get() + f.load(here, words, 8))
        total = sums[0].get()
        for s in range(1, STREAMS):
            total = total + sums[s].get()
        f.store(out + tid * 64, total, 8)
        f.ret()

    return build


def read_limit(kernels: CpuKernels, n_bytes: int = 256 << 20, n_runs: int = 5) -> float:
    """10^9 bytes per second that this backend's threads read from memory: the best of some runs."""
    memory = np.ones(n_bytes // 8, np.int64)
    sums = np.zeros((kernels.n_threads, 8), np.int64)
    record = np.zeros((1, RECORD), np.int64)
    record[0, 0] = kernels.kernel("read_loop", read_loop)
    record[0, 2:5] = memory.ctypes.data, n_bytes, sums.ctypes.data
    seconds = min(_timed(lambda: kernels.executor.run(record)) for _ in range(n_runs))
    return n_bytes / seconds / 1e9


def products(kernels: CpuKernels, kinds: Sequence[GgmlType], rows: Sequence[int], n_bytes: int, least: float) -> Iterator[Figure]:
    """A figure for each type and number of rows: weights of about `n_bytes`, at least `least` seconds of passes each."""
    for kind in kinds:
        try:
            case = _Case(kernels, kind, n_bytes)
        except UnsupportedError as error:
            yield Figure(path_of(kernels), kind.name, 0, refusal=str(error))
            continue
        for n in rows:
            yield case.measure(n, least)


def planned(path: str, kinds: Sequence[GgmlType], rows: Sequence[int]) -> Iterator[Figure]:
    """What a path that this processor cannot run has for many rows: names of kernels, without times."""
    t = describe(path)
    for kind in kinds:
        form = FORM_OF.get(kind)
        for n in rows if form else ():
            if form and n > matmul.most_rows(t, form) and n not in few.counts(t, form):
                yield Figure(path, kind.name, n, _many_rows(f"tiles_{form.name}", t), refusal="not available")


def path_of(kernels: CpuKernels) -> str:
    """The path as --backend names it: AMX has the bits of avx512, and so its name elsewhere."""
    return "amx" if kernels.library.target.matrix else kernels.path


class _Case:
    """Copies of one random matrix, and activations to multiply them with."""

    def __init__(self, kernels: CpuKernels, kind: GgmlType, n_bytes: int):
        self.kernels, self.kind = kernels, kind
        size = kind.nbytes(N_OUT * ROW_LEN)
        blocks = np.random.default_rng(kind).integers(0, 256, size, dtype=np.uint8)
        self.weights = [kernels.weight(in_memory("w", kind, (ROW_LEN, N_OUT), blocks)) for _ in range(max(1, n_bytes // size))]
        x = np.random.default_rng(0).standard_normal((1, ROW_LEN)).astype(np.float32)
        self.x = kernels.weight(in_memory("x", GgmlType.F32, (ROW_LEN, 1), x.view(np.uint8).ravel()))

    def measure(self, n_rows: int, least: float) -> Figure:
        program = self.kernels.record((self, "measure"), self._graph, n_rows)
        seconds: list[float] = []
        self.kernels.executor.run(program.ops)  # also packs
        while len(seconds) < 3 or sum(seconds) < least:
            seconds.append(_timed(lambda: self.kernels.executor.run(program.ops)))
        n_bytes = sum(w.resident_bytes or w.tensor.nbytes for w in self.weights)
        one = median(seconds)
        name = implementation(self.kernels, program, self.weights[0])
        return Figure(path_of(self.kernels), self.kind.name, n_rows, name, one / len(self.weights), n_bytes / one / 1e9)

    def _graph(self, ops: Any) -> Any:
        x = ops.embed(self.x)
        for w in self.weights:
            y = ops.linear(x, w)
        return y


def implementation(kernels: CpuKernels, program: Program, weight: CpuWeight) -> str:
    """Names of the kernels of the program's last product, in the order they are called, and the instruction they rest on."""
    names = kernels.library.names
    record = next(r for r in program.ops[::-1] if names[int(r[0])] not in ("narrow", "add_bias"))
    called = names[int(record[0])]
    if called.startswith("driver_"):  # entry m of the micro kernels' table is the kernel for m rows
        assert weight.form is not None
        table = kernels.micro_table(weight.form)
        assert table == record[11]
        sizes = matmul.chunks(kernels.library.target, weight.form)
        by_rows = {m: kernels.micro_kernel(weight.form, m) for m in sizes}
        parts = matmul.cut(int(record[9]), sizes)
        runs = [(m, parts.count(m)) for m in sorted(set(parts), reverse=True)]
        called = " + ".join(names[by_rows[m]] + (f" x {n}" if n > 1 else "") for m, n in runs)
        return f"{called}: {DOT[kernels.path]}"
    if called.startswith(("tiles_", "few_")):
        return _many_rows(called, kernels.library.target)
    if called == "iq2_xxs":
        return f"{called}, from the file's layout: {iq2.DOT[kernels.path]}"
    return f"{called}, from the file's layout: f32 {'fused ' if kernels.library.target.fma else ''}multiply-add"


def _many_rows(called: str, t: Target) -> str:
    matrix = t.matrix and called.startswith("tiles_")
    return f"{called}: {'tdpbssd, 16 x 16 tiles' if matrix else DOT[t.path]}"


def in_memory(name: str, kind: GgmlType, shape: tuple[int, ...], data: np.ndarray) -> Tensor:
    """A tensor of `shape` (GGUF order) with these bytes [nbytes], uint8."""
    memory = mmap.mmap(-1, len(data))
    memory[:] = data.tobytes()
    return Tensor(name, shape, kind, len(data), 0, Mapped(memory))


def _timed(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
