"""Processors that this machine may not be: kernels for AVX-512 VNNI and AMX are run in software, on this process's own memory.

Bochs' CPU (the package bochscpu-python) executes the machine code that LLVM emitted. It knows AVX-512 VNNI; AMX it does not, so
tile instructions reach us as undefined ones and are executed here, from their bytes, by the rules of Intel's manual (volume 2:
LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBSSD, TILERELEASE). So a test runs what a user's machine would run, down to
encodings, signs and alignment; only speed cannot be seen.

The page tables map each gigabyte in which this process has memory; pages are handed over when they are first touched.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.kernels.cpu import backend
from ds4py.kernels.cpu.compile import Library
from ds4py.kernels.cpu.target import describe

PAGE, GIGABYTE, ROOT = 4096, 1 << 30, 0x1000
ICE_LAKE = 28  # index of the model in Bochs' list: AVX-512 VNNI
UNDEFINED = 6  # exception number
REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")


def bochs() -> Any:
    """The package, with the processor model chosen. Skips where it has no wheel; elsewhere its absence is a failure, since these
    are the only tests of the AVX-512 and AMX kernels on a processor without them."""
    flags = sys.getdlopenflags() if hasattr(sys, "getdlopenflags") else 0
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        pytest.skip("the emulated processor runs on Linux on x86-64 only")
    sys.setdlopenflags(os.RTLD_LAZY)  # its wheel names functions of a newer libc, which nothing here calls
    try:
        module = importlib.import_module("bochscpu")
    finally:
        sys.setdlopenflags(flags)
    (file,) = Path(module.__path__[0]).glob("_bochscpu*.so")
    library = ctypes.CDLL(str(file))
    library.sim_get_param_enum.restype = ctypes.c_void_p
    choose = library["_ZN15bx_param_enum_c3setEl"]
    choose.argtypes = [ctypes.c_void_p, ctypes.c_long]
    choose(library.sim_get_param_enum(b"cpu.model"), ICE_LAKE)
    return module


class Processor:
    """One emulated core. `call` runs a compiled function to its end."""

    def __init__(self) -> None:
        self.bochs = bochs()
        from bochscpu import memory

        self._memory = memory
        self._kept: list[np.ndarray] = []
        self._frames: dict[int, int] = {}  # gigabyte of our memory -> emulated physical gigabyte
        self._tables: dict[int, np.ndarray] = {}
        self._next_table = ROOT
        self._root = self._table()[1]
        self._stack, self._halt = self._pages(1 << 20), self._pages(PAGE)
        self._halt[:] = 0xF4
        self._session = self.bochs.Session()
        self._session.missing_page_handler = self._hand_over
        self._exception: tuple[int, int] | None = None
        self._hook = self.bochs.Hook()
        self._hook.hlt = lambda session, _: session.stop()
        self._hook.exception = self._note
        self.tiles = Tiles()
        self.libraries: list[Library] = []  # kept: the processor does not see that code has been replaced at an address

    def call(self, address: int, *args: int) -> None:
        """address(args...), all of them 64-bit integers. AssertionError for a fault."""
        self._map()
        state = self._fresh()
        for name, value in zip(ARGUMENTS, args, strict=False):
            setattr(state, name, value % 2**64)
        on_stack = [self._halt.ctypes.data, *args[len(ARGUMENTS) :]]
        sp = (self._stack.ctypes.data + len(self._stack) - PAGE) // 16 * 16 - 8 * (len(on_stack) | 1)
        for i, value in enumerate(on_stack):
            ctypes.c_int64.from_address(sp + 8 * i).value = value
        state.rsp, state.rip = sp, address
        self._session.cpu.state = state
        while True:
            self._exception = None
            self._session.run([self._hook])
            if self._exception is None:
                return
            state = self._session.cpu.state
            assert self._exception[0] == UNDEFINED, f"exception {self._exception} at {state.rip:x}, address {state.cr2:x}"
            self.tiles.execute(state)
            self._session.cpu.state = state

    # --- memory ---
    def _pages(self, n_bytes: int) -> np.ndarray:
        memory = np.zeros(n_bytes + PAGE, np.uint8)
        self._kept.append(memory)
        skip = -memory.ctypes.data % PAGE
        return memory[skip : skip + n_bytes]

    def _table(self) -> tuple[int, np.ndarray]:
        """Emulated address and entries of a new page table."""
        at, entries = self._next_table, self._pages(PAGE).view(np.uint64)
        self._next_table += PAGE
        self._memory.page_insert(at, entries.ctypes.data)
        return at, entries

    def _map(self) -> None:
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(x, 16) for x in line.split()[0].split("-"))
            for gigabyte in range(first // GIGABYTE, (last - 1) // GIGABYTE + 1):
                if gigabyte in self._frames or gigabyte >> 17:
                    continue
                self._frames[gigabyte] = len(self._frames) + 1
                if gigabyte >> 9 not in self._tables:
                    at, self._tables[gigabyte >> 9] = self._table()
                    self._root[gigabyte >> 9] = at | 7  # present, writable, user
                self._tables[gigabyte >> 9][gigabyte & 511] = self._frames[gigabyte] * GIGABYTE | 0x87  # and a large page

    def _hand_over(self, address: int) -> None:
        gigabyte = next(g for g, frame in self._frames.items() if frame == address // GIGABYTE)
        self._memory.page_insert(address // PAGE * PAGE, gigabyte * GIGABYTE + address % GIGABYTE // PAGE * PAGE)

    # --- running ---
    def _note(self, session: Any, _: int, vector: int, code: int) -> None:
        self._exception = vector, code
        session.stop()

    def _fresh(self) -> Any:
        """A core in 64-bit mode with all vector registers enabled."""
        from bochscpu import cpu

        state = self.bochs.State()
        cpu.set_long_mode(state)
        state.cr0 = int(state.cr0) | 1 << 1
        state.cr3, state.cr4 = ROOT, int(state.cr4) | 1 << 9 | 1 << 10 | 1 << 18
        state.xcr0, state.mxcsr, state.mxcsr_mask, state.rflags = 0xE7, 0x1F80, 0xFFFF, 2
        for name in ("cs", "ds", "es", "ss", "fs", "gs"):
            segment = self.bochs.Segment()
            segment.present, segment.base, segment.limit = True, 0, 0xFFFFFFFF
            segment.selector, segment.attr = (0x10, 0xA09B) if name == "cs" else (0x18, 0xC093)
            setattr(state, name, segment)
        return state


@dataclass(frozen=True)
class _Decoded:
    """A VEX instruction of the tile group: opcode, mandatory prefix, operands."""

    opcode: int
    prefix: int  # 0 none, 1: 66, 2: F3, 3: F2
    reg: int
    vvvv: int
    rm: int  # register operand, or -1
    base: int  # address without index
    stride: int  # scaled index
    length: int


class Tiles:
    """The tile registers and the instructions on them."""

    def __init__(self) -> None:
        self.rows = np.zeros(8, np.int64)
        self.row_bytes = np.zeros(8, np.int64)
        self.data = np.zeros((8, 16, 64), np.uint8)
        self.configured = False
        self.counts: dict[str, int] = {}

    def execute(self, state: Any) -> None:
        """Execute the instruction that ends at state.rip. AssertionError if it is none of ours."""
        lengths = range(5, 11)
        found = [at for n in lengths if (at := _decode(ctypes.string_at(state.rip - n, n), state)) and at.length == n]
        assert len(found) == 1, f"undefined instruction before {ctypes.string_at(state.rip - 10, 10).hex()}"
        at = found[0]
        name, run = {
            (0x49, 0, False): ("ldtilecfg", self._configure),
            (0x49, 0, True): ("tilerelease", self._release),
            (0x49, 3, True): ("tilezero", self._zero),
            (0x4B, 3, False): ("tileloadd", self._load),
            (0x4B, 2, False): ("tilestored", self._store),
            (0x5E, 3, True): ("tdpbssd", self._dot),
        }.get((at.opcode, at.prefix, at.rm >= 0), ("", None))
        assert run, f"no tile instruction: {at}"
        assert self.configured or name == "ldtilecfg", f"{name} without a configuration"
        run(at)
        self.counts[name] = self.counts.get(name, 0) + 1

    def _configure(self, at: _Decoded) -> None:
        config = np.frombuffer(ctypes.string_at(at.base, 64), np.uint8)
        assert config[0] == 1 and not config[1:16].any() and not config[32:48].any() and not config[56:].any()
        self.row_bytes, self.rows = config[16:32].view(np.uint16).astype(np.int64), config[48:56].astype(np.int64)
        assert (self.rows <= 16).all() and (self.row_bytes <= 64).all() and (self.row_bytes[:8] % 4 == 0).all()
        self.data[:] = 0
        self.configured = True

    def _release(self, _: _Decoded) -> None:
        self.configured = False
        self.data[:] = 0

    def _zero(self, at: _Decoded) -> None:
        self.data[at.reg] = 0

    def _load(self, at: _Decoded) -> None:
        rows, width = int(self.rows[at.reg]), int(self.row_bytes[at.reg])
        assert rows and width
        self.data[at.reg] = 0
        for r in range(rows):
            self.data[at.reg, r, :width] = np.frombuffer(ctypes.string_at(at.base + r * at.stride, width), np.uint8)

    def _store(self, at: _Decoded) -> None:
        rows, width = int(self.rows[at.reg]), int(self.row_bytes[at.reg])
        assert rows and width
        for r in range(rows):
            ctypes.memmove(at.base + r * at.stride, self.data[at.reg, r, :width].tobytes(), width)

    def _dot(self, at: _Decoded) -> None:
        """to[m][n] += signed bytes of a[m][k] . b[k][n], four at a time."""
        to, a, b = at.reg, at.rm, at.vvvv
        n_rows, n_quads, n_columns = int(self.rows[a]), int(self.row_bytes[a]) // 4, int(self.row_bytes[b]) // 4
        assert len({to, a, b}) == 3 and self.rows[b] == n_quads
        assert self.rows[to] == n_rows and self.row_bytes[to] == 4 * n_columns
        left = self.data[a, :n_rows].view(np.int8).reshape(n_rows, 16, 4)[:, :n_quads].astype(np.int32)
        right = self.data[b, :n_quads].view(np.int8).reshape(n_quads, 16, 4)[:, :n_columns].astype(np.int32)
        sums = self.data[to, :n_rows].view(np.int32)[:, :n_columns]
        sums += np.einsum("mkb,knb->mn", left, right)


def _decode(code: bytes, state: Any) -> _Decoded | None:
    """The instruction that begins with `code`, if it is of the tile group."""
    if code[0] != 0xC4 or code[1] & 31 != 2 or code[2] & 0x84 or code[3] not in (0x49, 0x4B, 0x5E):
        return None
    r, x, b = (not code[1] & bit for bit in (0x80, 0x40, 0x20))
    opcode, modrm = code[3], code[4]
    mode, reg, rm = modrm >> 6, modrm >> 3 & 7 | 8 * r, modrm & 7
    vvvv, prefix = ~(code[2] >> 3) & 15, code[2] & 3
    if mode == 3:
        return _Decoded(opcode, prefix, reg, vvvv, rm | 8 * b, 0, 0, 5)
    at, stride = 5, 0
    if rm == 4 and len(code) > 5:
        sib, at = code[5], 6
        scale, index, base = 1 << (sib >> 6), sib >> 3 & 7 | 8 * x, sib & 7 | 8 * b
        stride = getattr(state, REGISTERS[index]) * scale if index != 4 else 0
    else:
        base = rm | 8 * b
    if not mode and base & 7 == 5:  # an address without a base: not decoded here
        return None
    n = {0: 0, 1: 1, 2: 4}[mode]
    address = getattr(state, REGISTERS[base]) + int.from_bytes(code[at : at + n], "little", signed=True)
    return _Decoded(opcode, prefix, reg, vvvv, -1, address, stride, at + n)


class EmulatedExecutor:
    """Stands in for executor.Executor: runs a program's ops one after another, thread by thread."""

    def __init__(self, library: Library, n_threads: int, processor: Processor):
        self.n_threads, self.processor = n_threads, processor
        processor.libraries.append(library)

    def run(self, program: np.ndarray, at: int = 0) -> None:
        for record in program:
            for tid in range(self.n_threads):
                self.processor.call(int(record[0]), record.ctypes.data, tid, self.n_threads)

    def close(self) -> None:
        pass


def emulated_kernels(
    monkeypatch: pytest.MonkeyPatch, processor: Processor, path: str, threads: int = 2, max_rows: int = 65
) -> backend.CpuKernels:
    """The CPU backend on `processor`, for a path that this machine may lack."""
    executor: Callable[[Library, int], EmulatedExecutor] = lambda library, n: EmulatedExecutor(library, n, processor)  # noqa: E731
    monkeypatch.setattr(backend, "target_for", describe)
    monkeypatch.setattr(backend, "Executor", executor)
    return backend.CpuKernels(threads, max_rows, path)
