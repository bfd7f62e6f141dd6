"""Logits of every architecture against transformers on tiny random models, float32 kernels, float32 caches: 1e-3.

Each variant turns on one thing that real files have. `test_variants_matter` makes sure that none is a no-op in the oracle:
a variant whose logits equal the plain model's would prove nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import Tiny, make_tiny

from ds4py.gguf import open_gguf
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import LoadedModel, load_model
from ds4py.protocols import Span

N_TOKENS = 70  # crosses gemma's window of 16 four times
IDS = np.random.default_rng(1).integers(0, 320, N_TOKENS).tolist()

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_BETAS = {**YARN, "beta_fast": 4.0, "beta_slow": 0.5}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
GEMMA_LINEAR = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-head_dim": ("llama", {"head_dim": 24}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN_BETAS}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3moe": ("qwen3moe", {}),
    "qwen3moe-all": ("qwen3moe", {"num_experts": 4, "num_experts_per_tok": 4}),
    "gemma3": ("gemma3", {}),
    "gemma3-linear": ("gemma3", {"rope_parameters": GEMMA_LINEAR}),
    "gemma3-softcap": ("gemma3", {"final_logit_softcapping": 3.0}),
    "gemma3-scale": ("gemma3", {"query_pre_attn_scalar": 168}),
    "gemma3-untied": ("gemma3", {"tie_word_embeddings": False}),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Tiny] = {}

    def get(name: str) -> Tiny:
        if name not in made:
            architecture, changes = VARIANTS[name]
            made[name] = make_tiny(architecture, tmp_path_factory.mktemp("tiny") / f"{name}.gguf", **changes)
        return made[name]

    return get


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(open_gguf(path), ReferenceKernels(**options), kv_dtype="float32")


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_agree(tiny: Any, name: str) -> None:
    model = load(tiny(name).path)
    state = model.new_state(N_TOKENS, slack=4)
    ours = model.forward([Span(state, IDS, n_logits=N_TOKENS)]).of(0)
    theirs = tiny(name).logits(IDS)
    assert theirs.std() > 0.3  # random weights of unit gain: the logits say something
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_decode_token_by_token_agrees(tiny: Any, name: str) -> None:
    """The same through the caches: a short prompt, then one token at a time, rings wrapping on the way."""
    model = load(tiny(name).path, max_rows=8)
    state = model.new_state(128, slack=0)
    rows = [model.forward([Span(state, IDS[:5], n_logits=5)]).of(0).copy()]
    rows += [model.forward([Span(state, [token], n_logits=1)]).of(0).copy() for token in IDS[5:]]
    np.testing.assert_allclose(np.concatenate(rows), tiny(name).logits(IDS), rtol=0, atol=1e-3)
    if name == "gemma3":
        assert [cache.capacity for cache in state.caches] == [32, 32, 32, 32, 32, 128, 32]
        assert state.pos > 2 * 32, "the rings did not wrap"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_taps_are_the_residual_after_the_layer(tiny: Any, name: str) -> None:
    """Tap i is what leaves layer i, which transformers calls hidden_states[i + 1] and llama.cpp the input of layer i + 1; tap -1
    is what enters layer 0. The last one is not normed, unlike transformers' last hidden state."""
    model, hf = load(tiny(name).path), tiny(name).hf
    left: list[Any] = []
    hooks = [layer.register_forward_hook(lambda *call: left.append(call[2])) for layer in hf.model.layers]
    with torch.inference_mode():
        entered = hf(torch.tensor([IDS]), output_hidden_states=True).hidden_states[0]
    for hook in hooks:
        hook.remove()
    expected = [entered, *(one[0] if isinstance(one, tuple) else one for one in left)]
    layers = range(-1, model.n_layers)
    out = model.forward([Span(model.new_state(N_TOKENS, slack=0), IDS)], taps=layers)
    assert set(out.taps) == set(layers) and len(expected) == len(layers) and len(out.logits) == 0
    for layer in layers:
        np.testing.assert_allclose(out.taps[layer], expected[layer + 1].reshape(N_TOKENS, -1).numpy(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "-" in name and not name.endswith(("mha", "tied", "head_dim"))])
def test_variants_matter(tiny: Any, name: str) -> None:
    plain = tiny(name.split("-")[0])
    variant = tiny(name)
    assert np.abs(variant.logits(IDS) - plain.logits(IDS)).max() > 0.02


def test_float64_is_closer_to_float64(tiny: Any, tmp_path: Path) -> None:
    """The float64 mode is one: against transformers in float64 its error is that of rounding the logits at the end."""
    pair = tiny("qwen3")
    double = make_tiny("qwen3", tmp_path / "again.gguf").hf.double()
    theirs = Tiny(pair.path, double).logits(IDS)

    def error(dtype: str) -> float:
        model = load(pair.path, dtype=dtype)
        ours = model.forward([Span(model.new_state(N_TOKENS, slack=0), IDS, n_logits=N_TOKENS)]).of(0)
        return float(np.abs(ours - theirs).max())

    assert error("float64") <= error("float32") < 1e-3


def test_gemma_27b_scales_queries_by_its_hidden_size(tmp_path: Path) -> None:
    """62 layers mean the 27B model: queries are scaled by D / H = 16 where a head has 32 dimensions."""
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
    pair = make_tiny(
        "gemma3",
        tmp_path / "27b.gguf",
        kv={"gemma3.attention.scale": None},  # real files of that size do not have the key
        num_hidden_layers=62,
        query_pre_attn_scalar=16,
        **small,
    )
    model = load(pair.path)
    assert model.network.config.attn_scale == 16**-0.5  # type: ignore[attr-defined]
    ours = model.forward([Span(model.new_state(24, slack=0), IDS[:24], n_logits=24)]).of(0)
    np.testing.assert_allclose(ours, pair.logits(IDS[:24]), rtol=0, atol=1e-3)


def test_sliding_window_pattern_may_be_a_period_or_a_list(tmp_path: Path) -> None:
    full_first = ["full_attention", "sliding_attention"] * 2
    for pattern, kinds in ((2, full_first[::-1]), ([False, True, False, True], full_first)):
        pair = make_tiny(
            "gemma3",
            tmp_path / "pattern.gguf",
            kv={"gemma3.attention.sliding_window_pattern": pattern},
            num_hidden_layers=4,
            layer_types=kinds,
        )
        model = load(pair.path)
        ours = model.forward([Span(model.new_state(N_TOKENS, slack=0), IDS, n_logits=N_TOKENS)]).of(0)
        np.testing.assert_allclose(ours, pair.logits(IDS), rtol=0, atol=1e-3)
