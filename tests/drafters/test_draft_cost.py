"""The script that measures drafts' costs works: every kind, on a target made on the fly, in the real loop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_drafts import KINDS

from ds4py.drafters import SpecConfig
from ds4py.engine import Engine, EngineOptions
from ds4py.gguf import open_gguf

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from draft_cost import Shape, measure, needed, random_drafts, random_target


def test_chances_that_are_needed() -> None:
    assert needed(1.0, 3) == "0.00" and needed(4.0, 3) == "1.00" and needed(4.01, 3) == "never"
    assert float(needed(1 + 0.7 + 0.49, 2)) == pytest.approx(0.7, abs=0.01)


def test_every_kind_is_measured(tmp_path: Path) -> None:
    g = open_gguf(random_target(tmp_path / "target.gguf", Shape(64, 7, 4, 2, 96, 320)))
    engine = Engine.open(g, EngineOptions(n_ctx=800, threads=1))
    for kind, draft in zip(KINDS, random_drafts(g, tmp_path), strict=True):
        found = measure(engine, g, SpecConfig(draft_model=draft, n_max=3, accept="exact"), [1, 3], 2)
        for depth, passes in found.items():
            assert sum(one.drafted == depth and one.draft.source == kind for one in passes) >= 2
            assert all(one.draft_seconds > 0 and one.verify_seconds > 0 for one in passes if one.drafted)
