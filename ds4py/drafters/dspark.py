"""draft-dspark: a block of guesses, chained by a Markov head and judged by a confidence head.

A block's rows are guessed at once, so the third cannot know what the second became. The Markov head gives each row what it
lacks most, the token before it: a bias of rank R over the vocabulary, W2 · W1[token], added to the row's logits. It needs no
forward per token, but it reads all of W2 for each, a good part of what a small draft costs. `candidates` therefore offers a short
cut: the bias only for the best few tokens of each row (the rest is ruled out), which reads a thousandth; 0 is exact.

The confidence head tells how likely a row's guess is to be accepted if all before it are: sigmoid(w · [hidden; W1[token]] + b).
Without one, a threshold goes by the probability that the draft gives its likeliest token, as in the other drafters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ds4py.drafters.aim import RowAfter, top_probability
from ds4py.drafters.block import BlockDraft, Guess
from ds4py.errors import FormatError
from ds4py.gguf import Tensor
from ds4py.models.drafts import widen
from ds4py.models.running import new_state
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, I64, Buf, Kernels, Ops, Rows, StateView, Weight
from ds4py.quants import decode


@dataclass(frozen=True)
class MarkovHead:
    """W1 [V, R] by the token before, W2 [V_d, R] by the draft's own ids."""

    kernels: Kernels
    markov_w1: Weight
    markov_w2: Weight
    w1: Tensor  # the same as they lie in the file
    w2: Tensor
    _nothing: StateView = field(default_factory=lambda: new_state([], 1, 0, np.float16))

    @classmethod
    def read(cls, t: Tensors, draft: BlockDraft, prefix: str = "") -> MarkovHead:
        """`prefix` of the tensors' names. FormatError if the file's draft vocabulary has more rows than the head."""
        names = f"{prefix}markov_w1.weight", f"{prefix}markov_w2.weight"
        w1, w2 = (t.raw(name) for name in names)
        markov_w1, markov_w2 = (t.matrix(name, w.n_rows, w1.row_len) for name, w in zip(names, (w1, w2), strict=True))
        if draft.network.d2t is not None and w2.n_rows != len(draft.network.d2t):
            raise FormatError(f"markov_w2.weight has {w2.n_rows} rows, but d2t names {len(draft.network.d2t)} tokens.")
        return cls(draft.kernels, markov_w1, markov_w2, w1, w2)

    def embedding(self, token: int) -> F32:
        """W1[token], [R]."""
        row: F32 = rows_of(self.w1, np.array([min(token, self.w1.n_rows - 1)]))[0]
        return row

    def bias(self, token: int) -> F32:
        """W2 · W1[token], [V_d]; valid until the next call."""
        tokens = np.array([min(token, self.w1.n_rows - 1)], np.int64)
        zero = np.zeros(1, np.int64)
        out = self.kernels.run((self.w2, "markov"), self._graph, Rows(tokens, zero, [self._nothing], zero, zero), ())
        row: F32 = out.logits[0]
        return row

    def bias_of(self, ids: I64, embedding: F32) -> F32:
        """The bias of the draft's ids `ids` [n]: [n]."""
        return np.asarray((rows_of(self.w2, ids) * embedding).sum(1), np.float32)

    def _graph(self, ops: Ops) -> Buf:
        return ops.linear(ops.embed(self.markov_w1), self.markov_w2)


@dataclass(frozen=True)
class ConfidenceHead:
    """w [D + R] and b."""

    weight: F32
    bias: float

    @classmethod
    def read(cls, t: Tensors, n_embd: int, rank: int, name: str = "conf_proj") -> ConfidenceHead | None:
        """None where the file has none."""
        if not t.has(f"{name}.weight"):
            return None
        flat = (n_embd + rank,)
        tensor = t.shaped(f"{name}.weight", flat if t.raw(f"{name}.weight").shape == flat else (*flat, 1))
        weight = decode(tensor.type, tensor.data, n_embd + rank)
        bias = t.optional_vector(f"{name}.bias", 1)
        return cls(weight, 0.0 if bias is None else float(bias[0]))

    def sure(self, hidden: F32, embedding: F32) -> float:
        """The chance that a row with this hidden state [D], after the token of this embedding [R], is accepted."""
        n = len(hidden)
        z = float(np.dot(self.weight[:n], hidden) + np.dot(self.weight[n:], embedding)) + self.bias
        return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


@dataclass(frozen=True)
class DSparkReader:
    """block.Reader: a chain over a block."""

    draft: BlockDraft
    markov: MarkovHead
    confidence: ConfidenceHead | None
    measured: bool  # without a confidence head: whether a confidence is asked for
    candidates: int = 0  # tokens of a row that get the Markov bias; 0 = all
    name: str = "draft-dspark"

    def rows(self, guess: Guess) -> RowAfter:
        vocab_size, d2t = self.draft.vocab_size, self.draft.network.d2t
        # without d2t an id is the target's; matrices may be padded to different lengths
        n = min(guess.logits.shape[1], self.markov.w2.n_rows)
        n = n if d2t is not None else min(n, vocab_size)

        def row_after(i: int, before: int) -> tuple[F32, float | None]:
            base, embedding = guess.logits[i, :n], self.markov.embedding(before)
            if 0 < self.candidates < len(base):
                ids = best(base, self.candidates)
                few = base[ids] + self.markov.bias_of(ids, embedding)
                row, logits = widen(few, vocab_size, ids if d2t is None else d2t[ids]), few
            else:
                logits = base + self.markov.bias(before)[:n]
                row = widen(logits, vocab_size, d2t)
            if self.confidence is not None:
                return row, self.confidence.sure(guess.hidden[i], embedding)
            return row, top_probability(logits) if self.measured else None

        return row_after


def best(row: F32, n: int) -> I64:
    """The ids of the n largest of `row` [V], n < V, by rising id.

    A vocabulary is long and n small: the n-th largest of the maxima of short pieces is a level that at least n values reach."""
    piece = max(1, len(row) // (4 * n))
    whole = len(row) // piece * piece
    tops = np.append(row[:whole].reshape(-1, piece).max(1), row[whole:])
    level = np.partition(tops, len(tops) - n)[len(tops) - n]
    able = np.flatnonzero(row >= level)
    chosen = able[np.argpartition(row[able], len(able) - n)[len(able) - n :]]
    return np.sort(chosen)


def rows_of(tensor: Tensor, ids: I64) -> F32:
    """Rows `ids` [n] of a stored matrix: [n, K]."""
    row_bytes = tensor.nbytes // tensor.n_rows
    data = tensor.data.reshape(tensor.n_rows, row_bytes)[ids]
    return decode(tensor.type, data.reshape(-1), len(ids) * tensor.row_len).reshape(len(ids), -1)
