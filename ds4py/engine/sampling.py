"""The token at a position: argmax(logit / T + g) over the tokens that pass the filters.

Adding Gumbel noise to logits and taking the maximum draws from their softmax exactly (Gumbel 1954; "Gumbel-max"), and with
noise that belongs to positions (noise.py) the draw is a pure function of the row and the settings. That is what makes a drafter
harmless: whoever asks, in whatever order, gets the same token, and a proposal is right exactly when it equals that token.
Rejected: a uniform number against a cumulated distribution, which needs a sort for every draw and gives a drafter nothing to
aim at.

All three filters keep a prefix of one order, likelier first and on equal logits the lower id first, so together they keep the
shortest of the three prefixes:
* top-k: the first k tokens;
* top-p: over what top-k left, renormalised: the tokens before which less than p of the probability lies (the first always
  stays);
* min-p: tokens with probability >= min_p times the largest (all of several equal ones).

A vocabulary has up to 262,144 entries and a draw may cost a millisecond, so nothing here sorts, and little is evaluated:
* a token that lies further below the largest than the whole range of the noise cannot win, and one below min-p may not;
* instead of building the nucleus, the winner is drawn first and its membership is checked: only the probability before it is
  needed. If it lies outside, so does everything behind it in the order, and the draw goes on among the tokens before it;
* among many candidates, a sample gives a level that the winner must reach, and only tokens whose random bits can lift them to
  that level get their logarithms.
None of these changes the token (tests compare with a slow, obvious implementation). Sums z + g are float64; the weights that
top-p compares are multiples of 2^-34 of the largest and add up exactly (kernels/exact.py), and min-p's border is rounded to
float32 like the logits it is compared with.

`draw` is the definition and the fallback. A backend may bring a compiled form (protocols.Draws), which gives the same token for
every row and setting: kernels/cpu/draws.py takes a tenth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ds4py.engine.noise import F64, HIGHEST, LOWEST, U64, Noise, bits_reaching, gumbel_of
from ds4py.errors import NumericError, UsageError
from ds4py.kernels.exact import weights as weights_of
from ds4py.protocols import F32, I64, Draws, SamplingParams, SamplingSchedule

_BLOCK: Final = 32768  # candidates whose random bits are made at once: small enough for the inner caches
_COLDEST: Final = 1e-9  # lower temperatures are the argmax: differences of float32 logits outweigh any noise


def check_params(params: SamplingParams) -> SamplingParams:
    """`params` itself, or UsageError with the name of the setting that can never be obeyed."""
    t = params.temperature
    if not (math.isfinite(t) and t >= 0):
        raise UsageError(f"temperature must be a number >= 0, not {t}")
    if params.top_k < 0:
        raise UsageError(f"top-k must be 0 (off) or a positive count, not {params.top_k}")
    for name, value in (("top-p", params.top_p), ("min-p", params.min_p)):
        if not 0 <= value <= 1:  # NaN fails too
            raise UsageError(f"{name} must lie between 0 and 1, not {value}")
    return params


class Sampler:
    """The sampler of one session, as drafters and accept rules see it (protocols.SamplerView)."""

    def __init__(
        self, schedule: SamplingSchedule, noise: Noise, n_tokens: int | None = None, compiled: Draws | None = None
    ) -> None:
        """n_tokens: ids from there on are rows of a padded head, which stand for nothing and are never drawn."""
        self.schedule = schedule
        self.params, self.push, self.truncate = schedule.params, schedule.push, schedule.truncate
        self.noise = noise
        self.n_tokens = n_tokens
        self._compiled = compiled

    @property
    def pos(self) -> int:
        return self.schedule.pos

    def propose(self, row: F32, warmth: float = 1.0) -> int:
        """The token at `pos` given logits [V], at `warmth` times the temperature. Raises NumericError, which names the position,
        if they are broken. The check costs one maximum over the row, and a second one only where penalties or bias changed it.

        Two rows that differ little give the same token often, because the noise is the same: that is how a drafter aims at the
        target's draw."""
        adjusted = self.schedule.adjust(row)
        if adjusted is not row and not math.isfinite(row.max()):
            raise _broken(row, self.pos)  # a ban must not hide the NaN of the banned token
        params = self.params()
        if warmth != 1:
            params = replace(params, temperature=params.temperature * warmth)
        if self.n_tokens is not None:
            adjusted = adjusted[: self.n_tokens]
        if self._compiled is None:
            return draw(adjusted, params, self.noise, self.pos)
        token = self._compiled.draw(adjusted, params, 0 if params.temperature < _COLDEST else self.noise.key(self.pos))
        if token < 0:
            raise _broken(adjusted, self.pos)
        return token

    draw = propose  # the target's own token: given its row, at the settings' temperature

    def possible(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, one after another, bans and masks leave a chance. The sampler stays where it is."""
        start = self.pos
        for token in tokens:
            if not self.schedule.allows(token):
                break
            self.push(token)
        n = self.pos - start
        self.truncate(start)
        return n


def draw(row: F32, params: SamplingParams, noise: Noise, pos: int) -> int:
    """The token at `pos` given adjusted logits [V]. Raises NumericError."""
    best = int(row.argmax())  # the lowest id among equals; NaN counts as the largest, so this one look finds every broken row
    if not math.isfinite(row[best]):
        raise _broken(row, pos)
    t = params.temperature
    if t < _COLDEST:
        return best
    largest = float(row[best])
    ids = _top_k(row, params.top_k) if 0 < params.top_k < len(row) else None
    weights: F64 | None = None
    nucleus = 0.0
    if params.top_p < 1:
        weights = weights_of(row if ids is None else row[ids], largest, t)
        nucleus = params.top_p * float(weights.sum())
    ids, weights = _able(row, ids, weights, _cut(largest, len(row), params))
    x = row if len(ids) == len(row) else row[ids]
    while True:
        i = _noisy_argmax(ids, x, largest, t, noise, pos)
        if weights is None:
            return int(ids[i])
        before = x > x[i]
        before[:i] |= x[:i] == x[i]
        mass = float(weights[before].sum())
        if mass == 0 or mass < nucleus:
            return int(ids[i])
        ids, x, weights = ids[before], x[before], weights[before]


def reach(n_vocab: int, top_p: float) -> float:
    """How far below the largest, in units of the temperature, a token can still be drawn: the noise lifts nothing past it from
    further below, and with top-p, tokens that weigh less than 1 - top_p together lie outside every nucleus."""
    left = 1 - top_p
    if left < 1e-4:  # there the grid of the weights would matter
        return HIGHEST - LOWEST
    return min(HIGHEST - LOWEST, math.log(n_vocab / left) + 1)


def _cut(largest: float, n_vocab: int, params: SamplingParams) -> np.float32:
    """The logit below which a token fails min-p, or cannot be drawn."""
    t = params.temperature
    with np.errstate(over="ignore"):
        cut = np.nextafter(np.float32(largest - reach(n_vocab, params.top_p) * t), np.float32(-np.inf))
        return max(cut, np.float32(largest + t * math.log(params.min_p))) if params.min_p > 0 else cut


def _able(row: F32, ids: I64 | None, weights: F64 | None, cut: np.float32) -> tuple[I64, F64 | None]:
    """Those of `ids` (None: all) whose logit is at least `cut`, with their weights."""
    keep = np.flatnonzero((row if ids is None else row[ids]) >= cut)
    return keep if ids is None else ids[keep], None if weights is None else weights[keep]


def _top_k(row: F32, k: int) -> I64:
    """The ids of the k largest logits by rising id; of equal ones at the border the lower ids."""
    border = np.partition(row, len(row) - k)[len(row) - k]
    chosen = row > border
    chosen[np.flatnonzero(row == border)[: k - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)


def _noisy_argmax(ids: I64, x: F32, largest: float, t: float, noise: Noise, pos: int) -> int:
    """Index i of the largest x[i] / t + g(pos, ids[i]), the first of equals. x [n] are the logits of `ids`."""

    def noisy(which: I64 | slice, bits: U64) -> F64:
        return (x[which].astype(np.float64) - largest) / t + gumbel_of(bits)

    if len(ids) <= _BLOCK // 8:
        return int(noisy(slice(None), noise.bits(pos, ids)).argmax())
    sample = np.append(np.arange(0, len(ids), len(ids) // 512), x.argmax())
    level = float(noisy(sample, noise.bits(pos, ids[sample])).max())  # the winner reaches it
    winner, highest = 0, -math.inf
    for start in range(0, len(ids), _BLOCK):
        bits = noise.bits(pos, ids[start : start + _BLOCK])
        needed = level - (float(x[start : start + _BLOCK].max()) - largest) / t
        able = np.flatnonzero(bits >= np.uint64(bits_reaching(needed)))
        if len(able):
            sums = noisy(start + able, bits[able])
            i = int(sums.argmax())
            if sums[i] > highest:
                winner, highest = start + int(able[i]), float(sums[i])
                level = max(level, highest)
    return winner


def _broken(row: F32, pos: int) -> NumericError:
    if not np.isnan(row).any() and not np.isposinf(row).any():
        return NumericError(f"the logits for position {pos} rule out every token: the model file, or bans that leave nothing")
    what = "NaN" if np.isnan(row).any() else "infinity"
    return NumericError(f"the logits for position {pos} hold {what}: the model file is damaged or the kernels are at fault")
