"""What a token of DeepSeek V4 Flash spends where, kernel by kernel: layers of the real shape with random weights.

    python tests/scripts/v4_layer_cost.py [--depth 4000] [--rows 1] [--threads 2] [--paths avx512,avx2] [--folder DIR]

Makes a file (some 300 MB) for each kind of layer (no pool, groups of 4 with the indexer, groups of 128) with 12 experts in
the types of ds4's Q2 files, runs one forward at the given depth, and times every kernel call of its program by itself.
Layers are then counted as the model has them (2, 21, 20). Barriers are not in it, and a large cache may hold much of so
small a file: products are a lower bound, all else is what it costs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from products import random_blocks
from tiny_models import tokenizer_keys

from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.models import load_model
from ds4py.protocols import Span

D, N_HEADS, HEAD, RANK, GROUPS, STREAMS, N_FF, N_EXPERTS, TAKEN, N_VOCAB = 4096, 64, 512, 1024, 8, 4, 2048, 12, 6, 1024
INDEX_HEADS, INDEX_LEN, TOP_K, REPEATS = 64, 128, 512, 7
KINDS = {0: 2, 4: 21, 128: 20}  # positions per pool entry -> layers of the real model
T = GgmlType
PRODUCTS = ("each", "driver", "tiles", "few", "float", "iq2", "by_rows")


def tensors(ratio: int, rng: np.random.Generator) -> list[NewTensor]:
    """A model of one layer."""
    made = []

    def matrix(name: str, n_out: int, n_in: int, kind: GgmlType, n: int = 0) -> None:
        n_values = n_out * n_in
        block = random_blocks(kind, min(n_values, 1 << 20), rng)
        data = (block * (-(-n_values // (1 << 20)) if n_values > 1 << 20 else 1)) * max(n, 1)
        made.append(NewTensor(name, (n_in, n_out, n) if n else (n_in, n_out), kind, data))

    def vector(name: str, n: int) -> None:
        made.append(NewTensor.of(name, (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)))

    matrix("token_embd.weight", N_VOCAB, D, T.F16)
    matrix("output.weight", N_VOCAB, D, T.Q8_0)
    vector("output_norm.weight", D)
    matrix("output_hc_fn.weight", STREAMS, STREAMS * D, T.F16)
    vector("output_hc_base.weight", STREAMS)
    vector("output_hc_scale.weight", 1)
    for site in ("attn", "ffn"):
        matrix(f"blk.0.hc_{site}_fn.weight", STREAMS * (STREAMS + 2), STREAMS * D, T.F16)
        vector(f"blk.0.hc_{site}_base.weight", STREAMS * (STREAMS + 2))
        vector(f"blk.0.hc_{site}_scale.weight", 3)
        vector(f"blk.0.{site}_norm.weight", D)
    matrix("blk.0.attn_q_a.weight", RANK, D, T.Q8_0)
    vector("blk.0.attn_q_a_norm.weight", RANK)
    matrix("blk.0.attn_q_b.weight", N_HEADS * HEAD, RANK, T.Q8_0)
    matrix("blk.0.attn_kv.weight", HEAD, D, T.Q8_0)
    vector("blk.0.attn_kv_a_norm.weight", HEAD)
    vector("blk.0.attn_sinks.weight", N_HEADS)
    matrix("blk.0.attn_output_a.weight", GROUPS * RANK, N_HEADS * HEAD // GROUPS, T.Q8_0)
    matrix("blk.0.attn_output_b.weight", D, GROUPS * RANK, T.Q8_0)
    parts = [("attn", HEAD)] if ratio else []
    for name, width in (*parts, ("indexer", INDEX_LEN)) if ratio == 4 else parts:
        w = width * (2 if ratio == 4 else 1)
        matrix(f"blk.0.{name}_compressor_ape.weight", ratio, w, T.F16)
        matrix(f"blk.0.{name}_compressor_kv.weight", w, D, T.F16)
        matrix(f"blk.0.{name}_compressor_gate.weight", w, D, T.F16)
        vector(f"blk.0.{name}_compressor_norm.weight", width)
    if ratio == 4:
        matrix("blk.0.indexer.attn_q_b.weight", INDEX_HEADS * INDEX_LEN, RANK, T.F16)
        matrix("blk.0.indexer.proj.weight", INDEX_HEADS, D, T.F16)
    matrix("blk.0.ffn_gate_inp.weight", N_EXPERTS, D, T.F16)
    vector("blk.0.exp_probs_b.bias", N_EXPERTS)
    for part, kind in (("gate", T.IQ2_XXS), ("up", T.IQ2_XXS), ("down", T.Q2_K)):
        n_out, n_in = (D, N_FF) if part == "down" else (N_FF, D)
        matrix(f"blk.0.ffn_{part}_exps.weight", n_out, n_in, kind, N_EXPERTS)
        matrix(f"blk.0.ffn_{part}_shexp.weight", n_out, n_in, T.Q8_0)
    return made


def metadata(ratio: int) -> dict[str, Any]:
    own: dict[str, Any] = {
        "block_count": 1, "embedding_length": D, "vocab_size": N_VOCAB, "context_length": 1 << 20,
        "attention.head_count": N_HEADS, "attention.head_count_kv": 1, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.q_lora_rank": RANK, "attention.output_lora_rank": RANK,
        "attention.output_group_count": GROUPS, "attention.sliding_window": 128,
        "attention.compress_ratios": [ratio], "attention.compress_rope_freq_base": 160000.0,
        "attention.indexer.head_count": INDEX_HEADS, "attention.indexer.key_length": INDEX_LEN,
        "attention.indexer.top_k": TOP_K, "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": 64,
        "rope.freq_base": 10000.0, "expert_count": N_EXPERTS, "expert_used_count": TAKEN, "expert_shared_count": 1,
        "expert_feed_forward_length": N_FF, "expert_weights_scale": 1.5, "expert_weights_norm": True, "hash_layer_count": 0,
        "swiglu_clamp_exp": [10.0], "hyper_connection.count": STREAMS,
        "hyper_connection.sinkhorn_iterations": 20, "hyper_connection.epsilon": 1e-6,
    }  # fmt: skip
    return {
        "general.architecture": "deepseek4",
        **{f"deepseek4.{key}": value for key, value in own.items()},
        **tokenizer_keys(N_VOCAB),
    }


def timed(path: Path, hardware: str, threads: int, depth: int, n_rows: int) -> Counter[str]:
    """Milliseconds of the layer's kernels for n_rows rows at `depth`, each the best of a few calls by itself."""
    kernels = CpuKernels(threads, max(n_rows, 8), hardware)
    model = load_model(open_gguf(path), kernels)
    state = model.new_state(depth + 64, 8)
    state.advance(depth, False)
    model.forward([Span(state, list(range(n_rows)), n_rows)])  # compiles, packs experts
    (program,) = (made for key, made in kernels._programs.items() if key[1:3] == (n_rows, n_rows))  # type: ignore[index]
    names = [kernels.library.names.get(int(op[0]), "?") for op in program.ops]
    last = max(i for i, name in enumerate(names) if name.startswith("renew"))
    spent: Counter[str] = Counter()
    for op, name in list(zip(program.ops, names, strict=True))[: last + 1]:
        if name.startswith("embed"):
            continue
        times = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            kernels.executor.run(op[None].copy())
            times.append(1e3 * (time.perf_counter() - begun))
        spent[name] += min(times)
    kernels.executor.close()
    return spent


def report(spent: Counter[str]) -> list[str]:
    """Kernels by what they take of a token of the whole model."""
    total, experts = sum(spent.values()), sum(ms for name, ms in spent.items() if name == "each")
    products = sum(ms for name, ms in spent.items() if name.startswith(PRODUCTS)) - experts
    lines = [f"{ms:9.2f} ms {100 * ms / total:5.1f} %  {name}" for name, ms in spent.most_common() if ms > 0.002 * total]
    shares = f"experts' products {experts:.1f} ms, other products {products:.1f} ms, the rest {total - experts - products:.1f} ms"
    return [*lines, f"{total:9.2f} ms in 43 layers: {shares}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--paths", default=host_paths()[0])
    parser.add_argument("--folder", type=Path, help="where the files are kept (default: made and removed)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for ratio in KINDS:
            if not (folder / f"layer{ratio}.gguf").exists():
                write_gguf(folder / f"layer{ratio}.gguf", metadata(ratio), tensors(ratio, np.random.default_rng(ratio)))
        for hardware in options.paths.split(","):
            spent: Counter[str] = Counter()
            for ratio, n_layers in KINDS.items():
                own = timed(folder / f"layer{ratio}.gguf", hardware, options.threads, options.depth, options.rows)
                spent.update({name: ms * n_layers for name, ms in own.items()})
            print(f"cpu:{hardware}, {options.threads} threads, {options.rows} rows at position {options.depth:,}")
            print("\n".join(report(spent)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
