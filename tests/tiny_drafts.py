"""Tiny random drafts for the tiny targets: DFlash, DSpark and EAGLE-3 files in llama.cpp's layout, and their weights as arrays.

    tiny = tiny_dflash(tmp_path / "draft.gguf", target_path, markov_rank=32, from_anchor=True, ...)
    tiny.path, tiny.weights["blk.0.attn_q.weight"]        # the file; float32 [n_out, n_in] as the file has them

Random numbers come from PCG64's uniform stream, so that files are the same wherever they are made: golden/drafters/drafts.json
holds what other programs computed with them. Norms are random too: an ignored one shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Of a draft network; the defaults fit the tiny targets of 64 values and 320 tokens."""

    n_embd: int = 64
    n_ff: int = 96
    n_layers: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    head_len: int = 16
    eps: float = 1e-6
    rope_base: float = 10000.0
    target_embd: int = 64
    vocab_size: int = 320
    layers: tuple[int, ...] = (1, 2)  # as the file numbers them: the input of these layers of the target
    # dflash
    block_size: int = 5
    mask_token: int = 258
    window: int = 0
    windowed: tuple[bool, ...] = ()  # per layer
    markov_rank: int = 0
    from_anchor: bool | None = None  # None: the file does not say
    confidence: bool = False
    keys: dict[str, Any] = field(default_factory=dict)  # further keys "dflash.*"
    # eagle3
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    # both
    own_embedding: bool = False
    own_head: bool = False
    draft_vocab: int = 0  # 0: all tokens
    seed: int = 0


@dataclass(frozen=True)
class TinyDraft:
    path: Path
    shape: Shape
    weights: dict[str, Array]
    d2t: npt.NDArray[np.int64] | None


class _Random:
    """Weights of unit gain, norms near 1."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def noise(self, *shape: int) -> Array:
        """Uniform with variance 1."""
        return ((self._rng.random(shape) - 0.5) * 12**0.5).astype(np.float32)

    def matrix(self, n_out: int, n_in: int, gain: float = 1.3) -> Array:
        return np.asarray(self.noise(n_out, n_in) * gain / n_in**0.5, np.float32)

    def norm(self, n: int) -> Array:
        return np.asarray(1 + 0.3 * self.noise(n), np.float32)


def _layer(r: _Random, s: Shape, blk: str, n_in: int) -> dict[str, Array]:
    q_len, kv_len = s.n_head * s.head_len, s.n_head_kv * s.head_len
    return {
        f"{blk}.attn_norm.weight": r.norm(s.n_embd),
        f"{blk}.attn_q.weight": r.matrix(q_len, n_in),
        f"{blk}.attn_k.weight": r.matrix(kv_len, n_in),
        f"{blk}.attn_v.weight": r.matrix(kv_len, n_in),
        f"{blk}.attn_output.weight": r.matrix(s.n_embd, q_len),
        f"{blk}.ffn_norm.weight": r.norm(s.n_embd),
        f"{blk}.ffn_gate.weight": r.matrix(s.n_ff, s.n_embd),
        f"{blk}.ffn_up.weight": r.matrix(s.n_ff, s.n_embd),
        f"{blk}.ffn_down.weight": r.matrix(s.n_embd, s.n_ff),
    }


def _vocabulary(r: _Random, s: Shape, weights: dict[str, Array]) -> npt.NDArray[np.int64] | None:
    """Own embedding and head where asked, and the ids of a reduced vocabulary."""
    n_rows = s.draft_vocab or s.vocab_size
    if s.own_embedding:
        weights["token_embd.weight"] = r.noise(s.vocab_size, s.n_embd)
    if s.own_head or s.draft_vocab:
        weights["output.weight"] = r.matrix(n_rows, s.n_embd, gain=3.0)
    if not s.draft_vocab:
        return None
    order = np.argsort(r.noise(s.vocab_size))
    return np.sort(order[: s.draft_vocab]).astype(np.int64)


def dflash_weights(s: Shape) -> tuple[dict[str, Array], npt.NDArray[np.int64] | None]:
    r = _Random(s.seed)
    weights = {"fc.weight": r.matrix(s.n_embd, len(s.layers) * s.target_embd)}
    weights["enc.output_norm.weight"] = r.norm(s.n_embd)
    for i in range(s.n_layers):
        weights |= _layer(r, s, f"blk.{i}", s.n_embd)
        weights |= {f"blk.{i}.attn_{name}_norm.weight": r.norm(s.head_len) for name in "qk"}
    weights["output_norm.weight"] = r.norm(s.n_embd)
    d2t = _vocabulary(r, s, weights)
    if s.markov_rank:
        weights["markov_w1.weight"] = r.noise(s.vocab_size, s.markov_rank)
        weights["markov_w2.weight"] = r.matrix(s.draft_vocab or s.vocab_size, s.markov_rank, gain=2.0)
    if s.confidence:
        weights["conf_proj.weight"] = r.matrix(1, s.n_embd + s.markov_rank, gain=2.0)
        weights["conf_proj.bias"] = np.array([0.4], np.float32)
    return weights, d2t


def eagle3_weights(s: Shape) -> tuple[dict[str, Array], npt.NDArray[np.int64] | None]:
    r = _Random(s.seed)
    n_features = len(s.layers) * s.target_embd
    weights = {"fc.weight": r.matrix(s.n_embd, n_features)}
    if s.norm_before_fc:
        weights["enc.output_norm.weight"] = r.norm(n_features)
    weights |= _layer(r, s, "blk.0", 2 * s.n_embd)
    weights["blk.0.attn_norm_2.weight"] = r.norm(s.n_embd)
    weights["output_norm.weight"] = r.norm(s.n_embd)
    return weights, _vocabulary(r, s, weights)


def tiny_dflash(path: Path, target: Path | None = None, kind: GgmlType = GgmlType.F32, **changes: Any) -> TinyDraft:
    """A DFlash draft; with markov_rank a DSpark one. `target`: whose tokenizer it takes; matrices are stored as `kind`."""
    s = replace(Shape(), **changes)
    own: dict[str, Any] = {"block_size": s.block_size, **_keys(s, s.n_layers)}
    if s.window:
        own["attention.sliding_window"] = s.window
        own["attention.sliding_window_pattern"] = list(s.windowed) or [True] * s.n_layers
    if s.from_anchor is not None:
        own["sample_from_anchor"] = s.from_anchor
    if s.markov_rank:
        own["has_confidence_head"] = s.confidence
    return _write(path, "dflash", s, {**own, **s.keys}, *dflash_weights(s), target, kind)


def tiny_eagle3(path: Path, target: Path | None = None, kind: GgmlType = GgmlType.F32, **changes: Any) -> TinyDraft:
    s = replace(Shape(n_layers=1, layers=(1, 2, 1)), **changes)
    own: dict[str, Any] = {"target_hidden_size": s.target_embd, **_keys(s, 1)}
    own |= {"norm_before_fc": s.norm_before_fc, "norm_before_residual": s.norm_before_residual}
    return _write(path, "eagle3", s, {**own, **s.keys}, *eagle3_weights(s), target, kind)


KINDS = ("draft-eagle3", "draft-dflash", "draft-dspark")


def random_draft(kind: str, target: Path, path: Path, **changes: Any) -> Path:
    """A small random draft of one of `KINDS` for any target file: right in shape, and right as often as chance has it."""
    g = open_gguf(target)
    n_embd, n_layers = g.require("embedding_length"), g.require("block_count")
    shape = {"n_embd": n_embd, "target_embd": n_embd, "vocab_size": g.tensors["token_embd.weight"].n_rows, "mask_token": 3}
    if kind == "draft-eagle3":
        made = tiny_eagle3(path, target, GgmlType.Q8_0, **shape, layers=(0, n_layers // 2, n_layers - 1), **changes)
    else:
        own = {"markov_rank": 32, "confidence": True} if kind == "draft-dspark" else {}
        made = tiny_dflash(path, target, GgmlType.Q8_0, **shape, layers=(1, n_layers), **own, **changes)
    return made.path


def write_draft(path: Path, tiny: TinyDraft, weights: dict[str, Array], architecture: str = "dflash") -> TinyDraft:
    """The same file with other weights."""
    g = open_gguf(tiny.path)
    own = {key.removeprefix(f"{architecture}."): value for key, value in g.kv.items() if key.startswith(f"{architecture}.")}
    return _write(path, architecture, tiny.shape, own, weights, tiny.d2t, tiny.path, GgmlType.F32)


def _keys(s: Shape, n_layers: int) -> dict[str, Any]:
    return {
        "block_count": n_layers,
        "context_length": 4096,
        "embedding_length": s.n_embd,
        "feed_forward_length": s.n_ff,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.key_length": s.head_len,
        "attention.value_length": s.head_len,
        "attention.layer_norm_rms_epsilon": s.eps,
        "rope.freq_base": s.rope_base,
        "target_layers": list(s.layers),
    }


def _write(
    path: Path,
    architecture: str,
    s: Shape,
    own: dict[str, Any],
    weights: dict[str, Array],
    d2t: Sequence[int] | npt.NDArray[np.int64] | None,
    target: Path | None,
    kind: GgmlType,
) -> TinyDraft:
    kv: dict[str, Any] = {"general.architecture": architecture, "general.name": f"tiny {architecture}"}
    kv |= {f"{architecture}.{key}": value for key, value in own.items()}
    if target is not None:
        kv |= {key: value for key, value in open_gguf(target).kv.items() if key.startswith("tokenizer.")}
    if architecture == "dflash":
        kv["tokenizer.ggml.mask_token_id"] = s.mask_token
    tensors = [_stored(name, array, kind) for name, array in weights.items()]
    ids = None if d2t is None else np.asarray(d2t, np.int64)
    if ids is not None:
        tensors.append(NewTensor("d2t", (len(ids),), GgmlType.I64, ids.view(np.uint8)))
    write_gguf(path, kv, tensors)
    return TinyDraft(path, s, weights, ids)


def _stored(name: str, array: Array, kind: GgmlType) -> NewTensor:
    from tiny_models import _encode

    small = array.ndim == 1 or array.shape[-1] % 32 != 0 or name.startswith("conf_proj")
    return _encode(name, array, GgmlType.F32 if small else kind)


# --- inputs of golden/drafters/drafts.json -------------------------------------------------------------------------------------

GOLDEN = ((7, 11), (8, 200), (40, 5))  # positions before a block, and the token that begins it


def golden_inputs(s: Shape) -> tuple[Array, Array, Array]:
    """Residuals [40, F] of a text, an embedding [V, D] and a head [V, D]."""
    r = _Random(1000 + s.seed)
    n_features = len(s.layers) * s.target_embd
    return r.noise(40, n_features), r.noise(s.vocab_size, s.n_embd), r.matrix(s.vocab_size, s.n_embd, gain=3.0)


def half_split(array: Array, head_len: int) -> Array:
    """Rows of q or k whose rotary partners are neighbours, 2i and 2i + 1, as checkpoints have them: i and i + head_len / 2."""
    return np.ascontiguousarray(array.reshape(-1, head_len // 2, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape))
