"""What a model thinks of given tokens: perplexity, top log-probabilities, and a check of decoding against a fresh prefill.

All of them read raw logits (no penalties, temperature or filters) and form log-probabilities in float64, so that figures can be
compared with other programs'. Tokens are scored by the row path, the one that answers are made by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ds4py.engine.engine import Engine
from ds4py.engine.noise import F64
from ds4py.engine.session import Session, SessionOptions
from ds4py.errors import NumericError, UsageError
from ds4py.protocols import F32, SamplingParams

N_CONTEXT = 32  # tokens of a text that are given before the first one is scored


@dataclass(frozen=True)
class Score:
    """Teacher-forced likelihood of a text."""

    tokens: int  # tokens used, context included
    scored: int
    nll: float  # sum of -log p, nats

    @property
    def avg_nll(self) -> float:
        return self.nll / self.scored

    @property
    def ppl(self) -> float:
        return math.exp(self.avg_nll)


@dataclass(frozen=True)
class TokenScore:
    """One token of the vocabulary in a row of logits."""

    id: int
    logit: float
    logprob: float


@dataclass(frozen=True)
class ScoredStep:
    """A token that was chosen, and the likeliest ones by falling logit."""

    chosen: TokenScore
    top: Sequence[TokenScore]


@dataclass(frozen=True)
class Consistency:
    """The same row of logits computed twice: by decoding, and by a fresh prefill of the same tokens."""

    decoded: Sequence[int]
    decode_top: int
    prefill_top: int
    max_difference: float  # largest absolute difference of two logits

    @property
    def agrees(self) -> bool:
        return self.decode_top == self.prefill_top


def log_softmax(row: F32) -> F64:
    """log p, float64 [V], of logits [V]."""
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - math.log(float(np.exp(shifted).sum())), np.float64)


def perplexity(session: Session, ids: Sequence[int], progress: Callable[[int, int], None] | None = None) -> Score:
    """Score every token of `ids` after the first 32 by the tokens before it. [n] ids need n positions of context.

    Raises UsageError for a text of 32 tokens or less, ContextError for one that does not fit, NumericError for broken logits."""
    if len(ids) <= N_CONTEXT:
        raise UsageError(f"the text has {len(ids)} tokens; perplexity needs more than {N_CONTEXT}, which are context")
    session.sync(ids[:N_CONTEXT])
    rest, nll, done = ids[N_CONTEXT:], 0.0, 0
    for rows in session.force(rest):
        for row in rows:
            nll -= float(log_softmax(row)[rest[done]])
            done += 1
        if not math.isfinite(nll):
            raise NumericError(f"the logits before position {N_CONTEXT + done} are broken or rule out the text: no perplexity")
        if progress:
            progress(done, len(rest))
    return Score(len(ids), len(rest), nll)


def top_logprobs(row: F32, k: int) -> list[TokenScore]:
    """The k likeliest tokens of logits [V] by falling logit, the lower id first among equals."""
    k = min(k, len(row))
    border = np.partition(row, len(row) - k)[len(row) - k]
    ids = np.flatnonzero(row >= border)
    ids = ids[np.argsort(-row[ids], kind="stable")][:k]
    logprobs = log_softmax(row)
    return [TokenScore(int(i), float(row[i]), float(logprobs[i])) for i in ids]


def scored_generation(session: Session, max_tokens: int, k: int) -> Iterator[ScoredStep]:
    """Generate from where `session` stands; for every token its own score and the k likeliest, from raw logits."""
    for step in session.generate(max_tokens):
        for token, row in zip(step.tokens, step.rows, strict=True):
            chosen = TokenScore(token, float(row[token]), float(log_softmax(row)[token]))
            yield ScoredStep(chosen, top_logprobs(row, k))


def decode_consistency(engine: Engine, ids: Sequence[int], n: int) -> Consistency:
    """Decode up to `n` tokens greedily after `ids`, then prefill all of them afresh and compare the next position's logits."""
    greedy = SessionOptions(params=SamplingParams(temperature=0))
    warm, cold = engine.session(greedy), engine.session(greedy)
    warm.sync(ids)
    for _ in warm.generate(min(n, engine.n_ctx - len(ids))):
        pass
    cold.sync(warm.tokens)
    a, b = warm.next_logits(), cold.next_logits()
    return Consistency(warm.tokens[len(ids) :], int(a.argmax()), int(b.argmax()), float(np.abs(a - b).max()))
