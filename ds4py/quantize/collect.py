"""Collecting an importance matrix: run text through a model and sum the squares of what every matrix multiplies.

The idea: the CPU backend can note the inputs of its products while it computes (`observe`), so a collection is a plain forward
over the text, in chunks that start from an empty context; nothing in a model file knows of it. Every row asks for logits,
or the output matrix would see almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ds4py.errors import UnsupportedError, UsageError
from ds4py.protocols import Kernels, Model, Span
from ds4py.quantize.imatrix import CHUNK, Entry, Imatrix

Progress = Callable[[int, int], None]  # tokens done, of


@dataclass(frozen=True)
class Limits:
    """None: no limit. `min_samples`: matrices (experts) that fewer tokens reached are written as neutral."""

    max_prompts: int | None = None
    max_tokens: int | None = None
    min_samples: int = 0
    chunk_len: int = CHUNK


@dataclass(frozen=True, eq=False)
class Collected:
    imatrix: Imatrix
    n_tokens: int
    too_few: Sequence[str]  # entries made neutral for want of samples


def chunks(prompts: Iterable[Sequence[int]], limits: Limits) -> list[Sequence[int]]:
    """Token ids of the prompts as pieces of at most limits.chunk_len, within the limits. UsageError if nothing is left."""
    found: list[Sequence[int]] = []
    left = limits.max_tokens
    for number, ids in enumerate(prompts):
        if limits.max_prompts is not None and number >= limits.max_prompts:
            break
        for first in range(0, len(ids), limits.chunk_len):
            piece = ids[first : first + limits.chunk_len][:left]
            if piece:
                found.append(piece)
            left = None if left is None else left - len(piece)
    if not found:
        raise UsageError("the data set has no tokens to collect from")
    return found


def collect(
    model: Model, kernels: Kernels, prompts: Sequence[Sequence[int]], dataset: str, limits: Limits, progress: Progress
) -> Collected:
    """Run `prompts` (token ids) through `model`, which was loaded on `kernels`. `dataset`: the text's name, for the file.

    Raises UnsupportedError for a backend that cannot observe, UsageError where there is nothing to run."""
    observe = getattr(kernels, "observe", None)
    if observe is None:
        raise UnsupportedError(f"the backend {kernels.name} cannot collect an importance matrix; use --backend cpu")
    pieces = chunks(prompts, limits)
    total, done = sum(map(len, pieces)), 0
    sums = observe()
    state = model.new_state(limits.chunk_len, slack=0)
    for piece in pieces:
        state.clear()
        for first in range(0, len(piece), kernels.max_rows):
            part = piece[first : first + kernels.max_rows]
            model.forward([Span(state, part, n_logits=len(part))])
            done += len(part)
            progress(done, total)
    by_expert = {name: np.atleast_2d(table).astype(np.float32) for name, table in sums.items()}
    entries = {name: Entry(table[:, :-1].ravel(), table[:, -1].copy()) for name, table in by_expert.items()}
    few = [name for name, entry in entries.items() if float(entry.counts.min()) < limits.min_samples]
    neutral = {name: Entry(np.zeros_like(entries[name].sums), np.zeros_like(entries[name].counts)) for name in few}
    return Collected(Imatrix(entries | neutral, (dataset,), len(pieces), limits.chunk_len), total, few)
