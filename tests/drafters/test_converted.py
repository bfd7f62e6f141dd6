"""From a published checkpoint to a proposal: what ds4-convert writes of each layout drafts with the numbers of the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_folders import N_DRAFT, N_VOCAB, RANK, save_draft
from draft_reference import DFlash, Eagle3, dspark_chain
from hf_folders import save_folder
from listening import Listening, cpu_or_reference, taken
from numpy.testing import assert_allclose
from tiny_drafts import Shape, TinyDraft
from tiny_models import Tiny

from ds4py.convert import Options, make_plan, write_plan
from ds4py.drafters.dspark import rows_of
from ds4py.gguf import open_gguf

IDS = np.random.default_rng(2).integers(0, 256, 40).tolist()
LAYOUTS: dict[str, dict[str, Any]] = {
    "z-lab": {"layers": (1, 2), "block_size": 8},
    "deepspec": {"layers": (1, 2), "block_size": 7, "markov_rank": RANK, "confidence": True},
    "speculators-dspark": {
        "layers": (1, 3),
        "block_size": 7,
        "markov_rank": RANK,
        "confidence": True,
        "from_anchor": False,
        "draft_vocab": N_DRAFT,
    },
    "speculators-dflash": {"layers": (1, 3), "block_size": 7},
    "speculators-eagle3": {"layers": (0, 1, 2), "norm_before_residual": True, "draft_vocab": N_DRAFT, "n_layers": 1},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tiny]:
    """A checkpoint's folder, and its module beside its file."""
    saved = save_folder("qwen3", tmp_path_factory.mktemp("target") / "folder")
    path = saved.path.parent / "target.gguf"
    write_plan(make_plan(saved.path, Options(outtype="f32")), path)
    return saved.path, Tiny(path, saved.hf)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_layout_drafts(layout: str, target: tuple[Path, Tiny], tmp_path: Path) -> None:
    folder, tiny = target
    checkpoint = save_draft(layout, tmp_path / "draft")
    path = tmp_path / "draft.gguf"
    write_plan(make_plan(checkpoint.path, Options(outtype="f32", target=folder)), path)
    tensors = open_gguf(path).tensors  # with the frozen embedding and head, if they are not the target's
    weights = {name: rows_of(t, np.arange(t.n_rows)).reshape(t.shape[::-1]) for name, t in tensors.items() if name != "d2t"}
    shape = Shape(vocab_size=N_VOCAB, mask_token=299, **LAYOUTS[layout])
    one = Listening(tiny, TinyDraft(path, shape, weights, checkpoint.tensors.get("d2t")), cpu_or_reference("reference"))
    drafter = one.new()
    one.feed(drafter, IDS, [30])
    draft, rows = one.propose(drafter, IDS[30], one.drafters.n_max)
    features = one.features(IDS[:30])
    if layout == "speculators-eagle3":
        right = Eagle3(one.draft, one.embedding, one.head).decode(features, IDS[:31], 3).logits
    else:
        reference = DFlash(one.draft, one.embedding, one.head)
        logits, hidden = reference.block(features, IDS[30])
        chain = dspark_chain(reference, logits, hidden, IDS[30], len(rows)) if shape.markov_rank else None
        right = chain.logits if chain else list(logits[1:])
        if chain:
            assert_allclose(draft.confidence, chain.confidence, rtol=0, atol=1e-4)
    assert len(rows) == len(right) == {"z-lab": 7, "deepspec": 7, "speculators-eagle3": 3}.get(layout, 6)
    for row, want in zip(rows, right, strict=True):
        assert_allclose(taken(one.draft, row), want, rtol=1e-4, atol=1e-3)
