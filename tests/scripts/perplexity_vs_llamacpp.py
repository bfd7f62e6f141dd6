"""Perplexity of one text by us and by llama.cpp, on the same file and the same token ids: within 0.5 %, or exit code 1.

    python tests/scripts/perplexity_vs_llamacpp.py [MODEL.gguf ...] [--kernels cpu] [--tokens 5000] [--float32]

The text is cut into windows of 1,024 tokens. Of each the first 32 tokens are context and the rest is scored, teacher-forced,
from an empty cache. llama.cpp runs in a process of its own: some of its builds crash on machines with AMX units, and that must
not look like a result of ours.

Both engines round activations, each in its own way, so single tokens differ by some hundredths; the standard error of the ratio
is printed, to tell how much of it is chance. `--float32` adds transformers' float32 model of the same file (slow).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEXT = Path(__file__).parent.parent / "golden" / "perplexity-text.txt"
N_CONTEXT = 32
WINDOW = 1024
BOUND = 0.005


def surprise(logits: np.ndarray, token: int) -> float:
    """-log p(token) under float32 logits [V], in float64."""
    shifted = logits.astype(np.float64) - logits.max()
    return float(np.log(np.exp(shifted).sum()) - shifted[token])


def their_side(model: Path, n_tokens: int) -> dict[str, Any]:
    """Runs in the other process: token ids of the windows by llama.cpp, and its surprise at each scored one."""
    from llama_cpp import Llama

    llm = Llama(str(model), n_ctx=WINDOW, n_batch=128, logits_all=True, n_threads=2, verbose=False)
    first = llm.tokenize(b"", add_bos=True)  # a BOS, only where the model's file wants one
    ids = llm.tokenize(TEXT.read_bytes(), add_bos=False)[:n_tokens]
    size = WINDOW - len(first)
    windows = [first + ids[at : at + size] for at in range(0, len(ids), size)]
    windows = [window for window in windows if len(window) > N_CONTEXT]
    surprises = []
    for window in windows:
        llm.reset()
        llm.eval(window)
        surprises += [surprise(llm.scores[i - 1], window[i]) for i in range(N_CONTEXT, len(window))]
    return {"windows": windows, "surprises": surprises}


def run_their_side(model: Path, n_tokens: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--their-side", str(model), "--tokens", str(n_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp ended with {done.returncode} on {model}:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def our_side(model: Path, windows: Sequence[Sequence[int]], kernels: str) -> list[float]:
    from ds4py.engine import Engine, EngineOptions
    from ds4py.gguf import open_gguf

    engine = Engine.open(open_gguf(model), EngineOptions(n_ctx=WINDOW, kernels=kernels))
    surprises = []
    for window in windows:
        session = engine.session()
        session.sync(window[:N_CONTEXT])
        at = N_CONTEXT
        for rows in session.force(window[N_CONTEXT:]):
            surprises += [surprise(row, window[at + i]) for i, row in enumerate(rows)]
            at += len(rows)
    return surprises


def float32_side(model: Path, windows: Sequence[Sequence[int]]) -> list[float]:
    import torch
    from fp32_regret import fp32_model

    exact = fp32_model(model)
    surprises = []
    for window in windows:
        logits = exact(torch.tensor([list(window)])).logits[0].numpy()
        surprises += [surprise(logits[i - 1], window[i]) for i in range(N_CONTEXT, len(window))]
    return surprises


def main() -> int:
    folder = Path(os.environ.get("DS4_TEST_MODELS", Path.home() / ".cache" / "ds4py" / "models"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help=f"all *.gguf of {folder} if none is given")
    parser.add_argument("--kernels", default="cpu")
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--their-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.their_side:
        print(json.dumps(their_side(options.their_side, options.tokens)))
        return 0
    failed = False
    for model in options.models or sorted(folder.glob("*.gguf")):
        theirs = run_their_side(model, options.tokens)
        a = np.array(our_side(model, theirs["windows"], options.kernels))
        b = np.array(theirs["surprises"])
        ratio, error = np.exp((a - b).mean()), (a - b).std() / np.sqrt(len(a))
        met = bool(abs(ratio - 1) <= BOUND)
        print(f"{model.name}: {len(a)} tokens, ours {np.exp(a.mean()):.4f}, llama.cpp {np.exp(b.mean()):.4f}, ", end="")
        print(f"ratio {ratio:.5f} +- {error:.5f} {'met' if met else 'NOT MET'}", flush=True)
        if options.float32:
            exact = np.array(float32_side(model, theirs["windows"]))
            print(f"  float32 {np.exp(exact.mean()):.4f}: ours {np.exp((a - exact).mean()):.5f} of it, ", end="")
            print(f"llama.cpp {np.exp((b - exact).mean()):.5f}", flush=True)
        failed |= not met
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
