"""Which type llama.cpp's recipes give each tensor, recorded once: writes tests/golden/recipes.json.

    python tests/scripts/golden_recipes.py

Models are skeletons: the names and row lengths of real ones, four rows to a matrix, so that a quantisation takes no time. What is
recorded is what llama.cpp (through llama-cpp-python) stored, in runs of equal types over the layers.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.quantize import RECIPES

GOLDEN = Path(__file__).parent.parent / "golden" / "recipes.json"
# name -> layers, query heads, key/value heads, experts, whether the output is tied, row length
SKELETONS: dict[str, tuple[int, int, int, int, bool, int]] = {
    "plain": (24, 4, 4, 0, False, 256),
    "tied": (24, 4, 2, 0, True, 256),
    "grouped": (32, 8, 1, 0, False, 256),
    "narrow": (30, 9, 3, 0, True, 96),
    "eight experts": (16, 8, 2, 8, False, 256),
    "four experts": (17, 4, 4, 4, False, 256),
}
TYPES = [name for name in RECIPES if not name.startswith(("DS4", "MXFP4", "F", "BF"))]


def skeleton(path: Path, name: str) -> Path:
    """Write the skeleton `name` as a llama model of F16 matrices."""
    n_layers, n_head, n_kv, n_expert, tied, width = SKELETONS[name]
    keys = {
        "block_count": n_layers, "context_length": 128, "embedding_length": width, "feed_forward_length": width,
        "attention.head_count": n_head, "attention.head_count_kv": n_kv, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width // n_head, "vocab_size": 4,
    }  # fmt: skip
    if n_expert:
        keys |= {"expert_count": n_expert, "expert_used_count": 2}
    matrix = (np.random.default_rng(0).standard_normal((4, width)) / 16).astype(np.float16)
    stacked = np.stack([matrix] * max(n_expert, 1))
    tensors = [NewTensor.of("token_embd.weight", matrix), NewTensor.of("output_norm.weight", np.ones(width, np.float32))]
    tensors += [] if tied else [NewTensor.of("output.weight", matrix)]
    for i in range(n_layers):
        tensors += [NewTensor.of(f"blk.{i}.{part}.weight", matrix) for part in ("attn_q", "attn_k", "attn_v", "attn_output")]
        tensors.append(NewTensor.of(f"blk.{i}.attn_norm.weight", np.ones(width, np.float32)))
        parts = ("ffn_gate", "ffn_up", "ffn_down")
        tensors += [
            NewTensor.of(f"blk.{i}.{part}{'_exps' if n_expert else ''}.weight", stacked if n_expert else matrix) for part in parts
        ]
        if n_expert:
            tensors.append(NewTensor.of(f"blk.{i}.ffn_gate_inp.weight", np.ones((n_expert, width), np.float32)))
    write_gguf(path, {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in keys.items()}, tensors)
    return path


def runs(types: list[str]) -> list[list[Any]]:
    """[type, how many in a row]"""
    return [[kind, len(list(group))] for kind, group in itertools.groupby(types)]


def by_role(types: dict[str, str]) -> dict[str, list[list[Any]]]:
    """Tensor name -> type, as name without its layer -> runs over the layers."""
    roles: dict[str, dict[int, str]] = {}
    for name, kind in types.items():
        layer, _, rest = name.removeprefix("blk.").partition(".") if name.startswith("blk.") else ("0", "", name)
        roles.setdefault(rest, {})[int(layer)] = kind
    return {role: runs([kind for _, kind in sorted(found.items())]) for role, found in roles.items() if "norm" not in role}


def child(source: str, target: str, number: int, with_imatrix: bool) -> int:
    """One quantisation by llama.cpp, in a process of its own."""
    from llama_cpp import llama_cpp as api

    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread = number, 1
    if with_imatrix:
        tensors = [t for t in open_gguf(source).tensors.values() if len(t.shape) > 1]
        data = [np.ones(t.row_len * (t.shape[2] if len(t.shape) > 2 else 1), np.float32) for t in tensors]
        entries = (api.llama_model_imatrix_data * (len(tensors) + 1))()
        for entry, tensor, values in zip(entries, tensors, data, strict=False):
            entry.name, entry.size = tensor.name.encode(), len(values)
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = entries
    return int(api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


def main() -> int:
    if len(sys.argv) > 1:
        return child(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
    golden: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.gguf"
        for name in SKELETONS:
            source = skeleton(Path(folder) / "in.gguf", name)
            for kind, with_imatrix in itertools.product(TYPES, (False, True)):
                words = [sys.executable, __file__, str(source), str(target), str(RECIPES[kind].file_type), str(int(with_imatrix))]
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{name}, {kind}, imatrix {with_imatrix}: llama.cpp refuses: {done.stderr.strip().splitlines()[-1]}")
                    continue
                types = {n: t.type.name for n, t in open_gguf(target).tensors.items()}
                found = by_role(types)
                if found != golden.setdefault(name, {}).get(kind):  # most recipes do the same with and without a matrix
                    golden[name][f"{kind}{' imatrix' if with_imatrix else ''}"] = found
    rows = (f"{json.dumps(name)}: {{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()) + "\n}"
            for name, table in golden.items())  # fmt: skip
    made_by = f"tests/scripts/golden_recipes.py with llama-cpp-python {version('llama-cpp-python')}"
    GOLDEN.write_text(f'{{\n"made by": "{made_by}",\n' + ",\n".join(rows) + "\n}\n")
    print(f"{GOLDEN}: {sum(map(len, golden.values()))} quantisations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
