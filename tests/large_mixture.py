"""A DeepSeek V4 file of tiny dimensions and many experts, of any size, with the mix of types of real files: what must not be in
memory at once is almost all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from products import random_blocks
from tiny_v4 import gguf_arrays, make_tiny, metadata

from ds4py.gguf import GgmlType, NewTensor, write_gguf

WIDTH, N_FF, N_EXPERTS, TAKEN, DISTINCT = 256, 512, 256, 6, 8


def write_large_mixture(path: Path, n_bytes: int) -> int:
    """Write a file with at least n_bytes of experts (IQ2_XXS, Q2_K); returns how many there are. Some experts are equal."""
    per_layer = N_EXPERTS * WIDTH * N_FF * (2 * 66 + 84) // 256
    n_layers = max(2, -(-n_bytes // per_layer))
    tiny = make_tiny(
        hca=32,
        hidden_size=WIDTH,
        moe_intermediate_size=N_FF,
        num_hidden_layers=n_layers,
        n_routed_experts=TAKEN,
        num_experts_per_tok=TAKEN,
        compress_ratios=([0] + [4, 128] * n_layers)[:n_layers],
    )
    rng = np.random.default_rng(1)
    tensors = []
    for name, array in gguf_arrays(tiny.weights, tiny.config).items():
        if name.endswith("_exps.weight"):
            kind = GgmlType.Q2_K if "_down_" in name else GgmlType.IQ2_XXS
            some = random_blocks(kind, WIDTH * N_FF * DISTINCT, rng)
            shape = (N_FF, WIDTH, N_EXPERTS) if "_down_" in name else (WIDTH, N_FF, N_EXPERTS)
            tensors.append(NewTensor(name, shape, kind, some * (N_EXPERTS // DISTINCT)))
            continue
        if name.endswith("ffn_gate_inp.weight"):
            array = rng.standard_normal((N_EXPERTS, WIDTH)).astype(np.float32) / 16
        elif name.endswith("exp_probs_b.bias"):
            array = 0.1 * rng.standard_normal(N_EXPERTS).astype(np.float32)
        elif name.endswith("tid2eid.weight"):
            array = rng.permuted(np.tile(np.arange(N_EXPERTS, dtype=np.int32), (len(array), 1)), axis=1)[:, :TAKEN].copy()
        tensors.append(NewTensor.of(name, array))
    keys = metadata(tiny.config, tiny.ratios)
    keys |= {"deepseek4.expert_count": N_EXPERTS, "general.name": "tiny deepseek4 with many experts"}
    write_gguf(path, keys, tensors)
    return per_layer * n_layers
