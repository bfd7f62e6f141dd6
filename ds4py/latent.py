"""Operations of models whose attention reads latents: one row per position that is key and value of all heads.

They are a part of `protocols.Ops` (`ops.latent`) with a page of their own, since only a few architectures call them. Three ideas:

Streams. The residual is n copies of width D side by side, [R, n*D]. A site mixes them with weights that it computes from them
(hyper-connections): `collapse` gives a layer its input, `renew` spreads its output over the streams.

Rows. A cache of single rows (`CacheView` without keys) is written with `put` at the rows' own positions. A pool has one entry per
group of `every` positions, made by `pool` when the row that closes the group is evaluated, from projected rows kept in a ring.
An entry is thus a function of positions, and truncating forgets it by counting: pos // every entries count, and a row at
position t sees those below (t + 1) // every, among them the one it closed itself.

Rounding. Some models were trained with their cached rows rounded to 8 or 4 bits. That is part of the model, not of a format:
the same numbers come out whatever the cache's own dtype.

As everywhere, row i of a result depends on row i's inputs and the caches, never on how many rows are in the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ds4py.protocols import F32, Buf, Rope, Weight


@dataclass(frozen=True)
class Pooling:
    """How groups of positions become entries of a pool.

    A projected row is [W values, W scores]. Without overlap W is the entry's width D and an entry is, per channel, the softmax of
    the group's scores over its values. With overlap W is 2 D: the first half of the previous group's rows and the second half of
    this group's are softmaxed together (the first group has no previous one). Then an RMS norm, a rotation of the last dimensions
    by the group's first position, and the rounding."""

    every: int  # positions per group
    overlap: bool
    position_bias: F32  # [every, W], added to the scores by place in the group
    norm: F32  # [D]
    eps: float
    rope: Rope  # which turns the last dimensions
    rounding: str = ""  # "fp8": the dimensions that are not rotated; "fp4": all of them after a Hadamard transform; "": none

    @property
    def width(self) -> int:
        return len(self.norm)


class LatentOps(Protocol):
    """Buffers are [R, width] float32."""

    # --- streams ---
    def spread(self, x: Buf, n: int) -> Buf:
        """n copies of x side by side: [R, n*D]."""
        ...

    def mixing(self, m: Buf, scale: F32, base: F32, n: int, n_iters: int, eps: float) -> Buf:
        """Weights of a site from its projection m [R, n (n + 2)]: for each stream how much of it enters (n), how much of the
        output it gets (n), and from which streams (n*n, source first). scale [3], base [n (n + 2)].

        enter = sigmoid(m scale0 + base) + eps; get = 2 sigmoid(m scale1 + base); the matrix is a softmax over its last index plus
        eps, then columns and rows are divided by their sum plus eps in turn, columns first and last (n_iters times columns).
        With m [R, n], scale [1], base [n]: only the first part, which is all that the head needs."""
        ...

    def collapse(self, h: Buf, mixing: Buf, n: int) -> Buf:
        """sum over streams j of enter_j * h_j: [R, D]."""
        ...

    def renew(self, h: Buf, y: Buf, mixing: Buf, n: int) -> Buf:
        """Stream k becomes get_k * y + sum over j of matrix[j, k] * h_j: [R, n*D]."""
        ...

    def mean(self, h: Buf, n: int) -> Buf:
        """The mean of the n streams: [R, D]."""
        ...

    def stream_linear(self, h: Buf, weight: Weight, n: int) -> Buf:
        """Each of the n streams times weight.T, [N, D]: [R, n*N]."""
        ...

    # --- rounding ---
    def fp8(self, x: Buf, n_dims: int) -> Buf:
        """The first n_dims of each row, in blocks of 64, as E4M3 times a power of two: 2^ceil(log2(max(|x|, 1e-4) / 448))."""
        ...

    def fp4(self, x: Buf) -> Buf:
        """Each row in blocks of 32 as E2M1 times a power of two: 2^ceil(log2(max(|x|, 6 * 2^-126) / 6)). Ties to even codes."""
        ...

    def hadamard(self, x: Buf, n_heads: int) -> Buf:
        """Walsh-Hadamard transform (natural order) of each head, times head length^-0.5."""
        ...

    # --- rows ---
    def put(self, x: Buf, cache: int, exact: bool = False) -> None:
        """Store each row of x at its position of the ring `cache`; `exact`: a ring of float32 whatever attention caches are."""
        ...

    def pool(self, projected: int, pool: int, how: Pooling) -> None:
        """For every row that closes a group, make the group's entry of the cache `pool` from the ring `projected`."""
        ...

    def choose(self, q: Buf, weights: Buf, pool: int, every: int, n_heads: int, top_k: int) -> Buf:
        """The entries that each row attends to: of those it sees the top_k highest by sum over heads h of weights_h *
        relu(q_h . entry), or all of them if there are no more. Ties go to the lower index. Opaque; `attend` takes it."""
        ...

    def attend(
        self,
        q: Buf,
        ring: int,
        n_heads: int,
        scale: float,
        sinks: F32,
        pool: int | None = None,
        every: int = 0,
        chosen: Buf | None = None,
        block: bool = False,
    ) -> Buf:
        """Softmax attention of q [R, H*D] over rows that are keys and values: the ring's window up to the row itself, then the
        pool's entries that the row sees (or `chosen` of them), and one extra logit per head, sinks [H], whose value is zero.

        `block`: every row of a span sees what its first row sees, and all rows of the span."""
        ...

    def grouped_linear(self, x: Buf, weight: Weight, n_groups: int) -> Buf:
        """x [R, G*K] in G groups, group g times rows g*N .. (g + 1)*N of weight [G*N, K]: [R, G*N]."""
        ...
