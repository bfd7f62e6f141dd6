"""Where the time goes until the first token: a first start (no compiled kernels anywhere), and warm ones.

    python tests/scripts/start_up.py MODEL.gguf [--rounds 5] [--backend cpu:avx2] [--threads 2]

Each start is a process. The breakdown: Python and imports, opening the file, the tokenizer, the check of the processor's path
(first start only), compiling, repacking, the rest of loading, the first token of a short prompt. Then the whole `ds4` command,
from its start to its first byte of text. If llama-cpp-python is installed, it takes turns with the warm starts: import, load,
first token.

Goals: warm 1.5 s for SmolLM2-135M and at most a second more than llama.cpp; first start 15 s. Printed, not judged: a busy machine
would fail it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "The capital of France is"
STAGES = ("imports", "open file", "tokenizer", "check", "compile", "repack", "other loading", "first token")
LLAMA_STAGES = ("imports", "load", "first token")


def ours(begun: float, model: str, backend: str, threads: int | None) -> dict[str, float]:
    """Seconds of each stage, in this process, which was started at `begun` (time.monotonic)."""
    from ds4py.engine import Engine, EngineOptions, SessionOptions
    from ds4py.gguf import open_gguf
    from ds4py.kernels.cpu import choosing
    from ds4py.kernels.cpu.compile import Library
    from ds4py.kernels.cpu.weights import CpuWeight
    from ds4py.protocols import SamplingParams
    from ds4py.tokenizer import load_tokenizer

    at = [time.monotonic()]
    check = _watched(choosing, "check")
    compiling, packing = _watched(Library, "emit"), _watched(CpuWeight, "prepare")
    g = open_gguf(model)
    at.append(time.monotonic())
    tokenizer = load_tokenizer(g)
    ids = tokenizer.encode(PROMPT)
    at.append(time.monotonic())
    engine = Engine.open(g, EngineOptions(n_ctx=2048, threads=threads, kernels=backend))
    at.append(time.monotonic())
    checked, compiled, packed = check(), compiling(), packing()
    session = engine.session(SessionOptions(SamplingParams(0)))
    session.sync(ids)
    next(session.generate(1))
    at.append(time.monotonic())
    loading = at[3] - at[2]
    return {
        "imports": at[0] - begun,
        "open file": at[1] - at[0],
        "tokenizer": at[2] - at[1],
        "check": checked,
        "compile": compiled,
        "repack": packed,
        "other loading": loading - checked - compiled - packed,
        "first token": at[4] - at[3],
        "total": at[4] - begun,
    }


_OPEN: list[float] = []  # time that nested watched calls have taken, one entry for each that is open


def _watched(owner: Any, name: str) -> Callable[[], float]:
    """Adds up the seconds of owner.name, without those of watched functions that it calls. Gives the sum so far."""
    real, total = getattr(owner, name), [0.0]

    def run(*args: Any, **keywords: Any) -> Any:
        begun = time.monotonic()
        _OPEN.append(0.0)
        try:
            return real(*args, **keywords)
        finally:
            spent = time.monotonic() - begun
            total[0] += spent - _OPEN.pop()
            if _OPEN:
                _OPEN[-1] += spent

    setattr(owner, name, run)
    return lambda: total[0]


def llama_cpp(begun: float, model: str, threads: int | None) -> dict[str, float]:
    from llama_cpp import Llama

    at = [time.monotonic()]
    llama = Llama(model, n_ctx=2048, n_threads=threads, verbose=False)
    at.append(time.monotonic())
    llama.create_completion(PROMPT, max_tokens=1, temperature=0)
    at.append(time.monotonic())
    return {"imports": at[0] - begun, "load": at[1] - at[0], "first token": at[2] - at[1], "total": at[2] - begun}


def child(kind: str, args: argparse.Namespace, cache: Path) -> dict[str, float]:
    """One start in a process of its own."""
    command = [sys.executable, __file__, str(args.model), "--child", kind, "--backend", args.backend]
    command += ["--threads", str(args.threads)] if args.threads else []
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *_given()])}
    done = subprocess.run([*command, "--begun", repr(time.monotonic())], env=environment, capture_output=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def command(args: argparse.Namespace, cache: Path) -> float:
    """Seconds from the start of `ds4` to its first byte of text."""
    words = ["-m", "ds4py.cli.chat", "-m", str(args.model), "--raw", "-p", PROMPT, "-n", "1", "--temp", "0"]
    words += ["--backend", args.backend] + (["-t", str(args.threads)] if args.threads else [])
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *_given()])}
    begun = time.monotonic()
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen([sys.executable, *words], env=environment, stdout=pipe, stderr=nothing) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        spent = time.monotonic() - begun
        process.stdout.read()
    return spent


def _given() -> list[str]:
    return [part for part in [os.environ.get("PYTHONPATH", "")] if part]


def table(name: str, stages: tuple[str, ...], runs: list[dict[str, float]]) -> None:
    print(f"\n{name}, seconds" + (f" (median of {len(runs)}, least to most)" if len(runs) > 1 else ""))
    for stage in (*stages, "total"):
        values = [run[stage] for run in runs]
        spread = f"   {min(values):.3f} to {max(values):.3f}" if len(runs) > 1 else ""
        print(f"  {stage:14}{median(values):8.3f}{spread}")


def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cold = command(args, Path(folder) / "command")
        table("first start, nothing compiled", STAGES, [child("ours", args, Path(folder) / "cache")])
        print(f"  the ds4 command{cold:7.3f}")
        warm, theirs, commands = list[dict[str, float]](), list[dict[str, float]](), list[float]()
        has_llama = importlib.util.find_spec("llama_cpp") is not None
        for _ in range(args.rounds):
            warm.append(child("ours", args, Path(folder) / "cache"))
            commands.append(command(args, Path(folder) / "command"))
            if has_llama:
                theirs.append(child("llama_cpp", args, Path(folder)))
        table("warm start", STAGES, warm)
        print(f"  the ds4 command{median(commands):7.3f}   {min(commands):.3f} to {max(commands):.3f}")
        if not theirs:
            print("\nllama-cpp-python is not installed: no comparison")
            return
        table("llama-cpp-python", LLAMA_STAGES, theirs)
        more = median(w["total"] - t["total"] for w, t in zip(warm, theirs, strict=True))
        print(f"\nwarm first token: {more:+.3f} s against llama.cpp's (goal: at most +1)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--child", choices=("ours", "llama_cpp"), help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child == "ours":
        print(json.dumps(ours(args.begun, str(args.model), args.backend, args.threads)))
    elif args.child:
        print(json.dumps(llama_cpp(args.begun, str(args.model), args.threads)))
    else:
        compare(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
