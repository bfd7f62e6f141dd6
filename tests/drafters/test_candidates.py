"""The short cut of DSpark's Markov head: its bias for the likeliest tokens of a row only. Exact by default, nearly so with 64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from listening import Notes
from numpy.testing import assert_array_equal

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.drafters.dspark import best
from ds4py.engine import Engine, EngineOptions, Session, SessionOptions
from ds4py.engine.speculation import target_of
from ds4py.gguf import open_gguf
from ds4py.protocols import F32, SamplingParams

PAIR = Path(__file__).parents[1] / "golden/pair"


@pytest.mark.parametrize("n_vocab", [65, 320, 5000, 151936])
def test_the_best_of_a_row(n_vocab: int) -> None:
    rng = np.random.default_rng(n_vocab)
    for n in (1, 8, 64):
        row = rng.normal(size=n_vocab).astype(np.float32)
        assert_array_equal(best(row, n), np.sort(np.argsort(-row)[:n]))
    row[: n_vocab // 2] = 3.0  # many equals at the border
    found = best(row, 64 if n_vocab > 128 else 32)
    assert len(set(found.tolist())) == len(found) and row[found].min() >= np.partition(row, -len(found))[-len(found)]


def test_few_candidates_guess_what_all_do() -> None:
    g = open_gguf(PAIR / "target.gguf")
    engine = Engine.open(g, EngineOptions(n_ctx=300, threads=1))

    def session(candidates: int) -> Session:
        config = SpecConfig(draft_model=PAIR / "dspark.gguf", candidates=candidates, accept="exact")
        drafter = open_drafters(config, target_of(engine, g)).new(False)
        return engine.session(SessionOptions(SamplingParams(0.8), drafter=drafter, seed=4))

    def guess(one: Session) -> tuple[list[int], list[F32]]:
        notes = Notes(one.drafter.pos + 1)
        return list(one.drafter.propose(7, one.tokens[-1], notes).tokens), notes.rows

    text = session(0)
    text.sync([1])
    for _ in text.generate(200):
        pass
    whole, few, huge, n_same = session(0), session(64), session(10**6), 0
    for at in range(20, 200, 10):
        for one in (whole, few, huge):
            one.sync(text.tokens[:at])
        (tokens, rows), (some, few_rows), (every, _) = guess(whole), guess(few), guess(huge)
        assert tokens == every
        assert np.isfinite(few_rows[0]).sum() == 64 and np.isfinite(rows[0]).sum() > 64
        kept = np.isfinite(few_rows[0])
        np.testing.assert_allclose(few_rows[0][kept], rows[0][kept], rtol=0, atol=2e-2)
        n_same += sum(a == b for a, b in zip(tokens, some, strict=True))
    print(f"{n_same} of {18 * 7} guesses are the same")
    assert n_same >= 0.97 * 18 * 7
