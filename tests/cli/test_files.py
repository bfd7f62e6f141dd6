"""Reading prompts, writing results: one sentence on failure, no half file under any name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4py.cli.files import read_text, result_file
from ds4py.errors import Ds4Error, FormatError, ResourceError


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffa\r\nb é\n".encode())
    assert read_text(str(path)) == "a\r\nb é\n"


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="no-such"):
        read_text(str(tmp_path / "no-such"))
    with pytest.raises(ResourceError, match="directory"):
        read_text(str(tmp_path))
    (tmp_path / "bin").write_bytes(b"abc\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8.*offset 3 is 0xff"):
        read_text(str(tmp_path / "bin"))


def test_a_result_replaces_the_old_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    with result_file(str(path)) as stream:
        stream.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["r.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), result_file(str(path)) as stream:
        stream.write("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_failure_of_the_work_keeps_its_own_sentence(tmp_path: Path) -> None:
    with pytest.raises(Ds4Error, match="^too long$"), result_file(str(tmp_path / "r")):
        raise Ds4Error("too long")
    assert os.listdir(tmp_path) == []


def test_missing_directory(tmp_path: Path) -> None:
    with (
        pytest.raises(ResourceError, match="gone.*cannot write.*; nothing was left behind"),
        result_file(str(tmp_path / "gone" / "r")),
    ):
        raise AssertionError("the block must not run")


def test_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(ResourceError, match="No space left"), result_file("/dev/full") as stream:
        stream.write("x" * 100_000)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with result_file(str(tmp_path / "link")) as stream:
        stream.write("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
