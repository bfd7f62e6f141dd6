"""DeepSeek V4 with DSpark: drafts that hold for 0, 1, .. 5 tokens at every alignment to all that repeats with the position:
groups of 4 and of 128, the window, every ring of the model and of the draft. Tokens, logits, caches and the draft's context
are those of decoding one token at a time.

The draft runs for real, and writes and takes back its block's rows; what is verified are tokens chosen so that a wanted number of
them holds. Which number is wanted is steered: the one that is still missing at the most alignments of where the text stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from deepseek4_reference import spark_weights
from numpy.testing import assert_array_equal
from scripted_drafters import always_wrong
from tiny_v4 import make_tiny, spark_keys, write_support
from toy_model import remembered

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.drafters.block import BlockDrafter
from ds4py.drafters.opened import Target
from ds4py.engine import Engine, FixedDepth, Session, SessionOptions
from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.models import load_model
from ds4py.protocols import F32, Draft, SamplerView, SamplingParams

TAPS, RANK, DEPTH, PROMPT, MOST = [0, 1, 2], 16, 5, 20, 4500
IDS = np.random.default_rng(7).integers(2, 319, PROMPT).tolist()
WINDOW, EVERY, TOP_K = 16, 128, 8


class Coverage:
    """Pairs of accepted length and alignment that passes have met."""

    def __init__(self, moduli: Sequence[int]) -> None:
        self.moduli = moduli
        self.met: set[tuple[int, int, int]] = set()

    def note(self, pos: int, accepted: int) -> None:
        self.met |= {(m, accepted, pos % m) for m in self.moduli}

    def wanted(self, pos: int) -> int:
        """The length that is missing at the most alignments of `pos`, the largest groups first, or leads to where some are."""
        lengths = range(DEPTH + 1)
        worth = [self._missing(pos, n) + max(self._missing(pos + n + 1, k) for k in lengths) / 2 for n in lengths]
        return worth.index(max(worth))

    def _missing(self, pos: int, n: int) -> int:
        return sum(m for m in self.moduli if (m, n, pos % m) not in self.met)

    @property
    def left(self) -> int:
        return sum(m * (DEPTH + 1) for m in self.moduli) - len(self.met)


class Steered:
    """A BlockDrafter whose proposals are replaced by `right` tokens, of which as many hold as the coverage wants."""

    def __init__(self, inner: BlockDrafter, right: Sequence[int], coverage: Coverage) -> None:
        self.inner, self.right, self.coverage = inner, right, coverage
        self.needs, self.floor = inner.needs, 0

    @property
    def pos(self) -> int:
        return self.inner.pos

    def truncate(self, pos: int) -> None:
        self.inner.truncate(pos)

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self.inner.observe(tokens, taps)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        at = view.pos
        assert len(self.inner.propose(k, last, view).tokens) == k
        view.truncate(at)
        n = self.coverage.wanted(at - 1)
        own = self.right[at : at + k]
        return Draft([token if i < n else always_wrong(0, token, 0) for i, token in enumerate(own)])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Target, Path]:
    folder = tmp_path_factory.mktemp("v4")
    tiny = make_tiny(hca=EVERY, compress_ratios=[0, 4, 128], num_hidden_layers=3, max_position_embeddings=1 << 14)
    g, kernels = open_gguf(tiny.write(folder / "tiny.gguf")), CpuKernels(1, 8)
    model = load_model(g, kernels)
    write_support(folder / "support.gguf", spark_weights(tiny.config, RANK, 3), tiny.config, spark_keys(TAPS, RANK, 319))
    return Engine(model, kernels, n_ctx=MOST), Target(g, 320, MOST, kernels, model), folder / "support.gguf"


def digest(row: F32) -> bytes:
    return blake2b(row.tobytes(), digest_size=8).digest()


def test_every_accepted_length_at_every_alignment_of_every_pool_and_ring(engine: tuple[Engine, Target, Path]) -> None:
    opened, target, support = engine
    plain = opened.session(SessionOptions(params=SamplingParams(1.5), seed=3))
    plain.sync(IDS)
    rows = [digest(row) for step in plain.generate(MOST - PROMPT - 1) for row in step.rows]

    made = open_drafters(SpecConfig(("draft-dspark",), open_gguf(support), conf_min=0.0, accept="exact"), target).new(False)
    assert isinstance(made, BlockDrafter)
    short = replace(made.context.draft, slack=8)  # a ring that is soon full
    busy, idle = (BlockDrafter(short, made._reader, made._limits) for _ in range(2))
    coverage = Coverage([4, WINDOW, EVERY])
    drafter = Steered(busy, plain.tokens, coverage)
    session = opened.session(SessionOptions(params=SamplingParams(1.5), seed=3, drafter=drafter, depth=FixedDepth(DEPTH)))
    rings = {cache.capacity for own in (session.state, busy.context._state) for cache in own.caches if cache.window}
    coverage.moduli = sorted({*coverage.moduli, *(capacity for capacity in rings if capacity < 400)})
    assert max(coverage.moduli) > EVERY, "the ring of projected rows is longer than a group"
    n_rows = drive(session, coverage, rows)

    assert coverage.left == 0, f"{coverage.left} pairs not met after {session.state.pos} positions"
    n = session.state.pos
    assert session.tokens == plain.tokens[: len(session.tokens)] and n_rows == n - PROMPT + 1
    for crossed in (n // WINDOW, n // EVERY, n // 4 // TOP_K, *(n // ring for ring in coverage.moduli)):
        assert crossed > 2
    again = opened.session(SessionOptions())
    again.sync(session.tokens)
    for ours, want in zip(remembered(session.state), remembered(again.state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(ours, want)
    assert_context_is_that_of_listening_alone(opened, session, busy, idle)


def drive(session: Session, coverage: Coverage, rows: Sequence[bytes]) -> int:
    """Generate until all pairs are met, comparing rows on the way; how many there were."""
    session.sync(IDS)
    seen = 0
    for step in session.generate(MOST - PROMPT - 1):
        pos = len(session.tokens) - len(step.tokens) - 1
        coverage.note(pos, step.accepted)
        found = [digest(row) for row in step.rows]
        assert found == rows[seen : seen + len(found)], f"position {pos}, {step.accepted} accepted"
        seen += len(found)
        if not coverage.left:
            break
    return seen


def assert_context_is_that_of_listening_alone(engine: Engine, session: Session, busy: BlockDrafter, idle: BlockDrafter) -> None:
    """A drafter that has only listened holds the same, bit for bit."""
    listening = engine.session(SessionOptions(drafter=idle))
    listening.sync(session.tokens)
    for name, own in busy.payload().items():
        other = idle.payload()[name]
        if own.ndim == 3:
            own, other = own[:, -WINDOW:], other[:, -WINDOW:]
        if not name.endswith("first"):
            assert_array_equal(own, other, err_msg=name)
