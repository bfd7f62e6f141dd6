"""DeepSeek V4 written a second time, in plain torch over whole sequences, from the names of the released checkpoints.

`Reference` is our own and independent of ds4py: no caches, no rows, no kernels. Without rounding it agrees with transformers
(tests/models/test_deepseek4.py checks that); transformers has no rounding, no MTP and no DSpark, so this is their oracle. Without
rounding any dtype is close to any other. With rounding a difference of 1e-7 can flip a code and then a choice of the indexer, so
compare in float64 with float64 angles, or by the share of rows that agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

Weights = Mapping[str, torch.Tensor]
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def rms(x: torch.Tensor, w: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


def power_of_two(x: torch.Tensor) -> torch.Tensor:
    """2^ceil(log2 x), exact: a power of two is itself."""
    m, e = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), torch.where(m == 0.5, e - 1, e))


def fp8(x: torch.Tensor, block: int = 64) -> torch.Tensor:
    b = x.reshape(*x.shape[:-1], -1, block)
    scale = power_of_two(b.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448.0)
    return ((b / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale).reshape(x.shape)


def fp4(x: torch.Tensor, block: int = 32) -> torch.Tensor:
    """By thresholds: a tie goes to the even code."""
    b = x.reshape(*x.shape[:-1], -1, block)
    scale = power_of_two(b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) / 6.0)
    v = (b / scale).clamp(-6, 6)
    a, code = v.abs(), torch.zeros(v.shape, dtype=torch.long)
    for t in (0.25, 1.25, 2.5, 5.0):
        code += a > t
    for t in (0.75, 1.75, 3.5):
        code += a >= t
    return (torch.sign(v) * E2M1[code].to(x.dtype) * scale).reshape(x.shape)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """By the matrix: entry (i, j) is the parity of i & j."""
    n = x.shape[-1]
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(n)] for i in range(n)], dtype=x.dtype)
    return x @ signs * n**-0.5


class Reference:
    """Whole-sequence forward in the dtype of `w`; `c` is a transformers DeepseekV4Config, `ratios` positions per pool entry."""

    def __init__(self, w: Weights, c: Any, ratios: Sequence[int], rounding: bool, angles: torch.dtype = torch.float64) -> None:
        self.w, self.c, self.ratios, self.rounding, self.angles = w, c, ratios, rounding, angles
        self.eps, self.n_rot = c.rms_norm_eps, c.qk_rope_head_dim

    def frequencies(self, ratio: int) -> torch.Tensor:
        c, n = self.c, self.n_rot
        base = c.compress_rope_theta if ratio else c.rope_theta
        f = 1.0 / base ** (torch.arange(0, n, 2).to(self.angles) / n)
        if ratio:
            y = c.rope_parameters["compress"]

            def pair(turns: float) -> float:
                return n * math.log(y["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))

            low, high = max(math.floor(pair(y["beta_fast"])), 0), min(math.ceil(pair(y["beta_slow"])), n - 1)
            ramp = ((torch.arange(n // 2).to(self.angles) - low) / max(high - low, 1e-3)).clamp(0, 1)
            f = f / y["factor"] * ramp + f * (1 - ramp)
        return f

    def rope(self, x: torch.Tensor, pos: torch.Tensor, ratio: int, inverse: bool = False) -> torch.Tensor:
        """x [T, (H,) D], pos [T]."""
        a = pos.to(self.angles)[:, None] * self.frequencies(ratio)
        a = a[:, None] if x.ndim == 3 else a
        cos, sin = a.cos().to(x.dtype), a.sin().to(x.dtype) * (-1 if inverse else 1)
        plain, t = x[..., : -self.n_rot], x[..., -self.n_rot :]
        even, odd = t[..., 0::2], t[..., 1::2]
        return torch.cat([plain, torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)], -1)

    def round_latent(self, x: torch.Tensor) -> torch.Tensor:
        if not self.rounding or not len(x):
            return x
        return torch.cat([fp8(x[..., : -self.n_rot]), x[..., -self.n_rot :]], -1)

    def compress(self, x: torch.Tensor, p: str, ratio: int, d: int) -> torch.Tensor:
        """Pooled, normed and rotated rows [T // ratio, d]."""
        n = x.shape[0] // ratio
        kv, score = x @ self.w[p + "wkv.weight"].T, x @ self.w[p + "wgate.weight"].T
        kv = kv[: n * ratio].view(n, ratio, -1)
        score = score[: n * ratio].view(n, ratio, -1) + self.w[p + "ape"]
        if ratio == 4:  # the first half of the previous group and the second half of this one
            before, its_score = kv.new_zeros(n, ratio, d), kv.new_full((n, ratio, d), -math.inf)
            before[1:], its_score[1:] = kv[:-1, :, :d], score[:-1, :, :d]
            kv, score = torch.cat([before, kv[:, :, d:]], 1), torch.cat([its_score, score[:, :, d:]], 1)
        z = rms((kv * score.softmax(1)).sum(1), self.w[p + "norm.weight"], self.eps)
        return self.rope(z, torch.arange(n) * ratio, ratio)

    def chosen(self, x: torch.Tensor, qr: torch.Tensor, p: str, ratio: int, visible: torch.Tensor) -> torch.Tensor:
        """Which of the visible entries [t, n] the indexer keeps, for the last t rows, those of `qr`."""
        w, c, n_rows = self.w, self.c, len(qr)
        d, n_heads = c.index_head_dim, c.index_n_heads
        q = self.rope((qr @ w[p + "wq_b.weight"].T).view(n_rows, n_heads, d), torch.arange(len(x))[-n_rows:], ratio)
        k = self.compress(x, p + "compressor.", ratio, d)
        if self.rounding:
            q, k = fp4(hadamard(q)), fp4(hadamard(k))
        weights = (x[-n_rows:] @ w[p + "weights_proj.weight"].T) * (d**-0.5 * n_heads**-0.5)
        score = (torch.einsum("thd,nd->thn", q, k).relu() * weights[..., None]).sum(1).masked_fill(~visible, -math.inf)
        top = score.topk(min(c.index_topk, visible.shape[1]), -1)
        return torch.zeros_like(visible).scatter_(1, top.indices, top.values > -math.inf)

    def latents(self, x: torch.Tensor, p: str, ratio: int) -> torch.Tensor:
        """What all positions leave in the window: [T, D]."""
        kv = rms(x @ self.w[p + "wkv.weight"].T, self.w[p + "kv_norm.weight"], self.eps)
        return self.round_latent(self.rope(kv, torch.arange(len(x)), ratio))

    def attention(self, x: torch.Tensor, p: str, ratio: int, since: int = 0) -> torch.Tensor:
        """Of the rows from `since` on."""
        w, c, every = self.w, self.c, torch.arange(len(x))
        pos, n_heads, d = every[since:], c.num_attention_heads, c.head_dim
        qr = rms(x[since:] @ w[p + "wq_a.weight"].T, w[p + "q_norm.weight"], self.eps)
        q = self.rope(rms((qr @ w[p + "wq_b.weight"].T).view(len(pos), n_heads, d), None, self.eps), pos, ratio)
        keys = self.latents(x, p, ratio)
        behind = pos[:, None] - every[None]
        seen = (behind >= 0) & (behind < c.sliding_window)
        if ratio:
            pooled = self.round_latent(self.compress(x, p + "compressor.", ratio, d))
            visible = torch.arange(len(pooled))[None] < ((pos + 1) // ratio)[:, None]
            if ratio == 4:
                visible = self.chosen(x, qr, p + "indexer.", ratio, visible)
            keys, seen = torch.cat([keys, pooled]), torch.cat([seen, visible], 1)
        return self.mix(q, keys, seen, p, pos, ratio)

    def mix(
        self, q: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor, p: str, pos: torch.Tensor, ratio: int
    ) -> torch.Tensor:
        """q [T, H, D] over `keys` [n, D], of which row t sees those with seen[t]."""
        w, c, n_rows = self.w, self.c, len(q)
        score = (torch.einsum("thd,kd->thk", q, keys) * c.head_dim**-0.5).masked_fill(~seen[:, None], -math.inf)
        score = torch.cat([score, w[p + "attn_sink"].view(1, -1, 1).expand(n_rows, -1, 1)], -1)
        o = torch.einsum("thk,kd->thd", score.softmax(-1)[..., :-1], keys)
        o = self.rope(o, pos, ratio, inverse=True).reshape(n_rows, c.o_groups, -1)
        low = torch.einsum("tgd,grd->tgr", o, w[p + "wo_a.weight"].view(c.o_groups, c.o_lora_rank, -1))
        return low.flatten(1) @ w[p + "wo_b.weight"].T

    def gated(self, x: torch.Tensor, p: str) -> torch.Tensor:
        limit = self.c.swiglu_limit
        gate = (x @ self.w[p + "w1.weight"].T).clamp(max=limit)
        return F.silu(gate) * (x @ self.w[p + "w3.weight"].T).clamp(-limit, limit)

    def moe(self, x: torch.Tensor, p: str, ids: torch.Tensor) -> torch.Tensor:
        c, w = self.c, self.w
        score = F.softplus(x @ w[p + "gate.weight"].T).sqrt()
        if p + "gate.tid2eid" in w:
            chosen = w[p + "gate.tid2eid"][ids].long()
        else:
            chosen = (score + w[p + "gate.bias"]).topk(c.num_experts_per_tok, -1).indices
        weight = score.gather(1, chosen)
        weight = weight / weight.sum(-1, keepdim=True) * c.routed_scaling_factor
        y = self.gated(x, p + "shared_experts.") @ w[p + "shared_experts.w2.weight"].T
        for e in range(c.n_routed_experts):
            row, slot = torch.where(chosen == e)
            if len(row):
                y[row] += (weight[row, slot, None] * self.gated(x[row], f"{p}experts.{e}.")) @ w[f"{p}experts.{e}.w2.weight"].T
        return y

    def site(self, h: torch.Tensor, p: str, half: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """h [T, n, d] through one hyper-connection around `half`."""
        c, w, n = self.c, self.w, self.c.hc_mult
        m = rms(h.flatten(1), None, self.eps) @ w[p + "_fn"].T
        scale, base, eps = w[p + "_scale"], w[p + "_base"], c.hc_eps
        enter = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
        get = 2 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        matrix = (m[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n).softmax(-1) + eps
        matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            matrix = matrix / (matrix.sum(2, keepdim=True) + eps)
            matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
        y = half((enter[..., None] * h).sum(1))
        return get[..., None] * y[:, None] + torch.einsum("tjk,tjd->tkd", matrix, h)

    def block(self, h: torch.Tensor, p: str, ratio: int, ids: torch.Tensor) -> torch.Tensor:
        w = self.w
        h = self.site(
            h, p + "hc_attn", lambda x: self.attention(rms(x, w[p + "attn_norm.weight"], self.eps), p + "attn.", ratio)
        )
        return self.site(h, p + "hc_ffn", lambda x: self.moe(rms(x, w[p + "ffn_norm.weight"], self.eps), p + "ffn.", ids))

    def collapse(self, h: torch.Tensor, p: str) -> torch.Tensor:
        m = rms(h.flatten(1), None, self.eps) @ self.w[p + "hc_head_fn"].T
        enter = torch.sigmoid(m * self.w[p + "hc_head_scale"] + self.w[p + "hc_head_base"]) + self.c.hc_eps
        return (enter[..., None] * h).sum(1)

    def head(self, h: torch.Tensor, p: str, norm: str) -> torch.Tensor:
        return rms(self.collapse(h, p), self.w[norm], self.eps) @ self.w["head.weight"].T

    def run(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits [T, V], and the streams [T, n, d] that leave each layer."""
        h, left = self.w["embed.weight"][ids][:, None].repeat(1, self.c.hc_mult, 1), []
        for i, ratio in enumerate(self.ratios):
            h = self.block(h, f"layers.{i}.", ratio, ids)
            left.append(h)
        return self.head(h, "", "norm.weight"), left

    def mtp(self, h: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One-stage MTP: streams [T, n, d] of positions 0..T - 1 and the token fed at each: logits [T, V], streams."""
        w, p = self.w, "mtp.0."
        e = rms(w["embed.weight"][ids], w[p + "enorm.weight"], self.eps) @ w[p + "e_proj.weight"].T
        x = rms(h, w[p + "hnorm.weight"], self.eps) @ w[p + "h_proj.weight"].T
        h = self.block(e[:, None] + x, p, 0, ids)
        return self.head(h, p, p + "norm.weight"), h

    def mtp_draft(self, h: torch.Tensor, ids: torch.Tensor, k: int) -> SimpleNamespace:
        """k guesses after streams [T, n, d] and the token after each of their positions, the last of which was chosen but not
        evaluated: drafts [k], logits [k, V]. Each is a whole run over all rows, in which the block's own streams stand at the
        positions that the target has not reached."""
        drafts, logits = list[int](), []
        for _ in range(k):
            rows, left = self.mtp(h, ids)
            logits.append(rows[-1])
            drafts.append(int(rows[-1].argmax()))
            h, ids = torch.cat([h, left[-1:]]), torch.cat([ids, ids.new_tensor(drafts[-1:])])
        return SimpleNamespace(drafts=drafts, logits=torch.stack(logits))


class Spark(Reference):
    """The three stages of DSpark over what the target left at some positions: one pass over [anchor, noise, noise, ...].

    `taps` [n, 3 d]: joined means over the streams of positions first .. first + n; only the last window of them is seen. The
    anchor is the token at the position after them, row i of the block guesses the token after its own position."""

    def __init__(self, w: Weights, c: Any, noise: int, rounding: bool, block: int = 5, stages: int = 3) -> None:
        super().__init__(w, c, [], rounding)
        self.noise, self.block_len, self.stages, self.last = noise, block, stages, f"mtp.{stages - 1}."

    def draft(self, taps: torch.Tensor, first: int, anchor: int, noise: torch.Tensor | None = None) -> SimpleNamespace:
        """base [B, V], hidden [B, d], logits [B, V] with the Markov bias, drafts [B], confidence [B]; `noise` [B, V] is added
        before each choice."""
        w, window = self.w, self.c.sliding_window
        context = rms(taps @ w["mtp.0.main_proj.weight"].T, w["mtp.0.main_norm.weight"], self.eps)[-window:]
        at = torch.arange(first + len(taps) - len(context), first + len(taps))
        pos = torch.arange(self.block_len) + first + len(taps)
        ids = torch.tensor([anchor] + [self.noise] * (self.block_len - 1))
        h = w["embed.weight"][ids][:, None].repeat(1, self.c.hc_mult, 1)
        for s in range(self.stages):
            p = f"mtp.{s}."
            h = self.site(h, p + "hc_attn", lambda x, p=p: self._attention(x, context, at, pos, p))
            h = self.site(h, p + "hc_ffn", lambda x, p=p: self.moe(rms(x, w[p + "ffn_norm.weight"], self.eps), p + "ffn.", ids))
        hidden = self.collapse(h, self.last)
        base = rms(hidden, w[self.last + "norm.weight"], self.eps) @ w["head.weight"].T
        return self._chain(hidden, base, anchor, noise)

    def _attention(
        self, x: torch.Tensor, context: torch.Tensor, at: torch.Tensor, pos: torch.Tensor, p: str
    ) -> torch.Tensor:
        """The context enters without the norm of the layer; every row sees every row."""
        w, c, a = self.w, self.c, p + "attn."
        x = rms(x, w[p + "attn_norm.weight"], self.eps)
        qr = rms(x @ w[a + "wq_a.weight"].T, w[a + "q_norm.weight"], self.eps)
        q = rms((qr @ w[a + "wq_b.weight"].T).view(len(x), c.num_attention_heads, c.head_dim), None, self.eps)

        def latent(rows: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
            kv = rms(rows @ w[a + "wkv.weight"].T, w[a + "kv_norm.weight"], self.eps)
            return self.round_latent(self.rope(kv, where, 0))

        keys = torch.cat([latent(context, at), latent(x, pos)])
        return self.mix(self.rope(q, pos, 0), keys, torch.ones(len(x), len(keys)).bool(), a, pos, 0)

    def _chain(self, hidden: torch.Tensor, base: torch.Tensor, anchor: int, noise: torch.Tensor | None) -> SimpleNamespace:
        w, head = self.w, self.last + "markov_head.markov_w"
        before, logits, drafts, sure = anchor, [], [], []
        for i in range(self.block_len):
            e = w[f"{head}1.weight"][before]
            logits.append(base[i] + w[f"{head}2.weight"] @ e)
            z = w[self.last + "confidence_head.proj.weight"][0] @ torch.cat([hidden[i], e])
            sure.append(torch.sigmoid(z).item())
            before = int((logits[-1] if noise is None else logits[-1] + noise[i]).argmax())
            drafts.append(before)
        return SimpleNamespace(base=base, hidden=hidden, logits=torch.stack(logits), drafts=drafts, confidence=sure)


def spark_weights(c: Any, rank: int, n_taps: int, stages: int = 3, seed: int = 56) -> dict[str, torch.Tensor]:
    """Random mtp.* of DSpark, released names. Louder latents and outputs, so that context and position decide the drafts: random
    weights of unit gain attend almost evenly and all noise rows look alike."""
    g = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g)

    def linear(n_out: int, n_in: int) -> torch.Tensor:
        return noise(n_out, n_in) / math.sqrt(n_in)

    def norm(n: int) -> torch.Tensor:
        return 1 + 0.1 * noise(n)

    d, n, heads, width = c.hidden_size, c.hc_mult, c.num_attention_heads, c.head_dim
    loud = torch.ones(width)
    loud[-c.qk_rope_head_dim :] = 2
    w: dict[str, torch.Tensor] = {}
    for s in range(stages):
        p, a, f = f"mtp.{s}.", f"mtp.{s}.attn.", f"mtp.{s}.ffn."
        for site in ("attn", "ffn"):
            w[f"{p}hc_{site}_fn"], w[f"{p}hc_{site}_base"] = linear(n * (n + 2), n * d), 0.5 * noise(n * (n + 2))
            w[f"{p}hc_{site}_scale"], w[f"{p}{site}_norm.weight"] = 0.5 + torch.rand(3, generator=g), norm(d)
        w |= {
            a + "attn_sink": noise(heads),
            a + "wq_a.weight": linear(c.q_lora_rank, d),
            a + "q_norm.weight": norm(c.q_lora_rank),
            a + "wq_b.weight": linear(heads * width, c.q_lora_rank),
            a + "wkv.weight": linear(width, d),
            a + "kv_norm.weight": 2 * norm(width) * loud,
            a + "wo_a.weight": linear(c.o_groups * c.o_lora_rank, heads * width // c.o_groups),
            a + "wo_b.weight": 3 * linear(d, c.o_groups * c.o_lora_rank),
            f + "gate.weight": linear(c.n_routed_experts, d),
            f + "gate.bias": 0.1 * noise(c.n_routed_experts),
        }
        for e in ["shared_experts", *(f"experts.{i}" for i in range(c.n_routed_experts))]:
            n_ff = c.moe_intermediate_size
            w |= {f"{f}{e}.w1.weight": linear(n_ff, d), f"{f}{e}.w3.weight": linear(n_ff, d)}
            w[f"{f}{e}.w2.weight"] = linear(d, n_ff)
    z = f"mtp.{stages - 1}."
    w |= {
        "mtp.0.main_proj.weight": linear(d, n_taps * d),
        "mtp.0.main_norm.weight": norm(d),
        z + "norm.weight": norm(d),
        z + "hc_head_fn": linear(n, n * d),
        z + "hc_head_base": 0.3 * noise(n),
        z + "hc_head_scale": 0.5 + torch.rand(1, generator=g),
        z + "markov_head.markov_w1.weight": noise(c.vocab_size, rank),
        z + "markov_head.markov_w2.weight": linear(c.vocab_size, rank),
        z + "confidence_head.proj.weight": torch.cat([0.12 * linear(1, d), 0.3 * linear(1, rank)], 1),
    }
    return w


def mtp_weights(c: Any, seed: int = 57) -> dict[str, torch.Tensor]:
    """Random mtp.0.* of a one-stage MTP, released names."""
    g, d = torch.Generator().manual_seed(seed), c.hidden_size
    w = {name: value for name, value in spark_weights(c, 1, 1, 1, seed).items() if not re.search("main_|markov|confidence", name)}
    for name in ("e_proj", "h_proj"):
        w[f"mtp.0.{name}.weight"] = torch.randn(d, d, generator=g) / math.sqrt(d)
    for name in ("enorm", "hnorm"):
        w[f"mtp.0.{name}.weight"] = 1 + 0.1 * torch.randn(d, generator=g)
    return w
