"""A trained draft as the GGUF file that llama.cpp and ds4py read: the target's tokenizer, the draft's own sizes and tensors.

`target_layers` counts as llama.cpp does: the residual that enters layer n, so the residual after layer i is written as i + 1.
`d2t` holds, for each row of a draft's own head, the target's id. Matrices are quantised where rows are whole blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drafts.block import Block
from drafts.eagle3 import Eagle3
from drafts.target import Target, shape_of
from drafts.texts import values
from ds4py.errors import FormatError
from ds4py.gguf import GgmlType, GgufFile, NewTensor, open_gguf, write_gguf
from ds4py.quants import encode

_KEPT = ("conf_proj.weight",)  # one row: float32


def save(model: Eagle3 | Block, g: GgufFile, taps: Sequence[int], path: Path, kind: GgmlType, note: Mapping[str, Any]) -> None:
    """Write the draft for target `g`, whose residuals after layers `taps` it reads."""
    tensors = [_stored(name, tensor, kind) for name, tensor in model.w.named().items()]
    if len(model.rows) < len(model.target.head):
        tensors.append(NewTensor.of("d2t", model.rows.numpy().astype(np.int64)))
    own = eagle3_keys(g) if isinstance(model, Eagle3) else block_keys(model)
    name = "EAGLE-3" if isinstance(model, Eagle3) else "DSpark" if model.rank else "DFlash"
    keys = {
        "general.architecture": model.architecture,
        "general.type": "model",
        "general.name": f"{name} draft for {g.kv.get('general.name', g.path.stem)}",
        **{f"{model.architecture}.{key}": value for key, value in {**sizes(model, g, taps), **own}.items()},
        **{key: value for key, value in g.kv.typed.items() if key.startswith("tokenizer.")},
        **note,
    }
    if isinstance(model, Block):
        keys["tokenizer.ggml.mask_token_id"] = model.mask
    write_gguf(path, keys, tensors)


def load(path: Path, target: GgufFile) -> Eagle3 | Block:
    """The draft in a file that `save` wrote, for measuring and for training on. Its target's tensors are read from `target`."""
    g = open_gguf(path)
    borrowed, rng = Target.of(target), torch.Generator().manual_seed(0)
    shape = shape_of(g, int(g.require("block_count")), len(g.kv[f"{g.architecture}.target_layers"]))
    n_vocab = len(borrowed.head)
    d2t = g.tensors.get("d2t")
    rows = torch.arange(n_vocab) if d2t is None else torch.tensor(np.frombuffer(bytes(d2t.data), np.int64))
    model: Eagle3 | Block
    if g.architecture == "eagle3":
        model = Eagle3(shape, borrowed, rows, rng)
    else:
        rank = g.tensors["markov_w1.weight"].shape[0] if "markov_w1.weight" in g.tensors else 0
        mask, width = int(g.kv["tokenizer.ggml.mask_token_id"]), int(g.require("block_size"))
        model = Block(shape, borrowed, rows, rng, width, mask, rank)
    own = set(model.w.named())
    if own != set(g.tensors) - {"d2t"}:
        raise FormatError(f"{path}: its tensors are not those that train_draft.py writes")
    with torch.no_grad():
        for name in own:
            model.w[name].copy_(torch.tensor(values(g, name)))
    return model


def sizes(model: Eagle3 | Block, g: GgufFile, taps: Sequence[int]) -> dict[str, Any]:
    """The keys that both kinds have."""
    s = model.shape
    return {
        "context_length": s.n_ctx,
        "vocab_size": len(model.target.head),
        "embedding_length": s.n_embd,
        "block_count": s.n_layers,
        "feed_forward_length": s.n_ff,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.key_length": s.head_len,
        "attention.value_length": s.head_len,
        "attention.layer_norm_rms_epsilon": s.eps,
        "rope.freq_base": s.rope_base,
        "rope.dimension_count": s.head_len,
        "target_layers": [layer + 1 for layer in taps],
    }


def eagle3_keys(g: GgufFile) -> dict[str, Any]:
    return {
        "target_hidden_size": int(g.require("embedding_length")),
        "norm_before_residual": False,
        "norm_before_fc": False,
    }


def block_keys(model: Block) -> dict[str, Any]:
    keys: dict[str, Any] = {"block_size": model.width, "attention.causal": False}
    return {**keys, "sample_from_anchor": True, "has_confidence_head": True} if model.rank else keys


def _stored(name: str, tensor: torch.Tensor, kind: GgmlType) -> NewTensor:
    array = np.ascontiguousarray(tensor.numpy())
    if array.ndim == 1 or name in _KEPT:
        return NewTensor.of(name, array)
    as_type = kind if array.shape[-1] % kind.block_len == 0 else GgmlType.F16
    return NewTensor(name, array.shape[::-1], as_type, encode(as_type, array))
