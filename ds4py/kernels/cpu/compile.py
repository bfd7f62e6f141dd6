"""From kernel builders to machine code, with an object cache on disk.

Every kernel is its own small module and its own object file, so a new model compiles only what no earlier model needed. The
cache folder's name is a hash of target and LLVM version; a file's name holds one of the sources its kernel is built from, so an
upgrade compiles again what it changed. A file is the SHA-256 of the object followed by the object, written under a temporary
name and renamed, so concurrent starts and crashes are harmless and a damaged file is simply compiled again. A read-only home
costs the cache, nothing else.

Rejected: one module per model (any new quant type would recompile everything); LLVM's own ORC cache (not reachable from
llvmlite).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import llvmlite
import llvmlite.binding as llb
from llvmlite import ir

from ds4py.kernels.cpu.target import Target

Builder = Callable[[ir.Module, str], None]  # adds one function of the given name to the module


def cache_root() -> Path:
    """Where compiled kernels are kept. A user without a home (a container's numeric one) gets a place that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ds4py" / "kernels"
    except RuntimeError:
        return Path(os.devnull) / "ds4py"


def write_whole(path: Path, content: bytes) -> None:
    """Make `path` hold `content`, or leave everything as it was: a full disk or a home that is read-only is no failure."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)


class Library:
    """Compiled kernels of one target, by name. Compilation happens on first request; addresses stay valid as long as it lives."""

    def __init__(self, target: Target, cache: Path | None = None, progress: Callable[[int, int], None] | None = None):
        llb.initialize_native_target()
        llb.initialize_native_asmprinter()
        self.target = target
        self.progress = progress
        self._machine = _machine(target)
        self._engines: list[llb.ExecutionEngine] = []
        self._address: dict[str, int] = {}
        self.names: dict[int, str] = {}  # of loaded kernels, by address
        self._folder = (cache or cache_root()) / f"{target.path}-{_fingerprint(target)}"
        self._sources: dict[str, str] = {}  # file -> hash
        self.n_compiled = 0  # kernels that were not in the cache

    def load(self, kernels: Mapping[str, Builder]) -> dict[str, int]:
        """Addresses of the named kernels; compiles what is neither loaded nor cached."""
        todo = [name for name in kernels if name not in self._address]
        if todo:
            engine = llb.create_mcjit_compiler(llb.parse_assembly(""), _machine(self.target))
            misses = [name for name in todo if not os.path.exists(self._path(name, kernels[name]))]
            for name in todo:
                engine.add_object_file(llb.ObjectFileRef.from_data(self._object(name, kernels[name], len(misses))))
            engine.finalize_object()
            self._engines.append(engine)
            for name in todo:
                self._address[name] = engine.get_function_address(name)
                self.names[self._address[name]] = name
        return {name: self._address[name] for name in kernels}

    def emit(self, name: str, builder: Builder) -> bytes:
        """Object code of one kernel, bypassing the cache."""
        module = ir.Module(name)
        module.triple = triple_of(self.target)
        builder(module, name)
        parsed = llb.parse_assembly(str(module))
        parsed.verify()
        options = llb.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = False  # vectors are explicit; keep code size and time low
        options.loop_unrolling = True
        passes = llb.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(parsed, passes)
        return self._machine.emit_object(parsed)

    def assembly(self, name: str, builder: Builder) -> str:
        """Assembly text of one kernel, for people and for tests of instruction selection."""
        module = ir.Module(name)
        module.triple = triple_of(self.target)
        builder(module, name)
        return self._machine.emit_assembly(llb.parse_assembly(str(module)))

    def _path(self, name: str, builder: Builder) -> Path:
        source = sys.modules[builder.__module__].__file__ or ""
        if source not in self._sources:
            texts = [path.read_bytes() for path in sorted(_with_imports(Path(source)))]
            self._sources[source] = hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]
        return self._folder / f"{name}-{self._sources[source]}.o"

    def _object(self, name: str, builder: Builder, total: int) -> bytes:
        path = self._path(name, builder)
        with contextlib.suppress(OSError):
            blob = path.read_bytes()
            if hashlib.sha256(blob[32:]).digest() == blob[:32]:
                return blob[32:]
        code = self.emit(name, builder)
        self.n_compiled += 1
        if self.progress:
            self.progress(self.n_compiled, max(total, self.n_compiled))
        write_whole(path, hashlib.sha256(code).digest() + code)
        return code


def triple_of(target: Target) -> str:
    """LLVM's name of the system that code for `target` runs on."""
    return target.triple or str(llb.get_process_triple())


def _machine(target: Target) -> llb.TargetMachine:
    triple = llb.Target.from_triple(triple_of(target))
    return triple.create_target_machine(cpu=target.cpu, features=target.features, opt=2, codemodel="jitdefault", jit=True)


def _fingerprint(target: Target) -> str:
    parts = (target, llvmlite.__version__, llb.llvm_version_info, llb.get_process_triple())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _with_imports(source: Path, found: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """`source` and the modules beside it that it imports, directly or through each other."""
    found |= {source}
    for one, several in re.findall(r"^ *from ds4py\.kernels\.cpu(?:\.(\w+)| import (.+)$)", source.read_text(), re.MULTILINE):
        for name in (one or several).split(","):
            path = Path(__file__).with_name(name.strip() + ".py")
            if path not in found and path.exists():
                found |= _with_imports(path, found)
    return found
