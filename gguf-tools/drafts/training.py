"""The training loop, the same for every draft, and the measure of what came out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from drafts.layers import Tensor
from drafts.texts import Text, padded


@dataclass(frozen=True)
class Schedule:
    """How long to train: a number of steps (the same weights every time on one machine), or minutes if `steps` is 0."""

    steps: int = 0
    minutes: float = 9.0
    rate: float = 1e-3
    rows: int = 6  # texts in a step
    seed: int = 0


def train(model: torch.nn.Module, texts: Sequence[Text], plan: Schedule, say: Callable[[str], None] = print) -> list[float]:
    """AdamW; the rate rises for a twentieth of the run and falls to zero along a cosine. The loss of every step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0)
    order = np.random.default_rng(plan.seed)
    began, shown, losses = time.monotonic(), 0.0, list[float]()
    while (spent := _spent(plan, len(losses), began)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * min(1.0, 0.02 + spent * 20) * (0.5 + 0.5 * math.cos(math.pi * spent))
        batch = [texts[i] for i in order.choice(len(texts), min(plan.rows, len(texts)), replace=False)]
        loss, parts = model.loss(*padded(batch))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if len(losses) == 1 or time.monotonic() - shown > 15:
            shown = time.monotonic()
            told = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
            say(f"{spent:4.0%} step {len(losses)}: loss {loss.item():.3f}, {told}")
    return losses


def _spent(plan: Schedule, n_steps: int, began: float) -> float:
    """The share of the run that is over."""
    return n_steps / plan.steps if plan.steps else (time.monotonic() - began) / (60 * plan.minutes)


def acceptance(model: torch.nn.Module, texts: Sequence[Text]) -> list[float]:
    """Share of drafts whose guesses 1, 1-2, ... are what the target wrote, over the passes that decoding would take: the next
    draft begins after what this one got right and the target's own token. Over all positions the shares would be too good:
    passes begin where a guess failed, and hard places come together. Give it texts of temperature 0 that were not trained on."""
    found: list[Tensor] = []
    for text in texts:
        ids, taps, lengths = padded([text])
        right = model.accepted(ids, taps, lengths, torch.tensor([text.n_asked]))
        at = 0
        while at < len(right):
            found.append(right[at])
            at += 1 + int(right[at].sum())
    return torch.stack(found).float().mean(0).tolist()
