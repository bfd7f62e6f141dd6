"""What is here already: finished files, the hub's cache, notes about checked files, full disks."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from download_bench import CONTENT, FILE, HASTY, REPO, Bench
from loopback_hub import Fault

from ds4py.errors import FormatError, ResourceError
from ds4py.hub import Listeners, Policy, cache, fetching
from ds4py.hub.choosing import plans_of, reference
from ds4py.hub.part import Part


class TestFinished:
    def test_it_is_hashed_once_and_then_known(self, bench: Bench) -> None:
        bench.fetch()
        read: list[int] = []
        heard = Listeners(checking=lambda name, done, total: read.append(done))
        bench.said.clear()
        fetching.fetch_files(bench.hub(), ((REPO, _all),), bench.folder, heard)
        assert read == []
        fetching.fetch_files(bench.hub(), ((REPO, _all),), bench.folder, heard, Policy(verify=True))
        assert read[-1] == len(CONTENT)

    def test_one_that_was_put_there_is_hashed(self, bench: Bench) -> None:
        bench.folder.mkdir()
        bench.path.write_bytes(CONTENT)
        assert bench.fetch().how == "already here, its hash is right" and bench.shelf.served == 0

    def test_a_byte_that_flips_later_is_found(self, bench: Bench) -> None:
        bench.fetch()
        with bench.path.open("r+b") as file:
            file.write(bytes([CONTENT[0] ^ 1]))
        with pytest.raises(FormatError, match="--force"):
            bench.fetch()

    def test_another_file_under_the_name_stays_until_forced(self, bench: Bench) -> None:
        bench.folder.mkdir()
        bench.path.write_bytes(b"the user's own")
        with pytest.raises(FormatError, match="is not the file that the hub has now"):
            bench.fetch()
        assert bench.path.read_bytes() == b"the user's own"
        bench.shelf.faults = [Fault(cut=1000), *[Fault(status=500)] * HASTY.tries]
        with pytest.raises(ResourceError):
            bench.fetch(force=True)
        assert bench.path.read_bytes() == b"the user's own"
        bench.fetch(force=True)
        assert bench.path.read_bytes() == CONTENT

    def test_a_folder_under_the_name(self, bench: Bench) -> None:
        bench.path.mkdir(parents=True)
        with pytest.raises(FormatError, match="--force"):
            bench.fetch()

    def test_aria2_is_not_interfered_with(self, bench: Bench) -> None:
        bench.folder.mkdir()
        bench.part.write_bytes(b"")
        (bench.folder / f"{FILE}.part.aria2").write_bytes(b"")
        with pytest.raises(FormatError, match="aria2"):
            bench.fetch()

    def test_the_folder_is_a_file(self, bench: Bench) -> None:
        bench.folder.write_text("a file")
        with pytest.raises(ResourceError, match="cannot write in"):
            bench.fetch()


def _all(listing: object) -> object:
    from ds4py.hub.choosing import plans_for
    from ds4py.hub.targets import Wanted

    return plans_for(Wanted(REPO, FILE), listing)  # type: ignore[arg-type]


class TestCache:
    @pytest.fixture
    def blob(self, tmp_path: Path) -> Path:
        """The file as `huggingface_hub` keeps it: a blob under its hash, and a link to it in a snapshot."""
        home = tmp_path / "hf-home" / "hub" / "models--owner--models"
        blob = home / "blobs" / hashlib.sha256(CONTENT).hexdigest()
        blob.parent.mkdir(parents=True)
        blob.write_bytes(CONTENT)
        snapshot = home / "snapshots" / "abc" / FILE
        snapshot.parent.mkdir(parents=True)
        snapshot.symlink_to(os.path.relpath(blob, snapshot.parent))
        return blob

    def test_it_is_used_by_a_hard_link(self, bench: Bench, blob: Path) -> None:
        assert bench.fetch().how == "taken from the hub's cache as a hard link, its hash is right"
        assert bench.path.samefile(blob) and bench.shelf.served == 0 and bench.planned == []
        shutil.rmtree(blob.parents[1])
        assert bench.path.read_bytes() == CONTENT

    def test_other_file_system_a_symbolic_link(self, bench: Bench, blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "link", _refuse)
        assert bench.fetch().how == "taken from the hub's cache as a symbolic link, its hash is right"
        assert bench.path.read_bytes() == CONTENT and bench.names() == [FILE]

    def test_no_right_to_link_a_copy(self, bench: Bench, blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "link", _refuse)
        monkeypatch.setattr(Path, "symlink_to", _refuse)
        assert bench.fetch().how == "taken from the hub's cache as a copy, its hash is right"
        assert bench.path.read_bytes() == CONTENT and not bench.path.is_symlink() and bench.names() == [FILE]

    def test_damaged_it_is_not_used(self, bench: Bench, blob: Path) -> None:
        blob.write_bytes(CONTENT[:-1] + b"!")
        assert bench.fetch().how == "downloaded, its hash is right"
        assert bench.path.read_bytes() == CONTENT and any("damaged" in line for line in bench.said)

    def test_places(self, bench: Bench, blob: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert bench.hub().cache == tmp_path / "hf-home" / "hub"
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
        assert bench.hub().cache == tmp_path / "elsewhere" and bench.fetch().how == "downloaded, its hash is right"
        assert bench.hub(cache=str(tmp_path / "option")).cache == tmp_path / "option"

    def test_a_failed_copy_leaves_nothing(self, bench: Bench, blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "link", _refuse)
        monkeypatch.setattr(Path, "symlink_to", _refuse)
        monkeypatch.setattr(cache.shutil, "copyfileobj", _full)
        with pytest.raises(ResourceError, match="is full"):
            bench.fetch()
        assert bench.names() == []


def _refuse(*arguments: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def _full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestDisk:
    def test_too_little_space_is_said_before_the_first_byte(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(fetching.shutil, "disk_usage", lambda place: usage._replace(free=len(CONTENT) - 1))
        with pytest.raises(ResourceError, match="has 1 MB free and 2 MB are still to come"):
            bench.fetch()
        assert bench.shelf.served == 0 and bench.names() == []

    def test_the_part_counts(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file whose rest fits is not refused because the whole would not."""
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(fetching.shutil, "disk_usage", lambda place: usage._replace(free=600_000))
        bench.folder.mkdir()
        bench.part.write_bytes(CONTENT[:1_000_000])
        bench.fetch()
        assert bench.path.read_bytes() == CONTENT and bench.planned == [(500_000, 600_000)]

    def test_full_in_the_middle(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """The disk takes some bytes and no more; what it took is kept, and the next run goes on there."""
        room, append = [700_000], Part.append

        def tight(part: Part, data: bytes | memoryview) -> None:
            piece = memoryview(data)[: room[0]]
            append(part, piece)
            room[0] -= len(piece)
            if len(piece) < len(data):
                _full()

        monkeypatch.setattr(Part, "append", tight)
        with pytest.raises(ResourceError, match="is full; what came so far is in .*part: the same command goes on") as caught:
            bench.fetch()
        assert "or delete it" in str(caught.value)
        assert bench.part.read_bytes() == CONTENT[:700_000] and FILE not in bench.names()
        room[0] = 10**9
        bench.fetch()
        assert bench.path.read_bytes() == CONTENT and bench.ranges()[-1] == "bytes=700000-" and bench.names() == [FILE]

    @pytest.mark.parametrize("call", ["replace", "fsync"])
    def test_full_at_the_rename(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, _full)
            with pytest.raises(ResourceError, match="is full; what came so far"):
                bench.fetch()
        assert bench.part.read_bytes() == CONTENT and FILE not in bench.names()
        bench.fetch()
        assert bench.path.read_bytes() == CONTENT and len(bench.ranges()) == 1

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        folder = tmp_path / "small"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("a file system of 1 MB needs the right to mount")
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)

    def test_a_real_small_disk(self, bench: Bench, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.folder = small_disk
        with pytest.raises(ResourceError, match="has 1 MB free and 2 MB are still to come"):
            bench.fetch()
        real = shutil.disk_usage
        monkeypatch.setattr(fetching.shutil, "disk_usage", lambda place: real(place)._replace(free=10**9))  # it fills up later
        with pytest.raises(ResourceError, match="is full; what came so far"):
            bench.fetch()
        kept = bench.part.stat().st_size
        assert 900_000 < kept <= 1 << 20 and bench.part.read_bytes() == CONTENT[:kept] and FILE not in bench.names()
        subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
        bench.fetch()
        assert bench.path.read_bytes() == CONTENT and bench.ranges()[-1] == f"bytes={kept}-"


class TestAgain:
    """The same files at every start, as `ds4 -hf` asks for them: of the hub, or of the folder when there is no hub."""

    def test_without_a_network_the_folder_answers(self, bench: Bench) -> None:
        with pytest.raises(ResourceError, match="is not in .* and the network is not to be used"):
            bench.fetch(offline=True)
        bench.fetch()
        bench.shelf.listing_faults = [Fault(status=503)] * 99
        assert bench.fetch().path == bench.path and "using what is in" in bench.said[-1]
        assert len(bench.shelf.listing_faults) == 98  # nobody waits for what is here
        assert bench.fetch(offline=True).path == bench.path
        with pytest.raises(ResourceError, match="503"):
            bench.fetch(verify=True)

    def test_a_reference_too(self, bench: Bench) -> None:
        asked = reference(f"{REPO}:q4_k_m")
        wish = ((REPO, partial(plans_of, asked)),)
        fetching.fetch_files(bench.hub(), wish, bench.folder, Listeners())
        bench.shelf.files.clear()
        assert fetching.fetch_files(bench.hub(), wish, bench.folder, Listeners(), Policy(offline=True))[0].path == bench.path

    def test_a_refusal_is_not_hidden_by_what_is_here(self, bench: Bench) -> None:
        bench.fetch()
        bench.shelf.listing_faults = [Fault(status=404)]
        with pytest.raises(ResourceError, match="404"):
            bench.fetch()

    def test_a_newer_version_is_told_or_fetched(self, bench: Bench) -> None:
        bench.fetch()
        newer = CONTENT[::-1] + b"more"
        bench.shelf.put(REPO, FILE, newer)
        assert bench.fetch(keep=True).path.read_bytes() == CONTENT and "has a newer" in bench.said[-1]
        bench.shelf.faults = [Fault(status=404)]
        with pytest.raises(ResourceError):
            bench.fetch()
        assert bench.path.read_bytes() == CONTENT
        assert bench.fetch().path.read_bytes() == newer
