"""From checked options to what the engine takes: sampling, penalties, bias, seed.

GLM's published defaults replace ours only where the user (or the environment) set nothing. A seed of 0 is replaced by one from
the clock and the process id, which is told to the user: every answer can be repeated, also one that nobody planned to repeat.
"""

from __future__ import annotations

import math
import os
import re
import time

from ds4py.cli.parsing import Values
from ds4py.engine import Penalties
from ds4py.errors import UsageError
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import Tokenizer

_BIAS = re.compile(r"(\d{1,9})([+-])(\d+(?:\.\d*)?|\.\d+|inf)")
_BAN = -math.inf
_GLM_TOP_P, _GLM_MIN_P = 0.95, 0.0


def sampling(values: Values, architecture: str) -> SamplingParams:
    """The sampling settings, with the defaults of the model's family."""
    top_p, min_p = values.number("top_p"), values.number("min_p")
    if architecture.startswith("glm"):
        top_p = top_p if values.was_given("--top-p") else _GLM_TOP_P
        min_p = min_p if values.was_given("--min-p") else _GLM_MIN_P
    return SamplingParams(values.number("temp"), values.integer("top_k"), top_p, min_p)


def penalties(values: Values) -> Penalties:
    return Penalties(
        repeat=values.number("repeat_penalty"),
        frequency=values.number("frequency_penalty"),
        presence=values.number("presence_penalty"),
        last_n=values.integer("repeat_last_n"),
    )


def bias(values: Values, tokenizer: Tokenizer) -> dict[int, float]:
    """--logit-bias and --ignore-eos as token id -> what is added to its logit (-inf = never). UsageError for an id outside the
    vocabulary or a text that is no bias."""
    found: dict[int, float] = {}
    for text in values.texts("logit_bias"):
        match = _BIAS.fullmatch(text)
        if match is None:
            raise UsageError(f"--logit-bias takes an id, + or -, and a number (15043+1.5, 15043-inf), not {text!r}")
        token, amount = int(match[1]), float(match[3]) if match[2] == "+" else -float(match[3])
        if token >= tokenizer.vocab_size:
            raise UsageError(f"--logit-bias {text}: the vocabulary has ids 0 to {tokenizer.vocab_size - 1}")
        if amount == math.inf:
            raise UsageError(f"--logit-bias {text}: +inf is no bias; 100 is enough to force a token")
        found[token] = found.get(token, 0.0) + amount
    if values.flag("ignore_eos"):
        found.update(dict.fromkeys(tokenizer.stop_ids, _BAN))
    return found


def seed(values: Values) -> tuple[int, bool]:
    """(the seed, whether it was made up here)."""
    given = values.integer("seed")
    if given > 0:
        return given, False
    mixed = time.time_ns() * 0x9E3779B97F4A7C15 ^ os.getpid() * 0xC2B2AE3D27D4EB4F
    return (mixed >> 24 & 0xFFFFFFFF) or 1, True
