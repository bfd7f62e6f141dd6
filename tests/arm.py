"""Kernels for 64-bit ARM on a machine that is none: LLVM emits them here, gcc's cross linker makes libraries of them, and qemu
runs them, on this process's own memory.

The runner (C, below) is a guest process. It loads such libraries, and calls kernels in them at our request. Memory that a kernel
touches is ours: the runner's handler of faults reads the page at that address from /proc/PID/mem, and what a program changed is
written back when it has ended: whole pages would take back what other threads of the test wrote beside it. So a test runs what a
user's ARM machine would run, through the backend's public interface.

Debian: apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import llvmlite.binding as llb
import numpy as np
import pytest

from ds4py.kernels.cpu import backend
from ds4py.kernels.cpu.compile import Builder, Library
from ds4py.kernels.cpu.target import Target, describe

TRIPLE = "aarch64-unknown-linux-gnu"
COMPILER, EMULATOR, SYSTEM = "aarch64-linux-gnu-gcc", ("qemu-aarch64", "qemu-aarch64-static"), "/usr/aarch64-linux-gnu"
PR_SET_PTRACER, ANYBODY = 0x59616D61, -1
HIGH, ROOM = 0x7E << 40, 16 << 30  # where Linux maps; what a test may still map below what it has
AARCH64 = 183  # an ELF file's machine
RUNNER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 1 << 18 };
static int memory;
static unsigned long pages[MOST];
static char was[MOST][PAGE]; /* their content when they were read */
static int n_pages;

static void fail(const char *what) { fprintf(stderr, "runner: %s\n", what); _exit(3); }

static void fault(int number, siginfo_t *info, void *context) {
    unsigned long at = (unsigned long)info->si_addr / PAGE * PAGE;
    (void)number, (void)context;
    if (n_pages == MOST) fail("too many pages");
    void *page = mmap((void *)at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page != (void *)at) fail("a fault in the runner's own memory");
    if (pread(memory, page, PAGE, (off_t)at) != PAGE) fail("memory that is not there");
    memcpy(was[n_pages], page, PAGE);
    pages[n_pages++] = at;
}

/* Bytes that kernels changed, and no others: the rest of a page may be in use by other threads of the test. */
static void give_back(void) {
    for (int i = 0; i < n_pages; i++) {
        const char *now = (const char *)pages[i], *then = was[i];
        for (int from = 0; from < PAGE; from++) {
            int to = from;
            while (to < PAGE && now[to] != then[to]) to++;
            if (to > from && pwrite(memory, now + from, to - from, (off_t)(pages[i] + from)) != to - from)
                fail("a write to memory that is read-only");
            from = to;
        }
        munmap((void *)pages[i], PAGE);
    }
    madvise(was, (size_t)n_pages * PAGE, MADV_DONTNEED);
    n_pages = 0;
}

int main(int argc, char **argv) {
    char command[16], name[512], path[512];
    unsigned long address, record;
    long tid, threads;
    struct sigaction action = {0};
    (void)argc;
    memory = open(argv[1], O_RDWR);
    if (memory < 0) fail("cannot open the memory of the test");
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, 0);
    while (scanf("%15s", command) == 1) {
        if (!strcmp(command, "load") && scanf("%511s %511s", path, name) == 2) {
            void *library = dlopen(path, RTLD_NOW);
            void *found = library ? dlsym(library, name) : 0;
            if (!found) fail(dlerror());
            printf("%lu\n", (unsigned long)found);
        } else if (!strcmp(command, "call") && scanf("%lu %lu %ld %ld", &address, &record, &tid, &threads) == 4) {
            ((void (*)(long, long, long))address)((long)record, tid, threads);
        } else if (!strcmp(command, "end")) {
            give_back();
            puts("done");
        } else {
            fail("what?");
        }
        fflush(stdout);
    }
    return 0;
}
"""


def target() -> Target:
    """What runs on a 64-bit ARM machine: the plain path."""
    return describe("plain", TRIPLE)


class ArmLibrary:
    """Stands in for compile.Library: emits objects for ARM. `place` says at which address each of them lies."""

    def __init__(self, place: Callable[[str, bytes], int]) -> None:
        llb.initialize_all_targets()
        llb.initialize_all_asmprinters()
        self.target, self.place = target(), place
        self.objects: dict[str, bytes] = {}
        self.names: dict[int, str] = {}
        self._address: dict[str, int] = {}
        self._emitter = Library(self.target)
        triple = llb.Target.from_triple(TRIPLE)
        # position-independent, for a shared library; the instructions are chosen alike
        machine = triple.create_target_machine(cpu=self.target.cpu, features="", opt=2, reloc="pic", codemodel="small")
        self._emitter._machine = machine

    def load(self, kernels: Mapping[str, Builder]) -> dict[str, int]:
        for name, builder in kernels.items():
            if name not in self._address:
                self.objects[name] = self._emitter.emit(name, builder)
                self._address[name] = self.place(name, self.objects[name])
                self.names[self._address[name]] = name
        return {name: self._address[name] for name in kernels}


def missing_tools() -> str:
    """What an ARM program cannot be made or run for; "" if all is there."""
    if not sys.platform.startswith("linux"):
        return "ARM kernels run under qemu-user, which is for Linux"
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not installed"
    return "" if any(shutil.which(name) for name in EMULATOR) else f"{EMULATOR[0]} is not installed"


class Runner:
    """The guest process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        (self.folder / "runner.c").write_text(RUNNER)
        self._link("runner", "runner.c", "-O1", "-Wall", "-Werror")
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)  # where a system guards memory from other processes
        emulator = next(name for name in EMULATOR if shutil.which(name))
        command = [emulator, "-L", SYSTEM, str(self.folder / "runner"), f"/proc/{os.getpid()}/mem"]
        for _ in range(8):  # the guest sees our addresses: qemu must lie elsewhere, and systems draw lots for that
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert self._ask("end\n") == "done\n"
            ours, theirs = _mapped(os.getpid()), _mapped(self._process.pid)
            if ours[1] < theirs[0] or theirs[1] < ours[0] - ROOM:
                break
            self._process.kill()
            self._process.communicate()
        self.n_calls = 0
        self.library = ArmLibrary(self.place)  # what one test compiled serves the next

    def _link(self, out: str, *arguments: str) -> None:
        subprocess.run([COMPILER, "-o", out, *arguments, "-ldl", "-lm"], cwd=self.folder, check=True)

    def place(self, name: str, code: bytes) -> int:
        """Load an object; the address of the kernel `name` in the guest. Fails for a symbol that ARM's libc has not."""
        (self.folder / f"{name}.o").write_bytes(code)
        self._link(f"{name}.so", f"{name}.o", "-shared", "-Wl,-z,defs")
        return int(self._ask(f"load {self.folder / name}.so {name}\n"))

    def run(self, program: np.ndarray, n_threads: int) -> None:
        """The ops of a program, one after another, thread by thread."""
        calls = [f"call {int(op[0])} {op.ctypes.data} {tid} {n_threads}\n" for op in program for tid in range(n_threads)]
        self.n_calls += len(calls)
        assert self._ask("".join(calls) + "end\n") == "done\n"

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def _ask(self, lines: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(lines)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the runner ended with {self._process.wait()}"
        return answer


def _mapped(pid: int) -> tuple[int, int]:
    """Lowest and highest address of a process's libraries and large blocks."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    spans = [tuple(int(x, 16) for x in line.split()[0].split("-")) for line in lines if "[" not in line]
    high = [span for span in spans if HIGH <= span[0] < 1 << 47]
    return min(first for first, _ in high), max(last for _, last in high)


class ArmExecutor:
    """Stands in for executor.Executor. Without a runner nothing is computed: kernels are made, no more."""

    def __init__(self, n_threads: int, runner: Runner | None) -> None:
        self.n_threads, self.runner = n_threads, runner

    def run(self, program: np.ndarray, at: int = 0) -> None:
        if self.runner is not None:
            self.runner.run(program, self.n_threads)

    def close(self) -> None:
        pass


def arm_kernels(
    monkeypatch: pytest.MonkeyPatch, runner: Runner | None, threads: int = 2, max_rows: int = 65
) -> backend.CpuKernels:
    """The CPU backend as on an ARM machine; with `runner` None it compiles everything and computes nothing."""
    addresses = iter(range(1 << 20, 1 << 30, 16))
    library = runner.library if runner else ArmLibrary(lambda name, code: next(addresses))
    monkeypatch.setattr(backend, "target_for", lambda _: target())
    monkeypatch.setattr(backend, "Library", lambda *_, **__: library)
    monkeypatch.setattr(backend, "Executor", lambda _, n: ArmExecutor(n, runner))
    return backend.CpuKernels(threads, max_rows, "plain")


def undefined(code: bytes) -> set[str]:
    """Names that an ARM object wants from elsewhere (ELF64: header, sections, symbols). AssertionError for another file."""
    assert code[:5] == b"\x7fELF\x02" and struct.unpack_from("<H", code, 18) == (AARCH64,)
    (sections_at,), (size, n_sections) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + size * i) for i in range(n_sections)]
    found = set()
    for _, kind, _, _, at, n_bytes, link, _, _, _ in sections:
        if kind == 2:  # a table of symbols; `link` is that of its names
            for entry in range(at + 24, at + n_bytes, 24):
                name, _, _, section = struct.unpack_from("<IBBH", code, entry)
                if section == 0:
                    start = sections[link][4] + name
                    found.add(code[start : code.index(b"\0", start)].decode())
    return found
