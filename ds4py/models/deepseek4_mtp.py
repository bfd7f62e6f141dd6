"""deepseek4-mtp: the one block that drafts for the preview of DeepSeek V4 Flash (`mtp.0.*`), a token at a time.

A row stands at a position p and joins two things: the target's streams as they enter its head at p, and the token *after* p.
Token and streams are normed and projected by matrices of their own, the same one for every stream; their sum is the input of an
ordinary block of the target without a pool. A head of its own collapses the streams, the target's matrix makes logits of the
token at p + 2. The block's output streams stand in for the target's when it goes on from its own guess.

ds4 feeds the token *at* p instead and learns from the first guess only what the target says anyway. Here a row has the token it
was trained with, and every guess is one. Context rows need no output, only what they leave in the window (`write`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ds4py.gguf import GgufFile
from ds4py.models.deepseek4 import Block, Head
from ds4py.models.deepseek4 import Model as Target
from ds4py.models.deepseek4_config import LayerCaches
from ds4py.models.drafts import HIDDEN
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import I64, Buf, Ops

MARK = "mtp.0.e_proj.weight"


def is_mtp(g: GgufFile) -> bool:
    """Whether `g` is such a block without its model, whatever it calls itself."""
    return g.architecture == "deepseek4-mtp" or (MARK in g.tensors and "token_embd.weight" not in g.tensors)


class Model:
    """A recurrent draft's network (drafters/recurrent.py)."""

    d2t: I64 | None = None  # all ids have rows

    def __init__(self, t: Tensors, target: Target) -> None:
        c = self.config = target.config
        d = c.n_embd
        self.e_proj, self.h_proj = (t.matrix(f"mtp.0.{name}.weight", d, d) for name in ("e_proj", "h_proj"))
        self.enorm, self.hnorm = (t.vector(f"mtp.0.{name}.weight", d) for name in ("enorm", "hnorm"))
        self.block = Block.read(t, "mtp.0", 0, False, c.clamps[-1], target.vocab_size, c)
        self.head = Head.read(t, "mtp.0.hc_head", "mtp.0.norm.weight", c)
        self.token_embd, self.output = target.token_embd, target.output
        self.taps: tuple[int, ...] = (c.n_layers,)  # all streams, as they enter the head
        self.feature_len = self.vector_len = c.n_streams * d
        self.caches: Sequence[CacheSpec] = [CacheSpec(1, 0, c.heads.head_len, window=c.window)]

    def write(self, ops: Ops) -> Buf:
        """Tokens and streams, given, to latents at the rows' positions. No logits."""
        c = self.config
        x, _ = self.block.attn_site.enter(ops, c, self._joined(ops))
        ops.latent.put(self.block.attention.latent(ops, c, x), 0)
        return ops.pick(x)

    def step(self, ops: Ops) -> Buf:
        """The same and the block's streams, which are tap HIDDEN of the rows whose logits are asked."""
        c = self.config
        h = ops.pick(self.block.run(ops, c, self._joined(ops), LayerCaches(ring=0)))
        ops.tap(HIDDEN, h)
        return ops.linear(self.head.run(ops, c, h), self.output)

    def _joined(self, ops: Ops) -> Buf:
        """The block's input, [R, n*D]."""
        c, n = self.config, self.config.n_streams
        e = ops.linear(ops.rms_norm(ops.embed(self.token_embd), self.enorm, c.eps), self.e_proj)
        h = ops.rms_norm(ops.given(self.feature_len), self.hnorm, c.eps, n)
        return ops.add(ops.latent.spread(e, n), ops.latent.stream_linear(h, self.h_proj, n))
