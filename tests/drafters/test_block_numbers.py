"""DFlash and DSpark: what is proposed, and how surely, are the numbers of the formulas, on every target architecture, wherever in
a text, however the target's rows came in, and after going back. Each mistake that such drafts are known for must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_reference import Chain, DFlash, dspark_chain
from listening import Listening, cpu_or_reference, taken
from numpy.testing import assert_allclose, assert_array_equal
from tiny_drafts import tiny_dflash, write_draft
from tiny_models import ARCHITECTURES, Tiny, make_tiny

from ds4py.drafters.block import BlockDrafter, Context
from ds4py.protocols import Draft

IDS = np.random.default_rng(21).integers(0, 256, 120).tolist()
FORMS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dspark": {"markov_rank": 32, "confidence": True},
    "dspark, anchor known": {"markov_rank": 32, "from_anchor": False, "confidence": True},
    "dspark, few tokens": {"markov_rank": 32, "from_anchor": True, "draft_vocab": 96, "confidence": True},
    "dflash, own everything": {"own_embedding": True, "own_head": True, "layers": (0, 2, 3)},
    "dflash, window": {"window": 12, "windowed": (True, False)},
    "dflash, causal": {"window": 12, "keys": {"attention.causal": True}},
}
TOLERANCE = {"reference": 1e-4, "cpu": 2e-2}  # seen: 0.00003 and 0.01, the latter from float16 caches and features
Pair = Callable[..., Listening]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """pair(architecture, backend, **shape of the draft): made once each."""
    targets: dict[str, Tiny] = {}
    made: dict[str, Listening] = {}
    folder = tmp_path_factory.mktemp("pairs")

    def get(architecture: str = "llama", backend: str = "reference", settings: Any = None, **shape: Any) -> Listening:
        key = f"{architecture} {backend} {settings} {shape}"
        if architecture not in targets:
            targets[architecture] = make_tiny(architecture, folder / f"{architecture}.gguf")
        if key not in made:
            tiny = targets[architecture]
            draft = tiny_dflash(folder / f"{len(made)}.gguf", tiny.path, **shape)
            made[key] = Listening(tiny, draft, cpu_or_reference(backend), **(settings or {}))
        return made[key]

    return get


def expected(pair: Listening, ids: list[int], last: int, k: int, first: int = 0, kv: str = "float32", **wrong: Any) -> Chain:
    """The formula's tokens, rows and confidences; `wrong` changes something that must show."""
    features = pair.features(ids, wrong.get("layers"))
    shape = pair.draft.shape
    causal = bool(shape.keys.get("attention.causal"))
    reference = DFlash(pair.draft, pair.embedding, pair.head, kv, causal)
    if shift := wrong.get("shift"):
        features, first = np.concatenate([np.zeros_like(features[:shift]), features]), first + shift
    logits, hidden = reference.block(features, last, first)
    if shape.markov_rank:
        return dspark_chain(reference, logits, hidden, last, k, wrong.get("markov", 1.0))
    rows = [row for row in logits[1 : 1 + k]]
    d2t = pair.draft.d2t
    best = [int(row.argmax()) for row in rows]
    return Chain(best if d2t is None else [int(d2t[token]) for token in best], rows, [])


def check(pair: Listening, found: tuple[Draft, list[Any]], right: Chain, atol: float) -> None:
    """Rows, tokens (where the formula is sure of them) and confidences. AssertionError if something differs."""
    draft, rows = found
    assert len(draft.tokens) == len(rows) == len(right.tokens)
    for i, (row, want) in enumerate(zip(rows, right.logits, strict=True)):
        assert_allclose(taken(pair.draft, row), want, rtol=0, atol=atol, err_msg=f"row {i}")
        second, best = np.sort(want)[-2:]
        if best - second > 2 * atol:
            assert draft.tokens[i] == right.tokens[i]
        elif draft.tokens[i] != right.tokens[i]:
            return  # too close to call, and what follows hangs on it
    if right.confidence:
        assert_allclose(draft.confidence, right.confidence, rtol=0, atol=atol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_forms(pair: Pair, backend: str, form: str) -> None:
    one = pair("llama", backend, **FORMS[form])
    drafter = one.new()
    kv, atol = "float32" if backend == "reference" else "float16", TOLERANCE[backend]
    k = one.drafters.n_max
    assert k == (4 if "dflash" in form or "known" in form else 5), "a block's size is the default length"
    spread = []
    for at, pieces in ((1, [1]), (18, [5, 1, 11]), (19, [1]), (75, [40, 3, 13])):
        one.feed(drafter, IDS, pieces)
        right = expected(one, IDS[:at], IDS[at], k, kv=kv)
        check(one, one.propose(drafter, IDS[at], k), right, atol)
        spread.append(np.concatenate(right.logits).std())
    assert min(spread) > 0.5, "rows that are all alike show nothing"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_target(pair: Pair, architecture: str) -> None:
    """Taps after the first and the last layer but one, and of what leaves the last."""
    layers = (1, 3) if architecture != "gemma3" else (1, 6, 7)
    one = pair(architecture, layers=layers, markov_rank=32, confidence=True)
    drafter = one.new()
    one.feed(drafter, IDS, [30, 1, 9])
    found = one.propose(drafter, IDS[40], 5)
    check(one, found, expected(one, IDS[:40], IDS[40], 5), TOLERANCE["reference"])
    with pytest.raises(AssertionError):
        lower = tuple(layer - 1 for layer in layers)
        check(one, found, expected(one, IDS[:40], IDS[40], 5, layers=lower), TOLERANCE["reference"])


@pytest.mark.parametrize("wrong", [{"markov": 0.0}, {"shift": 1}, {"layers": (0, 1)}, {"layers": (2, 3)}, {"layers": (2, 1)}])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_wrong_formula_shows(pair: Pair, backend: str, wrong: dict[str, Any]) -> None:
    """No Markov bias; the block (and the context seen) one position off; taps of neighbouring layers, or in another order."""
    one = pair("llama", backend, **FORMS["dspark"])
    drafter = one.new()
    one.feed(drafter, IDS, [50])
    found, kv = one.propose(drafter, IDS[50], 5), "float32" if backend == "reference" else "float16"
    check(one, found, expected(one, IDS[:50], IDS[50], 5, kv=kv), TOLERANCE[backend])
    if "shift" in wrong:  # rotation tells distances only, so the whole text moved is no mistake; the block alone is
        return shifted_block(one, found, kv, TOLERANCE[backend])
    with pytest.raises(AssertionError):
        check(one, found, expected(one, IDS[:50], IDS[50], 5, kv=kv, **wrong), TOLERANCE[backend])


def shifted_block(one: Listening, found: tuple[Draft, list[Any]], kv: str, atol: float) -> None:
    features = one.features(IDS[:50])
    reference = DFlash(one.draft, one.embedding, one.head, kv)
    late = np.concatenate([features, np.zeros_like(features[:1])])  # as if the block began one position later
    logits, hidden = reference.block(late, IDS[50])
    with pytest.raises(AssertionError):
        check(one, found, dspark_chain(reference, logits, hidden, IDS[50], 5), atol)


def test_files_with_a_zeroed_markov_head_or_other_taps_differ(pair: Pair, tmp_path: Path) -> None:
    one = pair("llama", **FORMS["dspark"])
    zeroed = write_draft(tmp_path / "zero.gguf", one.draft, {**one.draft.weights, "markov_w2.weight": np.zeros((320, 32), "f4")})
    moved = tiny_dflash(tmp_path / "moved.gguf", one.tiny.path, **{**FORMS["dspark"], "layers": (2, 3)})
    right = expected(one, IDS[:50], IDS[50], 5)
    for draft in (zeroed, replace(moved, shape=one.draft.shape)):
        other = Listening(one.tiny, draft, cpu_or_reference("reference"))
        drafter = other.new()
        other.feed(drafter, IDS, [50])
        with pytest.raises(AssertionError):
            check(one, other.propose(drafter, IDS[50], 5), right, TOLERANCE["reference"])
    plain = dspark_chain(DFlash(one.draft, one.embedding, one.head), *_block(one, 50), IDS[50], 5, markov=0.0)
    assert zeroed.weights["markov_w2.weight"].any() == 0 and plain.tokens != right.tokens


def _block(one: Listening, at: int) -> tuple[np.ndarray, np.ndarray]:
    return DFlash(one.draft, one.embedding, one.head).block(one.features(IDS[:at]), IDS[at])


# --- far out, and back -------------------------------------------------------------------------------------------------------


def context_of(one: Listening) -> Context:
    drafter = one.new()
    assert isinstance(drafter, BlockDrafter)
    return drafter.context


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("window", [0, 24])
def test_long_offsets(pair: Pair, backend: str, window: int) -> None:
    """Three thousand positions out, with all of the context, and with only the last of it known."""
    shape = {"window": window, "layers": (1,), "n_layers": 1, **FORMS["dspark"]}
    one = pair("llama", backend, {"n_ctx": 4000}, **shape)
    features = np.random.default_rng(5).normal(size=(3100, 64)).astype(np.float32)
    reference = DFlash(one.draft, one.embedding, one.head, "float16" if backend == "cpu" else "float32")
    whole, late = context_of(one), context_of(one)
    step = 3100 if backend == "cpu" else 1000
    for at in range(0, step, 100):
        whole.add({0: features[at : at + 100]})
    late.skip_to(3000)
    late.add({0: features[3000:3037]})
    for context, n, first in ((whole, step, 0), (late, 3037, 3000)):
        assert context.pos == n and context.first == first
        logits, hidden = reference.block(features[:n], 77, first)
        guess = context.guess(5, 77)
        assert_allclose(guess.hidden, hidden, rtol=0, atol=TOLERANCE[backend])
        assert_allclose(guess.logits, logits, rtol=0, atol=TOLERANCE[backend])
    moved, _ = reference.block(np.concatenate([features[:3037], features[:1]]), 77, 3000)
    assert np.abs(late.guess(5, 77).logits - moved).max() > 10 * TOLERANCE[backend], "one position off shows far out too"


@pytest.mark.parametrize("window", [0, 12])
def test_going_back_in_every_way(pair: Pair, window: int) -> None:
    """Into rows that wait, into the state, into what a ring has lost; and on from there with other rows."""
    one = pair("llama", "cpu", {"n_ctx": 400}, window=window, **FORMS["dspark"])
    rng = np.random.default_rng(4)
    reference = DFlash(one.draft, one.embedding, one.head, "float16")
    context = Context(replace(context_of(one).draft, slack=32))
    features = np.zeros((0, 128), np.float32)
    firsts = set()
    for cut in (0, 2, 3, 31, 0, 44, 7, 300, 1, 120, 60, 1):
        n = int(rng.integers(1, 70)) if cut != 300 else 1
        rows = rng.normal(size=(n, 128)).astype(np.float32)
        context.truncate(max(len(features) - cut, 0))
        features = np.concatenate([features[: max(len(features) - cut, 0)], rows])
        context.add({0: rows[:, :64], 1: rows[:, 64:]})
        if cut % 2:  # else the rows are left waiting
            guess = context.guess(3, 9)
            logits, _ = reference.block(features, 9, context.first)
            assert_allclose(guess.logits, logits[:3], rtol=0, atol=TOLERANCE["cpu"])
        firsts.add(context.first)
    assert firsts == {0} if not window else len(firsts) > 1, "the ring was never left"


def test_a_shorter_draft_is_the_beginning_of_a_longer_one(pair: Pair) -> None:
    one = pair("llama", "cpu", **FORMS["dspark"])
    drafter = one.new()
    one.feed(drafter, IDS, [33])
    drafts = [one.propose(drafter, IDS[33], k)[0].tokens for k in (1, 2, 3, 4, 5, 9)]
    assert [len(tokens) for tokens in drafts] == [1, 2, 3, 4, 5, 5]
    assert all(drafts[-1][: len(tokens)] == tokens for tokens in drafts)


def test_a_block_leaves_no_trace(pair: Pair) -> None:
    """Many drafts in a row, none accepted: the next is as if they had not been made."""
    one = pair("llama", "cpu", window=12, **FORMS["dspark"])
    busy, quiet = one.new(), one.new()
    for drafter in (busy, quiet):
        one.feed(drafter, IDS, [40])
    for last in range(25):
        one.propose(busy, last, 5)
    for drafter in (busy, quiet):
        one.feed(drafter, IDS, [3])
    for a, b in zip(one.propose(busy, 5, 5)[1], one.propose(quiet, 5, 5)[1], strict=True):
        assert_array_equal(a, b)


def test_memory_follows_the_window_and_not_the_context(pair: Pair) -> None:
    def n_bytes(n_ctx: int, **shape: Any) -> int:
        return context_of(pair("llama", "cpu", {"n_ctx": n_ctx}, **shape)).n_bytes

    assert n_bytes(400, window=12) == n_bytes(40000, window=12)
    assert n_bytes(40000, window=12, windowed=(True, False)) > 40000 * 2 * 2 * 16 * 2 - 1
    assert n_bytes(400) * 50 < n_bytes(40000)
