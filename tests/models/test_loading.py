"""What the loader refuses and how it says so, and what it shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import ARCHITECTURES, tiny_config, tiny_gguf, tiny_module, write_tiny
from tiny_v4 import make_tiny as make_tiny_v4

from ds4py.errors import ContextError, FormatError, UnsupportedError, UsageError
from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import SUPPORTED, load_model
from ds4py.protocols import Out, Span

Edit = Callable[[dict[str, Any], dict[str, NewTensor]], None]


def edited(source: Path, edit: Edit) -> Path:
    """A copy of a model file with metadata and tensors changed by `edit`."""
    g = open_gguf(source)
    kv: dict[str, Any] = dict(g.kv.typed)
    tensors = {t.name: NewTensor(t.name, t.shape, t.type, t.data) for t in g.tensors.values()}
    edit(kv, tensors)
    target = source.with_name("edited.gguf")
    write_gguf(target, kv, tensors.values())
    return target


def set_key(key: str, value: Any) -> Edit:
    def edit(kv: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
        kv[key] = value

    return edit


def drop_key(key: str) -> Edit:
    return lambda kv, tensors: kv.pop(key)


def put(name: str, *shape: int) -> Edit:
    """Add or replace a tensor, shape in numpy order."""

    def edit(kv: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
        tensors[name] = NewTensor.of(name, np.zeros(shape, np.float32))

    return edit


def drop(name: str) -> Edit:
    return lambda kv, tensors: tensors.pop(name)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_gguf("llama", tmp_path / "tiny.gguf", GgmlType.F32)


def load(path: Path) -> Any:
    return load_model(open_gguf(path), ReferenceKernels(), kv_dtype="float32")


def run(path: Path, ids: list[int]) -> Out:
    model = load(path)
    return model.forward([Span(model.new_state(64, slack=0), ids, n_logits=len(ids))])


METADATA = [
    (set_key("llama.attention.head_count", 0), "llama.attention.head_count is 0"),
    (set_key("llama.attention.head_count_kv", 3), "not a multiple of attention.head_count_kv 3"),
    (drop_key("llama.attention.head_count"), "llama.attention.head_count is missing"),
    (set_key("llama.context_length", 0), "llama.context_length is 0"),
    (set_key("llama.block_count", -1), "llama.block_count is -1"),
    (set_key("llama.block_count", "3"), "llama.block_count is '3', not a whole number"),
    (set_key("llama.block_count", True), "llama.block_count is True, not a whole number"),
    (set_key("llama.embedding_length", 1 << 30), "must be between"),
    (set_key("llama.rope.freq_base", float("nan")), "llama.rope.freq_base is nan, not a finite number"),
    (set_key("llama.rope.freq_base", 1.0), "llama.rope.freq_base is 1.0"),
    (set_key("llama.rope.dimension_count", 18), "llama.rope.dimension_count is 18"),
    (set_key("llama.rope.dimension_count", 15), "llama.rope.dimension_count is 15"),
    (set_key("llama.attention.layer_norm_rms_epsilon", 0.0), "must be above 0"),
    (set_key("llama.rope.scaling.factor", -2.0), "must be above 0"),
    (set_key("tokenizer.ggml.tokens", ["x"] * 321), "321 tokens but token_embd.weight has only 320 rows"),
]


@pytest.mark.parametrize(("edit", "sentence"), METADATA, ids=[sentence for _, sentence in METADATA])
def test_contradicting_metadata_is_refused_by_key(llama: Path, edit: Edit, sentence: str) -> None:
    with pytest.raises(FormatError) as error:
        load(edited(llama, edit))
    assert sentence in str(error.value) and "\n" not in str(error.value)


UNSUPPORTED = [
    (set_key("general.architecture", "deepseek41"), "is DeepSeek V4.1 Flash, another network than V4 Flash"),
    (set_key("general.architecture", "qwen35moe"), "not supported yet"),
    (set_key("general.architecture", "frobnicate"), "not one this program knows"),
    (set_key("llama.expert_count", 8), "llama.expert_count asks for a mixture of experts"),
    (set_key("llama.attention.head_count_kv", [2, 2, 1]), "llama.attention.head_count_kv differs between layers"),
    (set_key("llama.attention.value_length", 8), "llama.attention.value_length differs"),
    (set_key("llama.rope.scaling.type", "longrope"), "llama.rope.scaling.type 'longrope' is not supported"),
    (put("blk.1.attn_q_norm.weight", 16), "the tensor blk.1.attn_q_norm.weight is not one that llama uses"),
]


@pytest.mark.parametrize(("edit", "sentence"), UNSUPPORTED, ids=[sentence for _, sentence in UNSUPPORTED])
def test_what_is_not_built_is_refused_by_name(llama: Path, edit: Edit, sentence: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        load(edited(llama, edit))
    assert sentence in str(error.value)


def test_every_supported_architecture_has_a_tiny_model() -> None:
    assert set(SUPPORTED) == {*ARCHITECTURES, "deepseek4"}


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "deepseek4"])
def test_every_tensor_is_required_with_its_shape(tmp_path: Path, architecture: str) -> None:
    """Leave out, then reshape, each tensor that transformers' model has; only an untied head may be missing."""
    if architecture == "deepseek4":  # a layer with an indexer and a table of experts, and one without
        source = make_tiny_v4(num_hidden_layers=2, compress_ratios=[4, 128]).write(tmp_path / "tiny.gguf")
    else:
        source = tiny_gguf(architecture, tmp_path / "tiny.gguf", GgmlType.F32, num_hidden_layers=1)
    for name, tensor in open_gguf(source).tensors.items():
        if name != "output.weight":
            with pytest.raises(FormatError, match=f"the tensor {name} is missing"):
                load(edited(source, drop(name)))
        shape = (*tensor.shape[:0:-1], tensor.shape[0] + 1)
        with pytest.raises(FormatError) as error:
            load(edited(source, put(name, *shape)))
        both = name, str(list(shape[::-1])), str(list(tensor.shape))
        assert all(part in str(error.value) for part in both), error.value


def test_tied_head_is_one_matrix(llama: Path) -> None:
    """FC-11: without output.weight, and with one equal to the embedding, the logits are the same; memory has it once."""
    embedding = open_gguf(llama).tensors["token_embd.weight"]
    tied = edited(llama, drop("output.weight"))
    network = load(tied).network
    assert network.output is network.token_embd
    tied_logits = run(tied, [1, 2, 3]).logits.copy()

    def equal(kv: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
        tensors["output.weight"] = NewTensor("output.weight", embedding.shape, embedding.type, embedding.data)

    np.testing.assert_array_equal(run(edited(llama, equal), [1, 2, 3]).logits, tied_logits)
    assert np.abs(run(llama, [1, 2, 3]).logits - tied_logits).max() > 0.1
    with pytest.raises(FormatError, match=r"output.weight has shape \[64, 319\], the metadata asks for \[64, 320\]"):
        load(edited(llama, put("output.weight", 319, 64)))


def test_head_in_the_second_part_of_a_split_file_is_used(llama: Path) -> None:
    """FC-11: an absent head means a tied one only when no part of the model has it."""
    g = open_gguf(llama)
    parts: list[list[NewTensor]] = [[], []]
    for t in g.tensors.values():
        parts[t.name == "output.weight"].append(NewTensor(t.name, t.shape, t.type, t.data))
    for no, tensors in enumerate(parts):
        split = {"split.no": no, "split.count": 2, "split.tensors.count": len(g.tensors)}
        write_gguf(llama.with_name(f"split-0000{no + 1}-of-00002.gguf"), {**(g.kv.typed if no == 0 else {}), **split}, tensors)
    ours = run(llama.with_name("split-00001-of-00002.gguf"), [1, 2, 3]).logits.copy()
    np.testing.assert_array_equal(ours, run(llama, [1, 2, 3]).logits)


def test_padded_embedding_is_accepted(llama: Path) -> None:
    """FC-58: more rows than tokens."""
    assert load(edited(llama, set_key("tokenizer.ggml.tokens", ["x"] * 300))).vocab_size == 320


def test_harmless_extra_tensors_are_ignored(llama: Path) -> None:
    plain = run(llama, [5, 6]).logits.copy()
    for name in ("blk.0.attn_rot_embd.weight", "blk.3.nextn.eh_proj.weight", "some_statistics"):
        np.testing.assert_array_equal(run(edited(llama, put(name, 4, 4)), [5, 6]).logits, plain)


def test_per_layer_counts_that_agree_are_accepted(llama: Path) -> None:
    assert load(edited(llama, set_key("llama.attention.head_count_kv", [2, 2, 2]))).n_layers == 3


def test_missing_type_means_linear_scaling(llama: Path) -> None:
    """Old files give rope.scale_linear, or a factor without a type."""

    def frequencies(edit: Edit) -> np.ndarray:
        return load(edited(llama, edit)).network.config.rope.inv_freq

    plain = load(llama).network.config.rope.inv_freq
    np.testing.assert_allclose(plain, 10000.0 ** -(np.arange(8) / 8), rtol=1e-15)
    for key in ("llama.rope.scale_linear", "llama.rope.scaling.factor"):
        np.testing.assert_allclose(frequencies(set_key(key, 4.0)) * 4, plain, rtol=1e-15)


def test_refused_forwards_change_nothing(llama: Path) -> None:
    model = load(llama)
    state = model.new_state(8, slack=2)
    model.forward([Span(state, [1, 2, 3])])
    bad: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ContextError, "9 tokens do not fit the context of 8", lambda: model.forward([Span(state, [1] * 6)])),
        (UsageError, "token id 320 is outside", lambda: model.forward([Span(state, [1, 320])])),
        (UsageError, "token id -1 is outside", lambda: model.forward([Span(state, [-1])])),
        (ValueError, "appears twice", lambda: model.forward([Span(state, [1]), Span(state, [2])])),
        (ValueError, "0 rows", lambda: model.forward([])),
        (ValueError, "a span of 0 tokens", lambda: model.forward([Span(state, []), Span(model.new_state(8, 0), [1])])),
        (ValueError, "2 rows of logits", lambda: model.forward([Span(state, [1], n_logits=2)])),
        (ValueError, "taps", lambda: model.forward([Span(state, [1])], taps=(3,))),
        (ValueError, "prefill path", lambda: model.forward([Span(state, [1])], path="prefill")),
        (ValueError, "no path", lambda: model.forward([Span(state, [1])], path="sideways")),
    ]
    for kind, sentence, call in bad:
        with pytest.raises(kind, match=sentence):
            call()
        assert (state.pos, state.high) == (3, 3)
    with pytest.raises(ValueError, match="513 rows"):
        model.forward([Span(model.new_state(1024, 0), [1] * 513)])
    with pytest.raises(ValueError, match="n_ctx 0"):
        model.new_state(0, slack=1)


def test_interrupted_forward_keeps_position_and_lowers_nothing(tmp_path: Path) -> None:
    """Ctrl-C inside a backend: the rows may be written, so the rings count them as written; the position stays."""

    class Interrupted(ReferenceKernels):
        armed = False

        def run(self, *args: Any) -> Any:
            out = super().run(*args)
            if self.armed:
                raise KeyboardInterrupt
            return out

    path = write_tiny(tiny_module(tiny_config("gemma3")), tmp_path / "tiny.gguf")
    kernels = Interrupted(max_rows=8)
    model = load_model(open_gguf(path), kernels, kv_dtype="float32")
    state, calm = model.new_state(128, slack=8), model.new_state(128, slack=8)
    for start in range(0, 40, 8):
        model.forward([Span(state, list(range(start, start + 8)))])
        model.forward([Span(calm, list(range(start, start + 8)))])
    kernels.armed = True
    with pytest.raises(KeyboardInterrupt):
        model.forward([Span(state, [7] * 8)])
    kernels.armed = False
    assert (state.pos, state.high) == (40, 48) and state.floor == 39
    ours = model.forward([Span(state, [1, 2], n_logits=2)]).logits.copy()
    np.testing.assert_allclose(ours, model.forward([Span(calm, [1, 2], n_logits=2)]).logits, atol=1e-5)
