"""The full listing: nothing left out, for any architecture, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds4py.editing import Limit, describe, lines, split
from ds4py.gguf import GgufFile, GgufType, Value, open_gguf, write_gguf


def test_every_key_and_tensor_is_there(base: GgufFile) -> None:
    found = describe(base)
    assert [item["key"] for item in found["metadata"]] == list(base.kv)
    assert [item["name"] for item in found["tensors"]] == list(base.tensors)
    data = base.path.read_bytes()
    for item in found["tensors"]:
        tensor = base.tensors[item["name"]]
        assert (item["type"], tuple(item["shape"])) == (tensor.type.name, tensor.shape)
        assert data[item["offset"] : item["offset"] + item["bytes"]] == tensor.data.tobytes()
    assert sum(item["bytes"] for item in found["types"]) == sum(tensor.nbytes for tensor in base.tensors.values())


def test_arrays_are_cut_and_say_so_unless_all_is_asked(base: GgufFile) -> None:
    by_key = {item["key"]: item for item in describe(base)["metadata"]}
    assert by_key["toy.numbers"] == {
        "key": "toy.numbers",
        "type": "array of 40 uint32",
        "length": 40,
        "value": [0, 1, 2, 3, 4, 5],
        "cut": True,
    }
    assert by_key["toy.words"]["value"] == ["a", "b\n", ""] and "cut" not in by_key["toy.words"]
    whole = {item["key"]: item for item in describe(base, all_items=True)["metadata"]}
    assert whole["toy.numbers"]["value"] == list(range(40))


def test_json_holds_any_value(tmp_path: Path) -> None:
    kv = {
        "general.architecture": "never heard of",
        "a.nan": Value(GgufType.FLOAT32, float("nan")),
        "a.big": Value(GgufType.UINT64, 2**64 - 1),
        "a.nested": Value(GgufType.ARRAY, (Value(GgufType.ARRAY, [1, 2], GgufType.INT8),), GgufType.ARRAY),
        "a.text": "x" * 500,
    }
    write_gguf(tmp_path / "m.gguf", kv)
    found = describe(open_gguf(tmp_path / "m.gguf"))
    back = json.loads(json.dumps(found, allow_nan=False))
    values = {item["key"]: item["value"] for item in back["metadata"]}
    assert (
        values["a.nan"] == "nan"
        and values["a.big"] == 2**64 - 1
        and values["a.nested"] == [[1, 2]]
        and len(values["a.text"]) == 500
    )
    text = "\n".join(lines(found))
    assert "(500 characters)" in text and "uint64" in text and "x" * 500 not in text
    assert "x" * 500 in "\n".join(lines(found, whole=True))


def test_tensors_of_a_split_model_tell_their_file(base: GgufFile, tmp_path: Path) -> None:
    paths = split(base, tmp_path / "p", Limit(tensors=6))
    found = describe(open_gguf(paths[0]))
    for item in found["tensors"]:
        raw = Path(found["files"][item["file"]]).read_bytes()[item["offset"] : item["offset"] + item["bytes"]]
        assert raw == base.tensors[item["name"]].data.tobytes()
    assert "of file 2" in "\n".join(lines(found))


@pytest.mark.parametrize("full", [False, True])
def test_a_real_model_is_listed(smollm2_path: Path, full: bool) -> None:
    found = describe(open_gguf(smollm2_path), full)
    text = list(lines(found, full))
    assert len(found["tensors"]) == 272 and sum("blk." in line for line in text) == 270
    tokens = next(item for item in found["metadata"] if item["key"] == "tokenizer.ggml.tokens")
    assert tokens["type"] == "array of 49152 string" and len(tokens["value"]) == (49152 if full else 6)
