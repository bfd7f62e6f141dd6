"""DeepSeek V4 checkpoints to GGUF: every value, every name and type, the sizes of the real model, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hf_folders import edit_json
from tiny_deepseek4 import FLASH, PREVIEW, Folder, outline, save_checkpoint, write

from ds4py.convert import Options, make_plan, make_support_plan, open_folder, write_plan
from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import GgmlType, GgufFile, Tensor, open_gguf
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.protocols import Span
from ds4py.quantize import Job, metadata, output_size, recipe, run
from ds4py.quantize import Options as Quantising
from ds4py.quantize import make_plan as plan_types
from ds4py.quants import decode, encode
from ds4py.tokenizer import load_tokenizer

T = GgmlType
TOP = {
    "token_embd.weight": "embed.weight", "output.weight": "head.weight", "output_norm.weight": "norm.weight",
    "output_hc_fn.weight": "hc_head_fn", "output_hc_base.weight": "hc_head_base", "output_hc_scale.weight": "hc_head_scale",
}  # fmt: skip
LAYER = {
    "hc_attn_fn.weight": "hc_attn_fn", "hc_attn_base.weight": "hc_attn_base", "hc_attn_scale.weight": "hc_attn_scale",
    "hc_ffn_fn.weight": "hc_ffn_fn", "hc_ffn_base.weight": "hc_ffn_base", "hc_ffn_scale.weight": "hc_ffn_scale",
    "attn_norm.weight": "attn_norm.weight", "ffn_norm.weight": "ffn_norm.weight", "attn_sinks.weight": "attn.attn_sink",
    "attn_q_a.weight": "attn.wq_a.weight", "attn_q_a_norm.weight": "attn.q_norm.weight", "attn_q_b.weight": "attn.wq_b.weight",
    "attn_kv.weight": "attn.wkv.weight", "attn_kv_a_norm.weight": "attn.kv_norm.weight",
    "attn_output_a.weight": "attn.wo_a.weight", "attn_output_b.weight": "attn.wo_b.weight",
    "attn_compressor_ape.weight": "attn.compressor.ape", "attn_compressor_kv.weight": "attn.compressor.wkv.weight",
    "attn_compressor_gate.weight": "attn.compressor.wgate.weight", "attn_compressor_norm.weight": "attn.compressor.norm.weight",
    "indexer.attn_q_b.weight": "attn.indexer.wq_b.weight", "indexer.proj.weight": "attn.indexer.weights_proj.weight",
    "indexer_compressor_ape.weight": "attn.indexer.compressor.ape",
    "indexer_compressor_kv.weight": "attn.indexer.compressor.wkv.weight",
    "indexer_compressor_gate.weight": "attn.indexer.compressor.wgate.weight",
    "indexer_compressor_norm.weight": "attn.indexer.compressor.norm.weight",
    "ffn_gate_inp.weight": "ffn.gate.weight", "exp_probs_b.bias": "ffn.gate.bias",
    "ffn_gate_tid2eid.weight": "ffn.gate.tid2eid", "ffn_gate_shexp.weight": "ffn.shared_experts.w1.weight",
    "ffn_up_shexp.weight": "ffn.shared_experts.w3.weight", "ffn_down_shexp.weight": "ffn.shared_experts.w2.weight",
    "hc_head_fn.weight": "hc_head_fn", "hc_head_base.weight": "hc_head_base", "hc_head_scale.weight": "hc_head_scale",
}  # fmt: skip
EXPERTS = {"ffn_gate_exps.weight": "w1", "ffn_up_exps.weight": "w3", "ffn_down_exps.weight": "w2"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return save_checkpoint(tmp_path_factory.mktemp("v4") / "tiny", draft="dspark", n_routed_experts=4)


def truth(folder: Folder, name: str) -> np.ndarray:
    """What the tensor `name` of a GGUF must hold, by the names of the checkpoint."""
    if name in TOP:
        return folder.values[TOP[name]]
    place, i, rest = name.split(".", 2)
    there = f"layers.{i}." if place == "blk" else f"mtp.{i}."
    if rest in EXPERTS:
        n = folder.config["n_routed_experts"]
        return np.stack([folder.values[f"{there}ffn.experts.{e}.{EXPERTS[rest]}.weight"] for e in range(n)])
    return folder.values[there + LAYER.get(rest, rest)]


def values(tensor: Tensor) -> np.ndarray:
    if tensor.type is T.I32:
        return tensor.data.view("<i4").reshape(tensor.shape[::-1])
    return decode(tensor.type, tensor.data, tensor.n_values).reshape(tensor.shape[::-1])


def quantise(g: GgufFile, name: str, out: Path, **options: Any) -> GgufFile:
    run(job(g, name), out, lambda *told: None, **options)
    return open_gguf(out)


def job(g: GgufFile, name: str) -> Job:
    plan = plan_types(g, Quantising(recipe(name), allow_requantize=True))
    return Job(g, plan, metadata(g, plan, None, {}))


def test_every_value_is_the_checkpoints(tiny: Folder, tmp_path: Path) -> None:
    """FP8 and FP4 exactly; only the router, which readers know as F16, is rounded where BF16 has smaller numbers than F16."""
    write_plan(make_plan(tiny.path, Options()), tmp_path / "out.gguf")
    g = open_gguf(tmp_path / "out.gguf")
    seen = {kind: 0 for kind in T}
    for name, tensor in g.tensors.items():
        want = truth(tiny, name)
        assert tensor.shape[::-1] == want.shape, name
        atol = 2.0**-25 if name.endswith("ffn_gate_inp.weight") else 0
        np.testing.assert_allclose(values(tensor), want, rtol=0, atol=atol, err_msg=name)
        seen[tensor.type] += 1
    assert seen[T.MXFP4] == 18 and seen[T.I32] == 2 and seen[T.F16] == 6 and seen[T.BF16] > 50
    assert len(g.tensors) == 6 + 6 * 24 + 4 * 4 + 2 * 6  # top, layers, compressors, indexers


def test_a_converted_file_reads_a_prompt_whose_logits_nobody_asks_for(tiny: Folder, tmp_path: Path) -> None:
    """ds4 -p failed on the first block of a prompt, which has no row for the head."""
    write_plan(make_plan(tiny.path, Options()), tmp_path / "out.gguf")
    model = load_model(open_gguf(tmp_path / "out.gguf"), ReferenceKernels(), kv_dtype="float32")
    ids = list(range(20, 50))
    state = model.new_state(64, slack=4)
    assert len(model.forward([Span(state, ids[:20])]).logits) == 0
    rows = model.forward([Span(state, ids[20:], n_logits=10)]).of(0).copy()
    whole = model.forward([Span(model.new_state(64, slack=4), ids, n_logits=10)]).of(0)
    assert rows.std() > 0.1
    assert (rows.argmax(1) == whole.argmax(1)).mean() > 0.8  # plain torch rounds by the number of rows, and may flip a code


def test_fp4_codes_and_scales_are_moved_and_not_touched(tiny: Folder, tmp_path: Path) -> None:
    """Bit for bit, minus zero too, as the gguf package reads it and by the bytes themselves."""
    write_plan(make_plan(tiny.path, Options()), tmp_path / "out.gguf")
    tensor = open_gguf(tmp_path / "out.gguf").tensor("blk.3.ffn_down_exps.weight")
    theirs = gguf.quants.dequantize(tensor.data.reshape(-1, 8 * 17), gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(theirs.reshape(4, 256, 256), truth(tiny, tensor.name))
    blocks = tensor.data.reshape(4, 256, 8, 17)
    _, shape, codes = tiny.raw["layers.3.ffn.experts.3.w2.weight"]
    scales = np.frombuffer(tiny.raw["layers.3.ffn.experts.3.w2.scale"][2], np.uint8).reshape(256, 8)
    np.testing.assert_array_equal(blocks[3, :, :, 0], scales)
    packed = np.frombuffer(codes, np.uint8).reshape(shape)
    there = np.stack([packed & 15, packed >> 4], -1).reshape(256, 8, 32)
    here = np.concatenate([blocks[3, :, :, 1:] & 15, blocks[3, :, :, 1:] >> 4], -1)
    np.testing.assert_array_equal(here, there)
    assert (there == 8).sum() > 1000


def test_metadata_is_what_readers_of_the_architecture_ask_for(tiny: Folder) -> None:
    kv = make_plan(tiny.path, Options()).kv
    own = {key.removeprefix("deepseek4."): getattr(value, "data", value) for key, value in kv.items() if "deepseek4." in key}
    assert own["attention.compress_ratios"] == tiny.config["compress_ratios"] and own["checkpoint_variant"] == "0731"
    assert own["swiglu_clamp_exp"] == [0.5] * 6 and own["hash_layer_count"] == 2 and own["vocab_size"] == 352
    assert own["rope.scaling.original_context_length"] == 64 and own["expert_weights_norm"] is True
    assert own["attention.indexer.top_k"] == 8 and own["hyper_connection.sinkhorn_iterations"] == 20
    asked = (
        "block_count embedding_length context_length attention.head_count attention.head_count_kv attention.key_length "
        "attention.value_length rope.dimension_count attention.q_lora_rank attention.output_lora_rank "
        "attention.output_group_count attention.sliding_window attention.compress_rope_freq_base attention.indexer.head_count "
        "attention.indexer.key_length attention.layer_norm_rms_epsilon expert_count expert_used_count expert_shared_count "
        "expert_feed_forward_length expert_weights_scale hyper_connection.count hyper_connection.epsilon rope.freq_base "
        "rope.scaling.factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow"
    )
    assert set(asked.split()) <= own.keys()
    assert kv["tokenizer.ggml.pre"] == "joyai-llm" and kv["tokenizer.ggml.add_bos_token"] is False


def test_deepseeks_own_way_of_writing_its_splitting_is_recognised(tiny: Folder) -> None:
    """Its expressions hold line breaks themselves where others have escapes; the conversion stopped at them."""
    cuts = json.loads((tiny.path / "tokenizer.json").read_text("utf-8"))["pre_tokenizer"]["pretokenizers"]
    assert "[^\r\n" in cuts[2]["pattern"]["Regex"]
    assert make_plan(tiny.path, Options(vocab_only=True)).kv["tokenizer.ggml.pre"] == "joyai-llm"


def test_the_tokenizer_in_the_file_has_its_control_tokens(tiny: Folder, tmp_path: Path) -> None:
    write_plan(make_plan(tiny.path, Options(vocab_only=True)), tmp_path / "vocab.gguf")
    tokenizer = load_tokenizer(open_gguf(tmp_path / "vocab.gguf"))
    table = json.loads((tiny.path / "tokenizer.json").read_text("utf-8"))
    added = {row["content"]: row["id"] for row in table["added_tokens"]}
    assert {text: tokenizer.vocab.markers[text] for text in added} == added
    assert tokenizer.bos_id == added["<｜begin▁of▁sentence｜>"] and tokenizer.eos_id in tokenizer.stop_ids
    assert not set(added.values()) & set(tokenizer.encode("".join(added)))


# --- recipes ---------------------------------------------------------------------------------------------------------------

Q8 = (
    *("output.weight", "attn_q_a.weight", "attn_q_b.weight", "attn_kv.weight", "attn_output_a.weight", "attn_output_b.weight"),
    *("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"),
)
HALF = (
    *("token_embd.weight", "output_hc_fn.weight", "hc_attn_fn.weight", "hc_ffn_fn.weight", "ffn_gate_inp.weight"),
    *("attn_compressor_ape.weight", "attn_compressor_kv.weight", "attn_compressor_gate.weight", "indexer.attn_q_b.weight"),
    *("indexer.proj.weight", "indexer_compressor_ape.weight", "indexer_compressor_kv.weight", "indexer_compressor_gate.weight"),
)


def check_types(g: GgufFile, gate_up: GgmlType, down: GgmlType, finer: Callable[[int], bool] = lambda layer: False) -> None:
    """By the published table: experts as told (Q4_K where `finer`), what runs always in Q8_0, small parts in F16 and F32."""
    for name, tensor in g.tensors.items():
        rest = name.split(".", 2)[2] if name.startswith("blk.") else name
        if rest in EXPERTS:
            layer = int(name.split(".")[1])
            want = T.Q4_K if finer(layer) else down if "down" in rest else gate_up
        else:
            want = T.Q8_0 if rest in Q8 else T.F16 if rest in HALF else T.I32 if "tid2eid" in rest else T.F32
        assert tensor.type is want, name


@pytest.mark.parametrize(
    ("name", "gate_up", "down"),
    [("DS4_Q2", T.IQ2_XXS, T.Q2_K), ("DS4_Q4", T.Q4_K, T.Q4_K), ("DS4_MXFP4", T.MXFP4, T.MXFP4)],
)
def test_a_folder_is_quantised_in_one_run(tiny: Folder, tmp_path: Path, name: str, gate_up: GgmlType, down: GgmlType) -> None:
    folder = open_folder(tiny.path, Options(outtype="exact"))
    g = quantise(folder, name, tmp_path / "out.gguf")
    check_types(g, gate_up, down)
    assert g.nbytes == output_size(job(folder, name), tmp_path / "out.gguf")
    for tensor in ("blk.2.attn_q_b.weight", "blk.4.ffn_up_shexp.weight", "output.weight"):
        want = encode(T.Q8_0, truth(tiny, tensor))
        np.testing.assert_array_equal(g.tensor(tensor).data, want, tensor)
    for tensor, kind in (("blk.1.ffn_up_exps.weight", gate_up), ("blk.5.ffn_down_exps.weight", down)):
        want, got = truth(tiny, tensor), values(g.tensor(tensor))
        error = float(np.square(got - want).mean() / np.square(want).mean())
        assert error < {T.MXFP4: 1e-12, T.Q4_K: 0.01, T.Q2_K: 0.1, T.IQ2_XXS: 0.25}[kind]


def test_the_folder_reads_like_the_file(tiny: Folder, tmp_path: Path) -> None:
    """Any range of bytes, however it lies across rows and experts."""
    folder = open_folder(tiny.path, Options())
    write_plan(make_plan(tiny.path, Options()), tmp_path / "out.gguf")
    file = open_gguf(tmp_path / "out.gguf")
    assert dict(folder.kv) == {key: folder.kv[key] for key in folder.kv} and list(folder.kv) == list(file.kv)
    rng = np.random.default_rng(5)
    for name in ("blk.1.ffn_gate_exps.weight", "blk.2.attn_q_a.weight", "blk.0.ffn_gate_tid2eid.weight", "output_norm.weight"):
        made, stored = folder.tensor(name), file.tensor(name)
        for start, stop in np.sort(rng.integers(0, stored.nbytes + 1, (20, 2)), axis=1).tolist():
            np.testing.assert_array_equal(made.read(start, stop), stored.read(start, stop), f"{name} {start} {stop}")


def test_the_real_models_names_sizes_and_totals(tmp_path: Path) -> None:
    """43 layers of 256 experts, without data: the published sizes are 81, 90.9 and 153 GiB, 156 GB and 5.6 GiB."""
    path = outline(tmp_path / "flash", FLASH, draft="dspark")
    g = open_folder(path, Options(outtype="exact"))
    assert len(g.tensors) == 6 + 43 * 24 + 41 * 4 + 21 * 6
    assert g.tensor("blk.2.ffn_down_exps.weight").shape == (2048, 4096, 256)
    assert g.tensor("blk.42.indexer.attn_q_b.weight").shape == (1024, 8192)
    assert g.tensor("blk.2.attn_compressor_kv.weight").shape == (4096, 1024)
    assert g.tensor("blk.3.attn_compressor_kv.weight").shape == (4096, 512)
    assert g.tensor("blk.2.ffn_gate_tid2eid.weight").shape == (6, 129280) and "blk.3.ffn_gate_tid2eid.weight" not in g.tensors
    sizes = {name: output_size(job(g, name), tmp_path / "o.gguf") for name in ("DS4_Q2", "DS4_Q2_Q4", "DS4_Q4", "DS4_MXFP4")}
    assert round(sizes["DS4_Q2"] / 2**30) == 81 and round(sizes["DS4_Q4"] / 2**30) == 153
    assert round(sizes["DS4_Q2_Q4"] / 2**30, 1) == 90.9 and round(sizes["DS4_Q2_Q4"] / 1e9) == 98
    assert round(sizes["DS4_MXFP4"] / 1e9) == 156 and round(sizes["DS4_MXFP4"] / 2**30) == 145
    mixed = job(g, "DS4_Q2_Q4").plan
    assert {item.type for item in mixed.tensors if "blk.37.ffn_down_exps" in item.tensor.name} == {T.Q4_K}
    assert {item.type for item in mixed.tensors if "blk.36.ffn_down_exps" in item.tensor.name} == {T.Q2_K}
    draft = open_folder(path, Options(outtype="exact"), support=True)
    assert len(draft.tensors) == 81 and list(draft.tensors) == sorted(draft.tensors)
    assert round(output_size(job(draft, "DS4_Q2"), tmp_path / "d.gguf") / 2**30, 1) == 5.6
    assert draft.tensor("mtp.0.main_proj.weight").shape == (12288, 4096)
    assert draft.tensor("mtp.2.markov_head.markov_w2.weight").shape == (256, 129280)
    assert draft.tensor("mtp.2.hc_head_fn.weight").shape == (16384, 4)


# --- what drafts -----------------------------------------------------------------------------------------------------------


def test_the_dspark_stages_become_a_support_file(tiny: Folder, tmp_path: Path) -> None:
    write_plan(make_support_plan(tiny.path, Options()), tmp_path / "draft.gguf")
    g = open_gguf(tmp_path / "draft.gguf")
    assert g.architecture == "deepseek4-dspark" and g.kv["general.name"] == "DeepSeek V4 Flash DSpark support"
    told = {key.removeprefix("dspark."): g.kv[key] for key in g.kv if key.startswith("dspark.")}
    assert list(told.pop("target_layer_ids")) == [3, 4, 5]
    assert told == {
        "block_size": 5, "markov_rank": 32, "noise_token_id": 319, "stage_count": 3, "n_layers": 3, "checkpoint_variant": "0731"
    }  # fmt: skip
    assert len(g.tensors) == 81 and not any(key.startswith("tokenizer.") for key in g.kv)
    for name, tensor in g.tensors.items():
        confidence = name.endswith("confidence_head.proj.weight")  # Q8_0 in every file
        np.testing.assert_allclose(values(tensor), truth(tiny, name), rtol=0, atol=1e-3 if confidence else 2.0**-25, err_msg=name)
    small = quantise(open_folder(tiny.path, Options(outtype="exact"), support=True), "DS4_Q2", tmp_path / "small.gguf")
    types = {name.split(".", 2)[2]: tensor.type for name, tensor in small.tensors.items()}
    assert types["ffn_gate_exps.weight"] is T.IQ2_XXS and types["ffn_down_exps.weight"] is T.Q2_K
    assert types["main_proj.weight"] is types["markov_head.markov_w1.weight"] is types["confidence_head.proj.weight"] is T.Q8_0
    assert types["hc_head_fn.weight"] is T.F16 and types["main_norm.weight"] is T.F32


def test_the_previews_mtp_block_becomes_a_support_file(tmp_path: Path) -> None:
    old = save_checkpoint(tmp_path / "old", draft="mtp", num_hidden_layers=2, **{**PREVIEW, "compress_ratios": [0, 4, 0]})
    assert make_plan(old.path, Options()).kv["deepseek4.checkpoint_variant"] == "preview"
    write_plan(make_support_plan(old.path, Options()), tmp_path / "mtp.gguf")
    g = open_gguf(tmp_path / "mtp.gguf")
    assert len(g.tensors) == 32 and g.tensor("mtp.0.e_proj.weight").shape == (256, 256)
    for name, tensor in g.tensors.items():
        np.testing.assert_allclose(values(tensor), truth(old, name), rtol=0, atol=2.0**-25, err_msg=name)


def test_a_checkpoint_without_a_draft_says_so(tmp_path: Path) -> None:
    bare = save_checkpoint(tmp_path / "bare", num_hidden_layers=1, compress_ratios=[0], n_routed_experts=2)
    assert "deepseek4.checkpoint_variant" not in make_plan(bare.path, Options()).kv
    with pytest.raises(UsageError, match="no tensors of a draft"):
        make_support_plan(bare.path, Options())


# --- what is refused -------------------------------------------------------------------------------------------------------

Raw = dict[str, tuple[str, tuple[int, ...], bytes]]


def changed(tiny: Folder, path: Path, change: Callable[[Raw], object]) -> Path:
    """A copy of the folder with other tensors."""
    path.mkdir()
    for file in tiny.path.glob("*.json"):
        (path / file.name).write_bytes(file.read_bytes())
    raw = dict(tiny.raw)
    change(raw)
    write(path / "model.safetensors", raw)
    return path


def test_unknown_missing_and_misshapen_tensors_are_named(tiny: Folder, tmp_path: Path) -> None:
    expert = "layers.4.ffn.experts.2.w3."
    cases: list[tuple[Callable[[Raw], object], str]] = [
        (lambda raw: raw.update({"layers.1.extra.weight": ("F32", (1,), bytes(4))}), "no place for layers.1.extra.weight"),
        (lambda raw: raw.pop(f"{expert}weight") and raw.pop(f"{expert}scale"), f"lacks {expert}weight"),
        (lambda raw: raw.pop(f"{expert}scale"), f"{expert}weight has shape \\[256, 128\\]"),
        (lambda raw: raw.pop("layers.0.attn.wkv.scale"), "layers.0.attn.wkv.weight are FP8 without"),
        (lambda raw: raw.update({f"{expert}scale": ("F8_E8M0", (256, 4), bytes(1024))}), "does not scale the FP4 weight"),
        (lambda raw: raw.update({"layers.0.attn.attn_sink": ("F32", (8,), bytes(32))}), r"shape \[8\], .* asks for \[4\]"),
    ]
    for i, (change, problem) in enumerate(cases):
        with pytest.raises((FormatError, UnsupportedError), match=problem):
            make_plan(changed(tiny, tmp_path / str(i), change), Options())


def test_scales_that_are_no_numbers_are_refused_and_nothing_is_left(tiny: Folder, tmp_path: Path) -> None:
    for name in ("layers.3.ffn.experts.2.w1.scale", "layers.2.attn.wq_a.scale"):
        kind, shape, data = tiny.raw[name]
        broken = {name: (kind, shape, b"\xff" + data[1:])}
        path = changed(tiny, tmp_path / name, lambda raw, broken=broken: raw.update(broken))
        with pytest.raises(FormatError, match=f"{name} has a scale that is no number"):
            write_plan(make_plan(path, Options()), path / "out.gguf")
        assert not list(path.glob("*out*"))


def test_configs_that_contradict_themselves_are_refused(tiny: Folder, tmp_path: Path) -> None:
    path = changed(tiny, tmp_path / "a", lambda raw: None)
    before = (path / "config.json").read_text()
    for change, problem in (
        ({"compress_ratios": [0, 0, 4, 64, 4, 128]}, "compress_ratios is .*, not a list of 0, 4 and 128"),
        ({"compress_ratios": [0, 0]}, "compress_ratios"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ({"o_groups": 3}, "not a multiple of o_groups"),
        ({"num_hash_layers": -1}, "num_hash_layers is -1"),
    ):
        edit_json(path / "config.json", lambda table, change=change: table.update(change))
        with pytest.raises((FormatError, UnsupportedError), match=problem):
            make_plan(path, Options())
        (path / "config.json").write_text(before)
    edit_json(path / "config.json", lambda table: table.update(dspark_target_layer_ids=[3, 9, 5]))
    with pytest.raises(FormatError, match="dspark_target_layer_ids"):
        make_support_plan(path, Options())
