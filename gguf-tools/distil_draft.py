#!/usr/bin/env python3
"""Train a layer-pruned llama model to guess what its parent would say: a draft model, in minutes on a CPU.

    prune_layers.py --in MODEL.gguf --keep 0-7,28-29 --out PRUNED.gguf
    distil_draft.py --target MODEL.gguf --draft PRUNED.gguf --out DRAFT.gguf [--train 2] [--minutes 9]

The draft's first layers are the target's own and stay as they are; its last `--train` layers learn to do the work of all that
were cut. First the target answers prompts (a few hundred, made of topics and forms), many at a time, and two of its residuals
are kept for every position: where the draft's own layers begin, and after the last layer. Then the layers learn to lead from the
first to the second and, through the common head, to the same distribution: loss = KL(target || draft) + the distance of the two
normed residuals. The head is most of the cost, so the KL is taken over the tokens that occur in the answers, a few thousand;
embedding and head stay, and the vocabulary with them. torch does the training, on the file's own tensors: nothing is converted.
Rejected: training all layers of a draft from their output alone (three times the work for a step, and much slower to learn).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [*(path for path in sys.path if Path(path).resolve() != HERE), str(HERE)]  # last, since inspect.py lies here too

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from drafts.layers import key  # noqa: E402
from drafts.texts import Text, answers, values  # noqa: E402

from ds4py.engine import Engine, EngineOptions  # noqa: E402
from ds4py.errors import Ds4Error, UnsupportedError  # noqa: E402
from ds4py.gguf import GgmlType, GgufFile, NewTensor, open_gguf, write_gguf  # noqa: E402
from ds4py.quants import encode  # noqa: E402

ROWS = 5  # answers in one step of the training


class LastLayers(torch.nn.Module):
    """The last `n` layers of a llama file, on its own tensors: residuals [B, T, D] -> the normed last residual [B, T, D]."""

    def __init__(self, g: GgufFile, n: int) -> None:
        super().__init__()
        if g.architecture != "llama" or "rope_freqs.weight" in g.tensors:
            raise UnsupportedError(f"{g.path}: only llama models without stretched frequencies are trained here")
        n_layers, self.eps = int(g.require("block_count")), float(g.require("attention.layer_norm_rms_epsilon"))
        self.layers = range(n_layers - n, n_layers)
        self.heads, self.kv_heads = g.require("attention.head_count"), g.require("attention.head_count_kv")
        self.embd = torch.from_numpy(values(g, "token_embd.weight"))
        own = tuple(f"blk.{i}." for i in self.layers)
        names = [name for name in g.tensors if name.startswith(own) or name == "output_norm.weight"]
        trained = {key(name): torch.nn.Parameter(torch.from_numpy(values(g, name))) for name in names}
        self.weights = torch.nn.ParameterDict(trained)
        n_rot = self.embd.shape[1] // self.heads
        inv_freq = g.get("rope.freq_base", 10000.0) ** (-torch.arange(0, n_rot, 2).double() / n_rot)
        angle = torch.arange(g.require("context_length")).double()[:, None] * inv_freq
        self.turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)  # [positions, n_rot / 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in self.layers:
            x = x + self._attention(i, self._norm(x, f"blk.{i}.attn_norm"))
            h = self._norm(x, f"blk.{i}.ffn_norm")
            x = x + (F.silu(h @ self._of(i, "ffn_gate").T) * (h @ self._of(i, "ffn_up").T)) @ self._of(i, "ffn_down").T
        return self._norm(x, "output_norm")

    def _attention(self, i: int, h: torch.Tensor) -> torch.Tensor:
        def split(name: str, n: int) -> torch.Tensor:
            return (h @ self._of(i, name).T).unflatten(-1, (n, -1)).transpose(1, 2)

        def rotated(x: torch.Tensor) -> torch.Tensor:  # neighbours are rotary partners in llama files
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * self.turn[: x.shape[2]]).flatten(-2)

        q, k = rotated(split("attn_q", self.heads)), rotated(split("attn_k", self.kv_heads))
        mixed = F.scaled_dot_product_attention(q, k, split("attn_v", self.kv_heads), is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(-2) @ self._of(i, "attn_output").T

    def _of(self, i: int, name: str) -> torch.Tensor:
        return self.weights[key(f"blk.{i}.{name}.weight")]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[key(name + ".weight")], self.eps)


def train(model: LastLayers, g: GgufFile, texts: Sequence[Text], minutes: float, rate: float) -> None:
    """Steps of AdamW for `minutes`; the rate rises for a twentieth of the time and falls to zero along a cosine."""
    target_norm = torch.from_numpy(values(g, "output_norm.weight"))
    common = torch.from_numpy(np.unique(np.concatenate([np.asarray(text.ids) for text in texts])))
    head = model.embd[common]
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    order = np.random.default_rng(0)
    began, step, shown = time.monotonic(), 0, 0.0
    while (spent := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, spent * 20) * (0.5 + 0.5 * math.cos(math.pi * spent))
        batch = [texts[i] for i in order.choice(len(texts), ROWS, replace=False)]
        loss, parts = _loss(model, batch, target_norm, head)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step == 1 or time.monotonic() - shown > 15:
            shown = time.monotonic()
            kl, distance, equal = parts
            print(f"{spent:4.0%} step {step}: KL {kl:.3f}, distance {distance:.3f}, equal argmax {equal:.3f}", flush=True)


def _loss(model: LastLayers, batch: Sequence[Text], norm: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    longest = max(len(text.ids) for text in batch)
    start = torch.zeros(len(batch), longest, model.embd.shape[1])
    there = torch.zeros(len(batch), longest, dtype=torch.bool)
    for i, text in enumerate(batch):
        start[i, : len(text.ids)] = torch.from_numpy(text.taps[0])
        there[i, : len(text.ids)] = True
    end = torch.from_numpy(np.concatenate([text.taps[1] for text in batch])).float()
    want = F.rms_norm(end, end.shape[-1:], norm, model.eps)
    got = model(start)[there]
    theirs, ours = want @ head.T, got @ head.T
    kl = F.kl_div(ours.log_softmax(-1), theirs.log_softmax(-1), reduction="batchmean", log_target=True)
    distance = F.mse_loss(got, want) / want.pow(2).mean()
    equal = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
    return kl + distance, [kl.item(), distance.item(), equal.item()]


def save(model: LastLayers, g: GgufFile, path: Path, kind: GgmlType, head_kind: GgmlType | None, note: dict[str, Any]) -> None:
    """The draft file with the trained tensors, matrices as `kind`, and the embedding as `head_kind` if given; the rest stays."""

    def stored(name: str) -> NewTensor:
        again = name == "token_embd.weight" and head_kind is not None
        if key(name) not in model.weights and not again:
            return NewTensor(name, g.tensors[name].shape, g.tensors[name].type, g.tensors[name].data)
        array = model.embd.numpy() if again else model.weights[key(name)].detach().numpy()
        as_type = GgmlType.F32 if array.ndim == 1 else head_kind if again else kind
        assert as_type is not None
        return NewTensor(name, array.shape[::-1], as_type, encode(as_type, array.reshape(-1, array.shape[-1])))

    write_gguf(path, {**g.kv.typed, **note}, [stored(name) for name in g.tensors])


def run(args: argparse.Namespace) -> None:
    g, pruned = open_gguf(args.target), open_gguf(args.draft)
    n_layers = int(pruned.require("block_count"))
    own = n_layers - args.train
    if not 0 < own < n_layers or list(pruned.kv.get("ds4.pruned.layers", ()))[:own] != list(range(own)):
        raise UnsupportedError(f"{args.draft}: all layers but the last {args.train} must be the target's first ones")
    model = LastLayers(pruned, args.train)
    engine = Engine.open(g, EngineOptions(n_ctx=1024))
    texts = list(answers(engine, g, (own - 1, n_layers - 1), args.prompts, args.tokens))
    n = sum(len(text.ids) for text in texts)
    print(f"{n:,} tokens of {len(texts)} answers; training {sum(p.numel() for p in model.parameters()):,} weights", flush=True)
    torch.set_num_threads(args.threads)
    train(model, g, texts, args.minutes, args.rate)
    note = {
        "general.name": f"{pruned.kv['general.name']}, distilled",
        "ds4.distilled.tokens": n,
        "ds4.distilled.minutes": float(args.minutes),
    }
    head = GgmlType[args.head_type] if args.head_type else None
    save(model, pruned, args.out, GgmlType[args.type], head, note)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="distil_draft.py", description="Train a pruned llama model to draft for its parent.")
    parser.add_argument("--target", type=Path, required=True, help="the model to draft for")
    parser.add_argument("--draft", type=Path, required=True, help="what prune_layers.py made of it")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--train", type=int, default=2, metavar="N", help="train the last N layers")
    parser.add_argument("--minutes", type=float, default=9, help="of training, after the answers are made")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=80, help="of each answer")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=1, help="of the training; more are slower on a machine that is not idle")
    kinds = ["F16", "Q8_0", "Q4_1", "Q4_0"]
    parser.add_argument("--type", default="Q8_0", choices=kinds, help="how trained matrices are stored")
    parser.add_argument("--head-type", default="", choices=["", *kinds], help="... and the embedding (default: as it is)")
    args = parser.parse_args(argv)
    try:
        run(args)
    except Ds4Error as error:
        print(f"distil_draft.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
