"""DeepSeek V4's one-stage MTP: rows and guesses are those of our second implementation on the taps of a real run, wherever in a
text, after rewinds of every length and past position 10,000; no draft changes a letter; and which files it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from deepseek4_reference import Reference, mtp_weights
from listening import Notes
from numpy.testing import assert_allclose, assert_array_equal
from tiny_v4 import TinyV4, make_tiny, write_support
from toy_model import remembered

from ds4py.drafters import Drafters, SpecConfig, open_drafters
from ds4py.drafters.mtp import lead, mtp_draft, odds
from ds4py.drafters.opened import Target
from ds4py.drafters.price import read_bytes
from ds4py.drafters.recurrent import Recurrent
from ds4py.engine import Engine, FixedDepth, SessionOptions
from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgufFile, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import LoadedModel, load_model
from ds4py.protocols import F32, SamplingParams, Span

N, WINDOW, N_CTX, STREAMS = 140, 16, 20_000, 4  # of the tiny model; the tap of all streams is its number of layers
IDS = np.random.default_rng(7).integers(2, 319, N).tolist()
OTHER = np.random.default_rng(8).integers(2, 319, N).tolist()
KEYS = {"general.architecture": "deepseek4-mtp", "general.name": "DeepSeek V4 Flash MTP support"}


@dataclass(frozen=True)
class Pair:
    """A target and its MTP file, opened on one backend, and the second implementation of the block."""

    tiny: TinyV4
    target: GgufFile
    model: LoadedModel
    block: Path
    reference: Reference

    def open(self, g: GgufFile | None = None, **settings: Any) -> Drafters:
        own = Target(self.target, 320, N_CTX, self.model.kernels, self.model)
        return open_drafters(SpecConfig(("draft-mtp",), g or open_gguf(self.block), **{"n_max": 4, **settings}), own)

    def drafter(self, kept: int | None = None, **settings: Any) -> Recurrent:
        made = self.open(**settings).new(True)
        assert isinstance(made, Recurrent)
        if kept is None:
            return made
        draft = made._draft
        short = mtp_draft(draft.network, draft.kernels, N_CTX, 320, 4, draft.kv_dtype, kept=kept)  # type: ignore[arg-type]
        return Recurrent(short, made._limits, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mtp")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    tiny = make_tiny(hca=32, hc_sinkhorn_iters=4)
    tiny = replace(tiny, weights=tiny.weights | mtp_weights(tiny.config))
    path = tiny.write(folder / "tiny.gguf")
    block = write_support(folder / "mtp.gguf", tiny.weights, tiny.config, KEYS)
    g = open_gguf(path)
    model = load_model(g, ReferenceKernels("float64", max_rows=24), "float64")
    return Pair(tiny, g, model, block, tiny.reference(torch.float64, rounding=True))


@pytest.fixture(scope="module")
def tapped(pair: Pair) -> Callable[[Sequence[int]], F32]:
    """The target's streams [n, 4 d] of a text, each run once."""
    made: dict[tuple[int, ...], F32] = {}

    def get(ids: Sequence[int]) -> F32:
        if tuple(ids) not in made:
            state, rows = pair.model.new_state(len(ids), 8), []
            for at in range(0, len(ids), 20):
                rows.append(pair.model.forward([Span(state, ids[at : at + 20])], [4]).taps[4])
            made[tuple(ids)] = np.concatenate(rows)
        return made[tuple(ids)]

    return get


def right(pair: Pair, streams: F32, ids: Sequence[int], lo: int, hi: int, k: int = 4) -> SimpleNamespace:
    """The reference's draft behind ids[hi] after context rows lo .. hi."""
    h = torch.tensor(streams[lo:hi]).double().view(hi - lo, STREAMS, -1)
    return pair.reference.mtp_draft(h, torch.tensor(ids[lo + 1 : hi + 1]), k)


def proposed(drafter: Recurrent, last: int, k: int = 4) -> SimpleNamespace:
    notes = Notes(drafter.pos + 1)
    draft = drafter.propose(k, last, notes)
    return SimpleNamespace(drafts=list(draft.tokens), logits=notes.rows, lag=draft.lag)


def assert_same(found: SimpleNamespace, want: SimpleNamespace, k: int = 4, atol: float = 2e-5) -> None:
    assert found.drafts == want.drafts[:k] and len(found.logits) == k
    assert_allclose(found.logits, want.logits[:k].numpy(), rtol=0, atol=atol)


def feed(drafter: Recurrent, ids: Sequence[int], streams: F32, lo: int, hi: int, step: int = 7) -> None:
    for at in range(lo, hi, step):
        drafter.observe(ids[at : min(at + step, hi)], {4: streams[at : min(at + step, hi)]})


def test_the_tap_is_the_streams_that_enter_the_head(pair: Pair, tapped: Any) -> None:
    left = pair.reference.run(torch.tensor(IDS))[1][-1]
    assert_allclose(tapped(IDS), left.flatten(1).numpy(), atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 10, 15, 16, 17, 33, 100])
def test_guesses_are_the_reference_s(pair: Pair, tapped: Any, n: int) -> None:
    """One context row, a window not full, full, and wrapped; each shorter draft is the head of the longest. What the mistakes
    that can be made here would give shows."""
    streams, drafter = tapped(IDS), pair.drafter()
    feed(drafter, IDS, streams, 0, n)
    want = right(pair, streams, IDS, 0, n)
    for k in (4, 1, 2):
        assert_same(proposed(drafter, IDS[n], k), want, k)
    own = [IDS[0], *IDS]  # the token of the position itself instead of the next one, as in ds4
    shifted = streams.reshape(N, STREAMS, -1)[:, [1, 2, 3, 0]].reshape(N, -1)
    plain = replace(pair, reference=pair.tiny.reference(torch.float64, rounding=False))
    for wrong in (right(pair, streams, own, 0, n), right(pair, shifted, IDS, 0, n), right(plain, streams, IDS, 0, n)):
        with pytest.raises(AssertionError):
            assert_same(proposed(drafter, IDS[n]), wrong)


def test_no_context_drafts_nothing_and_one_row_does(pair: Pair, tapped: Any) -> None:
    """A forked or loaded session."""
    streams, drafter = tapped(IDS), pair.drafter()
    drafter.observe(IDS[:58], {})
    assert proposed(drafter, IDS[58]).drafts == []
    feed(drafter, IDS, streams, 58, 59)
    assert_same(proposed(drafter, IDS[59]), right(pair, streams, IDS, 58, 59))
    feed(drafter, IDS, streams, 59, 90)
    assert_same(proposed(drafter, IDS[90]), right(pair, streams, IDS, 58, 90))


def test_past_position_ten_thousand(pair: Pair, tapped: Any) -> None:
    """Rows stand where the text stands: only distances count in the reference, which starts at 0."""
    streams, at, drafter = tapped(IDS), 12_300, pair.drafter()
    drafter.observe([1] * at, {})
    feed(drafter, IDS, streams, 0, 40, step=3)
    assert_same(proposed(drafter, IDS[40]), right(pair, streams, IDS, 0, 40))


@pytest.mark.parametrize(("kept", "lost"), [(None, 0), (3, 30)])
def test_the_context_follows_every_rewind(pair: Pair, tapped: Any, kept: int | None, lost: int) -> None:
    """Into rows that wait, by one, by many and below what is kept, then another text: never a row or a vector of the old one."""
    streams, drafter = tapped(IDS), pair.drafter(kept)
    feed(drafter, IDS, streams, 0, 120)
    proposed(drafter, IDS[120])
    for back in (119, 118, 115, 100):
        drafter.truncate(back)
        assert_same(proposed(drafter, IDS[back]), right(pair, streams, IDS, 0, back))
    other = IDS[:100] + OTHER[100:]
    assert_same(proposed(drafter, other[100]), right(pair, tapped(other), other, 0, 100))
    feed(drafter, other, tapped(other), 100, 110, step=1)
    assert_same(proposed(drafter, other[110]), right(pair, tapped(other), other, 0, 110))
    feed(drafter, other, tapped(other), 110, 139)
    edited = IDS[:30] + OTHER[30:]
    drafter.truncate(30)
    assert drafter.first == lost, "few vectors are kept: what lay there is not known any more"
    feed(drafter, edited, tapped(edited), 30, 60)
    assert_same(proposed(drafter, edited[60]), right(pair, tapped(edited), edited, lost, 60))


def test_a_long_silence_is_made_up_for(pair: Pair, tapped: Any) -> None:
    """Rows are made before their vectors go, though nobody asks for drafts."""
    streams, asked, silent = tapped(IDS), pair.drafter(5), pair.drafter(5)
    for at in range(0, 130, 10):
        for drafter in (asked, silent):
            feed(drafter, IDS, streams, at, at + 10, step=10)
        proposed(asked, IDS[at + 10])
    want = right(pair, streams, IDS, 0, 130)
    for drafter in (asked, silent):
        assert_same(proposed(drafter, IDS[130]), want)


def test_guesses_leave_no_trace(pair: Pair, tapped: Any) -> None:
    """Cycles that accept 0..4 of 4 at every alignment to the window: rows are those of a drafter that never drafted."""
    streams, busy, idle, pos, met = tapped(IDS), pair.drafter(), pair.drafter(), 3, set()
    for drafter in (busy, idle):
        feed(drafter, IDS, streams, 0, pos)
    while pos < N - 8:
        assert len(proposed(busy, IDS[pos]).drafts) == 4
        n = 1 + len(met) % 5
        met.add((n, pos % WINDOW))
        feed(busy, IDS, streams, pos, pos + n, step=n)
        pos += n
    feed(idle, IDS, streams, 3, pos)
    assert {n for n, _ in met} == set(range(1, 6))
    assert_same(proposed(busy, IDS[pos]), right(pair, streams, IDS, 0, pos))
    assert_same(proposed(idle, IDS[pos]), right(pair, streams, IDS, 0, pos))
    for a, b in zip(remembered(busy._state), remembered(idle._state), strict=True):
        assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("kept", [None, 5])
def test_a_saved_context_goes_on_and_another_file_s_does_not(pair: Pair, tapped: Any, kept: int | None) -> None:
    streams, drafter, again = tapped(IDS), pair.drafter(kept), pair.drafter(kept)
    feed(drafter, IDS, streams, 0, 90)
    saved = drafter.payload()
    again.load(saved)
    again.observe(IDS[:90], {})
    assert_same(proposed(again, IDS[90]), right(pair, streams, IDS, 0, 90))
    again.truncate(89)
    assert_same(proposed(again, IDS[89]), right(pair, streams, IDS, 0, 89))
    for damaged in ({"g": saved["g"][:, :-1]}, {"first": np.array(-1)}, {"g.pos": np.array(60_000)}, {"state.pos": np.array(95)}):
        with pytest.raises(FormatError):
            again.load(saved | damaged)
    for name in ("g.pos", "g", "first", "state.cache.0.values"):
        with pytest.raises(FormatError):
            again.load({other: array for other, array in saved.items() if other != name})
    assert_same(proposed(again, IDS[89]), right(pair, streams, IDS, 0, 89))


def test_the_margin_ends_drafts(pair: Pair, tapped: Any) -> None:
    """A draft ends before the first guess whose best logit leads by less; at 0, and without one, all come."""
    streams, lengths = tapped(IDS), set()
    for n in range(20, 60, 3):
        want = right(pair, streams, IDS, 0, n)
        leads = [row.topk(2).values for row in want.logits]
        for margin in (0.2, 0.5):
            drafter = pair.drafter(margin=margin)
            feed(drafter, IDS, streams, 0, n)
            sure = next((i for i, (first, second) in enumerate(leads) if first - second < margin), 4)
            assert proposed(drafter, IDS[n]).drafts == want.drafts[:sure]
            lengths.add(sure)
    assert len(lengths) >= 3
    for settings in ({}, {"margin": 0.0}):
        assert pair.drafter(**settings)._limits.least == 0
    assert pair.drafter(margin=3.0)._limits.least == odds(3.0)
    assert lead(np.array([1, 4, -2], np.float32)) == odds(3.0) == 1 / (1 + math.exp(-3))
    assert lead(np.array([1, np.nan], np.float32)) == 0 and lead(np.array([5], np.float32)) == 1


@pytest.mark.parametrize("hardware", host_paths())
def test_compiled_kernels_draft_the_same(pair: Pair, tapped: Any, hardware: str) -> None:
    """float16 caches move logits a little, and at times an 8-bit code, which shows more; another choice ends the comparison."""
    compiled = replace(pair, model=load_model(pair.target, CpuKernels(2, 24, hardware)))
    streams, gaps, same = tapped(IDS), [], 0
    for n in (1, 10, 16, 17, 33, 60, 100, 130):
        drafter = compiled.drafter()
        feed(drafter, IDS, streams, 0, n)
        found, want = proposed(drafter, IDS[n]), right(pair, streams, IDS, 0, n)
        gaps.append(np.abs(found.logits[0] - want.logits[0].numpy()).max())
        same += found.drafts == want.drafts
    assert max(gaps) < 0.1 and np.median(gaps) < 0.02
    assert same >= 7


def test_rows_of_a_prompt_are_the_rows_of_single_steps(pair: Pair, tapped: Any) -> None:
    """Bit for bit: however the target's rows came in, and whether context rows were made with a guess or before it."""
    compiled = replace(pair, model=load_model(pair.target, CpuKernels(2, 24)))
    streams, rows = tapped(IDS), []
    for step in (1, 5, 24):
        drafter = compiled.drafter()
        for at in range(0, 120, step):
            feed(drafter, IDS, streams, at, min(at + step, 120), step)
            if step == 1 and at % 3 == 0:
                proposed(drafter, IDS[at + 1])
        rows.append(proposed(drafter, IDS[120]).logits)
    assert_array_equal(rows[0], rows[1])
    assert_array_equal(rows[0], rows[2])


# --- in the loop -------------------------------------------------------------------------------------------------------------


def crafted(tiny: TinyV4, path: Path, text: Sequence[int], wrong: float) -> Path:
    """A block that passes the token's projection on, which turns each token of `text` into its successor (of some: into another),
    as far as so small a matrix can."""
    own, rng = mtp_weights(tiny.config), np.random.default_rng(len(text))
    d = tiny.config.hidden_size
    for name in own:
        if re.search(r"wo_b|w2\.weight|h_proj", name):
            own[name] = torch.zeros_like(own[name])
    after = dict(zip(text[:-1], text[1:], strict=True))
    others = {token: token if rng.random() < wrong else successor for token, successor in after.items()}
    own["mtp.0.enorm.weight"], own["mtp.0.norm.weight"] = torch.ones(d), torch.ones(d)
    x = tiny.weights["embed.weight"][list(others)].double()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    y = tiny.weights["head.weight"][list(others.values())].double()
    own["mtp.0.e_proj.weight"] = (torch.linalg.pinv(x, rtol=1e-6) @ y).T.float().contiguous() * 8
    return write_support(path, own, tiny.config, KEYS)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_draft_changes_a_text(pair: Pair, folder: Path, backend: str) -> None:
    """Greedy and sampled: tokens, logits and caches are those of plain decoding, guesses accepted and rejected by the dozen."""
    tiny = make_tiny(hca=24, compress_ratios=[4, 128], num_hidden_layers=2)
    g = open_gguf(tiny.write(folder / f"{backend}.gguf"))
    kernels = CpuKernels(2, 8) if backend == "cpu" else ReferenceKernels("float32", row_by_row=True, max_rows=8)
    model = load_model(g, kernels)
    engine = Engine(model, kernels, n_ctx=120)
    accepted, rejected, lengths = 0, 0, set()
    for seed in range(4 if backend == "cpu" else 2):
        options = SessionOptions(params=SamplingParams(1.5 if seed else 0.0), seed=seed)
        plain = engine.session(options)
        plain.sync(IDS[: 20 + seed])
        rows = [row.copy() for step in plain.generate(60) for row in step.rows]
        block = crafted(tiny, folder / "crafted.gguf", plain.tokens[19 + seed :], 0.2)
        target = Target(g, 320, 120, kernels, model)
        drafters = open_drafters(SpecConfig(("draft-mtp",), open_gguf(block), n_max=4, accept="exact"), target)
        session = engine.session(replace(options, drafter=drafters.new(False), depth=FixedDepth(4)))
        session.sync(IDS[: 20 + seed])
        found: list[F32] = []
        for step in session.generate(60):
            accepted, rejected = accepted + step.accepted, rejected + step.drafted - step.accepted
            lengths.add(step.accepted)
            found += [row.copy() for row in step.rows]
        assert session.tokens == plain.tokens
        assert_array_equal(found, rows)
        for a, b in zip(remembered(session.state), remembered(plain.state), strict=True):  # type: ignore[arg-type]
            assert_array_equal(a, b)
    assert accepted > 40 and rejected > 40 and len(lengths) >= 4


# --- files ------------------------------------------------------------------------------------------------------------------


def stated(pair: Pair, **keys: Any) -> Pair:
    """The target's file with other metadata."""
    return replace(pair, target=replace(pair.target, kv={**pair.target.kv, **keys}))  # type: ignore[arg-type]


def test_which_files_it_takes_for_which_model(pair: Pair, folder: Path) -> None:
    assert "does not say which checkpoint it is of" in pair.open().unsure[0]
    assert stated(pair, **{"deepseek4.checkpoint_variant": "preview"}).open().unsure == ()
    assert stated(pair, **{"deepseek4.attention.compress_ratios": [0, 4, 32, 4, 0]}).open().unsure == ()
    with pytest.raises(UnsupportedError, match="is made for the checkpoint preview, but tiny.gguf is of 0731"):
        stated(pair, **{"deepseek4.checkpoint_variant": "0731"}).open()
    keys = {**KEYS, "general.source.revision": "b" * 40}
    other = write_support(folder / "other.gguf", pair.tiny.weights, pair.tiny.config, keys)
    with pytest.raises(UnsupportedError, match="from revision bbbbbbbbbbbb, tiny.gguf from aaaaaaaaaaaa"):
        stated(pair, **{"general.source.revision": "a" * 40}).open(open_gguf(other))
    wider = mtp_weights(make_tiny(hca=32, hidden_size=96).config)
    with pytest.raises(FormatError, match=r"mtp.0.e_proj.weight has shape \[96, 96\], the metadata asks for \[64, 64\]"):
        pair.open(open_gguf(write_support(folder / "wide.gguf", wider, pair.tiny.config, KEYS)))
    rest = {name: w for name, w in pair.tiny.weights.items() if "hnorm" not in name}
    with pytest.raises(FormatError, match=r"mtp.0.hnorm.weight is missing"):
        pair.open(open_gguf(write_support(folder / "less.gguf", rest, pair.tiny.config, KEYS)))
    more = pair.tiny.weights | {"mtp.0.bias.weight": torch.ones(64)}
    with pytest.raises(UnsupportedError, match=r"mtp.0.bias.weight is not one"):
        pair.open(open_gguf(write_support(folder / "more.gguf", more, pair.tiny.config, KEYS)))
    model = SimpleNamespace(network=object(), kernels=pair.model.kernels, kv_dtype=np.dtype("float32"))
    with pytest.raises(UnsupportedError, match="drafts for DeepSeek V4 Flash, and tiny.gguf is no such model"):
        replace(pair, model=model).open()  # type: ignore[arg-type]


def test_its_price_counts_the_experts_that_a_row_uses(pair: Pair) -> None:
    """The file does not say how many; with all of them a real draft would be too dear to be asked above temperature 0."""
    g, (price,) = open_gguf(pair.block), pair.open().prices
    used = {name: t.nbytes * (0.25 if "_exps" in name else 1) for name, t in g.tensors.items() if len(t.shape) > 1}
    head = pair.target.tensors["output.weight"].nbytes
    every = read_bytes(pair.target)[0]
    assert price.token == pytest.approx((sum(used.values()) + head) / every) and price.token < 0.5
