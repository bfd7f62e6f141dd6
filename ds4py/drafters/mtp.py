"""draft-mtp: the block of DeepSeek V4's preview goes on from the target's streams (recurrent.py), which are the vectors.

They are long (four streams of the hidden size), so only those of the last positions are kept, about an answer's worth.

ds4's margin ends a draft where the best logit leads the second by less. In odds that is a confidence: of the two likeliest tokens
alone, how likely the first is. So it needs no rule of its own.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from ds4py.drafters.recurrent import RecurrentDraft
from ds4py.models.deepseek4_mtp import Model
from ds4py.protocols import F32, Kernels

NAME: Final = "draft-mtp"
MARGIN: Final = 3.0  # ds4's
_KEPT: Final = 512  # vectors, beside a forward's worth


def mtp_draft(
    network: Model,
    kernels: Kernels,
    n_ctx: int,
    vocab_size: int,
    longest: int,
    kv_dtype: npt.DTypeLike = np.float16,
    identity: str = "",
    kept: int = _KEPT,
) -> RecurrentDraft:
    """`network`, opened for sessions of a target of n_ctx positions and vocab_size ids; drafts of `longest` tokens at most. One
    can go back by `kept` positions without losing the context."""
    kept += kernels.max_rows
    draft = RecurrentDraft(NAME, network, kernels, n_ctx, vocab_size, longest, kv_dtype, identity, kept=kept, joined=False)
    kernels.ready((draft, "write"), network.write)
    kernels.ready((draft, "step"), network.step)
    return draft


def odds(margin: float) -> float:
    """The confidence of a lead of `margin`."""
    return 1 / (1 + math.exp(-min(margin, 700.0)))


def lead(row: F32) -> float:
    """The confidence of the lead that a row of logits [V] gives its likeliest token; 1 where there is no second."""
    if len(row) < 2:
        return 1.0
    second, first = np.partition(row, len(row) - 2)[-2:]
    gap = float(first) - float(second)
    return odds(gap) if gap >= 0 else 0.0  # not a number: the row is broken
