"""Writing that can be taken up again: interrupted anywhere, the file is the same in the end, and little is made twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.errors import FormatError
from ds4py.gguf import GgmlType, NewTensor, open_gguf, partial_path, resume, write_gguf, write_resumable

KV = {"general.architecture": "llama", "n": 7}
SIZES = (40, 3, 64, 1, 17)


class Source:
    """Tensors of random bytes that fail after a given number of bytes, and count what they give."""

    def __init__(self, stop: int = 1 << 30) -> None:
        rng = np.random.default_rng(2)
        self.data = [rng.integers(0, 256, 4 * n, np.uint8) for n in SIZES]
        self.left, self.given, self.wholes = stop, 0, 0

    def tensors(self) -> list[NewTensor]:
        return [
            NewTensor(f"t{i}", (n,), GgmlType.F32, lambda i=i: self.pieces(i, 0), lambda start, i=i: self.pieces(i, start))
            for i, n in enumerate(SIZES)
        ]

    def pieces(self, i: int, start: int) -> Iterator[np.ndarray]:
        self.wholes += start == 0
        for at in range(start, len(self.data[i]), 8):
            piece = self.data[i][at : at + 8]
            if self.left < len(piece):
                raise KeyboardInterrupt
            self.left -= len(piece)
            self.given += len(piece)
            yield piece


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "_MARK_BYTES", 24)


def test_interrupted_anywhere_the_file_is_the_same(tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf", KV, Source().tensors())
    whole = (tmp_path / "whole.gguf").read_bytes()
    total = 4 * sum(SIZES)
    for stop in range(0, total, 44):
        path, source = tmp_path / "out.gguf", Source(stop)
        with pytest.raises(KeyboardInterrupt):
            write_resumable(path, KV, source.tensors(), "x")
        assert not path.exists() and partial_path(path).exists()
        again = Source()
        write_resumable(path, KV, again.tensors(), "x")
        assert path.read_bytes() == whole
        assert total <= source.given + again.given <= total + 32, stop  # little more than since the last note
        assert sorted(tmp_path.iterdir()) == sorted([path, tmp_path / "whole.gguf"])
        path.unlink()


def test_bytes_behind_the_last_note_do_not_count(tmp_path: Path) -> None:
    """A crash of the machine may leave a file as long as it was, with anything in it."""
    path = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        write_resumable(path, KV, Source(200).tensors())
    note = json.loads(Path(f"{partial_path(path)}.json").read_text())
    data = partial_path(path).read_bytes()
    partial_path(path).write_bytes(data[: note["bytes"]] + b"\xee" * 500)
    write_resumable(path, KV, Source().tensors())
    np.testing.assert_array_equal(open_gguf(path).tensors["t4"].data, Source().data[4])


@pytest.mark.parametrize("change", ["metadata", "identity", "tensor"])
def test_the_beginning_of_another_file_is_refused_and_kept(tmp_path: Path, change: str) -> None:
    path = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        write_resumable(path, KV, Source(200).tensors(), "a")
    before = partial_path(path).read_bytes()
    kv = KV | {"n": 8} if change == "metadata" else KV
    tensors: list[Any] = Source().tensors()[: 4 if change == "tensor" else 5]
    with pytest.raises(FormatError, match="out.gguf.partial is the beginning of another file .*; delete it to begin anew"):
        write_resumable(path, kv, tensors, "b" if change == "identity" else "a")
    assert partial_path(path).read_bytes() == before


def test_a_broken_note_means_starting_over(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    for text in ("", "[]", '{"of": 1'):
        partial_path(path).write_bytes(b"rubbish")
        Path(f"{partial_path(path)}.json").write_text(text)
        if text == "[]":
            with pytest.raises(FormatError):
                write_resumable(path, KV, Source().tensors())
            continue
        write_resumable(path, KV, Source().tensors())
        assert open_gguf(path).kv["n"] == 7
