"""deepseek4 on tiny random models: against transformers (which leaves the rounding out), against our second implementation with
rounding in float64, and, bit for bit, against itself however the rows were grouped, tried and taken back.

300 tokens cross every threshold at least twice: the window of 16, groups of 4 and of 128, the 8 entries that the indexer keeps,
the rings. `thresholds` counts the crossings, so that a changed fixture cannot quietly stop testing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepseek4_reference import fp4, hadamard, rms
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from tiny_v4 import TinyV4, make_tiny
from toy_model import remembered

from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgmlType, open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.models import load_model
from ds4py.models.deepseek4 import Model
from ds4py.models.deepseek4_config import Config
from ds4py.models.header import Header
from ds4py.models.running import LoadedModel
from ds4py.models.tensors import Tensors
from ds4py.protocols import F32, Span
from ds4py.state import State

N = 300
IDS = np.random.default_rng(3).integers(2, 320, N).tolist()
OTHER = np.random.default_rng(4).integers(2, 320, N).tolist()
WINDOW, TOP_K, SLACK = 16, 8, 8


@pytest.fixture(scope="module")
def tiny() -> TinyV4:
    return make_tiny(hca=128)


@pytest.fixture(scope="module")
def path(tiny: TinyV4, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("v4") / "tiny.gguf")


def load(path: Path, rounding: bool = True, kv_dtype: str = "float32", **options: Any) -> LoadedModel:
    g, kernels = open_gguf(path), ReferenceKernels(**options)
    return LoadedModel(Model(Header(g), Tensors(g, kernels), rounding), kernels, kv_dtype)


def on_cpu(path: Path, hardware: str | None = None, max_rows: int = 9) -> LoadedModel:
    """On compiled kernels, with float16 caches. At most 9 rows by default, so that rings are short."""
    return load_model(open_gguf(path), CpuKernels(2, max_rows, hardware))


def feed(model: LoadedModel, state: State, ids: Sequence[int], taps: Sequence[int] = ()) -> F32:
    """Logits [n, V] of all `ids`, one forward."""
    return model.forward([Span(state, ids, n_logits=len(ids))], taps).of(0).copy()


def in_chunks(model: LoadedModel, state: State, sizes: Sequence[int], ids: Sequence[int] = IDS) -> F32:
    rows = [np.zeros((0, model.vocab_size), np.float32)]
    for n in sizes:
        rows.append(feed(model, state, ids[state.pos : state.pos + n]))
    return np.concatenate(rows)


def thresholds(state: State) -> dict[str, int]:
    """How often the positions below state.pos crossed each threshold."""
    n, rings = state.pos, [cache for cache in state.caches if cache.window]
    return {
        "window": n // WINDOW - 1,
        "groups of 4": n // 4,
        "groups of 128": n // 128,
        "indexer": n // 4 // TOP_K - 1,
        "rings": min(n // cache.capacity for cache in rings if cache.capacity < 128),
        "long ring": min(n // cache.capacity for cache in rings),
    }


# --- against other implementations --------------------------------------------------------------------------------------


def test_without_rounding_it_is_what_transformers_computes(tiny: TinyV4, path: Path) -> None:
    model = load(path, rounding=False)
    ours = feed(model, model.new_state(N, SLACK), IDS)
    with torch.inference_mode():
        theirs = tiny.hf(torch.tensor([IDS])).logits[0].numpy()
        second = tiny.reference(torch.float32, rounding=False).run(torch.tensor(IDS))[0].numpy()
    assert theirs.std() > 0.3
    assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert_allclose(second, theirs, rtol=0, atol=1e-4)


def test_with_rounding_it_is_what_the_reference_computes(tiny: TinyV4, path: Path) -> None:
    """Logits, and the streams as they leave the layers, in float64."""
    model = load(path, dtype="float64", kv_dtype="float64")
    out = model.forward([Span(model.new_state(N, SLACK), IDS, N)], taps=range(-1, 5))
    with torch.inference_mode():
        logits, left = tiny.reference(torch.float64, rounding=True).run(torch.tensor(IDS))
        off = tiny.reference(torch.float64, rounding=False).run(torch.tensor(IDS))[0]
    assert np.abs(off.numpy() - out.logits).max() > 0.1, "the rounding does not show"
    assert_allclose(out.logits, logits.numpy(), rtol=0, atol=1e-6)
    for i, streams in enumerate(left):
        assert_allclose(out.taps[i], streams.mean(1).numpy(), rtol=0, atol=1e-6)
    assert_allclose(out.taps[4], left[-1].flatten(1).numpy(), rtol=0, atol=1e-6)  # all streams, as they enter the head
    assert_array_equal(out.taps[-1], tiny.weights["embed.weight"][IDS].numpy())


@pytest.mark.parametrize("ratio", [4, 32])
def test_past_position_ten_thousand_it_is_what_the_reference_computes(ratio: int, tmp_path: Path) -> None:
    """Pools hold thousands of entries there. The state is filled with what the reference says lies in it; then rows, and the taps
    that drafts start from, are the reference's. One layer has a pool, so that the reference needs its last rows only."""
    n, tail, p = 10_310, 80, "layers.0."
    tiny = make_tiny(hca=32, compress_ratios=[ratio if ratio == 4 else 128, 0], num_hidden_layers=2, num_hash_layers=0)
    ids = np.random.default_rng(9).integers(2, 320, n).tolist()
    r = tiny.reference(torch.float64, rounding=True)
    h, seen = r.w["embed.weight"][ids][:, None].repeat(1, 4, 1), list[torch.Tensor]()
    r.site(h, p + "hc_attn", lambda x: seen.append(x) or x)  # type: ignore[func-returns-value]
    x = rms(seen[0], r.w[p + "attn_norm.weight"])
    y = r.attention(x, p + "attn.", ratio, since=n - tail)
    last = r.site(h[-tail:], p + "hc_attn", lambda _: y)
    last = r.site(last, p + "hc_ffn", lambda z: r.moe(rms(z, r.w[p + "ffn_norm.weight"]), p + "ffn.", torch.tensor(ids[-tail:])))
    above = r.block(last, "layers.1.", 0, torch.tensor(ids[-tail:]))  # only distances count in a layer with a window alone
    want = r.head(above, "", "norm.weight")

    at = n - tail + 3 * WINDOW  # 32 rows, of which the first begins no group
    model = load(tiny.write(tmp_path / "t.gguf"), dtype="float64", kv_dtype="float64", max_rows=32)
    state = model.new_state(n, SLACK)
    r.site(last, "layers.1.hc_attn", lambda z: seen.append(z) or z)  # type: ignore[func-returns-value]
    z = rms(seen[1], r.w["layers.1.attn_norm.weight"])
    kv = rms(z @ r.w["layers.1.attn.wkv.weight"].T, r.w["layers.1.attn.kv_norm.weight"])
    held = [r.latents(x, p + "attn.", ratio), *filled(r, x, p + "attn.compressor.", ratio, 80, r.round_latent)]
    if ratio == 4:
        held += filled(r, x, p + "attn.indexer.compressor.", ratio, 32, lambda rows: fp4(hadamard(rows)))
    held.append(r.round_latent(r.rope(kv, torch.arange(n - tail, n), 0)))
    arrays: dict[str, Any] = {"pos": np.array(at, np.int64), "tiles": np.zeros((0, 2), np.int64)}
    for i, (own, rows) in enumerate(zip(state.caches, held, strict=True)):
        end = at // own.every if hasattr(own, "every") else at
        first = 0 if hasattr(own, "every") else at - own.window
        start = n - tail if len(rows) == tail else 0
        arrays |= {f"cache.{i}.first": np.array(first, np.int64), f"cache.{i}.keys": np.zeros((1, end - first, 0))}
        arrays[f"cache.{i}.values"] = rows[first - start : end - start].numpy()[None]
    state.load(arrays)
    out = model.forward([Span(state, ids[at:], n - at)], taps=[0, 1, 2])
    assert_allclose(out.logits, want[at - n :].numpy(), rtol=0, atol=1e-6)
    assert_allclose(out.taps[0], last[at - n :].mean(1).numpy(), rtol=0, atol=1e-6)
    assert_allclose(out.taps[1], above[at - n :].mean(1).numpy(), rtol=0, atol=1e-6)
    assert_allclose(out.taps[2], above[at - n :].flatten(1).numpy(), rtol=0, atol=1e-6)


def filled(r: Any, x: torch.Tensor, p: str, ratio: int, d: int, rounded: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """What lies in the ring of projected rows of a compressor, and in its pool."""
    projected = torch.cat([x @ r.w[p + "wkv.weight"].T, x @ r.w[p + "wgate.weight"].T], 1)
    return [projected, rounded(r.compress(x, p, ratio, d))]


def test_the_indexer_needs_its_rounding(tiny: TinyV4) -> None:
    """The fixture says something: with and without rounding the indexer keeps other entries for many rows."""
    kept: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for rounding, found in kept.items():
        reference = tiny.reference(torch.float64, rounding)
        plain = reference.chosen
        reference.chosen = lambda *args: found.append(plain(*args)) or found[-1]  # type: ignore[method-assign,func-returns-value]  # noqa: B023
        reference.run(torch.tensor(IDS))
    differ = [(a != b).any(1).float().mean().item() for a, b in zip(kept[True], kept[False], strict=True)]
    assert len(differ) == 2 and min(differ) > 0.2


def test_half_precision_caches_agree_in_most_rows(tiny: TinyV4, path: Path) -> None:
    """float16 rows hold the rounded dimensions exactly; the others change the indexer's choice in a random model."""
    model = load(path, kv_dtype="float16")
    ours = feed(model, model.new_state(N, SLACK), IDS)
    theirs = tiny.reference(torch.float64, rounding=True).run(torch.tensor(IDS))[0].numpy()
    assert np.isfinite(ours).all()
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() > 0.9


@pytest.mark.parametrize("hardware", host_paths())
def test_compiled_kernels_compute_the_same(tiny: TinyV4, path: Path, hardware: str) -> None:
    """Float weights, so that only float16 caches and the order of sums differ: rows either agree closely or the indexer chose
    otherwise in them, which a few may."""
    ours, n = on_cpu(path, hardware, 60), 0
    state, found = ours.new_state(N, SLACK), []
    for n in range(0, N, 60):
        found.append(feed(ours, state, IDS[n : n + 60]))
    reference = load(path, kv_dtype="float16")
    theirs = feed(reference, reference.new_state(N, SLACK), IDS)
    gap = np.abs(np.concatenate(found) - theirs).max(-1)
    assert gap[:35].max() < 1e-4, "before the indexer has a choice"
    assert np.median(gap) < 1e-4 and (gap < 1e-3).mean() > 0.8
    assert (np.concatenate(found).argmax(-1) == theirs.argmax(-1)).mean() > 0.95


@pytest.mark.parametrize("kind", [GgmlType.Q8_0, GgmlType.Q4_K, GgmlType.IQ2_XXS, GgmlType.MXFP4])
def test_quantised_files_keep_to_the_reference(kind: GgmlType, tmp_path: Path) -> None:
    """The mixes of real files: Q8_0 matrices; experts of one type, or IQ2_XXS with Q2_K for the way down. Products take int8
    activations, which is most of the difference; the file's rows are decoded alike."""
    tiny = make_tiny(hca=24, hidden_size=256, moe_intermediate_size=256, compress_ratios=[0, 128], num_hidden_layers=2)
    path = tiny.write(tmp_path / "q.gguf", GgmlType.Q8_0, kind, GgmlType.Q2_K if kind == GgmlType.IQ2_XXS else None)
    ours, reference = on_cpu(path, max_rows=60), load(path, kv_dtype="float16")
    a, b = (feed(model, model.new_state(60, SLACK), IDS[:60]) for model in (ours, reference))
    assert np.abs(a - b).mean() < 0.03 * b.std()
    assert (a.argmax(-1) == b.argmax(-1)).mean() > 0.9


# --- against itself --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(path: Path) -> LoadedModel:
    """Rows whose bits do not depend on other rows. (tests/contracts does the same on the reference, for fewer tokens.)"""
    return on_cpu(path)


@pytest.fixture(scope="module")
def plain(rows: LoadedModel) -> tuple[F32, State]:
    """Decoded one token at a time: logits [N, V], and the state."""
    state = rows.new_state(N + SLACK, SLACK)
    return in_chunks(rows, state, [1] * N), state


def test_every_threshold_is_crossed_twice(plain: tuple[F32, State]) -> None:
    assert min(thresholds(plain[1]).values()) >= 2, thresholds(plain[1])


def test_blocks_are_single_steps(rows: LoadedModel, plain: tuple[F32, State]) -> None:
    """Blocks of 2..8 rows, each at every alignment to groups of 4, bit for bit, and the same caches in the end."""
    state, sizes, met = rows.new_state(N + SLACK, SLACK), list[int](), set()
    while sum(sizes) < N:
        n = min(2 + len(sizes) % 7, N - sum(sizes))
        met.add((n, sum(sizes) % 4))
        sizes.append(n)
    assert {(n, at) for n in range(2, 9) for at in range(4)} <= met
    assert_array_equal(in_chunks(rows, state, sizes), plain[0])
    for a, b in zip(remembered(state), remembered(plain[1]), strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize("hardware", host_paths())
def test_ragged_chunks_are_single_steps(path: Path, hardware: str) -> None:
    """Up to 64 rows, where products of many rows take other kernels; over the ends of groups of 128 and rings."""
    model = on_cpu(path, hardware, 64)
    state, single = model.new_state(150, SLACK), model.new_state(150, SLACK)
    one_by_one = in_chunks(model, single, [1] * 150)
    assert_array_equal(in_chunks(model, state, [64, 1, 37, 2, 46]), one_by_one)
    for a, b in zip(remembered(state), remembered(single), strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize("hardware", host_paths())
def test_threads_do_not_show(path: Path, hardware: str) -> None:
    """Scores of the indexer are split by entries, attention by heads, all else by rows or columns: 1, 3 and 5 threads, with pools
    of every length up to 40 entries."""
    found = []
    for threads in (1, 3, 5):
        model = load_model(open_gguf(path), CpuKernels(threads, 9, hardware))
        state = model.new_state(N, SLACK)
        logits = in_chunks(model, state, [9, 1, 7, 1, 2] * 8)
        found.append([logits, *remembered(state)])
        model.kernels.executor.close()  # type: ignore[attr-defined]
    for other in found[1:]:
        for ours, want in zip(other, found[0], strict=True):
            assert_array_equal(ours, want)


def test_rejected_drafts_leave_nothing(rows: LoadedModel, plain: tuple[F32, State]) -> None:
    """Before true tokens 1..8 wrong ones are verified and rejected, at every alignment to groups of 4 and over the ends of groups
    of 128. Bits of the true rows and of the caches."""
    state, tried, closed = rows.new_state(N + 2 * SLACK, SLACK), set(), 0
    for pos, token in enumerate(IDS):
        k = 1 + (pos * 5 + pos // 8) % SLACK
        wrong = OTHER[pos : pos + k]
        assert_array_equal(feed(rows, state, [token, *wrong])[0], plain[0][pos], err_msg=f"position {pos}, {k} rejected")
        state.truncate(pos + 1)
        tried |= {(len(wrong), pos % 4)}
        closed += (pos + 1 + len(wrong)) // 128 > (pos + 1) // 128
    assert {(n, at) for n in range(1, 9) for at in range(4)} <= tried and closed > 4
    for a, b in zip(remembered(state), remembered(plain[1]), strict=True):
        assert_array_equal(a, b)


def test_a_prompt_asks_for_no_logits(rows: LoadedModel, plain: tuple[F32, State]) -> None:
    state = rows.new_state(60, SLACK)
    for at in range(0, 45, 9):
        assert rows.forward([Span(state, IDS[at : at + 9])]).logits.shape == (0, 320)
    assert_array_equal(feed(rows, state, IDS[45:50]), plain[0][45:50])


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The same with groups of 24 where the real model has 128, for many short runs."""
    tiny = make_tiny(hca=24, compress_ratios=[4, 128], num_hidden_layers=2)
    return on_cpu(tiny.write(tmp_path_factory.mktemp("v4") / "short.gguf"))


@cache
def fresh(model: LoadedModel, ids: tuple[int, ...]) -> tuple[F32, State]:
    state = model.new_state(160, SLACK)
    sizes = [9] * (len(ids) // 9) + ([len(ids) % 9] if len(ids) % 9 else [])
    return in_chunks(model, state, sizes, ids), state


STEPS = st.lists(st.tuples(st.sampled_from("aaat"), st.integers(1, 9)), min_size=4, max_size=24)


@given(start=st.integers(0, 100), steps=STEPS, salt=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_any_history_leaves_what_a_fresh_run_leaves(short: LoadedModel, start: int, steps: list[Any], salt: int) -> None:
    """Advance by a few tokens, some of them wrong, truncate within the slack, advance again ..."""
    rng = np.random.default_rng(salt)
    ids = list(IDS[:start])
    state = short.new_state(160, SLACK)
    for at in range(0, start, 9):
        feed(short, state, ids[at : at + 9])
    for what, n in steps:
        if what == "a" and state.pos + n <= 150:
            new = rng.integers(2, 320, n).tolist()
            feed(short, state, new)
            ids += new
        elif what == "t":
            to = max(state.pos - n, state.floor)
            assert state.floor <= max(0, state.high - SLACK), "the slack is not reachable"
            state.truncate(to)
            del ids[to:]
    other = fresh(short, tuple(ids))[1]
    for a, b in zip(remembered(state), remembered(other), strict=True):
        assert_array_equal(a, b)
    last = feed(short, state, [7])
    again = short.new_state(160, SLACK)
    again.restore(other.snapshot())
    assert_array_equal(last, feed(short, again, [7]))


def test_snapshots_files_and_checkpoints_come_back(short: LoadedModel) -> None:
    """At every alignment to groups of 4 and 24: a state goes on from any kind of copy as if it had never stopped."""
    ids = IDS[:140]
    whole = fresh(short, tuple(ids))[0]
    runner = short.new_state(160, SLACK)
    for pos in range(60, 60 + 26):
        while runner.pos < pos:
            feed(short, runner, ids[runner.pos : min(pos, runner.pos + 9)])
        snapshot, check, saved = runner.snapshot(), runner.checkpoint(), runner.payload()
        assert check.n_bytes < snapshot.n_bytes, "pools need no copy"
        for other in (short.new_state(160, SLACK), short.new_state(400, SLACK + 30)):
            other.restore(snapshot)
            assert_array_equal(feed(short, other, ids[pos : pos + 9]), whole[pos : pos + 9])
        loaded = short.new_state(160, SLACK)
        loaded.load(saved)
        assert_array_equal(feed(short, loaded, ids[pos : pos + 9]), whole[pos : pos + 9])
    for _ in range(5):
        feed(short, runner, ids[runner.pos : runner.pos + 9])
    assert runner.floor > pos, "truncating would have done"
    runner.restore(check)
    assert_array_equal(feed(short, runner, ids[pos : pos + 9]), whole[pos : pos + 9])


def test_sessions_in_one_call_are_what_they_are_alone(short: LoadedModel) -> None:
    texts = [IDS[:100], OTHER[:90], IDS[100:170]]
    alone = [fresh(short, tuple(text))[0] for text in texts]
    states, found = [short.new_state(160, SLACK) for _ in texts], [list[F32]() for _ in texts]
    for i in range(60):
        sizes = [(1, 3, 2)[(i + s) % 3] for s in range(3)]
        spans = [
            Span(state, text[state.pos : state.pos + n], n)
            for state, text, n in zip(states, texts, sizes, strict=True)
            if state.pos + n <= len(text)
        ]
        if not spans:
            break
        out = short.forward(spans)
        at = [s for s in range(3) if any(span.state is states[s] for span in spans)]
        for k, s in enumerate(at):
            found[s] += list(out.of(k).copy())
    for rows, whole in zip(found, alone, strict=True):
        assert len(rows) > 60
        assert_array_equal(np.stack(rows), whole[: len(rows)])


# --- files ------------------------------------------------------------------------------------------------------------------


def config_of(tiny: TinyV4, path: Path, **keys: Any) -> Config:
    """The metadata read back, with some keys changed (None: left out)."""
    changed = replace(tiny, extra={f"deepseek4.{name.replace('__', '.')}": value for name, value in keys.items()})
    return Config.read(Header(open_gguf(changed.write(path))))


def test_what_later_files_leave_out_has_its_default(tiny: TinyV4, tmp_path: Path) -> None:
    """Rope scaling and the context are optional in newer files; unknown keys and a known gating number are accepted."""
    names = ("factor", "original_context_length", "yarn_beta_fast", "yarn_beta_slow")
    absent: dict[str, Any] = {f"rope__scaling__{name}": None for name in names}
    config = config_of(tiny, tmp_path / "a.gguf", **absent, context_length=None, expert_gating_func=4, nextn_predict_layers=1)
    assert config.n_ctx_train == 1 << 20 and not config.is_pro
    # the numbers of the real model: pairs up to 15 of 32 keep their speed, those from 25 on have a sixteenth
    real = config_of(tiny, tmp_path / "b.gguf", **absent, attention__key_length=128, attention__value_length=128,
                     rope__dimension_count=64, attention__indexer__key_length=128)  # fmt: skip
    plain = 160000.0 ** -(np.arange(0, 64, 2) / 64)
    assert_allclose(real.rope_pool.inv_freq[:16], plain[:16], rtol=1e-12)
    assert_allclose(real.rope_pool.inv_freq[25:], plain[25:] / 16, rtol=1e-12)
    assert_allclose(real.rope_window.inv_freq, 10000.0 ** -(np.arange(0, 64, 2) / 64), rtol=1e-12)
    assert real.rope_pool.magnitude == 1


def test_pro_is_recognised(tiny: TinyV4, tmp_path: Path) -> None:
    """V4 PRO is the same network with 61 layers and no leading layers without pools."""
    ratios = [128, 128, *[4, 128] * 29, 4]
    config = config_of(tiny, tmp_path / "a.gguf", block_count=61, attention__compress_ratios=ratios,
                       swiglu_clamp_exp=[10.0] * 61)  # fmt: skip
    assert config.is_pro and len(config.layer_caches) == 61
    assert config.layer_caches[0].pool == 2 and config.layer_caches[0].index_pool is None
    assert config.layer_caches[2].index_pool == 10


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"attention__compress_ratios": [0, 4]}, "fewer than the 4 layers"),
        ({"attention__compress_ratios": [0, 4, -1, 4]}, "each must be 0 or at least 2"),
        ({"attention__head_count_kv": 2}, "one latent per position"),
        ({"attention__output_group_count": 3}, "does not divide 4 heads"),
        ({"attention__indexer__key_length": 48}, "a power of two of at least 32"),
        ({"expert_gating_func": 2}, "sqrt(softplus)"),
        ({"expert_group_count": 4}, "grouped experts"),
        ({"expert_used_count": 9}, "above expert_count"),
        ({"hash_layer_count": 5}, "above block_count"),
        ({"hyper_connection__count": 99}, "at most 16"),
        ({"rope__dimension_count": 20}, "blocks of 64"),
        ({"swiglu_clamp_exp": None}, "is missing"),
        ({"attention__compress_rope_freq_base": 1.0}, "above 1"),
    ],
)
def test_impossible_metadata_is_refused_by_name(tiny: TinyV4, tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=re.escape(says)) as caught:
        config_of(tiny, tmp_path / "bad.gguf", **keys)
    assert next(iter(keys)).replace("__", ".") in str(caught.value)


def test_a_damaged_table_of_experts_is_refused(tiny: TinyV4, tmp_path: Path) -> None:
    weights = dict(tiny.weights)
    table = weights["layers.0.ffn.gate.tid2eid"].clone()
    table[17, 1] = 8
    weights["layers.0.ffn.gate.tid2eid"] = table
    path = replace(tiny, weights=weights).write(tmp_path / "bad.gguf")
    with pytest.raises(FormatError, match=r"ffn_gate_tid2eid.weight holds numbers outside 0\.\.7"):
        load(path)


def test_a_second_network_in_the_file_is_ignored_but_an_unknown_tensor_of_a_block_is_not(tiny: TinyV4, tmp_path: Path) -> None:
    extra = {"mtp.0.norm.weight": torch.ones(64)}
    arrays = replace(tiny, weights={**tiny.weights, **extra})
    load_model(open_gguf(arrays.write(tmp_path / "a.gguf", draft=True)), ReferenceKernels())
    unknown = replace(tiny, weights={**tiny.weights, "layers.1.attn.bias.weight": torch.ones(64)})
    with pytest.raises(UnsupportedError, match=r"blk\.1\.attn\.bias\.weight"):
        load_model(open_gguf(unknown.write(tmp_path / "b.gguf")), ReferenceKernels())
