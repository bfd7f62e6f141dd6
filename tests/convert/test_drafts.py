"""Draft checkpoints of every layout to llama.cpp's GGUF: every tensor and key, read by us and by the gguf package."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from draft_folders import LAYOUTS, N_DRAFT, N_VOCAB, DraftFolder, neighbours, save_draft
from hf_folders import edit_json, save_folder
from safetensors.torch import load_file, save_file

from ds4py.cli import convert as command
from ds4py.convert import Options, make_plan, write_plan
from ds4py.drafters import recognise
from ds4py.errors import Ds4Error, FormatError, UnsupportedError, UsageError
from ds4py.gguf import GgufFile, open_gguf
from ds4py.quants import decode

TAPS = {"speculators-eagle3": [0, 1, 2], "z-lab": [1, 2], "deepspec": [1, 2]}
TAPS |= {"speculators-dspark": [1, 3], "speculators-dflash": [1, 3]}
KINDS = {"z-lab": "draft-dflash", "deepspec": "draft-dspark"}
KINDS |= {"speculators-dspark": "draft-dspark", "speculators-dflash": "draft-dflash"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder("qwen3", tmp_path_factory.mktemp("models") / "target").path


@pytest.fixture(scope="module")
def target(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's folder as people have it beside a draft: without weights."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((whole / name).read_bytes())
    return folder


def convert(draft: DraftFolder | Path, target: Path, **options: Any) -> GgufFile:
    folder = draft if isinstance(draft, Path) else draft.path
    path = folder.parent / f"{folder.name}.gguf"
    write_plan(make_plan(folder, Options(outtype="f32", target=target, **options)), path)
    return open_gguf(path)


def array(g: GgufFile, name: str) -> np.ndarray:
    tensor = g.tensors[name]
    shape = tensor.shape[::-1]
    if name == "d2t":
        return np.frombuffer(tensor.data, np.int64).reshape(shape)
    return decode(tensor.type, tensor.data, int(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, target: Path, tmp_path: Path) -> None:
    draft = save_draft(layout, tmp_path / "draft")
    g = convert(draft, target)
    assert set(g.tensors) == set(draft.tensors)
    for name, expected in draft.tensors.items():
        np.testing.assert_array_equal(array(g, name), expected, err_msg=name)
    architecture = g.architecture
    assert architecture == ("eagle3" if "draft_vocab_size" in draft.config and layout not in KINDS else "dflash")
    assert recognise(g) == KINDS.get(layout, "draft-eagle3")
    assert list(g.kv[f"{architecture}.target_layers"]) == TAPS.get(layout, [1, 2, 3])
    assert g.kv[f"{architecture}.vocab_size"] == N_VOCAB == len(g.kv["tokenizer.ggml.tokens"])
    assert g.kv["tokenizer.ggml.pre"] == "qwen2"
    if architecture == "dflash":
        assert g.kv["tokenizer.ggml.mask_token_id"] == 299
        assert g.kv["dflash.block_size"] == draft.config["block_size"] and g.kv["dflash.attention.causal"] is False
    if layout in ("deepspec", "speculators-dspark"):
        assert g.kv["dflash.has_confidence_head"] is True
        assert g.kv["dflash.sample_from_anchor"] is (layout == "deepspec")
    if architecture == "eagle3":
        assert g.kv["eagle3.norm_before_residual"] is (layout == "speculators-eagle3")
        assert g.kv["eagle3.target_hidden_size"] == 64 and g.kv["eagle3.norm_before_fc"] is False


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gguf_package_reads_the_same(layout: str, target: Path, tmp_path: Path) -> None:
    draft = save_draft(layout, tmp_path / "draft")
    g = convert(draft, target)
    reader = gguf.GGUFReader(str(g.path))
    assert {tensor.name for tensor in reader.tensors} == set(draft.tensors)
    for tensor in reader.tensors:
        expected = draft.tensors[tensor.name]
        np.testing.assert_array_equal(np.asarray(tensor.data).reshape(expected.shape), expected)
    field = reader.fields[f"{g.architecture}.target_layers"]
    assert [int(field.parts[i][0]) for i in field.data] == list(g.kv[f"{g.architecture}.target_layers"])


def test_layers_that_nobody_names_are_the_usual_three(tmp_path: Path) -> None:
    target = save_folder("llama", tmp_path / "target", num_hidden_layers=12)
    g = convert(save_draft("angelslim", tmp_path / "draft", eagle_aux_hidden_state_layer_ids=None), target.path)
    assert list(g.kv["eagle3.target_layers"]) == [2, 6, 9]


def test_copies_of_the_target_are_left_out(whole: Path, tmp_path: Path) -> None:
    """Only what is equal byte for byte: an embedding that was trained on stays."""
    draft = save_draft("specforge", tmp_path / "draft")
    path = draft.path / "model.safetensors"
    original = load_file(whole / "model.safetensors")["model.embed_tokens.weight"]
    save_file({**load_file(path), "embed_tokens.weight": original}, path)
    plan = make_plan(draft.path, Options(target=whole))
    assert "token_embd.weight" not in {item.name for item in plan.items}
    assert any("embed_tokens.weight is the target's, byte for byte" in note for note in plan.notes)
    trained = original.clone()
    trained[3, 5] += 1
    save_file({**load_file(path), "embed_tokens.weight": trained}, path)
    assert "token_embd.weight" in {item.name for item in make_plan(draft.path, Options(target=whole)).items}


def test_frozen_copies_of_dspark_are_believed_unless_the_target_is_there(whole: Path, target: Path, tmp_path: Path) -> None:
    draft = save_draft("deepspec", tmp_path / "draft")
    plan = make_plan(draft.path, Options(target=target))
    assert not {"token_embd.weight", "output.weight"} & {item.name for item in plan.items}
    assert any("lm_head.weight is the target's in drafts of this kind" in note for note in plan.notes)
    assert {"token_embd.weight", "output.weight"} <= {item.name for item in make_plan(draft.path, Options(target=whole)).items}


def test_map_of_ids_instead_of_offsets(target: Path, tmp_path: Path) -> None:
    draft = save_draft("specforge", tmp_path / "draft")
    path = draft.path / "model.safetensors"
    save_file({**load_file(path), "d2t": torch.from_numpy(draft.tensors["d2t"])}, path)
    np.testing.assert_array_equal(array(convert(draft, target), "d2t"), draft.tensors["d2t"])


@pytest.mark.parametrize(
    ("d2t", "sentence"),
    [
        (None, "d2t, which says which, is missing"),
        (torch.zeros(N_DRAFT, dtype=torch.long), "all zeros, so it was never filled in"),
        (torch.full((N_DRAFT,), N_VOCAB - 50), "leads outside of the target's 320 tokens"),
        (torch.arange(0, -N_DRAFT, -1), "or twice to the same one"),
        (torch.zeros(N_DRAFT - 1, dtype=torch.long), "d2t has shape"),
        (torch.zeros(N_DRAFT), "whole numbers are expected"),
    ],
)
def test_a_draft_vocabulary_that_leads_nowhere(d2t: torch.Tensor | None, sentence: str, target: Path, tmp_path: Path) -> None:
    draft = save_draft("specforge", tmp_path / "draft")
    path = draft.path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in ("d2t", "t2d")}
    save_file({**tensors, **({} if d2t is None else {"d2t": d2t})}, path)
    with pytest.raises(Ds4Error, match=sentence):
        make_plan(draft.path, Options(target=target))


def test_a_map_and_its_inverse_that_disagree(target: Path, tmp_path: Path) -> None:
    draft = save_draft("specforge", tmp_path / "draft")
    path = draft.path / "model.safetensors"
    tensors = load_file(path)
    tensors["t2d"] = torch.roll(tensors["t2d"], 1)
    save_file(tensors, path)
    with pytest.raises(FormatError, match="do not speak of the same tokens"):
        make_plan(draft.path, Options(target=target))


def test_full_vocabulary_needs_no_map(target: Path, tmp_path: Path) -> None:
    draft = save_draft("specforge", tmp_path / "draft", draft_vocab_size=N_VOCAB)
    path = draft.path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in ("d2t", "t2d")}
    save_file({**tensors, "lm_head.weight": torch.randn(N_VOCAB, 64)}, path)
    g = convert(draft, target)
    assert "d2t" not in g.tensors and g.tensors["output.weight"].shape == (64, N_VOCAB)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_that_have_no_place_and_tensors_that_are_missing(layout: str, target: Path, tmp_path: Path) -> None:
    draft = save_draft(layout, tmp_path / "draft")
    path = draft.path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "something.else": torch.zeros(3)}, path)
    with pytest.raises(FormatError, match=r"no place for something\.else"):
        make_plan(draft.path, Options(target=target))
    assert make_plan(draft.path, Options(target=target, drop=("something.*",))).items
    save_file({name: tensor for name, tensor in tensors.items() if name != "fc.weight"}, path)
    with pytest.raises(FormatError, match=r"lacks fc\.weight"):
        make_plan(draft.path, Options(target=target))


@pytest.mark.parametrize(
    ("layout", "changes", "kind", "sentence"),
    [
        ("specforge", {"num_hidden_layers": 2}, UnsupportedError, "only one"),
        ("angelslim", {"eagle_aux_hidden_state_layer_ids": [1, 2]}, FormatError, "not 3 ascending layers"),
        ("angelslim", {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, FormatError, "of a target of 3"),
        ("angelslim", {"target_hidden_size": 128}, FormatError, "has a hidden_size of 64"),
        ("specforge", {"draft_vocab_size": 400}, FormatError, "more than the target's 320"),
        ("z-lab", {"num_target_layers": 36}, FormatError, "another target"),
        ("z-lab", {"dflash_config": {"target_layer_ids": [0, 1]}}, FormatError, "mask_token_id is None"),
        ("z-lab", {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 1]}}, FormatError, "target_layer_ids is"),
        ("z-lab", {"conv_kernel_size": 4}, UnsupportedError, "DFlash2"),
        ("deepspec", {"markov_head_type": "rnn"}, UnsupportedError, "Markov head of kind 'rnn'"),
        ("deepspec", {"markov_rank": 0}, UnsupportedError, "rank 0"),
        ("deepspec", {"confidence_head_with_markov": False}, UnsupportedError, "confidence head without"),
        ("deepspec", {"block_size": None}, FormatError, "block_size is None"),
    ],
)
def test_configs_that_fit_nothing(
    layout: str, changes: dict[str, Any], kind: type[Exception], sentence: str, target: Path, tmp_path: Path
) -> None:
    draft = save_draft(layout, tmp_path / "draft", **changes)
    with pytest.raises(kind, match=sentence):
        make_plan(draft.path, Options(target=target))


def test_windows_scales_and_neighbouring_partners(target: Path, tmp_path: Path) -> None:
    changes = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "attention_value_scale": 0.5,
        "rope_is_neox_style": False,
        "hidden_act": "gelu_pytorch_tanh",
    }
    draft = save_draft("z-lab", tmp_path / "draft", **changes)
    g = convert(draft, target)
    assert g.kv["dflash.attention.sliding_window"] == 64
    assert list(g.kv["dflash.attention.sliding_window_pattern"]) == [True, False]
    assert g.kv["dflash.attention.value_scale"] == 0.5 and g.kv["dflash.hidden_activation"] == "gelu_pytorch_tanh"
    for part in ("attn_q", "attn_k", "attn_q_norm"):
        name = f"blk.1.{part}.weight"
        np.testing.assert_array_equal(neighbours(array(g, name)), draft.tensors[name])


def test_llama3_frequencies_of_a_draft(target: Path, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    g = convert(save_draft("specforge", tmp_path / "draft", rope_scaling=scaling), target)
    assert g.tensors["rope_freqs.weight"].shape == (8,) and array(g, "rope_freqs.weight").max() == 8


def test_commands_say_what_to_do(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = save_draft("specforge", tmp_path / "draft")
    assert command.main([str(draft.path), "-o", str(tmp_path / "x.gguf")]) == UsageError.exit_code
    assert "say whose with --target-model-dir FOLDER" in capsys.readouterr().err
    assert command.main([str(target), "--target-model-dir", str(target), "-o", str(tmp_path / "x.gguf")]) == UsageError.exit_code
    assert "is for drafts" in capsys.readouterr().err
    asked = [str(draft.path), "--target-model-dir", str(target), "--outtype", "q8_0", "-o", str(tmp_path / "x.gguf")]
    assert command.main(asked) == 0
    told = capsys.readouterr()
    assert "eagle3, 15 tensors" in told.out and "embed_tokens" not in told.err
    g = open_gguf(tmp_path / "x.gguf")
    assert g.tensors["fc.weight"].type.name == "Q8_0" and g.tensors["d2t"].type.name == "I64"
    edit_json(draft.path / "config.json", lambda table: table.update(architectures=["SomethingForCausalLM"]))
    assert command.main(asked + ["--overwrite"]) == 1
    assert "'SomethingForCausalLM' is no draft that can be converted; there are LlamaForCausalLMEagle3" in capsys.readouterr().err


def test_a_mask_row_in_a_pickle_is_refused(target: Path, tmp_path: Path) -> None:
    draft = save_draft("z-lab", tmp_path / "draft")
    (draft.path / "mask_embedding.pt").write_bytes(b"\x80")
    with pytest.raises(UnsupportedError, match="pickle"):
        make_plan(draft.path, Options(target=target))


def test_config_is_json(tmp_path: Path) -> None:
    assert json.dumps(save_draft("deepspec", tmp_path / "draft").config)


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_llama_cpp_loads_the_file(layout: str, target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The model, that is: a context of a draft needs its target's beside it. A tensor or key too few or too many is refused."""
    import llama_cpp

    g = convert(save_draft(layout, tmp_path / "draft"), target)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(g.path).encode(), llama_cpp.llama_model_default_params())
    told = capfd.readouterr().err
    assert model, told
    try:
        assert llama_cpp.llama_model_n_params(model) == sum(int(np.prod(t.shape)) for t in g.tensors.values())
        assert llama_cpp.llama_model_n_embd(model) == 64
    finally:
        llama_cpp.llama_model_free(model)
