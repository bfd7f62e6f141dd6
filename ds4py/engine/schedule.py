"""Which settings hold at the next position, and what penalties and bias do to its logits.

A schedule is a Timeline: it is pushed every token of the session, prompt included, and truncated with it, so that a walk over a
draft sees at each row exactly the counts that plain decoding would have had there. The counts are kept by a journal that can be
popped, not recomputed per draw: a penalty over the whole context would otherwise cost the length of the context for every
token.

Order, for the logit x of a token that occurs n times among the last `last_n` tokens (llama.cpp's definitions):
1. bias: x + b, for -100 < b < 100;
2. if n > 0: x / repeat if x > 0 else x * repeat; then x - n * frequency - presence;
3. b <= -100 bans the token (x = -inf) and b >= 100 forces it: every token without such a bias becomes -inf.
Bans and forces are exact rather than a large number added, because "-100 bans, 100 forces" must hold whatever a model's logits
are, at temperature 0 and inside drafted blocks too. Rejected: a chain of logit processors; this one page is what a request can
ask for, and what depends on text (tool mode, a grammar) is another SamplingSchedule that the chat layer makes and hands in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ds4py.engine.sampling import check_params
from ds4py.errors import UsageError
from ds4py.protocols import F32, SamplingParams

BAN: Final = -100.0
FORCE: Final = 100.0


@dataclass(frozen=True)
class Penalties:
    """Against repetition; the defaults change nothing."""

    repeat: float = 1.0  # divides positive and multiplies negative logits of tokens seen
    frequency: float = 0.0  # subtracted once for every occurrence
    presence: float = 0.0  # subtracted once for a token seen
    last_n: int = 64  # how many last tokens count; 0 = off, -1 = all of them

    @property
    def active(self) -> bool:
        return self.last_n != 0 and (self.repeat, self.frequency, self.presence) != (1.0, 0.0, 0.0)


class FixedSchedule:
    """The same settings at every position."""

    def __init__(self, params: SamplingParams, penalties: Penalties, bias: Mapping[int, float], vocab_size: int) -> None:
        """Raises UsageError for settings that can never be obeyed, naming them."""
        self._params = check_params(params)
        self._penalties = _check_penalties(penalties)
        self._counting = penalties.active
        _check_bias(bias, vocab_size)
        self._added = {i: b for i, b in bias.items() if BAN < b < FORCE and b != 0}
        self._banned = np.array([i for i, b in bias.items() if b <= BAN], np.int64)
        self._ruled_out = frozenset(self._banned.tolist())
        self._forced = np.array([i for i, b in bias.items() if b >= FORCE], np.int64)
        self._plain = not (penalties.active or self._added or len(self._banned) or len(self._forced))
        self._tokens: list[int] = []
        self._counts: dict[int, int] = {}  # of the tokens inside the window; never zero

    @property
    def pos(self) -> int:
        return len(self._tokens)

    @property
    def floor(self) -> int:
        return 0

    def push(self, token: int) -> None:
        self._tokens.append(token)
        if self._counting:
            self._count(token, 1)
            if (leaver := self._leaver()) is not None:
                self._count(leaver, -1)

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= len(self._tokens):
            raise ValueError(f"truncate({pos}) of a schedule at {len(self._tokens)}")
        if not self._counting:
            del self._tokens[pos:]
        while len(self._tokens) > pos:
            if (leaver := self._leaver()) is not None:
                self._count(leaver, 1)
            self._count(self._tokens.pop(), -1)

    def params(self) -> SamplingParams:
        return self._params

    def adjust(self, row: F32) -> F32:
        """Bias, penalties, bans and forces on logits [V]; `row` itself is never written, and returned if nothing applies."""
        if self._plain:
            return row
        out = row.copy()
        for token, b in self._added.items():
            out[token] += np.float32(b)
        if self._counts:
            self._penalize(out)
        if len(self._forced):
            kept = out[self._forced]
            out[:] = -np.inf
            out[self._forced] = kept
        out[self._banned] = -np.inf
        return out

    def allows(self, token: int) -> bool:
        return token not in self._ruled_out and (not len(self._forced) or token in self._forced)

    def _penalize(self, out: F32) -> None:
        ids = np.fromiter(self._counts, np.int64, len(self._counts))
        n = np.fromiter(self._counts.values(), np.float64, len(self._counts))
        p, x = self._penalties, out[ids].astype(np.float64)
        x = np.where(x > 0, x / p.repeat, x * p.repeat) - n * p.frequency - p.presence
        out[ids] = x.astype(np.float32)

    def _leaver(self) -> int | None:
        """The token that the last push moved out of the window, if it moved one."""
        first = len(self._tokens) - 1 - self._penalties.last_n
        return self._tokens[first] if self._penalties.last_n > 0 and first >= 0 else None

    def _count(self, token: int, by: int) -> None:
        n = self._counts.get(token, 0) + by
        if n:
            self._counts[token] = n
        else:
            self._counts.pop(token, None)


def _check_penalties(p: Penalties) -> Penalties:
    if not (math.isfinite(p.repeat) and p.repeat > 0):
        raise UsageError(f"repeat penalty must be a number > 0, not {p.repeat}")
    for name, value in (("frequency", p.frequency), ("presence", p.presence)):
        if not math.isfinite(value):
            raise UsageError(f"{name} penalty must be a finite number, not {value}")
    if p.last_n < -1:
        raise UsageError(f"penalty window must be -1 (whole context), 0 (off) or a count of tokens, not {p.last_n}")
    return p


def _check_bias(bias: Mapping[int, float], vocab_size: int) -> None:
    for token, value in bias.items():
        if not 0 <= token < vocab_size:
            raise UsageError(f"logit bias names token {token}, but the vocabulary holds ids 0 to {vocab_size - 1}")
        if math.isnan(value) or value == math.inf:
            raise UsageError(f"logit bias of token {token} must be a number, not {value}")
