"""Numbers of drafts as public programs compute them, for tests/golden/drafters/drafts.json.

    pip install --no-deps --target FOLDER dflash==0.1.0 speculators==0.9.0 hs-connectors==0.9.0
    pip install --target FOLDER datasets loguru pydantic-settings
    PYTHONPATH=FOLDER:. python tests/scripts/golden_drafts.py > tests/golden/drafters/drafts.json

dflash 0.1.0 (`DFlashDraftModel`) gives the final hidden states of blocks, with its own cache cropped as its generation loop does;
speculators 0.9.0 gives DSpark's Markov biases and confidences and EAGLE-3's layer. Weights and inputs are those of
tests/tiny_drafts.py, which both sides make from a seed. The packages pin versions of what they depend on; --no-deps passes that
by, and these numbers were made with torch 2.13.0 and transformers 5.24.0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import transformers
from tiny_drafts import GOLDEN, Shape, _Random, dflash_weights, eagle3_weights, golden_inputs, half_split


def qwen3_config(s: Shape, **more: Any) -> Any:
    """The draft's shape as a configuration that both packages read."""
    return transformers.Qwen3Config(
        vocab_size=s.vocab_size,
        hidden_size=s.n_embd,
        intermediate_size=s.n_ff,
        num_hidden_layers=s.n_layers,
        num_attention_heads=s.n_head,
        num_key_value_heads=s.n_head_kv,
        head_dim=s.head_len,
        rms_norm_eps=s.eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.rope_base},
        max_position_embeddings=8192,
        attn_implementation="eager",
        **more,
    )


_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"fc.weight": "fc.weight", "enc.output_norm.weight": "hidden_norm.weight", "output_norm.weight": "norm.weight"}


def checkpoint_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, part, kind = name.split(".")
    return f"layers.{layer}.{_NAMES[part]}.{kind}"


def rounded(x: Any) -> list[Any]:
    return np.round(np.asarray(x, np.float64), 6).tolist()


def dflash_blocks(shape: dict[str, Any]) -> list[Any]:
    """Hidden states [B, D] of the blocks after 7, 8 and 40 positions of one text."""
    from dflash import DFlashDraftModel
    from dflash.model import _crop_to, _make_cache

    s = Shape(**shape)
    windowed = s.windowed or (bool(s.window),) * s.n_layers
    kinds = ["sliding_attention" if one else "full_attention" for one in windowed]
    config = qwen3_config(s, layer_types=kinds, sliding_window=s.window or None, use_sliding_window=bool(s.window))
    config.num_target_layers = 8
    config.is_causal = False
    config.block_size = s.block_size
    config.dflash_config = {"target_layer_ids": [i - 1 for i in s.layers], "mask_token_id": s.mask_token}
    model = DFlashDraftModel(config).eval()
    weights, _ = dflash_weights(s)
    state = {checkpoint_name(name): torch.from_numpy(array) for name, array in weights.items() if "markov" not in name}
    state = {name: array for name, array in state.items() if not name.startswith("conf")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    features, embedding, _ = golden_inputs(s)
    cache, done, out = _make_cache(config), 0, []
    for at, last in GOLDEN:
        ids = torch.tensor([last] + [s.mask_token] * (s.block_size - 1))
        with torch.inference_mode():
            hidden = model(
                target_hidden=torch.from_numpy(features[None, done:at]),
                noise_embedding=torch.from_numpy(embedding)[ids][None],
                position_ids=torch.arange(done, at + s.block_size)[None],
                past_key_values=cache,
                use_cache=True,
            )
        _crop_to(cache, at)
        done = at
        out.append(rounded(hidden[0]))
    return out


def dspark_heads(shape: dict[str, Any]) -> dict[str, Any]:
    """Markov biases [n, V_d] after some tokens, and confidences of some hidden states after them."""
    from speculators.models.dspark.model_definitions import ConfidenceHead, MarkovHead

    s = Shape(**shape)
    weights, _ = dflash_weights(s)
    head = MarkovHead(
        verifier_vocab_size=s.vocab_size,
        draft_vocab_size=s.draft_vocab or s.vocab_size,
        markov_rank=s.markov_rank,
        hidden_size=s.n_embd,
    )
    confidence = ConfidenceHead(s.n_embd + s.markov_rank)
    head.load_state_dict({name: torch.from_numpy(weights[name]) for name in ("markov_w1.weight", "markov_w2.weight")})
    confidence.load_state_dict({f"proj.{part}": torch.from_numpy(weights[f"conf_proj.{part}"]) for part in ("weight", "bias")})
    tokens = [0, 3, 200, 319]
    hidden = torch.from_numpy(_Random(9).noise(1, len(tokens), s.n_embd))
    with torch.inference_mode():
        before = torch.tensor([tokens])
        bias = head.block_bias(prev_token_ids=before, hidden_states=hidden)
        sure = torch.sigmoid(confidence(torch.cat([hidden, head.prev_embeddings(before)], -1)))
    return {"tokens": tokens, "bias": rounded(bias[0]), "sure": rounded(sure[0])}


def eagle3_rows(shape: dict[str, Any]) -> dict[str, Any]:
    """The layer's output before the last norm and the logits, at all positions of one text: [T, D] and [T, V_d]."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    s = Shape(**{"n_layers": 1, **shape})
    config = transformers.LlamaConfig(**{**qwen3_config(s).to_dict(), "model_type": "llama", "attn_implementation": "eager"})
    spec = Eagle3SpeculatorConfig(
        transformer_layer_config=config,
        draft_vocab_size=s.draft_vocab or s.vocab_size,
        norm_before_residual=s.norm_before_residual,
        norm_before_fc=s.norm_before_fc,
    )
    model = Eagle3DraftModel(spec).eval()
    weights, _ = eagle3_weights(s)
    names = {name: "input_norm.weight" if name == "enc.output_norm.weight" else name for name in weights}
    state = {}
    for name, array in weights.items():
        if name in ("output.weight", "token_embd.weight"):
            continue
        if name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
            array = half_split(array, s.head_len)
        state[checkpoint_name(name) if names[name] == name else names[name]] = torch.from_numpy(array)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and not [name for name in missing if name.startswith(("layers", "fc", "norm"))], (missing, unexpected)
    features, embedding, head = golden_inputs(s)
    tokens = [int(i) for i in _Random(8).noise(len(features)).argsort() % s.vocab_size]
    with torch.inference_mode():
        g = torch.from_numpy(features[None])
        g = model.fc(g if model.input_norm is None else model.input_norm(g))
        x = torch.cat([torch.from_numpy(embedding)[tokens][None], g], -1)
        pos = torch.arange(len(features))[None]
        mask = torch.full((len(features),) * 2, float("-inf")).triu(1)[None, None]
        z = model.layers[0](x, attention_mask=mask, position_ids=pos, position_embeddings=model.rotary_emb(x, pos))
        logits = model.norm(z) @ torch.from_numpy(weights.get("output.weight", head)).T
    return {"tokens": tokens, "hidden": rounded(z[0]), "logits": rounded(logits[0, -3:])}


def main() -> None:
    from importlib.metadata import version

    torch.set_num_threads(1)
    made_by = {name: version(name) for name in ("dflash", "speculators", "torch", "transformers")}
    shapes: dict[str, Any] = json.loads(
        json.dumps(
            {
                "dflash": {"seed": 1},
                "dflash, window": {"seed": 2, "window": 12, "windowed": [True, False], "layers": [1, 2, 3]},
            }
        )
    )
    heads = {"seed": 3, "markov_rank": 32, "confidence": True}
    few = {"seed": 4, "markov_rank": 32, "confidence": True, "draft_vocab": 96}
    eagles = {
        "eagle3": {"seed": 5, "layers": [1, 2, 3]},
        "eagle3, norms": {
            "seed": 6,
            "layers": [1, 2, 3],
            "norm_before_fc": True,
            "norm_before_residual": True,
            "draft_vocab": 96,
        },
    }
    found = {
        "made_by": made_by,
        "command": "python tests/scripts/golden_drafts.py",
        "blocks": [{"shape": shape, "hidden": dflash_blocks(shape)} for shape in shapes.values()],
        "heads": [{"shape": shape, **dspark_heads(shape)} for shape in (heads, few)],
        "eagle3": [{"shape": shape, **eagle3_rows(shape)} for shape in eagles.values()],
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
