"""The accept rules: exact keeps the draws and the distribution against any drafter, opportunistic takes likeliest tokens,
synthetic keeps the rates it was told. The gate that exact passes is shown to stop wrong rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scripted_drafters import EveryLength, Scripted
from toy_model import toy_engine

from ds4py.engine import FixedDepth, FixedSchedule, Penalties, SessionOptions, TargetDraw
from ds4py.engine.accept import Opportunistic, Synthetic, synthetic_rates
from ds4py.engine.depth import Adaptive
from ds4py.engine.noise import U64, Noise, fold, gumbel_of
from ds4py.engine.sampling import Sampler
from ds4py.errors import NumericError, UsageError
from ds4py.protocols import F32, I64, AcceptRule, Draft, SamplerView, SamplingParams

N_VOCAB = 12
ROW: F32 = np.array([2.0, 1.7, 1.5, 1.1, 0.8, 0.3, 0.1, -0.2, -0.9, -1.5, -3.0, -8.0], np.float32)
PARAMS = SamplingParams(0.9, top_k=9, top_p=0.96, min_p=0.02)


def sampler_of(params: SamplingParams = PARAMS, seed: int = 0, penalties: Penalties | None = None) -> Sampler:
    return Sampler(FixedSchedule(params, penalties or Penalties(), {}, N_VOCAB), Noise(seed))


# --- 100,000 draws -------------------------------------------------------------------------------------------------------------


def kept_probabilities(params: SamplingParams) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The distribution that the settings ask for, made the obvious way from ROW, whose logits fall with the id."""
    p = np.exp(ROW.astype(np.float64) / params.temperature)
    p[params.top_k :] = 0
    p /= p.sum()
    n = int((np.cumsum(p) - p < params.top_p).sum())
    p[n:] = 0
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


def surprise(counts: Counter[int], params: SamplingParams) -> float:
    """Chi-square of the counts in standard deviations (Wilson and Hilferty's cube root); infinite for a forbidden token."""
    p, n = kept_probabilities(params), counts.total()
    if any(p[token] == 0 for token in counts):
        return np.inf
    able = np.flatnonzero(p)
    chi = sum((counts[int(i)] - n * p[i]) ** 2 / (n * p[i]) for i in able)
    df = len(able) - 1
    return float(((chi / df) ** (1 / 3) - (1 - 2 / (9 * df))) / np.sqrt(2 / (9 * df)))


Propose = Callable[[SamplerView, int], list[int]]  # (sampler, number of the block) -> proposals


def likeliest(view: SamplerView, block: int) -> list[int]:
    return [0] * 4


def second(view: SamplerView, block: int) -> list[int]:
    return [1] * 3


def forbidden(view: SamplerView, block: int) -> list[int]:
    return [11, 10]


def foreseen(view: SamplerView, block: int) -> list[int]:
    """Knows the next draw, and tells it or lies."""
    token = view.draw(ROW)
    return [token, token] if block % 2 else [(token + 1) % N_VOCAB]


def correlated(view: SamplerView, block: int) -> list[int]:
    return [(view.pos + block + i) % N_VOCAB for i in range(5)]


class Table:
    """A SamplerView whose draws for ROW at all positions were made at once: a hundred thousand one by one would take a minute."""

    def __init__(self, n: int, seed: int) -> None:
        kept = np.flatnonzero(kept_probabilities(PARAMS))
        noise = gumbel_of(vector_bits(seed, np.arange(n + 8), kept))
        self._draws = kept[(ROW[kept].astype(np.float64) / PARAMS.temperature + noise).argmax(axis=1)].tolist()
        self.pos = 0

    def draw(self, row: F32) -> int:
        return int(self._draws[self.pos])

    def propose(self, row: F32, warmth: float) -> int:
        assert warmth == 0, "only the likeliest token, which is id 0"
        return 0

    def params(self) -> SamplingParams:
        return PARAMS

    def push(self, token: int) -> None:
        self.pos += 1

    def truncate(self, pos: int) -> None:
        self.pos = pos


def vector_bits(seed: int, positions: I64, ids: I64) -> U64:
    """Noise(seed).bits for many positions at once, [positions, ids]; the same arithmetic written for arrays."""

    def mixed(x: U64) -> U64:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = np.zeros(len(positions), np.uint64)
        for part in (np.full(len(positions), seed), np.zeros(len(positions)), np.zeros(len(positions)), positions):
            key = mixed(key + golden + part.astype(np.uint64))
        return mixed(ids.astype(np.uint64) * golden + (key + golden)[:, None]) >> np.uint64(32)


def walked(rule: AcceptRule, n: int, proposers: list[Propose]) -> list[int]:
    """n tokens committed by `rule` where every position has the logits ROW, the proposers taking turns."""
    sampler, tokens, block = Table(n, seed=0), list[int](), 0
    while len(tokens) < n:
        draft = Draft(proposers[block % len(proposers)](sampler, block))
        rows = np.broadcast_to(ROW, (len(draft.tokens) + 1, N_VOCAB))
        tokens += rule.walk(draft, rows, sampler)
        block += 1
    return tokens[:n]


ADVERSARIES: list[Propose] = [likeliest, second, forbidden, foreseen, correlated]


def test_a_hundred_thousand_exact_draws_have_the_target_distribution() -> None:
    tokens = walked(TargetDraw(), 100_000, ADVERSARIES)
    z = surprise(Counter(tokens), PARAMS)
    print(f"chi-square of 100,000 draws: {z:.2f} standard deviations")
    assert z < 4
    assert tokens == Table(100_000, seed=0)._draws[:100_000], "they are the very draws of plain decoding"
    sampler = sampler_of()
    for i in range(1000):
        assert sampler.draw(ROW) == tokens[i], "and the table holds what the sampler draws"
        sampler.push(tokens[i])


KEPT = kept_probabilities(PARAMS)


class AcceptAndRedraw:
    """Wrong: accepts a proposal with its probability and, if it fails, draws again without taking the proposal out."""

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        p = KEPT
        for i, drafted in enumerate(draft.tokens):
            u = fold(5, sampler.pos) / 2**64
            token = drafted if u < p[drafted] else sampler.draw(rows[i])
            sampler.push(token)
            yield token
            if token != drafted:
                return
        token = sampler.draw(rows[-1])
        sampler.push(token)
        yield token


@pytest.mark.parametrize("rule", [Opportunistic(), AcceptAndRedraw()])
def test_the_same_gate_stops_wrong_rules(rule: AcceptRule) -> None:
    assert surprise(Counter(walked(rule, 20_000, [likeliest])), PARAMS) > 8
    assert surprise(Counter(walked(rule, 20_000, ADVERSARIES)), PARAMS) > 4


# --- opportunistic -------------------------------------------------------------------------------------------------------------


def test_a_likeliest_token_is_taken_without_a_draw_and_what_follows_is_drawn() -> None:
    rows = np.broadcast_to(ROW, (4, N_VOCAB))
    for seed in range(50):
        sampler, plain = sampler_of(seed=seed), sampler_of(seed=seed)
        for _ in range(3):
            plain.push(0)
        assert list(Opportunistic().walk(Draft([0, 0, 0]), rows, sampler)) == [0, 0, 0, plain.draw(ROW)]
        assert sampler.pos == 4


def test_any_other_token_stands_or_falls_by_the_targets_own_draw() -> None:
    rows, n_kept = np.broadcast_to(ROW, (2, N_VOCAB)), 0
    for seed in range(200):
        own = sampler_of(seed=seed).draw(ROW)
        chosen = list(Opportunistic().walk(Draft([2]), rows, sampler_of(seed=seed)))
        assert chosen[0] == own
        assert len(chosen) == (2 if own == 2 else 1)
        n_kept += own == 2
    assert 5 < n_kept < 100


def test_likeliest_means_under_penalties_and_at_every_row_anew() -> None:
    rows = np.broadcast_to(ROW, (4, N_VOCAB))
    sampler = sampler_of(penalties=Penalties(presence=1.0))
    walk = Opportunistic().walk(Draft([0, 1, 2]), rows, sampler)  # each is the likeliest once those before it are penalised
    assert [next(walk) for _ in range(3)] == [0, 1, 2]


class Alternating(FixedSchedule):
    """Greedy at even positions, as inside tool syntax."""

    def params(self) -> SamplingParams:
        return SamplingParams(0.0 if self.pos % 2 == 0 else 1.0)


def test_settings_that_change_inside_a_block_hold_at_their_rows() -> None:
    rows = np.broadcast_to(ROW, (3, N_VOCAB))
    for seed in range(30):
        sampler = Sampler(Alternating(PARAMS, Penalties(), {}, N_VOCAB), Noise(seed))
        chosen = list(Opportunistic().walk(Draft([5, 0]), rows, sampler))
        assert chosen == [0], "a greedy row commits the likeliest token whatever was drafted"
        chosen = list(Opportunistic().walk(Draft([0, 3]), rows, sampler))
        assert chosen[0] == 0 and chosen[1] == 0


def test_at_temperature_0_it_is_greedy_decoding() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = rng.normal(size=(5, N_VOCAB)).astype(np.float32)
        draft = Draft([int(row.argmax()) if rng.random() < 0.7 else 3 for row in rows[:4]])
        greedy = SamplingParams(0)
        both = [list(rule.walk(draft, rows, sampler_of(greedy))) for rule in (Opportunistic(), TargetDraw())]
        assert both[0] == both[1]


def test_broken_rows_are_told_and_what_was_chosen_before_stands() -> None:
    rows = np.array([ROW, ROW * np.nan])
    walk = Opportunistic().walk(Draft([0]), rows, sampler_of())
    assert next(walk) == 0
    with pytest.raises(NumericError):
        next(walk)


def test_opportunistic_text_is_a_function_of_the_request_and_not_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine(sharpness=4.0)
    greedy = engine.session(SessionOptions(SamplingParams(0)))
    greedy.sync([1, 2, 3])
    for _ in greedy.generate(150):
        pass
    texts = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr("time.perf_counter", lambda: float(rng.random()))  # noqa: B023
        drafter = Scripted(greedy.tokens, EveryLength(5, 3))
        options = SessionOptions(SamplingParams(0.6), drafter=drafter, depth=Adaptive(6), rule=Opportunistic(), seed=1)
        session = engine.session(options)
        session.sync([1, 2, 3])
        for _ in session.generate(150):
            pass
        texts.append(session.tokens)
    assert texts[0] == texts[1] == texts[2]
    assert session.stats.accepted > 3


# --- synthetic -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean_len", "n_max", "p"),
    [(2, 3, 0.543689), (2.5, 3, 0.691414), (3, 3, 0.810536), (1.5, 1, 0.5), (5, 8, 0.843002)],
)
def test_rates_of_a_mean_length(mean_len: float, n_max: int, p: float) -> None:
    rates = synthetic_rates(mean_len, n_max)
    assert rates[0] == pytest.approx(p, abs=1e-6)
    assert 1 + sum(rates) == pytest.approx(mean_len)


def test_the_ends_of_the_range() -> None:
    assert synthetic_rates(1, 3) == pytest.approx([0, 0, 0], abs=1e-9) and synthetic_rates(4, 3) == pytest.approx([1, 1, 1])
    for wrong in (0.9, 4.1, float("nan")):
        with pytest.raises(UsageError):
            synthetic_rates(wrong, 3)
    for rates in ([0.5, 0.6], [1.2], [float("nan")], [-0.1]):
        with pytest.raises(UsageError):
            Synthetic(rates, 0)


def test_accepted_shares_are_the_rates_and_repeat_with_the_seed() -> None:
    engine = toy_engine(n_ctx=1000)

    def run(rates: list[float], seed: int) -> tuple[list[int], list[int], int]:
        drafter = Scripted([1] * 1000, lambda pos, token, call: pos % 40)
        rule = Synthetic(rates, seed)
        session = engine.session(SessionOptions(SamplingParams(0), drafter=drafter, depth=FixedDepth(3), rule=rule))
        session.sync([1, 2, 3])
        for _ in session.generate(700):
            pass
        return session.tokens, session.stats.sources[""].accepted_at, session.stats.drafts

    tokens, accepted_at, n_drafts = run([0.8, 0.5, 0.2], 7)
    for at, rate in zip(accepted_at, (0.8, 0.5, 0.2), strict=True):
        assert at / n_drafts == pytest.approx(rate, abs=0.1)
    assert run([0.8, 0.5, 0.2], 7)[0] == tokens != run([0.8, 0.5, 0.2], 8)[0]
    plain = engine.session(SessionOptions(SamplingParams(0)))
    plain.sync([1, 2, 3])
    for _ in plain.generate(700):
        pass
    none = run([0.0, 0.0, 0.0], 7)
    assert none[0] == plain.tokens and none[1] == []
    every = run([1.0, 1.0, 1.0], 7)
    assert every[1][0] == every[2] and every[1][2] >= every[2] - 1


def test_a_stop_token_is_never_accepted() -> None:
    rows = np.broadcast_to(ROW, (2, N_VOCAB))
    assert list(Synthetic([1.0], 0, frozenset({9})).walk(Draft([9]), rows, sampler_of(SamplingParams(0)))) == [0]
    assert list(Synthetic([1.0], 0).walk(Draft([9]), rows, sampler_of(SamplingParams(0)))) == [9, 0]
