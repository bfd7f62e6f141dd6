"""The stored pair in our engine: drafts that fit are accepted by the hundred and rejected by the dozen, the text stays, and every
guess is the one that the torch graph of the training makes from the same residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from draft_tools import KINDS, PAIR
from drafts.block import Block
from drafts.eagle3 import Eagle3
from drafts.saving import load
from toy_model import remembered

from ds4py.drafters import Drafters, SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, Session, SessionOptions
from ds4py.engine.speculation import speculating, target_of
from ds4py.gguf import open_gguf
from ds4py.protocols import Pass, SamplingParams, Span
from ds4py.tokenizer import Tokenizer, load_tokenizer

TEXTS = (
    "day 12: the fox met the owl near the",
    "def met_fox(fox, owl):\n",
    "day 40: the bear helped",
    "def called_toad(toad, wolf):\n    lake =",
    "day 93: the swan",
)
N_GEN = 80
LENGTHS = {"eagle3": 3, "dflash": 7, "dspark": 7}  # of a draft that nobody limits


@dataclass(frozen=True)
class Setting:
    kind: str
    engine: Engine
    drafters: Drafters
    tokenizer: Tokenizer

    def session(self, temperature: float, accept: str = "exact", stop_ids: frozenset[int] = frozenset()) -> Session:
        plain = SessionOptions(params=SamplingParams(temperature), seed=5, stop_ids=stop_ids)
        return self.engine.session(speculating(plain, self.drafters) if accept != "none" else plain)

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_bos=False)


@pytest.fixture(scope="module", params=KINDS)
def setting(request: pytest.FixtureRequest) -> Setting:
    kind = request.param
    g = open_gguf(PAIR / "target.gguf")
    engine = Engine.open(g, EngineOptions(n_ctx=256, threads=1, kernels="cpu"))
    config = SpecConfig(draft_model=PAIR / f"{kind}.gguf", depth="fixed", accept="exact")
    return Setting(kind, engine, open_drafters(config, target_of(engine, g)), load_tokenizer(g))


def generated(session: Session, ids: Sequence[int], n: int) -> list[int]:
    session.sync(ids)
    for _ in session.generate(n):
        pass
    return list(session.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_stays_and_drafts_are_right_and_wrong(setting: Setting, temperature: float) -> None:
    """Commits of every length from none to all of a draft, in the same run in which text, and at the end the caches, are compared
    with plain decoding."""
    accepted_lens: set[int] = set()
    drafted = accepted = 0
    for text in TEXTS:
        ids = setting.prompt(text)
        plain, session = setting.session(temperature, "none"), setting.session(temperature)
        assert generated(session, ids, N_GEN) == generated(plain, ids, N_GEN)
        for a, b in zip(remembered(session.state), remembered(plain.state), strict=True):  # type: ignore[arg-type]
            np.testing.assert_array_equal(a, b)
        stats = session.stats
        assert stats.accepted + stats.passes == N_GEN
        drafted, accepted = drafted + stats.drafted, accepted + stats.accepted
        for source in stats.sources.values():
            shares = [*source.accepted_at, 0]
            accepted_lens |= {i for i, (a, b) in enumerate(zip([source.drafts, *shares], shares, strict=False)) if a > b}
    assert accepted > 150 and drafted - accepted > 40, (accepted, drafted)
    assert {0, 1, LENGTHS[setting.kind]} <= accepted_lens, accepted_lens
    assert 0.35 < accepted / drafted < 0.98


def test_a_stop_token_inside_a_block_ends_the_text(setting: Setting) -> None:
    """Any token of the text as the stop token, so that it comes at every place of a block, mostly in the accepted part of one."""
    ids = setting.prompt(TEXTS[1])
    whole = generated(setting.session(0.0, "none"), ids, 60)
    inside = 0
    for stop in sorted(set(whole[len(ids) :])):
        passes: list[Pass] = []
        session = setting.session(0.0, "exact", frozenset([stop]))
        session.trace = passes.append
        first = whole.index(stop, len(ids))
        assert generated(session, ids, 60) == whole[: first + 1] and session.finish == "stop"
        inside += passes[-1].committed <= passes[-1].drafted
        assert session.state.pos == first
    assert inside > 5


def test_rewound_and_edited_sessions_draft_as_fresh_ones(setting: Setting) -> None:
    """After a rewind and after another prompt on the same session: the same text and the same proposals as without a past."""
    first, second = setting.prompt(TEXTS[0]), setting.prompt(TEXTS[2])
    used = setting.session(0.0)
    whole = generated(used, first, N_GEN)
    used.rewind(len(first) + 20)
    for _ in used.generate(N_GEN - 20):
        pass
    assert list(used.tokens) == whole
    assert generated(used, second, N_GEN) == generated(setting.session(0.0, "none"), second, N_GEN)
    proposals: list[list[tuple[int, ...]]] = []
    for session in (used, setting.session(0.0)):
        passes: list[Pass] = []
        session.trace = passes.append
        generated(session, [*second[:3], *first], N_GEN)
        proposals.append([tuple(one.draft.tokens) for one in passes])
    assert proposals[0] == proposals[1] and any(proposals[0])


def test_guesses_are_those_of_the_training_graph(setting: Setting) -> None:
    """An oracle of its own: torch, float32, from the tensors of the file and the target's residuals. Only rounding can differ."""
    model = load(PAIR / f"{setting.kind}.gguf", open_gguf(PAIR / "target.gguf"))
    same = n = 0
    for text in TEXTS[:3]:
        passes: list[Pass] = []
        session = setting.session(0.0)
        session.trace = passes.append
        ids = torch.tensor([generated(session, setting.prompt(text), N_GEN)])
        taps = residuals(setting.engine, ids[0].tolist())
        for done in passes:
            theirs = guesses(model, ids, taps, done.pos)[: done.drafted]
            same += sum(a == b for a, b in zip(theirs, done.draft.tokens, strict=True))
            n += done.drafted
    assert n > 100 and same > 0.97 * n, (same, n)


def residuals(engine: Engine, ids: Sequence[int]) -> torch.Tensor:
    """The target's residuals after layers 0, 1 and 2: [3, 1, T, D]."""
    state = engine.model.new_state(len(ids), 0)
    parts = []
    for at in range(0, len(ids), engine.kernels.max_rows):
        out = engine.model.forward([Span(state, ids[at : at + engine.kernels.max_rows])], taps=(0, 1, 2))
        parts.append(np.stack([out.taps[layer].copy() for layer in (0, 1, 2)]))
    return torch.from_numpy(np.concatenate(parts, 1))[:, None]


@torch.no_grad()
def guesses(model: Eagle3 | Block, ids: torch.Tensor, taps: torch.Tensor, anchor: int) -> list[int]:
    """What the torch graph drafts after the chosen token at `anchor`, which the target has not evaluated."""
    if isinstance(model, Eagle3):
        # a draft that begins at row anchor - 1 reads nothing of the text beyond the anchor
        n_more = model.n_steps
        known = torch.cat([ids[:, : anchor + 1], torch.zeros(1, n_more, dtype=torch.long)], 1)
        features = torch.cat([taps[:, :, : anchor + 1], torch.zeros(*taps.shape[:2], n_more, taps.shape[3])], 2)
        rows = [z[0, anchor - 1 + j] for j, z in enumerate(model.steps(known, features, own=True))]
        return [int(model.rows[model.head(z).argmax()]) for z in rows]
    t = model.rows_of(ids[:, : anchor + 1], taps[:, :, : anchor + 1], torch.tensor([[anchor]]))[0, 0]
    before, found = int(ids[0, anchor]), []
    for row in t[0 if model.rank else 1 :]:
        logits = model.base(row)
        if model.rank:
            logits = logits + model.w["markov_w1.weight"][before] @ model.w["markov_w2.weight"].T
        before = int(model.rows[logits.argmax()])
        found.append(before)
    return found
