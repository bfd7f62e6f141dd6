"""Rope frequencies against transformers' own functions, and metadata that asks for impossible rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ds4py.models.rope import frequencies, yarn


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6])
@pytest.mark.parametrize("n_rot", [64, 128])
@pytest.mark.parametrize("factor", [2.0, 4.0, 16.0])
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (8.0, 2.0)])
def test_yarn_at_real_sizes(base: float, n_rot: int, factor: float, fast: float, slow: float) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": 32768,
        "beta_fast": fast,
        "beta_slow": slow,
    }
    config: Any = tiny_config("qwen2", rope_parameters=rope, max_position_embeddings=32768, head_dim=n_rot)
    theirs, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    ours = yarn(frequencies(base, n_rot), base, factor, 32768, fast, slow)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5)
    assert magnitude == pytest.approx(1 + 0.1 * math.log(factor))
    plain = frequencies(base, n_rot)
    assert ours[0] == plain[0] and ours[-1] == pytest.approx(plain[-1] / factor), "fast pairs stay, slow pairs are stretched"
