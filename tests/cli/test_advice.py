"""What is said when there is no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4py.cli import advice


@pytest.fixture(autouse=True)
def empty_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DS4_GGUF_DIR", raising=False)


def test_small_and_large_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "memory_gb", lambda: 16.0)
    small = advice.no_model()
    assert "16 GB of memory: files up to about 12.7 GB fit" in small
    assert "none would fit; the smallest, qwen38-q2, needs 46.1 GB of memory" in small
    monkeypatch.setattr(advice, "memory_gb", lambda: 128.0)
    large = advice.no_model()
    assert "ds4f-q2 (82 GB)" in large and "ds4f-mxfp4" not in large and "dspark" not in large and "vision" not in large
    monkeypatch.setattr(advice, "memory_gb", lambda: 0.0)
    assert "memory" not in advice.no_model()


def test_files_that_lie_here_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "a.gguf").write_bytes(b"")
    (tmp_path / "b.GGUF").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(b"")
    text = advice.no_model()
    assert "ds4 -m gguf/a.gguf" in text and "ds4 -m b.GGUF" in text and "c.txt" not in text


def test_memory_is_a_sensible_number() -> None:
    assert 0.1 < advice.memory_gb() < 100_000
