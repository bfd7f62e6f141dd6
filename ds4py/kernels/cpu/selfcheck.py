"""Whether a hardware path computes on this machine what it must: known answers, bit for bit.

The data are small integers times powers of two, scales are powers of two, and every partial sum fits 24 bits. So no operation
rounds, the order of sums does not matter, and all paths, fused or not, have one right answer: the integers that numpy gives (a
test holds the plain path to them). What could be wrong is a processor that says it has an instruction and does it differently, a
system that does not keep its registers, or code that LLVM got wrong for it.

`main` runs as a process of its own (choosing.py): a path that ends in an illegal instruction must not take the user's along.

Rejected: comparing real activations with the plain path compiled beside (twice the compile time of a first start, and paths that
fuse differ from it in the last bit by design); stored answers (they would say nothing where an integer says all).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4py.gguf import GgmlType
from ds4py.kernels.cpu import measure
from ds4py.kernels.cpu.backend import CpuKernels
from ds4py.protocols import Rows
from ds4py.quants import decode

ROW_LEN, N_OUT, N_ROWS = 256, 48, 24
HEAD = 64  # width of the attention case's one head
FEW = (1, 3, N_ROWS)  # rows of a product: other kernels make one, a few and many
SPEED_ROWS, SPEED_BYTES, SPEED_SECONDS = 64, 16 << 20, 0.1


@dataclass(frozen=True, eq=False)
class Case:
    """One graph, and what its rows must be."""

    name: str
    graph: Callable[[Any], Any]
    states: tuple[Any, ...]
    want: np.ndarray  # f32 [n, width]


def first_wrong(kernels: CpuKernels) -> str:
    """What `kernels` computes wrongly: the first of the cases, or "" when all bits are right."""
    for case in cases(kernels):
        n = len(case.want)
        at = np.arange(n)
        rows = Rows(at, at, case.states, np.zeros(n, np.int64), at)
        # several times: registers that a context switch loses are not lost each time
        for _ in range(3):
            got = kernels.run(case, case.graph, rows, ()).logits
            if got.tobytes() != case.want.tobytes():
                return case.name
    return ""


def cases(kernels: CpuKernels) -> Iterator[Case]:
    x = activations()
    rows = _weight(kernels, "x", GgmlType.F32, x)
    for kind, counts in ((GgmlType.F16, FEW[:1]), (GgmlType.Q4_1, FEW), (GgmlType.Q8_0, FEW), (GgmlType.Q6_K, FEW[-1:])):
        blocks = weights(kind)
        values = decode(kind, blocks, N_OUT * ROW_LEN).reshape(N_OUT, ROW_LEN)
        w = _weight(kernels, "w", kind, blocks.reshape(N_OUT, -1), ROW_LEN)
        want = (x.astype(np.float64) @ values.T.astype(np.float64)).astype(np.float32)
        for n in counts:
            graph = lambda ops, w=w: ops.linear(ops.embed(rows), w)  # noqa: E731
            yield Case(f"{n} rows of {kind.name}", graph, (_State(),), want[:n])
    signs = np.where(x > 0, np.float32(4), np.float32(-4))
    flat = _weight(kernels, "signs", GgmlType.F32, signs)
    yield Case("a norm", lambda ops: ops.rms_norm(ops.embed(flat), None, 0.0), (_State(),), signs / 4)
    yield _attention(kernels)


def _attention(kernels: CpuKernels) -> Case:
    """Keys are unit vectors, and row p asks for the one of a position below: all other weights are 0, so it gets that value."""
    rng = np.random.default_rng(4)
    values = rng.integers(-1000, 1000, (N_ROWS, HEAD)).astype(np.float32)
    keys = np.eye(N_ROWS, HEAD, dtype=np.float32)
    chosen = np.array([int(rng.integers(0, p + 1)) for p in range(N_ROWS)])
    q, k, v = (_weight(kernels, "qkv", GgmlType.F32, part) for part in (keys[chosen] * np.float32(1024), keys, values))

    def graph(ops: Any) -> Any:
        return ops.attend(ops.embed(q), ops.embed(k), ops.embed(v), 0, 1, 1, 1.0)

    return Case("attention", graph, (_State(_Cache()),), values[chosen])


def activations() -> np.ndarray:
    """[N_ROWS, ROW_LEN]: blocks of 32 have a largest magnitude of 127 times a power of two, so they become int8 without loss."""
    rng = np.random.default_rng(1)
    x = rng.integers(-127, 128, (N_ROWS, ROW_LEN // 32, 32)).astype(np.float32)
    x[..., 7] = rng.choice([-127, 127], x.shape[:2])
    return (x * rng.choice([0.5, 1, 2], (*x.shape[:2], 1)).astype(np.float32)).reshape(N_ROWS, ROW_LEN)


def weights(kind: GgmlType) -> np.ndarray:
    """Bytes of a matrix [N_OUT, ROW_LEN] with random quants and scales of 1 or 2 (a small integer, of sub-blocks)."""
    rng = np.random.default_rng(kind)
    n = N_OUT * ROW_LEN
    if kind == GgmlType.F16:
        return rng.integers(-8, 9, n).astype(np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (kind.nbytes(n) // kind.nbytes(256), kind.nbytes(256)), dtype=np.uint8)
    if kind == GgmlType.Q6_K:
        blocks[:, 192:208] = rng.integers(-4, 5, (len(blocks), 16)).astype(np.int8).view(np.uint8)
        blocks[:, 208:] = np.array([1], np.float16).view(np.uint8)
        return blocks.ravel()
    blocks = blocks.reshape(-1, kind.nbytes(32))
    blocks[:, :2] = rng.choice([1, 2], (len(blocks), 1)).astype(np.float16).view(np.uint8)
    if kind == GgmlType.Q4_1:
        blocks[:, 2:4] = rng.integers(-4, 5, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.ravel()


class _Cache:
    """Room for the attention case, in the layout of protocols.CacheView."""

    capacity, window = 32, 0

    def __init__(self) -> None:
        self.keys = np.zeros((1, self.capacity // 16, HEAD, 16), np.float16)
        self.values = np.zeros((1, self.capacity, HEAD), np.float16)


class _State:
    """What the backend reads of a session."""

    def __init__(self, *caches: _Cache) -> None:
        self.caches = caches
        rows = [[c.keys.ctypes.data, c.values.ctypes.data, c.capacity, c.window] for c in caches]
        self.table = np.array(rows, np.int64).reshape(len(caches), 4)
        self.table_at = int(self.table.ctypes.data)


def _weight(kernels: CpuKernels, name: str, kind: GgmlType, data: np.ndarray, row_len: int = 0) -> Any:
    shape = (row_len or data.shape[1], len(data))
    return kernels.weight(measure.in_memory(name, kind, shape, np.ascontiguousarray(data).view(np.uint8).ravel()))


def speed(kernels: CpuKernels) -> float:
    """Products of many rows in a second, to compare two paths with."""
    (figure,) = measure.products(kernels, [GgmlType.Q4_1], [SPEED_ROWS], SPEED_BYTES, SPEED_SECONDS)
    return 1 / figure.seconds


def main(path: str, without: str = "") -> None:
    """Check `path` and print the verdict as JSON; `gain`: how many times as fast as `without` it is."""
    kernels = CpuKernels(2, N_ROWS, path)
    verdict: dict[str, Any] = {"wrong": first_wrong(kernels)}
    if without and not verdict["wrong"]:
        verdict["gain"] = speed(CpuKernels(1, SPEED_ROWS, path)) / speed(CpuKernels(1, SPEED_ROWS, without))
    print(json.dumps(verdict))
