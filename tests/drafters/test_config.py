"""What can be asked of speculation, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4py.drafters import ModSizes, NgramSizes, SpecConfig, open_drafters, parse_types, recognise
from ds4py.drafters.chain import Chain
from ds4py.drafters.config import PRECEDENCE
from ds4py.engine import Engine, FixedDepth, SessionOptions, TargetDraw
from ds4py.engine.accept import Opportunistic
from ds4py.engine.cost import CostAware
from ds4py.engine.depth import Adaptive, SkipStreak
from ds4py.engine.ds4_depth import Ds4Depth
from ds4py.engine.schedule import FixedSchedule, Penalties
from ds4py.engine.speculation import line, speculating, target_of
from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.protocols import SamplingParams

NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def test_types_are_a_set_in_llama_cpps_order() -> None:
    assert parse_types("draft-simple, ngram-cache,ngram-simple,ngram-cache") == ("ngram-simple", "ngram-cache", "draft-simple")
    assert parse_types("none") == parse_types("ngram-mod,none") == ()
    assert SpecConfig(("ngram-cache", "ngram-simple")).types == ("ngram-simple", "ngram-cache")
    for wrong in ("ngram", "", "ngram-mod,", "draft"):
        with pytest.raises(UsageError, match="unknown speculative type"):
            parse_types(wrong)


@pytest.mark.parametrize(
    "settings",
    [
        {"types": ("ngram",)},
        {"types": ("draft-simple",)},
        {"n_max": -1},
        {"n_max": 1025},
        {"n_min": -1},
        {"p_min": -0.1},
        {"p_min": float("nan")},
        {"conf_min": float("inf")},
        {"draft_threads": 0},
        {"ngram_simple": NgramSizes(0)},
        {"ngram_map_k": NgramSizes(12, 1025)},
        {"ngram_map_k4v": NgramSizes(min_hits=0)},
        {"ngram_mod": ModSizes(n_match=0)},
        {"ngram_mod": ModSizes(n_max=1025)},
        {"accept": "greedy"},
        {"depth": "deep"},
        {"skip_streak": 33},
    ],
)
def test_what_can_never_be_obeyed_is_refused(settings: Any) -> None:
    with pytest.raises(UsageError) as caught:
        SpecConfig(**settings)
    assert "\n" not in str(caught.value) and str(caught.value)


def test_the_ends_of_ranges_are_kept() -> None:
    for n in (1, 64, 1024):
        assert SpecConfig(n_max=n, ngram_simple=NgramSizes(n, n)).ngram_simple == NgramSizes(n, n)
    assert SpecConfig(n_max=0, p_min=1.01, n_min=0).p_min == 1.01


def opened(engine: Engine, **settings: Any) -> Any:
    assert engine.gguf is not None
    return open_drafters(SpecConfig(**settings), target_of(engine, engine.gguf))


def test_every_type_opens_and_a_list_is_a_chain(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    engine = tiny_engine()
    for name in NGRAMS:
        drafters = opened(engine, types=(name,))
        assert name in drafters.line and drafters.types == (name,) and drafters.new(False).pos == 0
    every = opened(engine, types=(*NGRAMS, "draft-simple"), draft_model=tiny_file(noise=0.04))
    assert isinstance(every.new(False), Chain) and len(every.new(False).members) == 6
    assert len(every.new(True).members) == 5, "a draft as dear as the target is left out where only counts may decide"
    assert [every.line.index(name) for name in every.types] == sorted(every.line.index(name) for name in every.types)
    assert every.n_max == 31, "a draft and one row more fit a forward"


def test_types_that_come_with_a_file_need_one(tiny_engine: Callable[..., Engine]) -> None:
    for name in PRECEDENCE[5:]:
        with pytest.raises(UsageError, match=f"{name} needs {'the file' if name == 'draft-mtp' else 'a draft model'}"):
            opened(tiny_engine(), types=(name,))


def test_policy_and_rule_follow_the_mode_and_the_temperature(tiny_engine: Callable[..., Engine]) -> None:
    hot, cold = SessionOptions(SamplingParams(0.8)), SessionOptions(SamplingParams(0))
    for settings, options, rule, depth in (
        ({}, cold, TargetDraw, CostAware),
        ({}, hot, Opportunistic, Adaptive),
        ({"accept": "exact"}, hot, TargetDraw, CostAware),
        ({"accept": "exact", "depth": "adaptive"}, hot, TargetDraw, Adaptive),
        ({"depth": "fixed"}, hot, Opportunistic, FixedDepth),
        ({"skip_streak": 2}, cold, TargetDraw, SkipStreak),
    ):
        drafters = opened(tiny_engine(), types=("ngram-simple",), **settings)
        made = speculating(options, drafters)
        assert type(made.rule) is rule and type(made.depth) is depth and made.drafter is not None
        assert speculating(options, drafters).drafter is not made.drafter
        assert "ngram-simple" in line(drafters) and "\n" not in line(drafters)


def test_the_line_names_the_policy_that_runs(tiny_engine: Callable[..., Engine]) -> None:
    """It said "cost" above temperature 0, where the policy that counts runs."""
    hot, cold = SessionOptions(SamplingParams(0.8)), SessionOptions(SamplingParams(0))
    masked = SessionOptions(SamplingParams(0), schedule=FixedSchedule(SamplingParams(0), Penalties(), {}, 32))
    names = {CostAware: "depth by cost", Adaptive: "depth by acceptance", FixedDepth: "fixed depth", Ds4Depth: "ds4's schedule"}
    rules = {TargetDraw: ("greedy", "exact"), Opportunistic: ("opportunistic",)}
    for accept in ("opportunistic", "exact"):
        for depth in ("cost", "adaptive", "fixed", "ds4"):
            drafters = opened(tiny_engine(), types=("ngram-simple",), accept=accept, depth=depth)
            for options in (hot, cold, masked):
                made = speculating(options, drafters)
                said = line(drafters, options).rsplit(", ", 2)
                assert said[1] == names[type(made.depth)] and said[2] in rules[type(made.rule)], (accept, depth, said)
    both = line(opened(tiny_engine(), types=("ngram-simple",)))
    assert both.endswith("depth by cost at temperature 0 and depth by acceptance above, opportunistic above temperature 0")
    streak = opened(tiny_engine(), types=("ngram-simple",), skip_streak=3)
    assert line(streak, cold).endswith(", greedy, one draft left out after 3 in a row without an accepted token")


def test_pools_are_shared_by_a_user_and_private_where_drafts_decide(tiny_engine: Callable[..., Engine]) -> None:
    drafters = opened(tiny_engine(), types=("ngram-mod",))
    a, b, other, private = drafters.new(False, "a"), drafters.new(False, "a"), drafters.new(False, "b"), drafters.new(True, "a")
    assert a.pool is b.pool and len({id(x.pool) for x in (a, other, private)}) == 3
    for i in range(20):
        drafters.new(False, f"user {i}")
    assert drafters.new(False, "a").pool is not a.pool, "the least recent pools go"


def test_damaged_lookup_files_are_refused(tiny_engine: Callable[..., Engine], tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"\0" * 7)
    with pytest.raises(FormatError):
        opened(tiny_engine(), types=("ngram-cache",), lookup_static=tmp_path / "l")


@pytest.mark.parametrize(
    ("architecture", "tensors", "kind"),
    [
        ("dflash", ("markov_w1.weight",), "draft-dspark"),
        ("dflash", (), "draft-dflash"),
        ("eagle3", (), "draft-eagle3"),
        ("qwen35", ("blk.3.nextn.eh_proj.weight",), "draft-mtp"),
        ("gemma4-assistant", (), "draft-mtp"),
        ("deepseek4-mtp", (), "draft-mtp"),
        ("deepseek4", ("mtp.0.e_proj.weight",), "draft-mtp"),
        ("deepseek4-dspark", ("mtp.2.markov_head.markov_w1.weight",), "draft-dspark"),
        ("llama", (), "draft-simple"),
    ],
)
def test_a_draft_file_is_recognised(tmp_path: Path, architecture: str, tensors: tuple[str, ...], kind: str) -> None:
    import numpy as np

    made = [NewTensor.of(name, np.zeros((1, 32), np.float32)) for name in (*tensors, "x.weight")]
    write_gguf(tmp_path / "d.gguf", {"general.architecture": architecture, f"{architecture}.block_count": 4}, made)
    assert recognise(open_gguf(tmp_path / "d.gguf")) == kind


def test_a_recognised_type_that_is_not_there_yet_says_so(tiny_engine: Callable[..., Engine], tmp_path: Path) -> None:
    import numpy as np

    made = [NewTensor.of("x.weight", np.zeros((1, 32), np.float32))]
    write_gguf(tmp_path / "d.gguf", {"general.architecture": "gemma4-assistant"}, made)
    with pytest.raises(UnsupportedError, match="draft-mtp"):
        opened(tiny_engine(), draft_model=tmp_path / "d.gguf")


def test_no_tokens_of_a_draft_model_is_no_draft_model(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    """--spec-draft-n-max 0: model types draft nothing, n-grams go on; the draft's weights are not even loaded."""
    engine, path = tiny_engine(), tiny_file(noise=0.04)
    alone = opened(engine, draft_model=path, n_max=0)
    assert alone.types == () and alone.new(False) is None
    assert alone.line == "speculation: off, because --spec-draft-n-max 0 lets draft-simple draft nothing"
    chained = opened(engine, types=("ngram-simple", "draft-simple"), draft_model=path, n_max=0)
    assert chained.types == ("ngram-simple",) and type(chained.new(False)).__name__ == "NgramSimple"
    assert chained.line.endswith("; --spec-draft-n-max 0 lets draft-simple draft nothing")
    assert opened(engine, types=("ngram-simple",), n_max=0).line == opened(engine, types=("ngram-simple",)).line
