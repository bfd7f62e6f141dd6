"""ds4-eval --spec: loops are seen, the arithmetic is right, hand-made runs become the right cells, a run writes its files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from draft_tools import PAIR

from ds4py.cli.eval.breakeven import Costs, Need, chance_for, easiest, need, sentences, tokens_of
from ds4py.cli.eval.cells import Round, cell, cells
from ds4py.cli.eval.choices import contenders, temperatures
from ds4py.cli.eval.command import main
from ds4py.cli.eval.costs import draft_costs, rising, row_counts
from ds4py.cli.eval.loops import looping, stale_share, tail_period
from ds4py.cli.eval.prompts import CATEGORIES, chosen, own_prompts, parsed
from ds4py.cli.eval.report import CSV_HEADER, table
from ds4py.cli.eval.report import csv as csv_line
from ds4py.cli.eval.runs import Run
from ds4py.cli.parsing import parse
from ds4py.errors import FormatError, UsageError
from ds4py.protocols import Draft, Pass, SpecStats

WORDS = "it is only when the last leaf has come down that one sees how many nests there were in this tree all summer long".split()


def run(seconds: float, *accepted: int, answer: Sequence[int] | None = None) -> Run:
    """A run whose passes each drafted four tokens in 10 ms, of which so many were accepted."""
    stats, passes = SpecStats(), []
    for n in accepted:
        passes.append(Pass(0, 1, 4, Draft([1, 2, 3, 4], source="x"), n + 1, 0.01, 0.1, 5))
        stats.count(passes[-1])
    n_tokens = sum(accepted) + len(accepted)
    return Run([list(range(n_tokens)) if answer is None else answer], 10, 0.5, seconds, stats, passes, "length")


# --- loops -------------------------------------------------------------------------------------------------------------------


def test_a_tail_that_repeats() -> None:
    assert tail_period(WORDS) == 0 and looping(WORDS) == ""
    assert tail_period([*WORDS, *["and", "so"] * 12]) == 2
    assert tail_period([*WORDS, *["no"] * 24]) == 1
    assert tail_period([*WORDS, *["no"] * 23]) == 0, "too short to be sure"
    assert tail_period([*WORDS, *list(range(30)) * 3]) == 30
    assert tail_period([*WORDS, *list(range(30)) * 2]) == 0, "said twice is no loop"
    assert tail_period([*["and", "so"] * 12, *WORDS]) == 0, "it found a way out"
    assert "repeats every 2 tokens" in looping([*WORDS, *["and", "so"] * 12])


def test_a_loop_with_a_counter() -> None:
    step = "mix all of it well and wait for an hour or so until it cools".split()
    text = [part for i in range(8) for part in ("step", str(i), *step)]
    assert tail_period(text) == 0 and stale_share(text) > 0.3
    long = [part for i in range(6) for part in (str(i), *WORDS)]
    assert "stood in it before" in looping(long)


def test_short_texts_and_nothing() -> None:
    assert looping([]) == looping([1]) == looping([1] * 10) == ""


# --- arithmetic --------------------------------------------------------------------------------------------------------------


def test_chances() -> None:
    assert tokens_of(0.5, 2) == 1.75 and tokens_of(1, 4) == 5 and tokens_of(0, 4) == 1
    assert chance_for(1.75, 2) == pytest.approx(0.5)
    assert chance_for(1.0, 3) == 0.0 and chance_for(0.9, 3) == 0.0
    assert chance_for(4.0, 3) == pytest.approx(1.0) and chance_for(4.01, 3) is None
    for depth in (1, 2, 5, 16):
        for tokens in (1.2, 1.5, 1.9):
            found = chance_for(tokens, depth)
            assert found is not None and tokens_of(found, depth) == pytest.approx(tokens)


def test_a_pass_costs_its_rows_and_its_draft() -> None:
    costs = Costs({1: 0.010, 2: 0.012, 5: 0.024}, {2: 0.004, 4: 0.008})
    assert costs.of(1) == pytest.approx((0.012 + 0.002) / 0.010), "one draft costs half of two"
    assert costs.of(2) == pytest.approx((0.016 + 0.004) / 0.010), "rows between measured ones"
    assert costs.of(4) == pytest.approx((0.024 + 0.008) / 0.010)
    block = Costs(costs.verify, {4: 0.008}, in_one_pass=True)
    assert block.of(1) == pytest.approx((0.012 + 0.008) / 0.010)
    found = need("x", costs, 1)
    assert found.cost == pytest.approx(1.4) and found.even == pytest.approx(0.4) and found.fast is None
    assert found.fast_tokens == pytest.approx(2.1)


def test_what_each_drafter_is_told() -> None:
    needs = [Need("a", 1, 1.4, 0.4, None), Need("a", 3, 1.8, 0.45, 0.8), Need("b", 1, 3.0, None, None)]
    even, fast = easiest(needs[:2], fast=False), easiest(needs[:2], fast=True)
    assert even is needs[0] and fast is needs[1] and easiest(needs[2:], fast=True) is None
    told = sentences(needs, {"a": 2.25})
    assert told[0].startswith("a: breaks even at 0.40 accepted (1 ahead, a pass costs 1.40 tokens); 1.5 x needs 0.80 (3 ahead")
    assert told[0].endswith("it committed 2.25 a pass")
    assert told[1] == "b: no acceptance breaks even, whatever the depth; no acceptance makes it 1.5 x"


def test_costs_of_drafts_and_rows() -> None:
    assert draft_costs([run(1, 0, 4), run(1, 2)]) == {4: 0.01}
    late = Run([[1]], 1, 0, 1, SpecStats(), [Pass(0, 1, 4, Draft([1], source="x", lag=9), 1, 9.0, 0.1, 2)], "")
    assert draft_costs([late]) == {}, "a draft that had to catch up says nothing"
    assert row_counts(3) == [1, 2, 3, 4]
    assert row_counts(48)[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11] and row_counts(48)[-1] == 49
    assert rising({1: 2.0, 2: 1.5, 4: 3.0}) == {1: 2.0, 2: 2.0, 4: 3.0}


# --- cells -------------------------------------------------------------------------------------------------------------------


def test_a_cell_compares_with_the_faster_plain_run_of_its_round() -> None:
    plain = (run(2.0, 0, 0), run(1.0, 0, 0))
    rounds = [
        Round("p", "code", 1.0, plain, {"x": run(1.0, 4, 0)}, False),
        Round("q", "code", 1.0, plain, {"x": run(4.0, 2, 2)}, False),
    ]
    found = cell("code", 1.0, "x", rounds)
    assert rounds[0].plain_tps == 2.0 and (found.ratio_min, found.ratio_max) == (0.75, 3.0)
    assert (found.rounds, found.looping, found.tokens, found.drafted, found.accepted) == (2, 0, 12, 16, 8)
    assert found.acceptance == 0.5 and found.tokens_per_pass == 3.0
    assert found.accepted_by_position == pytest.approx([3 / 4, 3 / 4, 1 / 4, 1 / 4])
    assert len(csv_line(found).split(",")) == len(CSV_HEADER.split(","))


def test_looping_rounds_are_counted_and_left_out() -> None:
    loop, fine = run(1.0, 4, answer=[7] * 30), run(1.0, 4)
    rounds = [
        Round("p", "chat", 0.0, (loop, loop), {"x": fine, "y": fine}, True),
        Round("q", "chat", 0.0, (fine, fine), {"x": loop, "y": fine}, True),
        Round("r", "code", 0.0, (fine, fine), {"x": fine, "y": fine}, True),
    ]
    found = {(one.category, one.drafter): one for one in cells(rounds)}
    assert (found["chat", "x"].rounds, found["chat", "x"].looping, found["chat", "x"].ratio) == (0, 2, 0.0)
    assert (found["chat", "y"].rounds, found["chat", "y"].looping) == (1, 1)
    assert (found["all", "x"].rounds, found["all", "x"].looping) == (1, 2)
    shown = table(list(found.values()))
    assert len({len(line) for line in shown}) == 1 and any("| -" in line for line in shown)


def test_a_changed_text_is_seen() -> None:
    same, other = run(1.0, 1), run(1.0, 1, answer=[0, 9])
    assert not Round("p", "chat", 0.0, (same, same), {"x": same}, True).differs("x")
    assert Round("p", "chat", 0.0, (same, same), {"x": other}, True).differs("x")
    assert not Round("p", "chat", 1.0, (same, same), {"x": other}, False).differs("x")


# --- prompts and options -----------------------------------------------------------------------------------------------------


def test_our_own_prompts() -> None:
    found = own_prompts()
    assert {prompt.category for prompt in found} == set(CATEGORIES) and len({prompt.id for prompt in found}) == len(found)
    assert all(sum(prompt.category == name for prompt in found) == 6 for name in CATEGORIES)
    assert any(len(prompt.turns) > 1 for prompt in found)
    assert [prompt.category for prompt in chosen(found, ["chat", "code"], 2)] == ["chat"] * 2 + ["code"] * 2
    with pytest.raises(UsageError, match="no category 'maths'; there are code, chat, summarise, translate"):
        chosen(found, ["maths"], None)


@pytest.mark.parametrize("line", ["{", "[]", '{"id": "a"}', '{"id": "a", "category": "b", "turns": []}', '{"id": 1}'])
def test_prompts_that_are_none(line: str) -> None:
    with pytest.raises(FormatError, match=r"x\.jsonl, line 2"):
        list(parsed(f'{{"id": "a", "category": "b", "turns": ["c"]}}\n{line}\n', "x.jsonl"))


def test_who_takes_part() -> None:
    assert [one.name for one in contenders(parse("ds4-eval", ["--spec"]))] == ["ngram-map-k"]
    with_draft = contenders(parse("ds4-eval", ["--spec", "-md", str(PAIR / "target.gguf")]))
    assert [one.name for one in with_draft] == ["ngram-map-k", "draft-simple", "ngram-map-k+draft-simple"]
    named = contenders(parse("ds4-eval", ["--spec", "--drafters", "ngram-mod+ngram-simple, ngram-mod", "--spec-exact"]))
    assert [one.name for one in named] == ["ngram-simple+ngram-mod", "ngram-mod"]
    assert named[0].config is not None and named[0].config.accept == "exact"
    with pytest.raises(UsageError, match="needs a draft model"):
        contenders(parse("ds4-eval", ["--spec", "--drafters", "draft-simple"]))
    with pytest.raises(UsageError, match="unknown speculative type 'x'"):
        contenders(parse("ds4-eval", ["--spec", "--drafters", "x"]))
    assert temperatures(parse("ds4-eval", ["--temps", "0,0.7,0"])) == [0.0, 0.7]
    with pytest.raises(UsageError, match="--temps takes temperatures"):
        temperatures(parse("ds4-eval", ["--temps", "warm"]))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """In the language that the pair's target knows."""
    rows = [
        {"id": "log", "category": "log", "turns": ["day 12: the fox met the owl near the", "day 3: the swan"]},
        {"id": "code", "category": "code", "turns": ["def met_fox(fox, owl):\n"]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_whole_run(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"eval.{name}" for name in ("csv", "json", "plot")}
    target = str(PAIR / "target.gguf")
    argv = ["--spec", "-m", target, "-md", target, "-t", "1", "--prompts", str(prompts), "--gen-tokens", "24"]
    argv += ["--spec-ngram-map-k-size-n", "3", "--spec-depth", "fixed"]
    assert main([*argv, *(word for name, path in files.items() for word in (f"--{name}", str(path)))]) == 0
    told = capsys.readouterr().out
    assert "Text equal to plain decoding's where it must be: 6 of 6 runs." in told
    assert "draft-simple: " in told and "1.5 x" in told
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert len(rows) == 2 * 3 * 3 and {row["category"] for row in rows} == {"log", "code", "all"}
    wanted = {"drafter": "draft-simple", "temperature": "0", "category": "all"}
    perfect = next(row for row in rows if wanted.items() <= row.items())
    assert float(perfect["acceptance"]) == 1 and float(perfect["tokens_per_pass"]) > 3, "a model drafts for itself without a miss"
    found = json.loads(files["json"].read_text())
    assert {one["drafter"] for one in found["results"]} == {"plain", "ngram-map-k", "draft-simple", "ngram-map-k+draft-simple"}
    chatty = next(one for one in found["results"] if one["id"] == "log" and one["drafter"] == "plain")
    assert chatty["turns"] == 2 and chatty["completion_tokens"] == 48 and chatty["draft_n"] == 0
    assert {one["depth"] for one in found["needs"] if one["drafter"] == "draft-simple"} == {1, 2, 3}
    assert files["plot"].read_bytes().startswith(b"\x89PNG")


def test_a_text_that_was_changed_ends_the_run_with_an_error(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check must be able to fail: an accept rule that takes every draft is what it is for."""
    from ds4py.engine import speculation
    from ds4py.engine.accept import Synthetic

    monkeypatch.setattr(speculation, "TargetDraw", lambda: Synthetic([0.9, 0.8, 0.7], 0, frozenset()))
    target = str(PAIR / "target.gguf")
    argv = ["--spec", "-m", target, "-t", "1", "--prompts", str(prompts), "--gen-tokens", "32", "--temps", "0"]
    argv += ["--drafters", "ngram-map-k", "--spec-ngram-map-k-size-n", "1", "--spec-ngram-map-k-size-m", "3"]
    assert main([*argv, "--spec-depth", "fixed"]) == 1
    assert "changed the text of" in capsys.readouterr().err
