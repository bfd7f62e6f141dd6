"""Damaged, incomplete and hostile folders (FC-56): found before anything is written, with the file and the tensors by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_folders import edit_json, quantise_fp8, raw_safetensors, save_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ds4py.convert import Options, make_plan, write_plan
from ds4py.convert.checkpoint import INDEX, open_checkpoint
from ds4py.convert.floats import e4m3_table
from ds4py.convert.safetensors import read_header
from ds4py.errors import Ds4Error, FormatError, UnsupportedError, UsageError


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A tiny llama in three shards with an index."""
    folder = save_folder("llama", tmp_path / "tiny", shard="200KB").path
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [shard(i) for i in (1, 2, 3)]
    return folder


def shard(i: int, n: int = 3) -> str:
    return f"model-{i:05}-of-{n:05}.safetensors"


def refused(folder: Path, problem: str, **options: Any) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(FormatError, match=problem):
        write_plan(make_plan(folder, Options(**options)), folder / "out.gguf")
    assert sorted(folder.rglob("*")) == before


def test_missing_shard_is_named_with_up_to_five_of_its_tensors(sharded: Path) -> None:
    names = sorted(read_header(sharded / shard(2)))
    (sharded / shard(2)).unlink()
    with pytest.raises(FormatError, match=r"the shard model-00002-of-00003\.safetensors is missing; it holds ") as told:
        make_plan(sharded, Options())
    assert sum(name in str(told.value) for name in names) == 5 and f"and {len(names) - 5} more" in str(told.value)
    (sharded / INDEX).unlink()
    refused(sharded, "of 3 shards number 2 is missing")


def test_a_missing_index_is_no_matter_when_all_shards_are_there(sharded: Path) -> None:
    write_plan(make_plan(sharded, Options()), sharded / "with.gguf")
    (sharded / INDEX).unlink()
    write_plan(make_plan(sharded, Options()), sharded / "without.gguf")
    assert (sharded / "with.gguf").read_bytes() == (sharded / "without.gguf").read_bytes()


def test_an_index_that_names_a_tensor_that_is_not_there(sharded: Path) -> None:
    edit_json(sharded / INDEX, lambda table: table["weight_map"].update({"model.mtp.weight": shard(1)}))
    refused(sharded, r"the index says that it holds model\.mtp\.weight, and it does not")


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", 7, "model.bin"])
def test_an_index_that_leads_elsewhere(file: Any, sharded: Path) -> None:
    edit_json(sharded / INDEX, lambda table: table["weight_map"].update({"model.norm.weight": file}))
    refused(sharded, "is no file of this folder")


def test_an_extra_weight_file_is_not_passed_over(sharded: Path) -> None:
    save_file({"model.mtp.weight": torch.zeros(4)}, sharded / "mtp.safetensors")
    refused(sharded, r"mtp\.safetensors is not in the index; leave it out with --drop mtp\.safetensors")
    plan = make_plan(sharded, Options(drop=("mtp.safetensors",)))
    assert "left out as asked: mtp.safetensors" in plan.notes


def test_without_an_index_extra_files_and_mixed_sets_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    save_file({"x": torch.zeros(4)}, sharded / "extra.safetensors")
    refused(sharded, r"extra\.safetensors does not say which part it is")
    (sharded / "extra.safetensors").rename(sharded / "other-00001-of-00003.safetensors")
    refused(sharded, "belong to different sets")


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    name = next(iter(read_header(sharded / shard(1))))
    path = sharded / shard(3)
    save_file({**load_file(path), name: torch.zeros(4)}, path)
    refused(sharded, f"tensor '{name}' is also in model-00001")


def test_unknown_tensors_stop_the_conversion_unless_dropped(tmp_path: Path) -> None:
    folder = save_folder("qwen2", tmp_path / "tiny").path
    path = folder / "model.safetensors"
    save_file({**load_file(path), "model.layers.0.self_attn.o_proj.bias": torch.zeros(64)}, path)
    refused(folder, r"Qwen2ForCausalLM has no place for model\.layers\.0\.self_attn\.o_proj\.bias.*--drop PATTERN")
    plan = make_plan(folder, Options(drop=("*.o_proj.bias",)))
    assert "left out as asked: model.layers.0.self_attn.o_proj.bias" in plan.notes
    with pytest.raises(UsageError, match=r"--drop \*\.nothing matches no tensor"):
        make_plan(folder, Options(drop=("*.o_proj.bias", "*.nothing")))


def test_rotary_buffers_of_old_checkpoints_follow_from_the_config(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path / "tiny").path
    path = folder / "model.safetensors"
    save_file({**load_file(path), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, path)
    assert "1 tensors of rotary frequencies follow from the config and are not written" in make_plan(folder, Options()).notes


def test_missing_and_misshapen_tensors(tmp_path: Path) -> None:
    folder = save_folder("qwen3", tmp_path / "tiny").path
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.1.self_attn.q_norm.weight"
    save_file({key: value for key, value in weights.items() if key != name}, path)
    refused(folder, f"the checkpoint lacks {name}")
    save_file({**weights, name: torch.ones(31)}, path)
    refused(folder, rf"tensor {name} has shape \[31\], the config asks for \[32\]")
    save_file({**weights, name: torch.ones(32, dtype=torch.int32)}, path)
    with pytest.raises(UnsupportedError, match=f"tensor {name} has type I32"):
        make_plan(folder, Options())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_leave_no_file(value: float, tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path / "tiny").path
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.2.mlp.up_proj.weight"][3, 4] = value
    save_file(weights, path)
    refused(folder, r"tensor model\.layers\.2\.mlp\.up_proj\.weight has NaN or infinite values")


def test_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path / "tiny").path
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.2.mlp.up_proj.weight"][3, 4] = 1e6
    save_file(weights, path)
    refused(folder, r"has values up to 1e\+06, more than F16 holds; use --outtype bf16", outtype="f16")
    write_plan(make_plan(folder, Options(outtype="bf16")), tmp_path / "good.gguf")


def test_rows_of_no_whole_blocks_fall_back_and_are_told(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path / "tiny", intermediate_size=100).path
    plan = make_plan(folder, Options(outtype="q8_0"))
    assert any("3 matrices have rows that are no multiple of 32 and are stored as F16: blk.0.ffn_down" in n for n in plan.notes)
    write_plan(plan, tmp_path / "out.gguf")


# --- the file format -------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F16", "shape": [3], "data_offsets": [16, 22]},
}


def changed(**change: Any) -> dict[str, Any]:
    return {**GOOD, "b": {**GOOD["b"], **change}}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (changed(data_offsets=[8, 14]), "lie on the same bytes"),
        (changed(data_offsets=[14, 22]), r"has 8 bytes, but \[3\] of F16 take 6"),
        (changed(data_offsets=[22, 16]), "impossible data_offsets"),
        (changed(data_offsets=[-6, 0]), "impossible data_offsets"),
        (changed(data_offsets=[16]), "impossible data_offsets"),
        (changed(data_offsets=[100, 106]), "cut short"),
        (changed(data_offsets=[1 << 59, (1 << 59) + 6]), "cut short"),
        (changed(shape=[-3]), "impossible shape"),
        (changed(shape=[True]), "impossible shape"),
        (changed(shape=[1] * 9), "impossible shape"),
        (changed(shape=[1 << 50, 1 << 50]), "has 6 bytes"),
        (changed(shape="3"), "impossible shape"),
        (changed(dtype="Q4"), "unknown type 'Q4'"),
        (changed(dtype=None), "unknown type None"),
        ({"a": 7}, "not described by a JSON object"),
    ],
)
def test_headers_that_lie(table: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=problem):
        read_header(raw_safetensors(tmp_path / "x.safetensors", table, bytes(22)))


def test_a_sound_file_and_offsets_that_are_no_multiple_of_eight(tmp_path: Path) -> None:
    path = raw_safetensors(tmp_path / "x.safetensors", {**GOOD, "__metadata__": {"format": "pt"}}, bytes(22))
    assert {name: entry.nbytes for name, entry in read_header(path).items()} == {"a": 16, "b": 6}


@pytest.mark.parametrize("length", [0, 1, 1 << 60, 10**9])
def test_header_lengths_that_lie(length: int, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="the header claims|is not valid JSON|not a JSON object"):
        read_header(raw_safetensors(tmp_path / "x.safetensors", GOOD, bytes(22), length))


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    path = raw_safetensors(tmp_path / "x.safetensors", GOOD, bytes(22))
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(FormatError):
            read_header(path)


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(FormatError, match="has the key 'a' twice"):
        read_header(tmp_path / "x.safetensors")


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(FormatError, match="Git LFS pointer"):
        read_header(tmp_path / "x.safetensors")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_only_our_errors_come_out_of_noise(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    header = bytearray(json.dumps(GOOD).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(22))
    try:
        read_header(path)
    except FormatError:
        pass


# --- configs and scales ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "problem"),
    [
        ({"architectures": ["DeepseekV9ForCausalLM"]}, UnsupportedError, "cannot be converted yet; supported are Llama"),
        ({"architectures": None}, FormatError, "architectures is None, not a list with one name"),
        ({"hidden_size": 0}, FormatError, "hidden_size is 0, not a whole number"),
        ({"hidden_size": True}, FormatError, "hidden_size is True"),
        ({"num_hidden_layers": "3"}, FormatError, "num_hidden_layers is '3'"),
        ({"num_hidden_layers": 10**9}, FormatError, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 3}, FormatError, "not a multiple of num_key_value_heads 3"),
        ({"rms_norm_eps": -1}, FormatError, "rms_norm_eps is -1, not a number above 0"),
        ({"num_hidden_layers": 2}, FormatError, r"has no place for model\.layers\.2"),
        ({"num_hidden_layers": 4}, FormatError, r"the checkpoint lacks model\.layers\.3"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu'"),
        ({"sliding_window": 16}, UnsupportedError, "a sliding_window of 16"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, UnsupportedError, "rope scaling 'dynamic'"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedError, "weights packed by 'awq'"),
        ({"attention_bias": True}, FormatError, r"lacks model\.layers\.0\.self_attn\.q_proj\.bias"),
    ],
)
def test_configs_that_cannot_be(change: dict[str, Any], kind: type[Exception], problem: str, tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path / "tiny").path
    edit_json(folder / "config.json", lambda table: table.update(change))
    with pytest.raises(kind, match=problem):
        make_plan(folder, Options())


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="this is no folder"):
        make_plan(tmp_path / "none", Options())
    with pytest.raises(Ds4Error, match=r"config\.json: cannot be read: No such file"):
        make_plan(tmp_path, Options())
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FormatError, match="not a JSON object"):
        make_plan(tmp_path, Options())
    with pytest.raises(FormatError, match=r"there is no \*\.safetensors file"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedError, match="pickles"):
        open_checkpoint(tmp_path)


def test_every_fp8_byte_means_what_torch_says() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(e4m3_table(), theirs)


def _without(path: Path, end: str) -> None:
    save_file({name: value for name, value in load_file(path).items() if not name.endswith(end)}, path)


def _short(path: Path, end: str) -> None:
    save_file({n: v[:, :1].contiguous() if n.endswith(end) else v for n, v in load_file(path).items()}, path)


@pytest.mark.parametrize(
    ("change", "end", "problem"),
    [
        (_without, "q_proj.weight_scale_inv", "are FP8 without the scales"),
        (_without, "q_proj.weight", "are scales of weights that are not there"),
        (_short, "down_proj.weight_scale_inv", r"has shape \[2, 1\]; \[160, 288\] in blocks of \[128, 128\] needs \[2, 3\]"),
    ],
)
def test_scales_that_do_not_fit(change: Callable[[Path, str], None], end: str, problem: str, tmp_path: Path) -> None:
    tiny = save_folder("llama", tmp_path / "tiny", hidden_size=160, intermediate_size=288, num_attention_heads=10)
    quantise_fp8(tiny)
    change(tiny.path / "model.safetensors", end)
    refused(tiny.path, problem)
