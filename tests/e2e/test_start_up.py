"""Starts as processes: what is imported until the first token, and first starts under bad conditions.

Times are printed by tests/scripts/start_up.py; here it is what decides them, and that no condition of the cache changes the text.
"""

from __future__ import annotations

import os
import pty
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_gguf

from ds4py.kernels.cpu import compile
from ds4py.kernels.cpu.target import host_paths

HEAVY = (
    "torch", "numba", "transformers", "tensorflow", "scipy", "pandas", "matplotlib", "gguf", "llama_cpp", "bochscpu", "triton",
    "huggingface_hub", "httpx", "requests", "starlette", "uvicorn", "msgspec", "llguidance", "prompt_toolkit", "asyncio",
)  # fmt: skip
BEST = host_paths()[0]
ARGUMENTS = ("--raw", "-p", "the hat", "-n", "12", "--temp", "0", "-c", "64")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf("llama", tmp_path_factory.mktemp("start") / "tiny.gguf")


def start(model: Path, cache: Path | str, *more: str, prepare: Callable[[], None] | None = None, **keywords: Any) -> Any:
    """The ds4 command with its kernels in `cache`, running."""
    command = [sys.executable, "-m", "ds4py.cli.chat", "-m", str(model), *ARGUMENTS, *more]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    keywords.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, preexec_fn=prepare, **keywords)


def text(process: Any) -> bytes:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and b"Traceback" not in (err or b""), err
    return bytes(out)


@pytest.fixture(scope="module")
def right(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """The text, and a cache with all that it took to make it."""
    cache = tmp_path_factory.mktemp("full")
    made = text(start(tiny, cache, "--backend", f"cpu:{BEST}"))
    assert len(made) >= 12
    return made, cache


def objects(cache: Path) -> list[Path]:
    """Compiled kernels in a cache; AssertionError for anything half-written."""
    files = [file for file in cache.rglob("*") if file.is_file()]
    assert all(file.suffix in (".o", ".json") for file in files), "a temporary file was left behind"
    return sorted(file for file in files if file.suffix == ".o")


def test_nothing_heavy_is_imported_until_the_first_token(smollm2_path: Path) -> None:
    """The whole command on a real model and its template. torch alone would take seconds, each of the others a tenth or more."""
    code = (
        "import sys\nfrom ds4py.cli.chat import main\n"
        "code = main(sys.argv[1:])\n"
        f"print(sorted(m for m in {HEAVY!r} if m in sys.modules), 'llvmlite' in sys.modules, len(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    command = [sys.executable, "-c", code, "-m", str(smollm2_path), "-p", "hi", "-n", "1", "--temp", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    heavy, llvmlite, n_modules = done.stderr.splitlines()[-1].rsplit(" ", 2)
    assert (heavy, llvmlite) == ("[]", "True") and int(n_modules) < 900


def test_first_starts_at_the_same_time_agree(tiny: Path, right: tuple[bytes, Path], tmp_path: Path) -> None:
    """Three processes check, compile and write the same files; a fourth finds them whole."""
    processes = [start(tiny, tmp_path) for _ in range(3)]
    assert [text(process) for process in processes] == [right[0]] * 3
    names = [file.relative_to(tmp_path) for file in objects(tmp_path)]
    assert len(names) > 15
    written = {file: file.stat().st_mtime_ns for file in objects(tmp_path)}
    assert text(start(tiny, tmp_path)) == right[0]
    assert {file: file.stat().st_mtime_ns for file in objects(tmp_path)} == written, "something was compiled again"


@pytest.mark.parametrize("where", ["/dev/null", "/proc/nowhere", "a file"])
def test_a_cache_that_cannot_be_written(where: str, tiny: Path, right: tuple[bytes, Path], tmp_path: Path) -> None:
    """A read-only home, for all that a program can see of it."""
    if where == "a file":
        (tmp_path / "file").write_text("in the way")
        where = str(tmp_path / "file")
    assert text(start(tiny, where, "--backend", f"cpu:{BEST}")) == right[0]


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    compile.write_whole(compile.cache_root() / "kernel.o", b"x")
    assert not compile.cache_root().exists()


def test_a_full_disk_costs_the_cache_and_leaves_nothing_half_written(
    tiny: Path, right: tuple[bytes, Path], tmp_path: Path
) -> None:
    """Files may grow to 3,000 bytes here: what is larger ends in the middle of writing, as on a disk that is full."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # noqa: E731
    assert text(start(tiny, tmp_path, "--backend", f"cpu:{BEST}", prepare=limit)) == right[0]
    kept = objects(tmp_path)
    assert len(kept) < len(objects(right[1])) and all(file.stat().st_size <= 3000 for file in kept)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "another's"])
def test_damaged_kernels_are_compiled_again(damage: str, tiny: Path, right: tuple[bytes, Path]) -> None:
    files = objects(right[1])
    whole = {file: file.read_bytes() for file in files}
    for file, other in zip(files, [*files[1:], files[0]], strict=True):
        content = whole[file]
        noise = content[:100] + bytes(byte ^ 0x5A for byte in content[100:])
        swapped = whole[other][:32] + content[32:]
        file.write_bytes({"cut": content[:-9], "empty": b"", "noise": noise, "another's": swapped}[damage])
    assert text(start(tiny, right[1], "--backend", f"cpu:{BEST}")) == right[0]
    assert {file: file.read_bytes() for file in objects(right[1])} == whole, "they were not made again"


def test_a_terminal_sees_that_kernels_are_compiled(tiny: Path, right: tuple[bytes, Path], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = start(tiny, tmp_path, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert text(process) == right[0]
    assert b"compiling kernels for this processor, once: 1" in seen
    assert (b"checking this processor's sums" in seen) == (BEST != "plain")
