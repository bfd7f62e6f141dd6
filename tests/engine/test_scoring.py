"""Scores of given tokens against torch's cross entropy, and decoding against a fresh prefill."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_model import N_VOCAB, toy_engine

from ds4py.engine import SessionOptions
from ds4py.engine.scoring import decode_consistency, log_softmax, perplexity, scored_generation, top_logprobs
from ds4py.errors import ContextError, NumericError, UsageError
from ds4py.protocols import SamplingParams

IDS = np.random.default_rng(0).integers(0, N_VOCAB, 150).tolist()


def rows_one_by_one(ids: list[int]) -> np.ndarray:
    """The logits that each of ids[1:] is predicted by, from sessions that see one prefix each."""
    engine = toy_engine()
    rows = []
    for n in range(1, len(ids)):
        session = engine.session()
        session.sync(ids[:n])
        rows.append(session.next_logits())
    return np.stack(rows)


@pytest.mark.parametrize("max_rows", [7, 64])
def test_perplexity_is_torchs_cross_entropy(max_rows: int) -> None:
    import torch

    score = perplexity(toy_engine(max_rows=max_rows).session(), IDS)
    logits = torch.tensor(rows_one_by_one(IDS)).double()[31:]
    nll = torch.nn.functional.cross_entropy(logits, torch.tensor(IDS[32:]), reduction="sum").item()
    assert (score.tokens, score.scored) == (150, 118)
    assert score.nll == pytest.approx(nll, rel=1e-9)
    assert score.avg_nll == pytest.approx(nll / 118) and score.ppl == pytest.approx(math.exp(nll / 118))


def test_perplexity_refuses_what_it_cannot_score() -> None:
    with pytest.raises(UsageError, match="32"):
        perplexity(toy_engine().session(), IDS[:32])
    with pytest.raises(ContextError, match="150.*100"):
        perplexity(toy_engine(n_ctx=100).session(), IDS)
    with pytest.raises(NumericError):
        perplexity(toy_engine(faults={60: math.nan}).session(), IDS)


def test_perplexity_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    perplexity(toy_engine(max_rows=50).session(), IDS, lambda done, total: seen.append((done, total)))
    assert seen == [(50, 118), (100, 118), (118, 118)]


def test_forced_tokens_leave_the_session_that_generating_them_would_have() -> None:
    engine = toy_engine(window=5, max_rows=8)
    a, b = (engine.session(SessionOptions(params=SamplingParams(1.0), seed=3)) for _ in range(2))
    a.sync(IDS[:20])
    for _ in a.generate(30):
        pass
    b.sync(IDS[:20])
    rows = [row.copy() for block in b.force(a.tokens[20:]) for row in block]
    assert len(rows) == 30 and a.tokens == b.tokens
    assert [t for s in a.generate(10) for t in s.tokens] == [t for s in b.generate(10) for t in s.tokens]


def test_top_logprobs_are_ordered_with_the_lower_id_first() -> None:
    row = np.array([1, 5, 5, 0, 5, -np.inf], np.float32)
    top = top_logprobs(row, 4)
    assert [t.id for t in top] == [1, 2, 4, 0]
    assert [t.logit for t in top] == [5, 5, 5, 1]
    assert sum(math.exp(t.logprob) for t in top_logprobs(row, 99)) == pytest.approx(1)
    assert top[0].logprob == pytest.approx(5 - math.log(3 * math.exp(5) + math.exp(1) + 1))
    assert [t.id for t in top_logprobs(row, 2)] == [1, 2]


def test_log_softmax_survives_large_logits() -> None:
    assert log_softmax(np.array([3e4, 2.9e4], np.float32)).tolist() == [0.0, -1000.0]
    assert log_softmax(np.array([-3e4, -np.inf], np.float32)).tolist() == [0.0, -np.inf]


def test_scored_generation_scores_raw_logits_of_what_was_chosen() -> None:
    engine = toy_engine()
    session = engine.session(SessionOptions(params=SamplingParams(0), bias={5: -100.0}))
    session.sync(IDS[:20])
    steps = list(scored_generation(session, 12, 3))
    assert [s.chosen.id for s in steps] == session.tokens[20:]
    for n, s in enumerate(steps):
        fresh = engine.session()
        fresh.sync(session.tokens[: 20 + n])
        row = fresh.next_logits()
        assert s.chosen.logit == row[s.chosen.id] and s.chosen.logprob == pytest.approx(log_softmax(row)[s.chosen.id])
        assert list(s.top) == top_logprobs(row, 3)


def test_decode_consistency_agrees_on_one_path_and_sees_a_difference_between_paths() -> None:
    same = decode_consistency(toy_engine(), IDS[:20], 30)
    assert same.agrees and same.max_difference == 0 and len(same.decoded) == 30
    # the toy's paths differ totally, so positions that a fresh prefill makes as tiles show
    other = decode_consistency(toy_engine(prefill_tile=8), IDS[:20], 30)
    assert other.max_difference > 0


def test_decode_consistency_stops_at_the_context() -> None:
    assert len(decode_consistency(toy_engine(n_ctx=40), IDS[:20], 30).decoded) == 20
