"""EAGLE-3: one decoder layer that reads the target's residuals of a position and the token after it.

    g_P = fc . [taps of P];  x = [norm(E[t_{P+1}]); norm(g_P)]
    y = attention(x) + g_P;  z = y + mlp(norm(y));  logits = head . norm(z)

The next step of a draft has no g of its own and takes z instead. A layer that is only ever shown true g falls apart on the second
step, so training unrolls: in step j every row reads z of step j - 1 one row before it, and attends to true rows up to its draft's
beginning and to the rows that the same draft has written since. All drafts of a text are trained at once, one per position.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from drafts.layers import Shape, Tensor, Weights, block_tensors, heads, joined, matrix, merged, mlp, repeated, rms, rotated
from drafts.target import Target

DECAY = 0.8  # what a step counts against the one before it


class Eagle3(torch.nn.Module):
    """The draft. rows [Vd]: target ids of its head's rows; its own head if they are not all ids, else the target's."""

    architecture = "eagle3"

    def __init__(self, shape: Shape, target: Target, rows: Tensor, rng: torch.Generator, n_steps: int = 4) -> None:
        super().__init__()
        self.shape, self.target, self.rows, self.n_steps = shape, target, rows, n_steps
        d, n_vocab = shape.n_embd, len(target.head)
        last = torch.cat([torch.zeros(d, d * (shape.n_taps - 1)), torch.eye(d)], 1)  # begin with the deepest tap
        tensors = {
            "fc.weight": last + matrix(rng, d, d * shape.n_taps, 0.1),
            **block_tensors(shape, 0, 2 * d, rng),
            "blk.0.attn_norm_2.weight": torch.ones(d),
            "output_norm.weight": target.norm.clone(),
        }
        if len(rows) < n_vocab:
            tensors["output.weight"] = target.head[rows].clone()
        self.w = Weights(tensors)

    def head(self, z: Tensor) -> Tensor:
        """Logits [..., Vd] of the draft's vocabulary."""
        weight = self.w["output.weight"] if "output.weight" in self.w else self.target.head
        return rms(z, self.w["output_norm.weight"], self.shape.eps) @ weight.T

    def steps(self, ids: Tensor, taps: Tensor, own: bool = False) -> Iterator[Tensor]:
        """z of every step, [B, T - 1, D]: row P of step j belongs to the draft that began at P - j and guesses the token P + 2.
        `own`: drafts read the tokens they guessed, as in use, and not the text's."""
        w, tokens = self.w, ids[:, 1:]
        hidden = (joined(list(taps)) @ w["fc.weight"].T)[:, :-1]
        keys: list[Tensor] = []
        vals: list[Tensor] = []
        for j in range(self.n_steps):
            e = rms(self.target.embd[tokens], w["blk.0.attn_norm.weight"], self.shape.eps)
            x = joined([e, rms(hidden, w["blk.0.attn_norm_2.weight"], self.shape.eps)])
            y = hidden + self._attention(x, keys, vals, j)
            z = y + mlp(w, "blk.0", rms(y, w["blk.0.ffn_norm.weight"], self.shape.eps))
            yield z
            hidden = shifted(z, 1, 1)
            if own:
                tokens = shifted(self.rows[self.head(z).argmax(-1)], 1, 1)

    def _attention(self, x: Tensor, keys: list[Tensor], vals: list[Tensor], j: int) -> Tensor:
        """Step j's rows; its keys and values join the lists."""
        w, s = self.w, self.shape
        pos = torch.arange(x.shape[1])
        q = rotated(heads(x @ w["blk.0.attn_q.weight"].T, s.n_head), pos, s.rope_base, True)
        k = rotated(heads(x @ w["blk.0.attn_k.weight"].T, s.n_head_kv), pos, s.rope_base, True)
        keys.append(repeated(k, s.n_head))
        vals.append(repeated(heads(x @ w["blk.0.attn_v.weight"].T, s.n_head_kv), s.n_head))
        hidden = pos[None, :] > pos[:, None] - j  # true rows end where the draft began
        scores = [(q @ keys[0].mT).masked_fill(hidden, -torch.inf)]
        scores += [(q * shifted(keys[i], j - i, 2)).sum(-1, keepdim=True) for i in range(1, j + 1)]
        p = (torch.cat(scores, -1) * s.head_len**-0.5).softmax(-1)
        mixed = p[..., : len(pos)] @ vals[0]
        for i in range(1, j + 1):
            mixed = mixed + p[..., len(pos) + i - 1, None] * shifted(vals[i], j - i, 2)
        return merged(mixed) @ w["blk.0.attn_output.weight"].T

    def loss(self, ids: Tensor, taps: Tensor, lengths: Tensor) -> tuple[Tensor, dict[str, float]]:
        """KL(target || draft) over all steps and positions. taps [n_taps + 1, B, T, D]; the last one is the target's last
        layer."""
        want = self.target.logits(taps[-1][:, 1:], self.rows).log_softmax(-1)
        pos = torch.arange(want.shape[1])
        total, equal = torch.zeros(()), 0.0
        for j, z in enumerate(self.steps(ids, taps[:-1])):
            valid = (pos >= j) & (pos + 1 < lengths[:, None])
            ours, theirs = self.head(z[valid]).log_softmax(-1), want[valid]
            total = total + DECAY**j * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
            equal += (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item() / self.n_steps
        return total, {"equal": equal}

    @torch.no_grad()
    def accepted(self, ids: Tensor, taps: Tensor, lengths: Tensor, begins: Tensor) -> Tensor:
        """For drafts at positions from `begins` [B] on: bool [n, n_steps], whether the guesses up to each were the text's own."""
        pos = torch.arange(ids.shape[1] - 1)
        good = torch.ones(len(ids), len(pos), dtype=torch.bool)
        columns = []
        after = shifted(ids, -2, 1)[:, :-1]
        for z in self.steps(ids, taps[:-1], own=True):
            good = good & (self.rows[self.head(z).argmax(-1)] == after)
            columns.append(good)
            good = shifted(good, 1, 1)
        began = [shifted(column, -j, 1) for j, column in enumerate(columns)]  # by the row where the draft began
        usable = (pos + 1 >= begins[:, None]) & (pos + 1 + self.n_steps < lengths[:, None])
        return torch.stack(began, -1)[usable]


def shifted(x: Tensor, n: int, axis: int) -> Tensor:
    """Row i of `axis` becomes row i + n; zeros come in."""
    if n == 0:
        return x
    out = torch.zeros_like(x)
    length = x.shape[axis] - abs(n)
    if length <= 0:
        return out
    out.narrow(axis, max(n, 0), length).copy_(x.narrow(axis, max(-n, 0), length))
    return out
