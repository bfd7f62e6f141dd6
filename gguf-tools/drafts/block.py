"""DFlash and DSpark: one pass over a block of mask tokens gives the whole draft.

    c_p = norm(fc . [taps of p])                    for every evaluated position; its keys and values are what a layer attends to
    rows = [t_s, mask, mask, ...] at s, s + 1, ...   attend to all c_p with p < s and to each other, in both directions

DFlash: row i >= 1 guesses the token at its own position s + i. DSpark: row i guesses the token after it, s + 1 + i; a Markov head
adds W2 . W1[the token before], so that guesses of one block fit each other, and a confidence head says how likely a guess is to
be accepted if those before it were. In training the token before is the text's; in use it is the guess before.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from drafts.layers import Shape, Tensor, Weights, block_tensors, heads, joined, matrix, merged, mlp, repeated, rms, rotated
from drafts.target import Target

FADE = 5.0  # row i of a block counts exp(-i / FADE)


class Block(torch.nn.Module):
    """The draft. rank 0: DFlash, whose block of `width` rows makes width - 1 guesses; else DSpark, which makes `width`."""

    architecture = "dflash"

    def __init__(
        self,
        shape: Shape,
        target: Target,
        rows: Tensor,
        rng: torch.Generator,
        width: int,
        mask: int,
        rank: int,
        n_anchors: int = 8,
    ) -> None:
        super().__init__()
        self.shape, self.target, self.rows = shape, target, rows
        self.width, self.mask, self.rank, self.n_anchors = width, mask, rank, n_anchors
        self.rng = rng
        d, n_vocab = shape.n_embd, len(target.head)
        last = torch.cat([torch.zeros(d, d * (shape.n_taps - 1)), torch.eye(d)], 1)
        tensors = {
            "fc.weight": last + matrix(rng, d, d * shape.n_taps, 0.3),
            "enc.output_norm.weight": torch.ones(d),
            "output_norm.weight": target.norm.clone(),
        }
        for i in range(shape.n_layers):
            tensors |= block_tensors(shape, i, d, rng)
            tensors |= {f"blk.{i}.attn_{which}_norm.weight": torch.ones(shape.head_len) for which in "qk"}
        if len(rows) < n_vocab:
            tensors["output.weight"] = target.head[rows].clone()
        if rank:
            tensors["markov_w1.weight"] = matrix(rng, n_vocab, rank) * rank**0.5 * 0.3
            tensors["markov_w2.weight"] = torch.zeros(len(rows), rank)
            tensors["conf_proj.weight"] = torch.zeros(1, d + rank)
            tensors["conf_proj.bias"] = torch.zeros(1)
        self.w = Weights(tensors)

    @property
    def n_guesses(self) -> int:
        return self.width if self.rank else self.width - 1

    def rows_of(self, ids: Tensor, taps: Tensor, anchors: Tensor) -> Tensor:
        """The normed last rows of the blocks at `anchors` [B, n]: [B, n, width, D]."""
        w, s = self.w, self.shape
        context = rms(joined(list(taps)) @ w["fc.weight"].T, w["enc.output_norm.weight"], s.eps)
        block = torch.full((*anchors.shape, self.width), self.mask)
        block[..., 0] = ids.gather(1, anchors)
        x = self.target.embd[block].flatten(1, 2)  # [B, n * width, D]
        pos = (anchors[..., None] + torch.arange(self.width)).flatten(1)
        seen = _visible(anchors, self.width, ids.shape[1])
        for i in range(s.n_layers):
            h = rms(x, w[f"blk.{i}.attn_norm.weight"], s.eps)
            x = x + self._attention(f"blk.{i}", h, pos, context, seen)
            x = x + mlp(w, f"blk.{i}", rms(x, w[f"blk.{i}.ffn_norm.weight"], s.eps))
        return rms(x, w["output_norm.weight"], s.eps).unflatten(1, (-1, self.width))

    def _attention(self, blk: str, h: Tensor, pos: Tensor, context: Tensor, seen: Tensor) -> Tensor:
        w, s = self.w, self.shape

        def part(x: Tensor, which: str, n: int, at: Tensor) -> Tensor:
            split = rms(heads(x @ w[f"{blk}.attn_{which}.weight"].T, n), w[f"{blk}.attn_{which}_norm.weight"], s.eps)
            return rotated(split, at, s.rope_base, False)

        q = part(h, "q", s.n_head, pos[:, None])
        k_context = part(context, "k", s.n_head_kv, torch.arange(context.shape[1]))
        k = torch.cat([k_context, part(h, "k", s.n_head_kv, pos[:, None])], 2)
        v = heads(torch.cat([context, h], 1) @ w[f"{blk}.attn_v.weight"].T, s.n_head_kv)
        mixed = F.scaled_dot_product_attention(q, repeated(k, s.n_head), repeated(v, s.n_head), attn_mask=seen[:, None])
        return merged(mixed) @ w[f"{blk}.attn_output.weight"].T

    def base(self, t: Tensor) -> Tensor:
        """Logits [..., Vd] before the Markov head."""
        return t @ (self.w["output.weight"] if "output.weight" in self.w else self.target.head).T

    def loss(self, ids: Tensor, taps: Tensor, lengths: Tensor) -> tuple[Tensor, dict[str, float]]:
        """KL(target || draft) of all guesses at random anchors, and the confidence head's cross entropy."""
        highest = (lengths - self.width).clamp(min=1)
        chance = torch.rand(len(ids), self.n_anchors, generator=self.rng)
        anchors = (1 + (chance * highest[:, None]).long()).clamp(max=(highest)[:, None])
        t = self.rows_of(ids, taps[:-1], anchors)
        first = 0 if self.rank else 1
        t = t[:, :, first:]
        at = anchors[..., None] + torch.arange(self.n_guesses)  # the position whose logits decide the guess
        valid = at < lengths[:, None, None]
        at = at.clamp(max=ids.shape[1] - 1)
        last = taps[-1].gather(1, at.flatten(1)[..., None].expand(-1, -1, t.shape[-1])).unflatten(1, at.shape[1:])
        want = self.target.logits(last, self.rows).log_softmax(-1)
        logits, before = self.base(t), ids.gather(1, at.flatten(1)).view(at.shape)
        if self.rank:
            e = self.w["markov_w1.weight"][before]
            logits = logits + e @ self.w["markov_w2.weight"].T
        ours = logits.log_softmax(-1)
        weight = torch.exp(-torch.arange(self.n_guesses) / FADE) * valid
        kl = (F.kl_div(ours, want, reduction="none", log_target=True).sum(-1) * weight).sum() / weight.sum()
        equal = ((ours.argmax(-1) == want.argmax(-1)) & valid).float().sum() / valid.sum()
        if not self.rank:
            return kl, {"equal": equal.item()}
        survival = (1 - 0.5 * (ours.exp() - want.exp()).abs().sum(-1)).detach()
        says = self._confidence(t.detach(), e.detach())
        wrong = F.binary_cross_entropy_with_logits(says, survival, weight=weight, reduction="sum") / weight.sum()
        return kl + wrong, {"equal": equal.item(), "survival": (survival * valid).sum().item() / valid.sum().item()}

    def _confidence(self, t: Tensor, e: Tensor) -> Tensor:
        return (joined([t, e]) @ self.w["conf_proj.weight"].T + self.w["conf_proj.bias"])[..., 0]

    @torch.no_grad()
    def accepted(self, ids: Tensor, taps: Tensor, lengths: Tensor, begins: Tensor) -> Tensor:
        """For blocks at every usable position from `begins` [B] on: bool [n, guesses], whether the guesses up to each one were
        the text's own tokens."""
        found = []
        for b in range(len(ids)):
            anchors = torch.arange(max(1, int(begins[b])), int(lengths[b]) - self.n_guesses)[None]
            if not anchors.numel():
                continue
            one = ids[b : b + 1]
            t = self.rows_of(one, taps[:-1, b : b + 1], anchors)[0][:, 0 if self.rank else 1 :]
            before, right = one[0, anchors[0]], torch.ones(anchors.shape[1], dtype=torch.bool)
            columns = []
            for i in range(self.n_guesses):
                logits = self.base(t[:, i])
                if self.rank:
                    logits = logits + self.w["markov_w1.weight"][before] @ self.w["markov_w2.weight"].T
                before = self.rows[logits.argmax(-1)]
                right = right & (before == one[0, anchors[0] + 1 + i])
                columns.append(right)
            found.append(torch.stack(columns, -1))
        return torch.cat(found)


def _visible(anchors: Tensor, width: int, n_context: int) -> Tensor:
    """Which keys (context, then all block rows) a block row sees: bool [B, n * width, n_context + n * width]."""
    n = anchors.shape[1]
    before = torch.arange(n_context) < anchors[..., None]  # [B, n, T]
    same = torch.eye(n, dtype=torch.bool).repeat_interleave(width, 0).repeat_interleave(width, 1)
    return torch.cat([before.repeat_interleave(width, 1), same.expand(len(anchors), -1, -1)], -1)
