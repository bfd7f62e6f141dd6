"""What a draft borrows from its target: embedding, last norm, head, sizes; and the vocabulary that the draft's own head keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drafts.layers import Shape, Tensor, rms
from drafts.texts import Text, values
from ds4py.errors import UnsupportedError, UsageError
from ds4py.gguf import GgufFile


@dataclass(frozen=True)
class Target:
    """Frozen tensors of the target, float32: embd [V, D], head [V, D], norm [D]."""

    embd: Tensor
    head: Tensor
    norm: Tensor
    eps: float

    @classmethod
    def of(cls, g: GgufFile) -> Target:
        """UnsupportedError for a model whose embedding or logits are scaled on the way, as gemma's are."""
        if g.architecture not in ("llama", "qwen2", "qwen3"):
            raise UnsupportedError(f"{g.path}: drafts are trained for llama, qwen2 and qwen3 targets here, not {g.architecture}")
        embd = torch.from_numpy(values(g, "token_embd.weight"))
        head = torch.from_numpy(values(g, "output.weight")) if "output.weight" in g.tensors else embd
        norm = torch.from_numpy(values(g, "output_norm.weight"))
        return cls(embd, head, norm, float(g.require("attention.layer_norm_rms_epsilon")))

    def logits(self, last: Tensor, rows: Tensor) -> Tensor:
        """The target's logits of the tokens `rows` [Vd], from its last residuals [..., D]."""
        return rms(last, self.norm, self.eps) @ self.head[rows].T


def shape_of(g: GgufFile, n_layers: int, n_taps: int, n_ff: int | None = None) -> Shape:
    """A draft as wide as the target, with its heads."""
    n_embd, n_head = int(g.require("embedding_length")), int(g.require("attention.head_count"))
    return Shape(
        n_embd=n_embd,
        n_ff=n_ff or int(g.require("feed_forward_length")),
        n_head=n_head,
        n_head_kv=int(g.get("attention.head_count_kv", n_head)),
        head_len=int(g.get("attention.key_length", n_embd // n_head)),
        n_layers=n_layers,
        n_taps=n_taps,
        eps=float(g.require("attention.layer_norm_rms_epsilon")),
        rope_base=float(g.get("rope.freq_base", 10000.0)),
        n_ctx=int(g.require("context_length")),
    )


def spread_taps(n_layers: int, n: int) -> tuple[int, ...]:
    """`n` layers whose residual is read, from the second to the third from the end, evenly."""
    first, last = min(1, n_layers - 1), max(n_layers - 3, 0)
    if n < 1 or last - first + 1 < n:
        raise UsageError(f"{n} taps do not fit a model of {n_layers} layers; name them with --taps")
    return tuple(round(first + i * (last - first) / max(n - 1, 1)) for i in range(n))


def draft_vocabulary(texts: Sequence[Text], n_vocab: int, n_rows: int) -> Tensor:
    """The `n_rows` ids that occur most often, ascending; all ids for 0. A tie goes to the lower id."""
    if not n_rows or n_rows >= n_vocab:
        return torch.arange(n_vocab)
    counts = Counter(i for text in texts for i in text.ids)
    common = sorted(range(n_vocab), key=lambda i: (-counts[i], i))[:n_rows]
    return torch.tensor(sorted(common))
