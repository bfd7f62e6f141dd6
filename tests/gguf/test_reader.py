"""Sound files: what the reader hands out, on hand-made bytes, on files of the `gguf` package, and on a real model."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest

from ds4py.errors import FormatError
from ds4py.gguf import GgmlType, GgufType, NumberArray, StringArray, open_gguf


def _package_file(path: Path) -> Path:
    """A file of the `gguf` package with every metadata type and a few tensors."""
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60_000)
    writer.add_int16("t.i16", -30_000)
    writer.add_uint32("llama.block_count", 4_000_000_000)
    writer.add_int32("t.i32", -2_000_000_000)
    writer.add_uint64("t.u64", 2**63 + 1)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float32("llama.rope.freq_base", 0.1)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.yes", True)
    writer.add_bool("t.no", False)
    writer.add_string("t.text", "grüße 🦙\n")
    writer.add_array("t.words", ["a", "", "é", "x" * 300])
    writer.add_array("t.floats", [1.5, -2.0])
    writer.add_array("t.flags", [True, False, True])
    writer.add_array("t.nested", [[1, 2], [3]])
    writer.add_tensor("blk.0.w", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.add_tensor("blk.0.h", np.arange(5, dtype=np.float16))
    writer.add_tensor("blk.0.q", np.arange(68, dtype=np.uint8).reshape(2, 34), raw_dtype=oracle.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_metadata_type_of_the_gguf_package(tmp_path: Path) -> None:
    g = open_gguf(_package_file(tmp_path / "a.gguf"))
    assert g.architecture == "llama"
    wanted = {"u8": 200, "i8": -100, "u16": 60_000, "i16": -30_000, "i32": -2_000_000_000, "u64": 2**63 + 1, "i64": -(2**62)}
    assert {key: g.kv[f"t.{key}"] for key in wanted} == wanted
    assert g.kv["t.f64"] == 0.1 and g.kv["llama.rope.freq_base"] == float(np.float32(0.1))
    assert g.kv["t.yes"] is True and g.kv["t.no"] is False
    assert g.kv["t.text"] == "grüße 🦙\n"
    assert isinstance(g.kv["t.words"], StringArray) and g.kv["t.words"].tolist() == ["a", "", "é", "x" * 300]
    assert isinstance(g.kv["t.floats"], NumberArray) and list(g.kv["t.floats"]) == [1.5, -2.0]
    assert g.kv["t.flags"].tolist() == [True, False, True] and g.kv["t.flags"][0] is True
    assert [item.tolist() for item in g.kv["t.nested"]] == [[1, 2], [3]]
    assert g.kv.typed["t.u8"].type is GgufType.UINT8
    assert g.kv.typed["t.words"].type_name() == "array of 4 string"
    assert "nothing" not in g.kv and len(list(g.kv)) == len(g.kv)


def test_tensors_of_the_gguf_package(tmp_path: Path) -> None:
    g = open_gguf(_package_file(tmp_path / "a.gguf"))
    w, q = g.tensor("blk.0.w"), g.tensors["blk.0.q"]
    assert (w.shape, w.type, w.row_len, w.n_rows, w.n_values, w.nbytes) == ((4, 3, 2), GgmlType.F32, 4, 6, 24, 96)
    assert (q.shape, q.type, q.nbytes) == ((32, 2), GgmlType.Q8_0, 68)
    assert np.array_equal(w.data.view(np.float32), np.arange(24))
    assert np.array_equal(g.tensors["blk.0.h"].data.view(np.float16), np.arange(5))
    assert np.array_equal(q.data, np.arange(68))
    with pytest.raises(ValueError, match="read-only"):
        w.data[0] = 1
    assert not w.data.flags.owndata  # a view of the map, not a copy


def test_getters_name_the_key_and_check_its_type(tmp_path: Path) -> None:
    g = open_gguf(_package_file(tmp_path / "a.gguf"))
    assert g.get("block_count") == g.require("block_count", int) == 4_000_000_000
    assert g.require("block_count", float) == 4e9 and isinstance(g.require("block_count", float), float)
    assert g.get("nothing") is None and g.get("nothing", 7) == 7
    with pytest.raises(FormatError, match=r"metadata key 'llama\.nothing' is missing"):
        g.require("nothing")
    with pytest.raises(FormatError, match=r"'llama\.rope\.freq_base' is float32, expected int"):
        g.require("rope.freq_base", int)
    with pytest.raises(FormatError, match="tensor 'nothing' is missing"):
        g.tensor("nothing")


def test_a_file_without_architecture_opens_but_cannot_name_one(raw, put) -> None:
    g = open_gguf(put(raw.file((raw.u32("a", 1),))))
    assert g.kv["a"] == 1 and len(g.tensors) == 0
    with pytest.raises(FormatError, match=r"'general\.architecture' is missing"):
        _ = g.architecture


def test_version_2_reads_like_version_3(raw, put) -> None:
    kv = raw.string("general.architecture", "llama")
    g = open_gguf(put(raw.file((kv,), (raw.tensor("t", (4,)),), bytes(range(16)), version=2)))
    assert g.version == 2 and bytes(g.tensors["t"].data) == bytes(range(16))


def test_a_long_text_is_left_in_the_file_until_asked_for(raw, put) -> None:
    long = "ä€𝄞x" * 50_000
    g = open_gguf(put(raw.file((raw.string("tokenizer.huggingface.json", long),))))
    assert not isinstance(g.kv.typed["tokenizer.huggingface.json"].data, str)
    assert g.kv["tokenizer.huggingface.json"] == long


def test_views_outlive_the_file_object(tmp_path: Path) -> None:
    g = open_gguf(_package_file(tmp_path / "a.gguf"))
    data, words = g.tensors["blk.0.w"].data, g.kv["t.words"]
    del g
    assert data.view(np.float32)[23] == 23 and words[3] == "x" * 300


def test_released_tensors_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_tensor("w", np.arange(1 << 16, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = open_gguf(path).tensors["w"]
    before = int(tensor.data.sum(dtype=np.int64))
    tensor.release()
    assert int(tensor.data.sum(dtype=np.int64)) == before > 0


def test_a_real_model_reads_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    g = open_gguf(smollm2_path)
    theirs = oracle.GGUFReader(smollm2_path)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(g.kv) == list(fields)
    for key, field in fields.items():
        ours = g.kv[key]
        if hasattr(ours, "tolist"):  # a sample, because the package takes seconds to turn all of them into Python
            assert len(ours) == len(field.data)
            for part in (slice(None, 500), slice(-500, None)):
                assert ours[part] == field.contents(part), key
        else:
            assert ours == field.contents(), key
    assert list(g.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = g.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape.tolist()) and mine.type == tensor.tensor_type
        assert np.array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8)), tensor.name


# --- field cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_id, code", [(4, "<I"), (10, "<Q"), (5, "<i"), (2, "<H")])
def test_fc10_alignment_in_an_unexpected_width_does_not_shift_the_weights(raw, put, type_id: int, code: str) -> None:
    ramp = np.arange(32, dtype=np.float32)
    kv = raw.kv("general.alignment", type_id, struct.pack(code, 64))
    tensors = (raw.tensor("a", (16,), 0, 0), raw.tensor("b", (16,), 0, 64))
    g = open_gguf(put(raw.file((kv,), tensors, ramp.tobytes(), alignment=64)))
    assert g.alignment == 64
    assert np.array_equal(g.tensors["a"].data.view(np.float32), ramp[:16])
    assert np.array_equal(g.tensors["b"].data.view(np.float32), ramp[16:])


def test_fc10_missing_tail_padding_is_accepted_when_the_tensor_bytes_are_there(raw, put) -> None:
    g = open_gguf(put(raw.file((), (raw.tensor("a", (3,)),), np.arange(3, dtype=np.float32).tobytes())))
    assert np.array_equal(g.tensors["a"].data.view(np.float32), [0, 1, 2])


def test_fc11_the_head_in_a_later_shard_is_found_beside_tied_embeddings(tmp_path: Path) -> None:
    from ds4py.gguf import NewTensor, Value, write_gguf

    for no, name in enumerate(["token_embd.weight", "output.weight"]):
        kv = {"split.no": Value(GgufType.UINT16, no), "split.count": Value(GgufType.UINT16, 2), "split.tensors.count": 2}
        write_gguf(tmp_path / f"m-{no + 1:05d}-of-00002.gguf", kv, [NewTensor.of(name, np.full(4, no, np.float32))])
    g = open_gguf(tmp_path / "m-00001-of-00002.gguf")
    assert list(g.tensors) == ["token_embd.weight", "output.weight"]
    assert g.tensors["output.weight"].data.view(np.float32)[0] == 1
