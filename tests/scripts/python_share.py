"""How much of a decoded token is Python: the time outside compiled kernels, as a share of the whole.

    python tests/scripts/python_share.py MODEL.gguf [--tokens 200] [--rounds 9] [--threads 2] [--temp 0.8]

Counts as compiled what passes between entering and leaving machine code: the executor's programs and the draw of a token, timed
by machine code around them, so that timing adds nothing to Python. All else of `Session.generate` (schedule, accept rule, lookup
of recordings, cells, arguments) is Python. Goal: at most 5 %. Printed, not judged. It varies with what others leave of the last
cache: Python is fast while its own code and objects lie there.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import llvmlite.binding as llb
import numpy as np
from llvmlite import ir

from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.protocols import SamplingParams


class Stopwatch:
    """Adds up the time inside of a backend's machine code, from now on."""

    def __init__(self, kernels: CpuKernels) -> None:
        self._nanoseconds = np.zeros(1, np.int64)
        self._kept: list[object] = []
        for owner, name in ((kernels.executor, "_launch"), (kernels.executor, "_run"), (kernels.draw, "_run")):
            setattr(owner, name, self._around(getattr(owner, name)))

    def read(self) -> float:
        """Seconds since the last reading."""
        seconds = self._nanoseconds.item() / 1e9
        self._nanoseconds[0] = 0
        return seconds

    def _around(self, function: Any) -> Any:
        """`function`, a ctypes function of int64s, between two looks at the clock."""
        n_args, gives = len(function.argtypes), function.restype is not None
        i64, two = ir.IntType(64), ir.ArrayType(ir.IntType(64), 2)
        module = ir.Module("around")
        outer = ir.Function(module, ir.FunctionType(i64, [i64] * n_args), "around")
        clock = ir.Function(module, ir.FunctionType(ir.IntType(32), [ir.IntType(32), two.as_pointer()]), "clock_gettime")
        b = ir.IRBuilder(outer.append_basic_block())
        place = b.alloca(two)

        def now() -> Any:
            b.call(clock, [ir.Constant(ir.IntType(32), time.CLOCK_MONOTONIC), place])
            second, rest = (b.extract_value(b.load(place), k) for k in range(2))
            return b.add(b.mul(second, i64(10**9)), rest)

        kind = ir.FunctionType(i64 if gives else ir.VoidType(), [i64] * n_args)
        inner = b.inttoptr(i64(ctypes.cast(function, ctypes.c_void_p).value), kind.as_pointer())
        begun = now()
        result = b.call(inner, outer.args)
        passed = b.sub(now(), begun)
        total = b.inttoptr(i64(self._nanoseconds.ctypes.data), i64.as_pointer())
        b.store(b.add(b.load(total), passed), total)
        b.ret(result if gives else i64(0))
        machine = llb.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
        engine = llb.create_mcjit_compiler(llb.parse_assembly(str(module)), machine)
        engine.finalize_object()
        self._kept.append(engine)
        return type(function)(engine.get_function_address("around"))


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
    compiled = Stopwatch(kernels)
    print(f"{kernels.name}, {kernels.n_threads} threads, {args.rounds} x {args.tokens} tokens, temperature {args.temp:g}")
    shares = []
    for _ in range(args.rounds):
        session = engine.session(SessionOptions(SamplingParams(args.temp)))
        session.sync(list(range(1, 21)))
        whole, outside = list[float](), list[float]()
        compiled.read()
        begun = time.perf_counter()
        for _ in session.generate(args.tokens):
            now = time.perf_counter()
            whole.append(now - begun)
            outside.append(now - begun - compiled.read())
            begun = now
        token, python = median(whole[5:]), median(outside[5:])
        shares.append(python / token)
        print(f"a token {1000 * token:.2f} ms, of it Python {1000 * python:.3f} ms: {python / token:.1%}")
    print(f"median {median(shares):.1%}, {min(shares):.1%} to {max(shares):.1%} (goal: at most 5 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
