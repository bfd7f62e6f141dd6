"""Splitting and merging: bytes stay, names and keys are llama.cpp's, and failures leave the folder as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.editing import Limit, merge, parse_size, plan_splice, plan_split, sizes, splice, split, together
from ds4py.errors import ResourceError, UsageError
from ds4py.gguf import GgufFile, GgufType, open_gguf, write_gguf


def same_tensors(a: GgufFile, b: GgufFile) -> bool:
    return list(a.tensors) == list(b.tensors) and all(
        (t.type, t.shape) == (b.tensors[n].type, b.tensors[n].shape) and np.array_equal(t.data, b.tensors[n].data)
        for n, t in a.tensors.items()
    )


@pytest.mark.parametrize(
    "limit", [Limit(tensors=1), Limit(tensors=5), Limit(nbytes=20_000), Limit(nbytes=1), Limit(tensors=9, first_bare=True)]
)
def test_merging_what_was_split_gives_the_file_back(base: GgufFile, tmp_path: Path, limit: Limit) -> None:
    (tmp_path / "s").mkdir()
    expected = sizes(plan_split(base, tmp_path / "s" / "part", limit))
    paths = split(base, tmp_path / "s" / "part", limit)
    assert [(path, path.stat().st_size) for path in paths] == [(path, size) for path, _, size in expected]
    assert sorted(os.listdir(tmp_path / "s")) == [f"part-{i + 1:05d}-of-{len(paths):05d}.gguf" for i in range(len(paths))]
    parts = open_gguf(paths[-1])
    assert same_tensors(parts, base)
    merge(parts, tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == base.path.read_bytes()
    if limit.tensors:
        assert max(count for _, count, _ in expected) == limit.tensors
    if limit.first_bare:
        assert expected[0][1] == 0


def test_shards_have_llama_cpp_keys(base: GgufFile, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    paths = split(base, tmp_path / "p.gguf", Limit(tensors=6))
    for no, path in enumerate(paths):
        fields = gguf.GGUFReader(path).fields
        found = {key: (fields[key].types[0].name, fields[key].contents()) for key in fields if key.startswith("split.")}
        assert found == {"split.no": ("UINT16", no), "split.count": ("UINT16", 3), "split.tensors.count": ("INT32", 17)}
        assert ("general.architecture" in fields) == (no == 0)


def test_splitting_keeps_the_alignment(tmp_path: Path, base: GgufFile) -> None:
    kv = dict(base.kv.typed) | {"general.alignment": 256}
    write_gguf(tmp_path / "a.gguf", kv, [together.copied(t) for t in base.tensors.values()])
    aligned = open_gguf(tmp_path / "a.gguf")
    parts = open_gguf(split(aligned, tmp_path / "p", Limit(tensors=6))[0])
    assert same_tensors(parts, base) and all(tensor.start % 256 == 0 for tensor in parts.tensors.values())
    assert parts.kv.typed["general.alignment"].type is GgufType.UINT32


def test_nothing_to_split_and_nothing_to_merge(base: GgufFile, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to split"):
        split(base, tmp_path / "p", Limit(tensors=100))
    with pytest.raises(UsageError, match="one file already"):
        merge(base, tmp_path / "m.gguf")


def test_a_failure_in_the_last_shard_leaves_the_folder_as_it_was(
    base: GgufFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {name: (tmp_path / name).write_bytes(b"old") and b"old" for name in ("p-00001-of-00003.gguf",)}
    calls = []

    def failing(path: Path, kv: Any, tensors: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise ResourceError("the disk is full")
        write_gguf(path, kv, tensors)

    monkeypatch.setattr(together, "write_gguf", failing)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ResourceError, match="full"):
        split(base, tmp_path / "p", Limit(tensors=6))
    assert (
        sorted(os.listdir(tmp_path)) == before
        and (tmp_path / "p-00001-of-00003.gguf").read_bytes() == old["p-00001-of-00003.gguf"]
    )


@pytest.mark.parametrize("text, n", [("500M", 500_000_000), ("2G", 2 * 10**9), ("2gb", 2 * 10**9), ("1234", 1234)])
def test_sizes(text: str, n: int) -> None:
    assert parse_size(text) == n


@pytest.mark.parametrize("text", ["", "G", "-1G", "1.5G", "0M", "1T", "1 G x"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="500M or 2G"):
        parse_size(text)


def test_a_split_model_can_be_base_and_donor(base: GgufFile, donor: GgufFile, tmp_path: Path) -> None:
    parts = [open_gguf(split(g, tmp_path / name, Limit(tensors=4))[0]) for g, name in ((base, "b"), (donor, "d"))]
    for number, (a, b) in enumerate(((base, donor), tuple(parts))):
        splice(a, b, plan_splice(a, b, frozenset({2})), tmp_path / f"{number}.gguf")
    assert same_tensors(open_gguf(tmp_path / "0.gguf"), open_gguf(tmp_path / "1.gguf"))
