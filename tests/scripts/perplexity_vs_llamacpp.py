"""Perplexity of one text by us and by llama.cpp, on the same file and the same token ids: within 0.5 %, or exit code 1.

    python tests/scripts/perplexity_vs_llamacpp.py [MODEL.gguf ...] [--kernels cpu] [--path row|prefill] [--float32]

The first 32 tokens are context, the following ones are scored, teacher-forced, in one pass from an empty cache. llama.cpp runs
in a process of its own: some of its builds crash on machines with AMX units, and that must not look like a result of ours.

Both engines round activations, so both differ from the float32 model, on gemma-3-270m by more than 0.5 % from each other.
`--float32` adds the perplexity of transformers' float32 model of the same file, to tell whose error it is: it is then enough to be
within 0.5 % of that one where llama.cpp is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEXT = Path(__file__).parent.parent / "golden" / "alice.txt"
N_CONTEXT = 32
BOUND = 0.005


def surprise(logits: np.ndarray, token: int) -> float:
    """-log p(token) under float32 logits [V], in float64."""
    shifted = logits.astype(np.float64) - logits.max()
    return float(np.log(np.exp(shifted).sum()) - shifted[token])


def perplexity(surprises: Sequence[float]) -> float:
    return float(np.exp(np.mean(surprises)))


def their_side(model: Path, n_tokens: int) -> dict[str, Any]:
    """Runs in the other process: token ids of the text by llama.cpp, and its surprise at each scored one."""
    from llama_cpp import Llama

    llm = Llama(str(model), n_ctx=n_tokens, n_batch=128, logits_all=True, n_threads=2, verbose=False)
    ids = llm.tokenize(TEXT.read_bytes(), add_bos=True)[:n_tokens]  # add_bos: only where the model's file wants one
    llm.eval(ids)
    return {"ids": ids, "surprises": [surprise(llm.scores[i - 1], ids[i]) for i in range(N_CONTEXT, len(ids))]}


def our_logits(model_path: Path, ids: Sequence[int], kernels_name: str, path: str) -> Iterator[np.ndarray]:
    """Logits after each token, [V] each."""
    from ds4py.gguf import open_gguf
    from ds4py.kernels import open_kernels
    from ds4py.models import load_model
    from ds4py.protocols import Span

    kernels = open_kernels(kernels_name)
    model = load_model(open_gguf(model_path), kernels)
    state, tile = model.new_state(len(ids), slack=0), kernels.prefill_tile
    n_tiled = len(ids) // tile * tile if tile and path == "prefill" else 0
    if path == "prefill" and not n_tiled:
        raise SystemExit(f"{kernels.name} has no prefill path")
    step = kernels.max_rows // (tile or 1) * (tile or 1)
    while state.pos < len(ids):
        end = min(state.pos + step, n_tiled if state.pos < n_tiled else len(ids))
        chunk = ids[state.pos : end]
        yield from model.forward([Span(state, chunk, n_logits=len(chunk))], path="prefill" if end <= n_tiled else "row").of(0)


def our_side(model: Path, ids: Sequence[int], kernels_name: str, path: str) -> list[float]:
    rows = our_logits(model, ids, kernels_name, path)
    return [surprise(row, ids[i]) for i, row in enumerate(rows, 1) if N_CONTEXT <= i < len(ids)]


def float32_side(model: Path, ids: Sequence[int]) -> list[float]:
    import torch
    from fp32_regret import fp32_model

    logits = fp32_model(model)(torch.tensor([list(ids)])).logits[0].numpy()
    return [surprise(logits[i - 1], ids[i]) for i in range(N_CONTEXT, len(ids))]


def run_their_side(model: Path, n_tokens: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--their-side", str(model), "--tokens", str(n_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp ended with {done.returncode} on {model}:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    folder = Path(os.environ.get("DS4_TEST_MODELS", Path.home() / ".cache" / "ds4py" / "models"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help=f"all *.gguf of {folder} if none is given")
    parser.add_argument("--kernels", default="cpu")
    parser.add_argument("--path", default="row", choices=("row", "prefill"))
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--their-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.their_side:
        print(json.dumps(their_side(options.their_side, options.tokens)))
        return 0
    failed = False
    for model in options.models or sorted(folder.glob("*.gguf")):
        theirs = run_their_side(model, options.tokens)
        ids, b = theirs["ids"], perplexity(theirs["surprises"])
        ours = our_side(model, ids, options.kernels, options.path)
        a = perplexity(ours)
        met = len(ours) == len(theirs["surprises"]) and abs(a / b - 1) <= BOUND
        print(f"{model.name}: {len(ours)} tokens, ours {a:.4f} ({options.kernels}, {options.path}), llama.cpp {b:.4f}, ", end="")
        print(f"ratio {a / b:.5f} {'met' if met else 'NOT MET'}", flush=True)
        if options.float32:
            exact = perplexity(float32_side(model, ids))
            met |= abs(a / exact - 1) <= BOUND < abs(b / exact - 1)
            print(f"  float32 {exact:.4f}: ours {a / exact:.5f}, llama.cpp {b / exact:.5f} of it, {'met' if met else 'NOT MET'}", flush=True)
        failed |= not met
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
