"""What the encoders are measured on, shared by tests and script: seeded rows, models' rows, an importance, the error measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ds4py.gguf import GgmlType, open_gguf
from ds4py.quants import decode

F32 = npt.NDArray[np.float32]

TYPES = tuple(
    GgmlType[name] for name in "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ4_NL MXFP4".split()
)


def synthetic_rows(n_rows: int = 24, row_len: int = 2048) -> dict[str, F32]:
    """Name -> float32 [n_rows, row_len]: weights as they are met, from tame to wild, and some that are off centre."""
    rng = np.random.default_rng(20261129)
    shape = (n_rows, row_len)
    scale = np.exp(rng.normal(0, 0.4, (n_rows, row_len // 64)))
    return {
        "gaussian": rng.normal(0, 0.02, shape).astype(np.float32),
        "heavy-tailed": (0.02 * rng.standard_t(3, shape)).astype(np.float32),
        "laplace": rng.laplace(0, 0.02, shape).astype(np.float32),
        "uneven": (rng.normal(0, 0.02, shape) * np.repeat(scale, 64, axis=1)).astype(np.float32),
        "off centre": rng.normal(-0.01, 0.02, shape).astype(np.float32),
    }


def model_rows(path: Path, values_per_tensor: int) -> dict[str, F32]:
    """Name -> float32 [n_rows, 2304]: evenly spaced rows of every matrix of a model, by the type that they are stored in.

    2304 = 9 * 256 holds four rows of 576, which by themselves could not be cut into K-quant blocks.
    """
    parts: dict[str, list[F32]] = {}
    for tensor in open_gguf(path).tensors.values():
        if tensor.n_rows < 2:
            continue
        n_rows = min(tensor.n_rows, max(1, values_per_tensor // tensor.row_len))
        chosen = np.linspace(0, tensor.n_rows - 1, n_rows).astype(int)
        data = np.ascontiguousarray(tensor.data.reshape(tensor.n_rows, -1)[chosen]).reshape(-1)
        parts.setdefault(tensor.type.name, []).append(decode(tensor.type, data, n_rows * tensor.row_len))
    rows = {}
    for name, found in parts.items():
        flat = np.concatenate(found)
        rows[f"{path.stem}, stored as {name}"] = flat[: len(flat) // 2304 * 2304].reshape(-1, 2304)
    return rows


def importance_for(row_len: int) -> F32:
    """Column weights as activations make them: spread over some orders of magnitude."""
    return np.exp(np.random.default_rng(7).normal(0, 1.2, row_len)).astype(np.float32)


def relative_error(rows: F32, decoded: F32, importance: F32 | None) -> float:
    """(Weighted) mean squared error over the (weighted) mean square."""
    weights = np.ones(rows.shape[1]) if importance is None else importance.astype(np.float64)
    error = ((rows.astype(np.float64) - decoded) ** 2 * weights).mean()
    return float(error / (rows.astype(np.float64) ** 2 * weights).mean())
