"""One quantised product through the public interface of a backend, with the values it must have: shared by kernel tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.protocols import Kernels, Rows
from ds4py.quants import QUANTS, decode

TYPES = [
    GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q5_1, GgmlType.Q8_0,
    GgmlType.Q2_K, GgmlType.Q3_K, GgmlType.Q4_K, GgmlType.Q5_K, GgmlType.Q6_K, GgmlType.IQ2_XXS, GgmlType.IQ4_NL, GgmlType.IQ4_XS,
    GgmlType.MXFP4,
]  # fmt: skip
N_TOKENS = 65
HALF_SCALES = {  # byte offsets of the f16 scales of a block, which random bytes would make infinite
    GgmlType.Q4_0: [0], GgmlType.Q4_1: [0, 2], GgmlType.Q5_0: [0], GgmlType.Q5_1: [0, 2], GgmlType.Q8_0: [0],
    GgmlType.IQ4_NL: [0],
    GgmlType.Q2_K: [80, 82], GgmlType.Q3_K: [108], GgmlType.Q4_K: [0, 2], GgmlType.Q5_K: [0, 2], GgmlType.Q6_K: [208],
    GgmlType.IQ2_XXS: [0], GgmlType.IQ4_XS: [0],
}  # fmt: skip


def random_blocks(kind: GgmlType, n_values: int, rng: np.random.Generator) -> bytes:
    """Random quants with scales of ordinary size."""
    if kind in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
        x = rng.standard_normal(n_values).astype(np.float32)
        return (
            x
            if kind == GgmlType.F32
            else x.astype(np.float16)
            if kind == GgmlType.F16
            else (x.view(np.uint32) >> 16).astype(np.uint16)
        ).tobytes()
    spec = QUANTS[kind]
    blocks = rng.integers(0, 256, (n_values // spec.block_len, spec.block_bytes), dtype=np.uint8)
    for at in HALF_SCALES.get(kind, []):
        blocks[:, at : at + 2] = rng.uniform(0.01, 0.2, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    if kind == GgmlType.MXFP4:
        blocks[:, 0] = rng.integers(118, 130, len(blocks))
    return blocks.tobytes()


def write_case(path: Path, kind: GgmlType, n_out: int, row_len: int) -> None:
    rng = np.random.default_rng(row_len)
    x = rng.standard_normal((N_TOKENS, row_len)).astype(np.float32)
    x[3, :40] = 0.0  # a block of zeros
    x[4] *= 1e4
    tensors = [
        NewTensor("x", (row_len, N_TOKENS), GgmlType.F32, x.tobytes()),
        NewTensor("w", (row_len, n_out), kind, random_blocks(kind, n_out * row_len, rng)),
    ]
    write_gguf(path, {"general.architecture": "test"}, tensors)


class Case:
    """y = x[tokens] @ w.T through the public interface of the backend."""

    def __init__(self, path: Path, kernels: Kernels):
        g = open_gguf(path)
        self.kernels = kernels
        self.x, self.w = kernels.weight(g.tensors["x"]), kernels.weight(g.tensors["w"])
        t = g.tensors["w"]
        self.dense = decode(t.type, t.data, t.n_values).reshape(t.n_rows, t.row_len)
        t = g.tensors["x"]
        self.rows = decode(t.type, t.data, t.n_values).reshape(t.n_rows, t.row_len)

    def product(self, tokens: list[int]) -> np.ndarray:
        ids = np.array(tokens, np.int64)
        rows = Rows(ids, np.zeros_like(ids), (NO_STATE,), np.zeros_like(ids), np.arange(len(ids)))
        return self.kernels.run(self, lambda ops: ops.linear(ops.embed(self.x), self.w), rows, ()).logits.copy()


class NoState:
    caches: tuple[Any, ...] = ()
    table, table_at = np.zeros((0, 4), np.int64), 0


NO_STATE = NoState()


def int8_rows(x: np.ndarray) -> np.ndarray:
    """Activations as the row path sees them: blocks of 32, scale max|x| / 127, nearest even."""
    b = x.reshape(-1, 32)
    d = np.abs(b).max(1, keepdims=True) / np.float32(127)
    inv = np.where(d > 0, np.float32(127) / np.maximum(np.abs(b).max(1, keepdims=True), np.float32(1e-30)), 0)
    return (np.rint(b * inv.astype(np.float32)) * d).reshape(x.shape)
