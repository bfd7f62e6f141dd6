"""Running a recorded program on all threads, without Python in between.

A program is an int64 array [n_ops, 16]: address of the op, whether a barrier must come first, then the op's arguments. Every
thread runs every op as op(record, tid, n_threads) and does its own share. Threads meet at counting barriers: each adds one to a
shared counter and waits until all have.

Waiting costs. Inside a program a thread spins for some microseconds, then yields its core again and again: another process may
hold the core that the missing thread needs. Between programs a worker spins for about a millisecond, long enough to catch the
next token, then goes to sleep on a semaphore; so nothing burns a core while a user thinks. Going to sleep is the classic
store-then-check: the worker raises its flag, then looks at the epoch again; the main thread raises the epoch, then looks at the
flags; one of them sees the other.

Rejected: OpenMP and torch's pools (not ours to load, and they spin or sleep by their own rules); one Python call per op (the
prototype's forward has 400 ops a token).
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder, Library, triple_of
from ds4py.kernels.cpu.ir import I32, I64, VOID, Fn, Val, Var, const
from ds4py.kernels.cpu.target import Target

RECORD = 16  # words of an op record; the first argument is word 2
LINE = 8  # words of a cache line
EPOCH, COUNTER, PROGRAM, N_OPS, QUIT, THREADS = 0, LINE, 2 * LINE, 2 * LINE + 1, 3 * LINE, 4 * LINE
SLEEPING, TARGET, SEEN = 0, 1, 2  # words of a thread's own line
PATIENCE = 400  # pauses (about 15 us) before a waiting thread starts to yield its core
PAUSES_PER_YIELD = 16
YIELDS_BEFORE_SLEEP = 2000  # of a worker between programs: about two milliseconds
MAX_THREADS = 63  # bits of launch()


def _pointer(f: Fn, at: Val) -> ir.Value:
    return f.b.inttoptr(at.v, ir.PointerType(I64))


def _atomic_load(f: Fn, at: Val, order: str = "acquire") -> Val:
    return Val(f, f.b.load_atomic(_pointer(f, at), ordering=order, align=8))


def _atomic_add(f: Fn, at: Val, n: int, order: str) -> Val:
    return Val(f, f.b.atomic_rmw("add", _pointer(f, at), const(I64, n), order))


def _atomic_swap(f: Fn, at: Val, value: int) -> Val:
    return Val(f, f.b.atomic_rmw("xchg", _pointer(f, at), const(I64, value), "seq_cst"))


def _relax(f: Fn, t: Target) -> None:
    """Tell the core that this is a spin loop."""
    if t.x86:
        f.call(f.declare("llvm.x86.sse2.pause", VOID, []))
    elif triple_of(t).startswith(("aarch64", "arm64")):
        f.call(f.declare("llvm.aarch64.hint", VOID, [I32]), f.c(I32, 1))


def _wait(f: Fn, t: Target, spins: Var) -> None:
    """One turn of a waiting loop: pause, and from `PATIENCE` turns on give the core away now and then."""
    _relax(f, t)
    spins.set(spins.get() + 1)
    with f.when(spins.get() >= PATIENCE + PAUSES_PER_YIELD):
        f.call(f.declare("sched_yield", I32, []))
        spins.set(f.i64(PATIENCE))


def run_program(t: Target) -> Builder:
    """void(ctrl, tid, nt): run the program that the control block points to, and meet at its end."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 3)
        ctrl, tid, nt = f.args
        own = ctrl + (tid * LINE + THREADS) * 8
        target = f.var(f.load(own + TARGET * 8, I64, 8))

        def barrier() -> None:
            with f.when(nt > 1):
                target.set(target.get() + nt)
                _atomic_add(f, ctrl + COUNTER * 8, 1, "acq_rel")
                spins = f.var(f.i64(0))
                with f.spin(lambda: _atomic_load(f, ctrl + COUNTER * 8) < target.get()):
                    _wait(f, t, spins)

        program, n_ops = f.load(ctrl + PROGRAM * 8, I64, 8), f.load(ctrl + N_OPS * 8, I64, 8)
        with f.loop(0, n_ops) as i:
            record = program + i * (RECORD * 8)
            with f.when(f.load(record + 8, I64, 8).ne(0)):
                barrier()
            f.call_address(f.load(record, I64, 8), record, tid, nt)
        barrier()
        f.store(own + TARGET * 8, target.get(), 8)
        f.ret()

    return build


def launch(t: Target) -> Builder:
    """i64(ctrl, nt, program, n_ops, address of run_program): hand the program to the workers and run it as thread 0. If workers
    (threads 1..63) sleep and must be woken, it only tells their bit set, and the caller wakes them and runs the program."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 5, I64)
        ctrl, nt, program, n_ops, run = f.args
        f.store(ctrl + PROGRAM * 8, program, 8)
        f.store(ctrl + N_OPS * 8, n_ops, 8)
        _atomic_add(f, ctrl + EPOCH * 8, 1, "seq_cst")
        asleep = f.var(f.i64(0))
        with f.loop(1, nt) as tid:
            was = _atomic_swap(f, ctrl + (tid * LINE + (THREADS + SLEEPING)) * 8, 0)
            asleep.set(asleep.get() | (was << tid))
        with f.when(asleep.get().eq(0)):
            f.call_address(run, ctrl, f.i64(0), nt)
        f.ret(asleep.get())

    return build


def worker(t: Target) -> Builder:
    """i64(ctrl, tid, nt, address of run_program): serve programs; returns 1 to sleep, 0 to quit."""

    def build(module: ir.Module, name: str) -> None:
        f = Fn(module, name, [I64] * 4, I64)
        ctrl, tid, nt, run = f.args
        own = ctrl + (tid * LINE + THREADS) * 8
        epoch, seen = ctrl + EPOCH * 8, own + SEEN * 8
        result, spins, turns = f.var(f.i64(-1)), f.var(f.i64(0)), f.var(f.i64(0))
        with f.spin(lambda: result.get() < 0):
            now = _atomic_load(f, epoch)
            with f.b.if_else(now.eq(f.load(seen, I64, 8)).v) as (same, new):
                with same:
                    _wait(f, t, spins)
                    turns.set(turns.get() + 1)
                    with f.when(f.load(ctrl + QUIT * 8, I64, 8).ne(0)):
                        result.set(f.i64(0))
                    with f.when(turns.get() > YIELDS_BEFORE_SLEEP * PAUSES_PER_YIELD):
                        _atomic_swap(f, own + SLEEPING * 8, 1)
                        with f.when(_atomic_load(f, epoch, "seq_cst").eq(f.load(seen, I64, 8))):
                            result.set(f.i64(1))
                        with f.when(result.get() < 0):
                            _atomic_swap(f, own + SLEEPING * 8, 0)
                with new:
                    f.store(seen, now, 8)
                    f.call_address(run, ctrl, tid, nt)
                    spins.set(f.i64(0))
                    turns.set(f.i64(0))
        f.ret(result.get())

    return build


class Executor:
    """A pool of n_threads - 1 workers and the calling thread."""

    def __init__(self, library: Library, n_threads: int):
        self.n_threads = min(n_threads, MAX_THREADS)
        self._library = library  # its code must outlive the threads
        t = library.target
        at = library.load({"run_program": run_program(t), "launch": launch(t), "worker": worker(t)})
        call = ctypes.CFUNCTYPE
        self._run = call(None, *[ctypes.c_int64] * 3)(at["run_program"])
        self._launch = call(ctypes.c_int64, *[ctypes.c_int64] * 5)(at["launch"])
        self._worker = call(ctypes.c_int64, *[ctypes.c_int64] * 4)(at["worker"])
        self._run_at = at["run_program"]
        self._memory = np.zeros((4 + self.n_threads) * LINE + LINE, np.int64)
        offset = (-self._memory.ctypes.data % 64) // 8
        self._control = self._memory[offset:]
        self._at = self._control.ctypes.data
        self._wake = [threading.Semaphore(0) for _ in range(self.n_threads)]
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._serve, args=(tid,), name=f"ds4-{tid}", daemon=True) for tid in range(1, self.n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, program: np.ndarray, at: int = 0) -> None:
        """Run a program [n_ops, RECORD] to its end. `at`: its address, from callers who know it."""
        with self._lock:
            asleep = self._launch(self._at, self.n_threads, at or program.ctypes.data, len(program), self._run_at)
            if not asleep:
                return
            for tid in range(1, self.n_threads):
                if asleep >> tid & 1:
                    self._wake[tid].release()
            self._run(self._at, 0, self.n_threads)

    def close(self) -> None:
        self._control[QUIT] = 1
        for semaphore in self._wake:
            semaphore.release()
        for thread in self._threads:
            thread.join(timeout=1)

    def _serve(self, tid: int) -> None:
        while self._worker(self._at, tid, self.n_threads, self._run_at):
            self._wake[tid].acquire()


def physical_cores() -> int:
    """Physical cores this process may run on (hyper-threads of one core count once)."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = set()
    for cpu in usable:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(path.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))
