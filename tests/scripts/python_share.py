"""How much of a decoded token is Python: the time outside compiled kernels, as a share of the whole.

    python tests/scripts/python_share.py MODEL.gguf [--tokens 200] [--rounds 9] [--threads 2] [--temp 0.8]

Counts as compiled what passes between entering and leaving machine code: the executor's programs and the draw of a token. All
else of `Session.generate` (schedule, accept rule, recording lookups, cells, arguments) is Python. Goal: at most 5 %. Printed,
not judged. It varies with what others leave of the last cache: Python is fast while its own code and objects lie there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.protocols import SamplingParams


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--temp", type=float, default=0.0)
    args = parser.parse_args()
    engine = Engine.open(open_gguf(args.model), EngineOptions(n_ctx=args.tokens + 64, threads=args.threads))
    kernels = engine.kernels
    assert isinstance(kernels, CpuKernels)
    compiled = [0.0]

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return run(*arguments)
            finally:
                compiled[0] += time.perf_counter() - begun

        return call

    for owner, name in ((kernels.executor, "_launch"), (kernels.executor, "_run"), (kernels.draw, "_run")):
        setattr(owner, name, timed(getattr(owner, name)))
    print(f"{kernels.name}, {kernels.n_threads} threads, {args.rounds} x {args.tokens} tokens, temperature {args.temp:g}")
    shares = []
    for _ in range(args.rounds):
        session = engine.session(SessionOptions(SamplingParams(args.temp)))
        session.sync(list(range(1, 21)))
        whole, outside = list[float](), list[float]()
        compiled[0], begun = 0.0, time.perf_counter()
        for _ in session.generate(args.tokens):
            now = time.perf_counter()
            whole.append(now - begun)
            outside.append(now - begun - compiled[0])
            compiled[0], begun = 0.0, now
        token, python = median(whole[5:]), median(outside[5:])
        shares.append(python / token)
        print(f"a token {1000 * token:.2f} ms, of it Python {1000 * python:.3f} ms: {python / token:.1%}")
    print(f"median {median(shares):.1%}, {min(shares):.1%} to {max(shares):.1%} (goal: at most 5 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
