"""The fault matrix of downloads: whatever the hub does, the file is byte-equal or there is none under its name."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from download_bench import CONTENT, FILE, HASTY, REPO, Bench
from loopback_hub import Fault

from ds4py.errors import FormatError, ResourceError
from ds4py.hub.targets import Wanted

HALF = len(CONTENT) // 2


def test_a_plain_download(bench: Bench) -> None:
    done = bench.fetch()
    assert done.how == "downloaded, its hash is right" and bench.path.read_bytes() == CONTENT
    assert bench.names() == [FILE] and bench.ranges() == [""]
    assert bench.planned[0][0] == len(CONTENT)
    assert bench.fetch().how == "already here, its hash is right" and len(bench.ranges()) == 1


@pytest.mark.parametrize("reset", [False, True])
def test_fifty_cuts_at_random_offsets(bench: Bench, reset: bool) -> None:
    """Each connection dies somewhere in what it has still to bring; the next goes on where the part ends."""
    draw = random.Random(7)
    bench.shelf.faults = [Fault(cut=draw.randrange(1, len(CONTENT) // 50), reset=reset) for _ in range(50)]
    bench.fetch(bench.hub(patience=replace(HASTY, tries=60)))
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT and bench.names() == [FILE]
    assert bench.shelf.served == 51
    starts = [int(asked.removeprefix("bytes=").rstrip("-") or 0) for asked in bench.ranges()]
    assert starts == sorted(starts)


def test_a_cut_in_every_byte_of_a_tiny_file(bench: Bench) -> None:
    tiny = bytes(range(40))
    bench.shelf.put(REPO, FILE, tiny)
    bench.shelf.faults = [Fault(cut=1) for _ in range(39)]
    bench.fetch()
    assert bench.path.read_bytes() == tiny and bench.shelf.served == 40


def test_a_stall_is_cut_by_the_timeout_and_resumed(bench: Bench) -> None:
    bench.shelf.faults = [Fault(cut=HALF, stall=5.0), Fault(stall=5.0, cut=0)]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT
    assert bench.ranges() == ["", f"bytes={HALF}-", f"bytes={HALF}-"]


def test_a_stalled_listing_is_asked_again(bench: Bench) -> None:
    bench.shelf.listing_faults = [Fault(stall=4.0)]
    assert bench.fetch().how == "downloaded, its hash is right"


def test_range_ignored(bench: Bench) -> None:
    """The hub sends all of it with a 200; what is there is read over, nothing is appended twice."""
    bench.shelf.faults = [Fault(cut=HALF), Fault(ignore_range=True, cut=HALF + 1000), Fault(ignore_range=True)]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT and bench.shelf.served == 3


@pytest.mark.parametrize("shift", [-1000, -1, 1, 1000])
def test_a_206_that_begins_elsewhere(bench: Bench, shift: int) -> None:
    bench.shelf.faults = [Fault(cut=HALF), Fault(shift=shift)]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT and bench.names() == [FILE]


def test_a_206_that_always_begins_elsewhere(bench: Bench) -> None:
    bench.shelf.faults = [Fault(cut=HALF), *[Fault(shift=5, cut=1000)] * 3, Fault(shift=5), Fault()]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT


@pytest.mark.parametrize("header", ["", "bytes", "bytes */5", "items 0-1/2", "bytes x-y/z"])
def test_a_206_with_a_strange_content_range(bench: Bench, header: str) -> None:
    bench.shelf.faults = [Fault(cut=HALF), Fault(headers={"Content-Range": header})]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT


def test_416_for_every_range(bench: Bench) -> None:
    bench.shelf.faults = [Fault(cut=HALF), Fault(refuse_range=True)]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT and bench.ranges()[-1] == ""


def test_part_is_whole_already(bench: Bench) -> None:
    """The server would answer 416; it is not even asked."""
    bench.folder.mkdir()
    bench.part.write_bytes(CONTENT)
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.ranges() == [] and bench.names() == [FILE]
    assert bench.planned == [(0, bench.planned[0][1])]


def test_part_is_longer_than_the_file(bench: Bench) -> None:
    bench.folder.mkdir()
    bench.part.write_bytes(CONTENT + b"more")
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.ranges() == [""]


def test_part_of_full_size_with_a_wrong_byte(bench: Bench) -> None:
    bench.folder.mkdir()
    bench.part.write_bytes(CONTENT[:-1] + b"!")
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.ranges() == [""]


def test_part_of_another_tool_goes_on(bench: Bench) -> None:
    bench.folder.mkdir()
    bench.part.write_bytes(CONTENT[:HALF])
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.ranges() == [f"bytes={HALF}-"]
    assert bench.planned[0][0] == len(CONTENT) - HALF


def test_part_of_another_tool_that_was_rubbish(bench: Bench) -> None:
    bench.folder.mkdir()
    bench.part.write_bytes(b"x" * HALF)
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.ranges() == [f"bytes={HALF}-", ""]
    assert any("SHA-256" in line for line in bench.said)


def test_the_file_changes_between_two_runs(bench: Bench) -> None:
    bench.shelf.faults = [Fault(cut=HALF), *[Fault(status=500)] * HASTY.tries]
    with pytest.raises(ResourceError, match="500"):
        bench.fetch()
    assert bench.names() == [f"{FILE}.part", f"{FILE}.part.json"] and bench.part.stat().st_size == HALF
    changed = CONTENT[::-1]
    bench.shelf.put(REPO, FILE, changed)
    bench.fetch()
    assert bench.path.read_bytes() == changed and any("another version" in line for line in bench.said)
    assert bench.ranges()[-1] == ""


@pytest.mark.parametrize("linked", [True, False])
def test_the_file_changes_during_a_run(bench: Bench, linked: bool) -> None:
    """With the hub's ETag the change is seen at the next request, without it by the hash at the end."""
    changed = CONTENT[::-1]
    bench.shelf.linked = linked
    bench.shelf.faults = [Fault(cut=HALF)]
    bench.shelf.on_bytes = lambda number: bench.shelf.put(REPO, FILE, changed) if number == 1 else None
    bench.fetch()
    assert bench.path.read_bytes() == changed and bench.names() == [FILE]


def test_the_hub_never_sends_what_it_lists(bench: Bench) -> None:
    bench.shelf.linked = False
    bench.shelf.listed[REPO, FILE] = CONTENT[::-1]
    with pytest.raises(FormatError, match="SHA-256 that the hub states, again; nothing was kept"):
        bench.fetch()
    assert bench.names() == [] and bench.shelf.served == 2  # not a third time over


@pytest.mark.parametrize("length", [-1000, 1000])
def test_content_length_lies(bench: Bench, length: int) -> None:
    bench.shelf.faults = [Fault(length=length)]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT and bench.names() == [FILE]


def test_the_body_is_longer_than_listed(bench: Bench) -> None:
    bench.shelf.faults = [Fault(content=CONTENT + b"an advertisement")]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT


def test_the_body_is_shorter_than_listed_for_ever(bench: Bench) -> None:
    bench.shelf.faults = [Fault(content=CONTENT[:-10])] * 20
    with pytest.raises(ResourceError, match="times in a row"):
        bench.fetch()
    assert bench.names() == []  # an empty part is none
    bench.shelf.faults = []
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.names() == [FILE]


def test_short_answers_that_are_well_formed(bench: Bench) -> None:
    """A proxy may hand out a range in slices; a 200 that is shorter than the file is no answer."""
    bench.shelf.faults = [Fault(cut=HALF), *[Fault(cut=100_000, clean=True)] * 4, Fault(), Fault(cut=100_000, clean=True)]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT and bench.shelf.served == 6
    bench.path.unlink()
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT and bench.ranges()[-2:] == ["", ""]


def test_a_page_of_html_instead_of_the_file(bench: Bench) -> None:
    """A captive portal answers 200 to everything; its bytes begin no part and go into none."""
    bench.shelf.linked = False
    page = Fault(content=b"<html>please log in</html>", ignore_range=True)
    bench.shelf.faults = [page] * 20
    with pytest.raises(ResourceError, match=f"offers 26 bytes as {FILE}, which has {len(CONTENT)}, 4 times in a row"):
        bench.fetch()
    assert bench.names() == []
    bench.shelf.faults = [Fault(cut=HALF), page, page]
    bench.fetch()
    assert bench.never_wrong()
    assert bench.path.read_bytes() == CONTENT


def test_compressed_against_our_word(bench: Bench) -> None:
    bench.shelf.faults = [Fault(headers={"Content-Encoding": "gzip"})]
    with pytest.raises(FormatError, match="compressed although"):
        bench.fetch()
    assert FILE not in bench.names()


def test_a_file_outside_lfs_is_checked_by_its_git_hash(bench: Bench) -> None:
    bench.shelf.lfs, bench.shelf.linked = False, False
    bench.shelf.faults = [Fault(cut=HALF)]
    bench.fetch()
    assert bench.path.read_bytes() == CONTENT
    bench.path.unlink()
    bench.shelf.listed[REPO, FILE] = CONTENT[::-1]
    with pytest.raises(FormatError, match="git hash"):
        bench.fetch()


class TestPinned:
    def test_the_listing_must_agree_with_the_table(self, bench: Bench) -> None:
        bench.wanted = Wanted(REPO, FILE, len(CONTENT), exact=True, sha256="0" * 64)
        with pytest.raises(FormatError, match="another file than the published one"):
            bench.fetch()
        bench.wanted = Wanted(REPO, FILE, len(CONTENT) + 1, exact=True)
        with pytest.raises(FormatError, match=f"has {len(CONTENT)} bytes, where {len(CONTENT) + 1} were published"):
            bench.fetch()
        assert bench.shelf.served == 0


class TestJoining:
    """A file that the hub keeps in parts."""

    NAME = "big.gguf"
    PARTS = (CONTENT[:500_000], CONTENT[500_000:900_000], CONTENT[900_000:])

    @pytest.fixture
    def joined(self, bench: Bench) -> Bench:
        for number, part in enumerate(self.PARTS, 1):
            bench.shelf.put(REPO, f"{self.NAME}.part{number}", part)
        bench.wanted = Wanted(REPO, f"{self.NAME}*", len(CONTENT), exact=True, pieces=3)
        return bench

    def test_joined_in_order_without_a_second_copy(self, joined: Bench) -> None:
        assert joined.fetch().path.read_bytes() == CONTENT
        assert joined.names() == [self.NAME] and joined.planned[0][0] == len(CONTENT)

    def test_interrupted_at_every_kind_of_place(self, joined: Bench) -> None:
        """Inside each part, exactly between two, and at the very end."""
        for length in (1, 499_999, 500_000, 500_001, 899_999, 900_000, 900_001, len(CONTENT) - 1, len(CONTENT)):
            joined.folder.mkdir(exist_ok=True)
            (joined.folder / f"{self.NAME}.part").write_bytes(CONTENT[:length])
            before = len(joined.shelf.bytes_requests())
            assert joined.fetch().path.read_bytes() == CONTENT
            asked = joined.shelf.bytes_requests()[before:]
            assert len(asked) == (length < 500_000) + (length < 900_000) + (length < len(CONTENT))
            for path in joined.folder.iterdir():
                path.unlink()

    def test_cuts_everywhere(self, joined: Bench) -> None:
        joined.shelf.faults = [Fault(cut=77_777) for _ in range(20)]
        assert joined.fetch().path.read_bytes() == CONTENT
        assert joined.never_wrong()

    def test_one_wrong_part_costs_that_part_only(self, joined: Bench) -> None:
        joined.folder.mkdir()
        damaged = self.PARTS[0] + b"!" + self.PARTS[1][1:]
        (joined.folder / f"{self.NAME}.part").write_bytes(damaged)
        assert joined.fetch().path.read_bytes() == CONTENT
        assert len(joined.shelf.bytes_requests()) == 2

    def test_a_part_is_missing(self, joined: Bench) -> None:
        del joined.shelf.files[REPO, f"{self.NAME}.part2"]
        with pytest.raises(FormatError, match="has 2 parts .* where 3 were published"):
            joined.fetch()

    def test_the_whole_hash_decides_when_it_is_pinned(self, joined: Bench) -> None:
        joined.wanted = replace(joined.wanted, sha256="0" * 64)
        with pytest.raises(FormatError, match="joined, does not have the SHA-256"):
            joined.fetch()
        assert joined.names() == []

    def test_the_hub_has_the_whole_file_after_all(self, joined: Bench) -> None:
        joined.shelf.put(REPO, self.NAME, CONTENT)
        assert joined.fetch().path.read_bytes() == CONTENT
        assert len(joined.shelf.bytes_requests()) == 1
