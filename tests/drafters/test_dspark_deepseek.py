"""DeepSeek V4's DSpark: proposals, corrected rows and confidences are those of our second implementation, on the taps of a real
run, wherever in a text, after rewinds and past position 10,000; and which files it takes for which model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from deepseek4_reference import Spark, spark_weights
from numpy.testing import assert_allclose, assert_array_equal
from tiny_v4 import TinyV4, make_tiny, spark_keys, write_support
from toy_model import remembered

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.drafters.block import BlockDrafter
from ds4py.drafters.opened import Target
from ds4py.engine import Engine, FixedDepth, SessionOptions
from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgufFile, NewTensor, open_gguf, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import LoadedModel, load_model
from ds4py.models.deepseek4_dspark import check_pair
from ds4py.protocols import F32, SamplingParams, Span

TAPS, RANK, NOISE, WINDOW = [1, 2, 3], 16, 319, 16
N = 140
IDS = np.random.default_rng(7).integers(2, 319, N).tolist()
OTHER = np.random.default_rng(8).integers(2, 319, N).tolist()


class Greedy:
    """A sampler at temperature 0; rows that were drawn from are kept."""

    def __init__(self, pos: int) -> None:
        self.pos, self.rows = pos, list[F32]()

    def params(self) -> SamplingParams:
        return SamplingParams(0)

    def propose(self, row: F32, warmth: float) -> int:
        self.rows.append(row.copy())
        return int(row.argmax())

    def push(self, token: int) -> None:
        self.pos += 1


@dataclass(frozen=True)
class Pair:
    """A target and its support file, opened on one backend, and the second implementation of the draft."""

    tiny: TinyV4
    target: GgufFile
    model: LoadedModel
    support: Path
    reference: Spark

    def open(self, g: GgufFile | None = None, **settings: Any) -> Any:
        own = Target(self.target, 320, 20_000, self.model.kernels, self.model)
        config = SpecConfig(("draft-dspark",), g or open_gguf(self.support), **{"conf_min": 0.0, **settings})
        return open_drafters(config, own)

    def drafter(self, **settings: Any) -> BlockDrafter:
        made = self.open(**settings).new(True)
        assert isinstance(made, BlockDrafter)
        return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    tiny = make_tiny(hca=32, hc_sinkhorn_iters=4)
    tiny = replace(tiny, weights=tiny.weights | spark_weights(tiny.config, RANK, len(TAPS)))
    path, support = tiny.write(folder / "tiny.gguf"), folder / "support.gguf"
    write_support(support, tiny.weights, tiny.config, spark_keys(TAPS, RANK, NOISE))
    g = open_gguf(path)
    model = load_model(g, ReferenceKernels("float64", max_rows=24), "float64")
    weights = {k: v if k.endswith("tid2eid") else v.double() for k, v in tiny.weights.items()}
    return Pair(tiny, g, model, support, Spark(weights, tiny.config, NOISE, rounding=True))


@pytest.fixture(scope="module")
def tapped(pair: Pair) -> Callable[[Sequence[int]], dict[int, F32]]:
    """The target's taps of a text, each run once."""
    made: dict[tuple[int, ...], dict[int, F32]] = {}

    def get(ids: Sequence[int]) -> dict[int, F32]:
        if tuple(ids) not in made:
            state, rows = pair.model.new_state(len(ids), 8), []
            for at in range(0, len(ids), 20):
                rows.append(pair.model.forward([Span(state, ids[at : at + 20])], TAPS).taps)
            made[tuple(ids)] = {layer: np.concatenate([part[layer] for part in rows]) for layer in TAPS}
        return made[tuple(ids)]

    return get


def joined(taps: dict[int, F32], lo: int, hi: int) -> torch.Tensor:
    return torch.tensor(np.concatenate([taps[layer][lo:hi] for layer in TAPS], 1)).double()


def right(pair: Pair, taps: dict[int, F32], lo: int, hi: int, anchor: int, at: int | None = None) -> SimpleNamespace:
    """The reference's draft after context rows lo..hi, standing at positions from `at` (default: lo)."""
    return pair.reference.draft(joined(taps, lo, hi), lo if at is None else at, anchor)


def proposed(drafter: BlockDrafter, anchor: int, k: int = 5) -> SimpleNamespace:
    view = Greedy(drafter.pos + 1)
    draft = drafter.propose(k, anchor, view)  # type: ignore[arg-type]
    return SimpleNamespace(drafts=list(draft.tokens), logits=view.rows, confidence=draft.confidence)


def assert_same(found: SimpleNamespace, want: SimpleNamespace, k: int = 5, atol: float = 2e-5) -> None:
    assert found.drafts == want.drafts[:k] and len(found.logits) == k
    assert_allclose(found.logits, want.logits[:k].numpy(), rtol=0, atol=atol)
    assert_allclose(found.confidence, want.confidence[:k], rtol=0, atol=atol)


def feed(drafter: BlockDrafter, ids: Sequence[int], taps: dict[int, F32], lo: int, hi: int, step: int = 7) -> None:
    for at in range(lo, hi, step):
        end = min(at + step, hi)
        drafter.observe(ids[at:end], {layer: taps[layer][at:end] for layer in TAPS})


def test_the_taps_are_those_of_the_reference(pair: Pair, tapped: Any) -> None:
    left = pair.tiny.reference(torch.float64, rounding=True).run(torch.tensor(IDS))[1]
    for layer in TAPS:
        assert_allclose(tapped(IDS)[layer], left[layer].mean(1).numpy(), atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 10, 15, 16, 17, 33, 100])
def test_drafts_are_the_reference_s(pair: Pair, tapped: Any, n: int) -> None:
    """One context row, a window not full, full, and wrapped; each shorter draft is the head of the longest."""
    taps, drafter = tapped(IDS), pair.drafter()
    feed(drafter, IDS, taps, 0, n)
    want = right(pair, taps, 0, n, IDS[n])
    for k in (5, 1, 3):
        assert_same(proposed(drafter, IDS[n], k), want, k)
    for wrong in (
        right(pair, taps, 0, n, IDS[n] + 1 if IDS[n] < 318 else 5),
        right(pair, taps, 1, n + 1, IDS[n]),
        Spark(pair.reference.w, pair.tiny.config, 318, rounding=True).draft(joined(taps, 0, n), 0, IDS[n]),
        Spark(pair.reference.w, pair.tiny.config, NOISE, rounding=False).draft(joined(taps, 0, n), 0, IDS[n]),
    ):
        with pytest.raises(AssertionError):
            assert_same(proposed(drafter, IDS[n]), wrong)


def test_no_context_at_all_and_few_rows(pair: Pair, tapped: Any) -> None:
    """A forked or loaded session: the draft is made from what is there."""
    taps, drafter = tapped(IDS), pair.drafter()
    drafter.observe(IDS[:58], {})
    nothing = right(pair, taps, 58, 58, IDS[58])
    assert_same(proposed(drafter, IDS[58]), nothing)
    feed(drafter, IDS, taps, 58, 62)
    assert_same(proposed(drafter, IDS[62]), right(pair, taps, 58, 62, IDS[62]))


def test_past_position_ten_thousand(pair: Pair, tapped: Any) -> None:
    """The block stands where the text stands: the draft is that of the reference with float64 angles at 12,300."""
    taps, at = tapped(IDS), 12_300
    drafter = pair.drafter()
    drafter.observe([1] * at, {})
    feed(drafter, IDS, taps, 0, 40, step=3)
    want = right(pair, taps, 0, 40, IDS[40], at=at)
    assert_same(proposed(drafter, IDS[40]), want)
    near = right(pair, taps, 0, 40, IDS[40])
    assert_allclose(want.base.numpy(), near.base.numpy(), atol=1e-6)  # only distances count


@pytest.mark.parametrize(("slack", "kept"), [(512, 0), (1, 30)])
def test_the_context_follows_every_rewind(pair: Pair, tapped: Any, slack: int, kept: int) -> None:
    """Back within the ring and far below it, then another text: never a row of the old one."""
    made = pair.drafter()
    drafter = BlockDrafter(replace(made.context.draft, slack=slack), made._reader, made._limits, greedy=True)
    feed(drafter, IDS, tapped(IDS), 0, 120)
    proposed(drafter, IDS[120])
    other = IDS[:100] + OTHER[100:]
    drafter.truncate(100)
    assert_same(proposed(drafter, other[100]), right(pair, tapped(IDS), 0, 100, other[100]))
    feed(drafter, other, tapped(other), 100, 110, step=1)
    assert_same(proposed(drafter, other[110]), right(pair, tapped(other), 0, 110, other[110]))

    edited = IDS[:30] + OTHER[30:]
    drafter.truncate(30)
    assert drafter.context.first == kept, "a short ring has lost what lay there"
    assert_same(proposed(drafter, edited[30]), right(pair, tapped(IDS), kept, 30, edited[30]))
    feed(drafter, edited, tapped(edited), 30, 60)
    assert_same(proposed(drafter, edited[60]), right(pair, tapped(edited), 30, 60, edited[60]))


def test_drafting_and_rejecting_leaves_the_context_alone(pair: Pair, tapped: Any) -> None:
    """Cycles that accept 0..5 of 5 at every alignment to the window: the context is that of a drafter that never drafted."""
    taps, busy, idle, pos = tapped(IDS), pair.drafter(), pair.drafter(), 3
    met = set()
    for drafter in (busy, idle):
        feed(drafter, IDS, taps, 0, pos)
    while pos < N - 8:
        found = proposed(busy, IDS[pos])
        assert len(found.drafts) == 5
        n = 1 + len(met) % 6
        met.add((n, pos % WINDOW))
        busy.truncate(busy.pos)
        feed(busy, IDS, taps, pos, pos + n, step=n)
        pos += n
    feed(idle, IDS, taps, 3, pos)
    assert {n for n, _ in met} == set(range(1, 7))
    assert_same(proposed(busy, IDS[pos]), right(pair, taps, 0, pos, IDS[pos]))
    saved = idle.payload()
    for name, array in busy.payload().items():
        own, its = (a[:, -WINDOW:] if a.ndim == 3 else a for a in (array, saved[name]))
        if not name.endswith("first"):
            assert_allclose(own, its, atol=1e-9, err_msg=name)


def test_a_saved_context_goes_on_and_another_file_s_does_not(pair: Pair, tapped: Any) -> None:
    taps, drafter, again = tapped(IDS), pair.drafter(), pair.drafter()
    feed(drafter, IDS, taps, 0, 50)
    saved = drafter.payload()
    again.load(saved)
    again.observe(IDS[:50], {})
    assert_same(proposed(again, IDS[50]), right(pair, taps, 0, 50, IDS[50]))
    with pytest.raises(FormatError):
        again.load({name: array for name, array in saved.items() if "values" not in name})


def test_the_confidence_decides_the_length(pair: Pair, tapped: Any) -> None:
    """A draft ends before the first token below the threshold; at 0 all five come; defaults are ds4's."""
    taps, lengths = tapped(IDS), set()
    for n in range(20, 60, 3):
        want = right(pair, taps, 0, n, IDS[n])
        for least in (0.3, 0.5, 0.6):
            drafter = pair.drafter(conf_min=least)
            feed(drafter, IDS, taps, 0, n)
            sure = next((i for i, c in enumerate(want.confidence) if c < least), 5)
            assert proposed(drafter, IDS[n]).drafts == want.drafts[:sure]
            lengths.add(sure)
    assert len(lengths) >= 4
    for accept, least in (("opportunistic", 0.7), ("exact", 0.8)):
        drafter = pair.drafter(conf_min=None, accept=accept)
        assert drafter._limits.least == least
    assert pair.drafter(conf_min=0.0)._limits.least == 0


# --- in the loop -------------------------------------------------------------------------------------------------------------


def crafted(tiny: TinyV4, path: Path, text: Sequence[int], lengths: Sequence[int]) -> Path:
    """A support file whose Markov head knows the successor of every token of `text`, but for some: from the start of the text on,
    drafts of it are right for lengths[0], lengths[1], ... tokens, one after the other."""
    n_vocab = tiny.config.vocab_size
    after = dict(zip(text[:-1], text[1:], strict=True))
    at, wrong = 0, set()
    for n in lengths:
        at += n + 1
        if at < len(text):
            wrong.add(text[at - 1])
    table = torch.zeros(n_vocab, n_vocab)
    for token, successor in after.items():
        table[(successor + 1) % n_vocab if token in wrong else successor, token] = 1e4
    own = spark_weights(tiny.config, n_vocab, 2)
    own |= {"mtp.2.markov_head.markov_w1.weight": torch.eye(n_vocab), "mtp.2.markov_head.markov_w2.weight": table}
    return write_support(path, own, tiny.config, spark_keys([0, 1], n_vocab, NOISE))


def test_every_accepted_length_at_every_alignment_leaves_plain_decoding(pair: Pair, folder: Path) -> None:
    """Crafted heads make drafts of five right for 0..5 tokens, at every alignment to groups of 4 and over the ends of groups of
    24 and of the window. Texts, logits and caches are those of plain decoding, greedy and sampled."""
    tiny = make_tiny(hca=24, compress_ratios=[4, 128], num_hidden_layers=2)
    g = open_gguf(tiny.write(folder / "short.gguf"))
    kernels = CpuKernels(2, 8)
    model = load_model(g, kernels)
    engine = Engine(model, kernels, n_ctx=200)
    met: set[tuple[int, int]] = set()
    over, n_accepted = 0, 0
    every = {(n, at) for n in range(6) for at in range(4)}
    for seed in range(12):
        if every <= met and over > 10 and n_accepted > 100:
            break
        options = SessionOptions(params=SamplingParams(1.5 if seed else 0.0), seed=seed)
        plain = engine.session(options)
        plain.sync(IDS[: 20 + seed % 4])
        rows = [row.copy() for step in plain.generate(60) for row in step.rows]
        text = plain.tokens[19 + seed % 4 :]
        support = crafted(tiny, folder / "crafted.gguf", text, np.random.default_rng(seed).integers(0, 6, 30).tolist())
        target = Target(g, 320, 200, kernels, model)
        drafters = open_drafters(SpecConfig(("draft-dspark",), open_gguf(support), conf_min=0.0, accept="exact"), target)
        session = engine.session(replace(options, drafter=drafters.new(False), depth=FixedDepth(5)))
        session.sync(IDS[: 20 + seed % 4])
        found: list[F32] = []
        for step in session.generate(60):
            pos = len(session.tokens) - len(step.tokens) - 1
            met.add((step.accepted, pos % 4))
            over += (pos // 24) != ((pos + 5) // 24) and step.accepted < 5
            n_accepted += step.accepted
            found += [row.copy() for row in step.rows]
        assert session.tokens == plain.tokens
        assert_array_equal(found, rows)
        for a, b in zip(remembered(session.state), remembered(plain.state), strict=True):  # type: ignore[arg-type]
            assert_array_equal(a, b)
    assert every <= met and over > 10 and n_accepted > 100


@pytest.mark.parametrize("hardware", host_paths())
def test_compiled_kernels_draft_the_same(pair: Pair, tapped: Any, hardware: str) -> None:
    """float16 caches and int8 Markov products move logits a little, and at times an 8-bit code, which shows more."""
    kernels = CpuKernels(2, 24, hardware)
    other = replace(pair, model=load_model(pair.target, kernels))
    taps, gaps, same, n_drafts = tapped(IDS), [], 0, 0
    for n in (1, 10, 16, 17, 33, 60, 100, 130):
        drafter = other.drafter()
        feed(drafter, IDS, taps, 0, n)
        found, want = proposed(drafter, IDS[n]), right(pair, taps, 0, n, IDS[n])
        gaps.append(np.abs(found.logits[0] - want.logits[0].numpy()).max())
        assert abs(found.confidence[0] - want.confidence[0]) < 0.02
        same += found.drafts == want.drafts
        n_drafts += 1
    assert max(gaps) < 0.1 and np.median(gaps) < 0.02
    assert same >= n_drafts - 1


# --- files ------------------------------------------------------------------------------------------------------------------


def rewritten(
    pair: Pair, path: Path, keys: dict[str, Any], rename: Callable[[str], str] = str, drop: str = "", flat: bool = False
) -> GgufFile:
    """The support file with other metadata (None: left out) and other names."""
    g = open_gguf(pair.support)
    kv: dict[str, Any] = {**g.kv.typed, **keys}
    tensors = []
    for name, t in g.tensors.items():
        if not drop or drop not in name:
            shape = t.shape[:1] if flat and "confidence" in name else t.shape
            tensors.append(NewTensor(rename(name), shape, t.type, t.data))
    write_gguf(path, {key: value for key, value in kv.items() if value is not None}, tensors)
    return open_gguf(path)


def community(name: str) -> str:
    """The names that community files give."""
    for ours, theirs in (("mtp.0.main_", "dspark.main_"), ("mtp.2.norm", "dspark.norm"), ("mtp.2.hc_head", "dspark.hc_head"),
                         ("mtp.2.markov_head.", "dspark."), ("mtp.2.confidence_head.proj", "dspark.conf_proj")):  # fmt: skip
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name.replace("mtp.", "dspark.", 1)


NAMES = ("block_size", "markov_rank", "noise_token_id", "target_layer_ids", "stage_count", "n_layers")
NONE: dict[str, Any] = {f"dspark.{name}": None for name in NAMES}


@pytest.mark.parametrize("spelling", ["deepseek4.dspark.{}", "deepseek4.dspark_{}", "none of them", "community names", "flat"])
def test_every_spelling_is_the_same_draft(pair: Pair, tapped: Any, spelling: str, tmp_path: Path) -> None:
    rename, keys = (community if spelling == "community names" else str), dict(NONE)
    if "{}" in spelling:
        keys |= {spelling.format(name): value for name, value in zip(NAMES, (5, RANK, NOISE, TAPS, 3, 3), strict=True)}
    elif spelling == "none of them":  # defaults: 5 tokens, the last three layers; the noise token of real files is none here
        keys["dspark.noise_token_id"] = NOISE
    else:
        keys = {}
    g = rewritten(pair, tmp_path / "g.gguf", keys, rename, flat=spelling == "flat")
    drafter = pair.drafter(g=g)
    feed(drafter, IDS, tapped(IDS), 0, 40)
    assert_same(proposed(drafter, IDS[40]), right(pair, tapped(IDS), 0, 40, IDS[40]))
    assert pair.open(g=g).n_max == 5


@pytest.mark.parametrize(
    ("keys", "drop", "says"),
    [
        ({"dspark.block_size": 17}, "", "dspark.block_size is 17; it must be a number from 1 to 16"),
        ({"dspark.noise_token_id": 320}, "", "dspark.noise_token_id is 320"),
        ({"dspark.target_layer_ids": [3, 2, 1]}, "", "not rising numbers of 4 layers"),
        ({"dspark.target_layer_ids": [1, 2, 4]}, "", "not rising numbers of 4 layers"),
        ({"dspark.target_layer_ids": [1, 2]}, "", "mtp.0.main_proj.weight has shape [192, 64], the metadata asks for [128, 64]"),
        ({"dspark.stage_count": 2}, "", "dspark.stage_count is 2, but there are tensors of 3 stages"),
        ({"dspark.markov_rank": 8}, "", "dspark.markov_rank is 8, but mtp.2.markov_head.markov_w1.weight has 16 columns"),
        ({}, "mtp.1.attn_kv.", "mtp.1.attn_kv.weight is missing"),
        ({"dspark.checkpoint_variant": "vision-exp"}, "", "is made for the checkpoint vision-exp, but tiny.gguf is of 0731"),
        ({"general.name": "DeepSeek V4 Flash Vision Experimental DSpark support"}, "", "but tiny.gguf is of 0731"),
        ({"dspark.checkpoint_variant": "v4.1-flash"}, "", "drafts for DeepSeek V4.1 Flash"),
        ({"general.architecture": "deepseek41-dspark"}, "", "drafts for DeepSeek V4.1 Flash"),
        ({"general.source.revision": "b" * 40}, "", "is made from revision bbbbbbbbbbbb, tiny.gguf from aaaaaaaaaaaa"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(
    pair: Pair, keys: dict[str, Any], drop: str, says: str, tmp_path: Path
) -> None:
    target = stated(pair, **{"deepseek4.checkpoint_variant": "0731", "general.source.revision": "a" * 40})
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        replace(pair, target=target).open(g=rewritten(pair, tmp_path / "g.gguf", keys, drop=drop))
    assert says in str(caught.value)


def stated(pair: Pair, **keys: Any) -> GgufFile:
    """The target's file with other metadata."""
    return replace(pair.target, kv={**pair.target.kv, **keys})  # type: ignore[arg-type]


def test_what_a_model_says_of_itself(pair: Pair, tmp_path: Path) -> None:
    """The preview has no DSpark; the number of ratios past the layers tells it where no key does; PRO has none; silence is no
    contradiction, but worth a warning unless both say the same."""
    ratios = [0, 4, 32, 4]
    (unsure,) = pair.open().unsure
    assert unsure.startswith("support.gguf does not say which checkpoint it is of; if support.gguf was not made for that of tiny")
    newer = stated(pair, **{"deepseek4.attention.compress_ratios": [*ratios, 0, 0, 0]})
    assert replace(pair, target=newer).open().unsure == (unsure,), "one that does not say is enough"
    of_0731 = rewritten(pair, tmp_path / "of.gguf", {"dspark.checkpoint_variant": "0731"})
    assert pair.open(g=of_0731).unsure[0].startswith("tiny.gguf does not say which checkpoint it is of")
    assert replace(pair, target=newer).open(g=of_0731).unsure == ()
    same = {"general.source.revision": "a" * 40}
    assert replace(pair, target=stated(pair, **same)).open(g=rewritten(pair, tmp_path / "same.gguf", same)).unsure == ()
    with pytest.raises(UnsupportedError, match="is made for 0731 or later, but tiny.gguf is of preview"):
        replace(pair, target=stated(pair, **{"deepseek4.attention.compress_ratios": [*ratios, 0]})).open()
    vision = {"general.name": "DeepSeek V4 Flash Vision Experimental"}
    replace(pair, target=stated(pair, **vision)).open(g=rewritten(pair, tmp_path / "g.gguf", vision))
    network = pair.model.network
    pro = replace(network.config, n_layers=61)  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="is V4 PRO"):
        check_pair(open_gguf(pair.support), pair.target, pro)


def test_a_file_without_a_confidence_head(pair: Pair, tapped: Any, tmp_path: Path) -> None:
    """It drafts whole blocks, and a threshold that was asked for cannot be obeyed."""
    g = rewritten(pair, tmp_path / "g.gguf", {}, drop="confidence_head")
    with pytest.raises(UnsupportedError, match="has no confidence head"):
        pair.open(g=g, conf_min=0.5)
    for settings in ({}, {"conf_min": None}):
        drafter = pair.drafter(g=g, **settings)
        feed(drafter, IDS, tapped(IDS), 0, 40)
        assert proposed(drafter, IDS[40]).drafts == right(pair, tapped(IDS), 0, 40, IDS[40]).drafts


def test_another_architecture_is_no_target(pair: Pair) -> None:
    class Other:
        pass

    model = SimpleNamespace(network=Other(), kv_dtype=np.dtype("float32"))
    with pytest.raises(UnsupportedError, match="is no such model"):
        replace(pair, model=SimpleNamespace(kernels=pair.model.kernels, **vars(model))).open()
