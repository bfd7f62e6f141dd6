"""What sessions add to the dynamic lookup file: each position once, nothing lost to another process, nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ngram_reference import random_text, table_of

from ds4py.drafters import learning
from ds4py.drafters.chain import Chain
from ds4py.drafters.config import NgramSizes
from ds4py.drafters.learning import Learned
from ds4py.drafters.lookup_file import LookupCache, read_lookup_cache
from ds4py.drafters.ngram_cache import NgramCache
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.errors import FormatError, ResourceError

V = 50


def drafter_of(tokens: list[int]) -> NgramCache:
    drafter = NgramCache()
    drafter.observe(tokens, {})
    return drafter


def table(path: Path) -> dict[tuple[int, ...], dict[int, int]]:
    return {ngram: dict(counts) for ngram, counts in read_lookup_cache(path, V).items()}


def counted(cache: LookupCache) -> dict[tuple[int, ...], dict[int, int]]:
    return {ngram: dict(counts) for ngram, counts in cache.items()}


def test_a_missing_file_is_made_and_the_next_session_adds_to_it(tmp_path: Path) -> None:
    path, text = tmp_path / "dynamic", random_text(200, V, seed=1)
    for times in (1, 2, 3):
        learned = Learned(path, V)
        learned.take(drafter_of(text))
        learned.write()
        assert table(path) == {key: {t: times * n for t, n in counts.items()} for key, counts in table_of(text).items()}
    assert os.listdir(tmp_path) == ["dynamic"] and path.stat().st_mode & 0o777 == 0o600


def test_it_is_found_inside_a_chain(tmp_path: Path) -> None:
    chain = Chain([NgramSimple(NgramSizes()), NgramCache()])
    chain.observe([1, 2, 3, 1, 2], {})
    learned = Learned(tmp_path / "dynamic", V)
    learned.take(chain)
    learned.take(NgramSimple(NgramSizes()))  # has learned nothing that fits
    learned.write()
    assert table(tmp_path / "dynamic") == table_of([1, 2, 3, 1, 2])


def test_each_position_counts_once_whatever_is_taken_back() -> None:
    drafter = drafter_of([1, 2, 3, 4, 5])
    total = drafter.take_learned()
    assert counted(total) == table_of([1, 2, 3, 4, 5]) and len(drafter.take_learned()) == 0
    drafter.truncate(3)
    drafter.observe([6], {})  # another continuation of 1 2 3
    assert counted(drafter.take_learned()) == {(3,): {6: 1}, (2, 3): {6: 1}, (1, 2, 3): {6: 1}}
    drafter.observe([7], {})
    drafter.truncate(4)  # gone before it was taken
    assert len(drafter.take_learned()) == 0


def test_nothing_learned_writes_nothing(tmp_path: Path) -> None:
    learned = Learned(tmp_path / "dynamic", V)
    learned.take(drafter_of([1]))
    learned.write()
    assert os.listdir(tmp_path) == []


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.touch()
    real.chmod(0o640)
    link.symlink_to(real)
    learned = Learned(link, V)
    learned.take(drafter_of([1, 2]))
    learned.write()
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640 and table(real) == table_of([1, 2])


def test_a_file_that_cannot_be_read_or_written_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    path.write_bytes(b"not a cache")
    learned = Learned(path, V)
    learned.take(drafter_of([1, 2, 3]))
    with pytest.raises(FormatError):
        learned.write()
    assert path.read_bytes() == b"not a cache" and os.listdir(tmp_path) == ["dynamic"]
    path.unlink()
    learned.write()  # nothing was forgotten meanwhile
    assert table(path) == table_of([1, 2, 3])
    elsewhere = Learned(tmp_path / "none" / "dynamic", V)
    elsewhere.take(drafter_of([1, 2]))
    with pytest.raises(ResourceError, match="cannot write the file"):
        elsewhere.write()


WRITER = """
import sys
from ds4py.drafters.learning import Learned
from ds4py.drafters.ngram_cache import NgramCache
from pathlib import Path
for _ in range(int(sys.argv[2])):
    drafter = NgramCache()
    drafter.observe([int(t) for t in sys.argv[3].split(",")], {})
    learned = Learned(Path(sys.argv[1]), 50)
    learned.take(drafter)
    learned.write()
"""


def test_processes_that_end_at_once_lose_nothing(tmp_path: Path) -> None:
    path, texts, n = tmp_path / "dynamic", [random_text(60, 9, seed=seed) for seed in range(4)], 15
    command = [sys.executable, "-c", WRITER, str(path), str(n)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen([*command, ",".join(map(str, text))], env=env) for text in texts]
    assert [process.wait(60) for process in running] == [0] * 4
    expected: dict[tuple[int, ...], dict[int, int]] = {}
    for text in texts:
        for key, counts in table_of(text).items():
            for token, count in counts.items():
                sums = expected.setdefault(key, {})
                sums[token] = sums.get(token, 0) + n * count
    assert table(path) == expected and os.listdir(tmp_path) == ["dynamic"]


def test_without_locks_the_file_is_still_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError("no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", refuse)
    learned = Learned(tmp_path / "dynamic", V)
    learned.take(drafter_of([1, 2, 3]))
    learned.write()
    assert table(tmp_path / "dynamic") == table_of([1, 2, 3])


def test_a_lock_that_is_never_given_back_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(learning, "_PATIENCE", 0.05)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    learned = Learned(tmp_path / "dynamic", V)
    learned.take(drafter_of([1, 2, 3]))
    learned.write()
    os.close(handle)
    assert table(tmp_path / "dynamic") == table_of([1, 2, 3])


def test_a_cache_that_outgrows_the_limit_forgets_what_was_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, often, rare = tmp_path / "dynamic", [1, 2, 3, 4] * 40, random_text(300, V, seed=5)
    monkeypatch.setattr(learning, "MAX_FILE_BYTES", 4000)
    for text in (often, rare, rare[::-1]):
        learned = Learned(path, V)
        learned.take(drafter_of(text))
        learned.write()
    assert path.stat().st_size <= 4000
    kept = table(path)
    assert all(kept[ngram][token] >= 30 for ngram, token in (((1, 2, 3, 4), 1), ((4, 1), 2), ((3, 4, 1), 2)))
