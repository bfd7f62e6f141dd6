"""History on disk: 512 entries, several lines each, shared between sessions, harmless when the home is not writable."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4py.cli.history import N_LINES, DiskHistory, history_path


def test_entries_come_back_newest_first(tmp_path: Path) -> None:
    history = DiskHistory(tmp_path / "s" / "history")
    for text in ("one", "two\nlines", "ünï \u2028 code", "   "):
        history.store_string(text)
    again = DiskHistory(tmp_path / "s" / "history")
    assert list(again.load_history_strings()) == ["ünï \u2028 code", "two\nlines", "one"]
    assert (tmp_path / "s" / "history").stat().st_mode & 0o077 == 0


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f'"{i}"\n' for i in range(N_LINES + 5)))
    history = DiskHistory(path)
    history.store_string("new")
    found = list(history.load_history_strings())
    assert len(found) == N_LINES and found[0] == "new" and found[-1] == "6"


def test_two_sessions_share_it(tmp_path: Path) -> None:
    a, b = DiskHistory(tmp_path / "history"), DiskHistory(tmp_path / "history")
    a.store_string("from a")
    b.store_string("from b")
    a.store_string("from a again")
    assert list(b.load_history_strings()) == ["from a again", "from b", "from a"]


def test_damage_and_a_read_only_home_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"good"\nnot json\n\xff\xfe\n{"a": 1}\n"also"\n')
    assert list(DiskHistory(path).load_history_strings()) == ["also", "good"]
    blocked = tmp_path / "file" / "history"
    (tmp_path / "file").write_text("a file where a directory should be")
    DiskHistory(blocked).store_string("x")
    assert list(DiskHistory(blocked).load_history_strings()) == []


def test_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "ds4" / "history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "ds4" / "history"
