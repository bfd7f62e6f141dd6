"""Whatever a user points at: a shard, a link, a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.errors import Ds4Error, FormatError, ResourceError
from ds4py.gguf import GgufType, NewTensor, Value, open_gguf, write_gguf


def _shard(folder: Path, no: int, count: int, stem: str = "x", **changes: Any) -> Path:
    """Shard `no` (from 1) of a set whose shard i has tensor "t<i>" = [i, i]; `changes` override split keys and tensor names."""
    kv: dict[str, Any] = {
        "split.no": Value(GgufType.UINT16, changes.get("split_no", no - 1)),
        "split.count": Value(GgufType.UINT16, changes.get("split_count", count)),
        "split.tensors.count": Value(GgufType.INT32, changes.get("tensors", count)),
    }
    if no == 1:
        kv |= {"general.architecture": "llama", "general.name": stem}
    path = folder / f"{stem}-{no:05d}-of-{count:05d}.gguf"
    write_gguf(path, kv, [NewTensor.of(changes.get("tensor", f"t{no}"), np.full(2, no, np.float32))])
    return path


def _set(folder: Path, count: int = 3, stem: str = "x") -> list[Path]:
    return [_shard(folder, no, count, stem) for no in range(1, count + 1)]


def _single(path: Path) -> Path:
    write_gguf(path, {"general.architecture": "llama", "general.name": path.name}, [NewTensor.of("t", np.zeros(2, np.float32))])
    return path


def _refusal(path: Path, kind: type[Ds4Error] = FormatError) -> str:
    with pytest.raises(kind) as caught:
        open_gguf(path)
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("no", [1, 2, 3])
def test_fc07_any_shard_opens_the_whole_model(tmp_path: Path, no: int) -> None:
    paths = _set(tmp_path)
    g = open_gguf(paths[no - 1])
    assert g.path == paths[0] and g.shards == tuple(paths) and g.architecture == "llama"
    assert [t.data.view(np.float32)[0] for t in g.tensors.values()] == [1, 2, 3]
    assert g.nbytes == sum(p.stat().st_size for p in paths)
    assert (g.notes == ()) == (no == 1)
    if no > 1:
        assert str(paths[0]) in g.notes[0]


def test_fc07_folder_with_one_model_opens_it_and_says_so(tmp_path: Path) -> None:
    paths = _set(tmp_path)
    _single(tmp_path / "mmproj-x-f16.gguf")
    (tmp_path / "README.md").write_text("not a model")
    (tmp_path / "folder.gguf").mkdir()
    g = open_gguf(tmp_path)
    assert g.path == paths[0] and len(g.tensors) == 3 and str(paths[0]) in g.notes[0]


def test_fc07_folder_with_a_single_file_and_a_split_model_lists_both(tmp_path: Path) -> None:
    _set(tmp_path)
    _single(tmp_path / "x-Q4_K_M.gguf")
    sentence = _refusal(tmp_path)
    assert "2 models" in sentence and "x-00001-of-00003.gguf" in sentence and "x-Q4_K_M.gguf" in sentence
    assert "00002" not in sentence


def test_fc07_folder_without_a_model(tmp_path: Path) -> None:
    assert "no .gguf file" in _refusal(tmp_path)


def test_a_folder_whose_first_shard_is_missing_names_it(tmp_path: Path) -> None:
    _set(tmp_path)[0].unlink()
    assert "x-00001-of-00003.gguf: part 1 of 3 of the model is missing" in _refusal(tmp_path, ResourceError)


def test_a_link_of_any_name_leads_to_its_shards(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    paths = _set(tmp_path / "store")
    link = tmp_path / "ds4flash.gguf"
    link.symlink_to(paths[1])
    assert open_gguf(link).shards == tuple(paths)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    paths = _set(tmp_path)
    paths[2].unlink()
    sentence = _refusal(paths[0], ResourceError)
    assert str(paths[2]) in sentence and "part 3 of 3" in sentence


def test_renamed_shard_is_refused(tmp_path: Path) -> None:
    path = _set(tmp_path)[1].rename(tmp_path / "mine.gguf")
    assert "one of 3 parts" in _refusal(path)


def test_a_file_with_a_shard_name_but_no_split_keys_stands_alone(tmp_path: Path) -> None:
    assert len(open_gguf(_single(tmp_path / "x-00002-of-00003.gguf")).tensors) == 1


def test_a_set_of_one(tmp_path: Path) -> None:
    assert len(open_gguf(_shard(tmp_path, 1, 1)).tensors) == 1


@pytest.mark.parametrize(
    "changes, fragment",
    [
        ({"split_count": 4}, "metadata key 'split.count' is 4 in part 2 of 3, expected 3"),
        ({"split_no": 2}, "metadata key 'split.no' is 2 in part 2 of 3, expected 1"),
        ({"tensors": 9}, "metadata key 'split.tensors.count' is 9 in part 2 of 3, expected 3"),
        ({"tensor": "t1"}, "tensor 't1' is also in an earlier part"),
    ],
)
def test_shards_that_do_not_belong_together(tmp_path: Path, changes: dict[str, Any], fragment: str) -> None:
    paths = _set(tmp_path)
    _shard(tmp_path, 2, 3, **changes)
    assert fragment in _refusal(paths[0])


def test_wrong_number_of_tensors(tmp_path: Path) -> None:
    paths = [_shard(tmp_path, no, 2, tensors=5) for no in (1, 2)]
    assert "'split.tensors.count' is 5, but the parts have 2 tensors" in _refusal(paths[0])


def test_a_name_and_metadata_that_disagree(tmp_path: Path) -> None:
    path = _shard(tmp_path, 1, 3, split_count=65_535)
    assert "its name speaks of 3 parts, its metadata (split.count) of 65535" in _refusal(path)


def test_split_keys_of_a_wrong_type(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"split.count": "two"})
    assert "'split.count' is string, expected an integer" in _refusal(tmp_path / "a.gguf")


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = _set(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-40])
    sentence = _refusal(paths[0])
    assert str(paths[2]) in sentence and "tensor 't3'" in sentence
