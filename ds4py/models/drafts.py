"""What all files that draft for another model have in common: borrowed matrices, layers to listen at, a smaller vocabulary.

Such a file is made for one target and leaves out what the target has anyway. Its token embedding and its head are then the very
objects of the target, in memory once; the target's hidden size and its number of layers are what the file's shapes are checked
against, so that a file made for another model is refused by name instead of drafting nonsense.

Layer numbers: a GGUF numbers the *input* of layer i (0: what enters the first layer, n_layers: what leaves the last), which is
the tap i - 1 here (`Ops.tap`), and hidden_states[i] in transformers. Off by one is the classic mistake: nothing fails, and a
draft is accepted half as often.

A reduced vocabulary has rows for some of the target's ids; `d2t` holds the target's id of each, absolute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgmlType, GgufFile
from ds4py.models.header import Header
from ds4py.models.running import LoadedModel
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, I64, Weight

HIDDEN = 0  # the tap of a draft's graph that holds the final hidden state of each row whose logits are asked


@dataclass(frozen=True)
class Lender:
    """The target: what it lends, and what the draft must fit."""

    name: str  # of its file, for errors
    token_embd: Weight
    output: Weight
    n_embd: int
    n_layers: int
    vocab_size: int

    @classmethod
    def of(cls, model: LoadedModel, name: str) -> Lender:
        embd, head = (getattr(model.network, part, None) for part in ("token_embd", "output"))
        if embd is None or head is None:
            raise UnsupportedError(f"{name}: a model of this architecture cannot lend its embedding and head to a draft yet.")
        return cls(name, embd, head, embd.shape[1], model.n_layers, model.vocab_size)


def read_taps(g: GgufFile, header: Header, target: Lender, final: bool) -> tuple[int, ...]:
    """The taps that `target_layers` asks for, in its order. `final`: what leaves the last layer may be among them."""
    ids = header.raw("target_layers")
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not len(ids):
        raise header.fail("target_layers", "is missing: it is the list of the target's layers to listen at")
    most = target.n_layers if final else target.n_layers - 1
    for layer in ids:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= most:
            both = f"asks for the input of layer {layer}, but {target.name} has {target.n_layers} layers"
            raise UnsupportedError(f"{g.path}: {header.key('target_layers')} {both}; the draft is made for another model.")
    return tuple(int(layer) - 1 for layer in ids)


def borrowed_embedding(g: GgufFile, t: Tensors, target: Lender, n_embd: int) -> Weight:
    """The draft's own `token_embd.weight` [V, n_embd] or the target's."""
    if t.has("token_embd.weight"):
        return t.embedding(n_embd)
    if target.n_embd != n_embd:
        raise _foreign(g, target, f"has no token embedding and a hidden size of {n_embd}")
    return target.token_embd


def borrowed_head(g: GgufFile, t: Tensors, target: Lender, token_embd: Weight, d2t: I64 | None, tied: bool) -> Weight:
    """The draft's own `output.weight`, else its own embedding where heads are `tied`, else the target's: [V or len(d2t), D]."""
    n_embd = token_embd.shape[1]
    if t.has("output.weight"):
        n_rows = t.n_rows("output.weight")
        if d2t is not None and n_rows != len(d2t):
            raise FormatError(f"{g.path}: output.weight has {n_rows} rows, but d2t names {len(d2t)} tokens.")
        return t.matrix("output.weight", n_rows, n_embd)
    own = tied and t.has("token_embd.weight")
    head = token_embd if own else target.output
    if head.shape[1] != n_embd:
        raise _foreign(g, target, f"has no head and a hidden size of {n_embd}")
    if d2t is not None and len(d2t) != head.shape[0]:
        raise FormatError(f"{g.path}: d2t names {len(d2t)} tokens, but the head it would use has {head.shape[0]} rows.")
    return head


def read_d2t(g: GgufFile, t: Tensors, target: Lender) -> I64 | None:
    """The target's id of each row of the draft's head, [V_d]; None if all ids have rows."""
    if not t.has("d2t"):
        return None
    tensor = t.raw("d2t")
    if tensor.type not in (GgmlType.I64, GgmlType.I32) or len(tensor.shape) != 1:
        raise FormatError(f"{g.path}: d2t is {tensor.type.name} {list(tensor.shape)}, not a list of token ids.")
    ids = tensor.data.view(np.int64 if tensor.type == GgmlType.I64 else np.int32).astype(np.int64)
    if len(ids) == 0 or ids.min() < 0 or ids.max() >= target.vocab_size or len(np.unique(ids)) != len(ids):
        raise _foreign(g, target, f"has a d2t that does not name {len(ids)} different tokens below {target.vocab_size}")
    return ids


def widen(row: F32, vocab_size: int, ids: I64 | None) -> F32:
    """Logits of the draft's rows as the target's [vocab_size]: what has no row, or no place in the target, is ruled out."""
    if ids is None and len(row) >= vocab_size:
        return row[:vocab_size]
    wide = np.full(vocab_size, -np.inf, np.float32)
    if ids is None:
        wide[: len(row)] = row
    else:
        wide[ids] = row
    return wide


def _foreign(g: GgufFile, target: Lender, why: str) -> UnsupportedError:
    return UnsupportedError(f"{g.path} {why}, which does not fit {target.name}: it is made for another model.")
