"""The compiled draw gives the token of engine/sampling.py for every row, setting and path: numpy is the definition.

Rows are adversarial: ties in heaps, equal logits throughout, -inf, both zeros, subnormals, values whose differences overflow,
lengths around every block edge; settings reach from the argmax to temperatures that make all tokens alike.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_gguf

from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.noise import HIGHEST, LOWEST, Noise
from ds4py.engine.sampling import draw
from ds4py.errors import NumericError
from ds4py.gguf import open_gguf
from ds4py.kernels import exact
from ds4py.kernels.cpu import CpuKernels, draws
from ds4py.kernels.cpu.target import host_paths
from ds4py.protocols import F32, Draws, SamplingParams

BACKENDS = {path: CpuKernels(threads=1, path=path) for path in host_paths()}

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-12, 1e-9, 1e-6, 0.05, 0.5, 0.7, 1.0, 1.3, 3.0, 100.0, 1e30, 1e300]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 63, 64, 65, 200, 10_000]),
    top_p=st.sampled_from([1.0, 1 - 1e-16, 0.99999, 0.999, 0.9, 0.5, 0.1, 1e-300, 0.0]),
    min_p=st.sampled_from([0.0, 1e-300, 1e-6, 0.01, 0.05, 0.3, 0.999, 1.0]),
)
KINDS = ["normal", "sharp", "wide", "rounded", "equal", "two values", "banned", "zeros", "huge", "subnormal", "rising"]


def make_row(kind: str, n: int, rng: np.random.Generator) -> F32:
    x = rng.normal(size=n)
    match kind:
        case "sharp":
            x = x * 12
        case "wide":
            x = x * 0.01
        case "rounded":
            x = np.round(x * 3)
        case "equal":
            x = np.full(n, x[0])
        case "two values":
            x = np.where(x > 0, 1.5, -0.5)
        case "banned":
            x = np.where(rng.random(n) < 0.9, -np.inf, x * 3)
        case "zeros":
            x = np.where(x > 0, 0.0, -0.0)
        case "huge":
            x = np.clip(x * 1e38, -3e38, 3e38)
        case "subnormal":
            x = x * 1e-41
        case "rising":
            x = np.sort(x * 4)
    row = x.astype(np.float32)
    if not np.isfinite(row.max()):
        row[rng.integers(n)] = 1.0
    return row


@pytest.mark.parametrize("path", host_paths())
@settings(max_examples=400, deadline=None)
@given(PARAMS, st.sampled_from(KINDS), st.integers(0, 2**63), st.sampled_from([1, 2, 63, 64, 65, 127, 128, 320, 1000, 5003]))
def test_compiled_draws_are_numpys(path: str, p: SamplingParams, kind: str, seed: int, n: int) -> None:
    row = make_row(kind, n, np.random.default_rng(seed))
    noise = Noise(seed)
    for pos in (0, seed % 1000):
        assert BACKENDS[path].draw(row, p, noise.key(pos)) == draw(row, p, noise, pos)


@pytest.mark.parametrize("path", host_paths())
@pytest.mark.parametrize("n", [49_152, 262_144])
def test_compiled_draws_are_numpys_on_large_vocabularies(path: str, n: int) -> None:
    """Here blocks are skipped, levels rise and the nucleus is narrowed again and again."""
    rng, drawn = np.random.default_rng(n), set()
    for kind in ("normal", "sharp", "equal", "rounded", "banned", "rising"):
        row = make_row(kind, n, rng)
        for p in (
            SamplingParams(0.0), SamplingParams(1.0), SamplingParams(0.7, top_p=0.95), SamplingParams(3.0, top_p=0.3),
            SamplingParams(1.0, top_k=40, top_p=0.9, min_p=0.05), SamplingParams(1.0, top_k=n - 7),
            SamplingParams(1.5, min_p=0.02),
        ):  # fmt: skip
            for pos in range(2):
                token = draw(row, p, Noise(1), pos)
                drawn.add(token)
                assert BACKENDS[path].draw(row, p, Noise(1).key(pos)) == token, (kind, p, pos)
    assert len(drawn) > 20


@pytest.mark.parametrize("path", host_paths())
@pytest.mark.parametrize("n", [1, 64, 100, 4099])
def test_broken_rows_give_no_token(path: str, n: int) -> None:
    backend = BACKENDS[path]
    for value in (math.nan, math.inf):
        for at in {0, n // 2, n - 1}:
            row = np.zeros(n, np.float32)
            row[at] = value
            assert backend.draw(row, SamplingParams(0), 1) == backend.draw(row, SamplingParams(1.0, top_p=0.9), 1) == -1
    assert backend.draw(np.full(n, -np.inf, np.float32), SamplingParams(1.0), 1) == -1
    assert backend.draw(np.zeros(n, np.float32), SamplingParams(0), 1) == 0  # and nothing is left over


def test_rows_of_any_layout_are_read(path: str = host_paths()[0]) -> None:
    wide = np.zeros((3, 200), np.float32)
    wide[1, 77], wide[1, 150] = 3, 9
    assert BACKENDS[path].draw(wide[1, :100], SamplingParams(0), 1) == 77
    assert BACKENDS[path].draw(wide[1, ::-1], SamplingParams(0), 1) == 49


def test_constants_lie_on_the_safe_side() -> None:
    assert draws.HIGHEST > HIGHEST and draws.REACH > HIGHEST - LOWEST
    big = np.linspace(0, 1, exact.MOST_TOKENS - 1, dtype=np.float32)
    w = exact.weights(big, 1.0, 0.05)
    assert w.sum() == w[::-1].sum() == sum(int(x * 2**34) for x in w.tolist()) / 2**34  # exact in any order


def test_exact_functions_are_accurate() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random(10_000) * 30, 1 - rng.random(10_000) * 1e-6, rng.random(1000) * 1e-9]) + 1e-10
    np.testing.assert_allclose(exact.log(x), np.log(x), rtol=6e-16)
    z = (-24 * rng.random(10_000)).astype(np.float32)
    np.testing.assert_allclose(exact.weights(z, 0.0, 1.0), np.exp(z.astype(np.float64)), rtol=3e-7, atol=2.0**-34)


def test_sessions_draw_by_the_compiled_form_and_write_numpys_text(tmp_path: Path) -> None:
    engine = Engine.open(open_gguf(tiny_gguf("llama", tmp_path / "tiny.gguf")), EngineOptions(n_ctx=128, threads=1))
    assert isinstance(engine.kernels, Draws)
    options = SessionOptions(params=SamplingParams(1.1, top_k=100, top_p=0.95), seed=5)
    texts = []
    for compiled in (engine.kernels, None):
        session = engine.session(options)
        session.sampler._compiled = compiled
        session.sync([1, 2, 3])
        texts.append([token for step in session.generate(60) for token in step.tokens])
    assert texts[0] == texts[1] and len(set(texts[0])) > 20
    session.sampler._compiled = engine.kernels
    with pytest.raises(NumericError, match="position 63 .*NaN"):
        session.sampler.draw(np.full(320, math.nan, np.float32))
