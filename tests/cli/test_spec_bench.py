"""ds4-bench --spec: figures made by hand become the right cells; a whole run writes its table, files and picture."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from draft_tools import PAIR
from tiny_models import tiny_gguf

from ds4py.cli.bench import main
from ds4py.cli.parsing import parse
from ds4py.cli.spec_bench import CSV_HEADER, TEXTS, Bench, Run, cell_of, configs_of, table
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.speculation import speculating
from ds4py.errors import UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import Draft, Pass, SpecStats
from ds4py.tokenizer import load_tokenizer


def run(tokens: int, seconds: float, *accepted: int) -> Run:
    """A run whose passes each drafted four tokens, of which so many were accepted."""
    stats = SpecStats()
    for n in accepted:
        stats.count(Pass(0, 1, 4, Draft([1, 2, 3, 4], source="x"), n + 1, 0.01, 0.1, 5))
    return Run(tokens, seconds, stats)


def test_a_cell() -> None:
    cell = cell_of("story", 1.0, "x", [10.0, 20.0, 10.0], [run(20, 1, 4, 0), run(20, 2, 2, 2), run(20, 1, 4, 4)])
    assert (cell.plain_tps, cell.tps) == (10.0, 20.0)
    assert (cell.ratio, cell.ratio_min, cell.ratio_max) == (2.0, 0.5, 2.0)
    assert (cell.tokens, cell.drafted, cell.accepted) == (60, 24, 16)
    assert cell.acceptance == pytest.approx(16 / 24) and cell.tokens_per_pass == pytest.approx(1 + 16 / 6)
    assert cell.accepted_by_position == pytest.approx([5 / 6, 5 / 6, 1 / 2, 1 / 2])
    assert len(cell.csv().split(",")) == len(CSV_HEADER.split(","))
    assert len({len(line) for line in table([cell])}) == 1, "a table is aligned"


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="--spec needs drafters"):
        configs_of(parse("ds4-bench", ["--spec", "none"]))
    with pytest.raises(UsageError, match="draft-mtp needs the file of the block that drafts"):
        configs_of(parse("ds4-bench", ["--spec", "ngram-mod,draft-mtp"]))
    with pytest.raises(UsageError, match="needs a draft model"):
        configs_of(parse("ds4-bench", ["--spec", "draft-simple"]))
    with pytest.raises(UsageError, match="--spec and --compare-llama-cpp"):
        parse("ds4-bench", ["--spec", "ngram-mod", "--compare-llama-cpp"])


def test_settings_reach_the_drafters() -> None:
    argv = ["--spec", "ngram-mod,ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-exact"]
    found = configs_of(parse("ds4-bench", argv))
    assert [config.types for config in found] == [("ngram-simple",), ("ngram-mod",)]
    assert found[0].ngram_simple.key == 3 and found[0].accept == "exact"


def test_a_draft_that_listens_to_the_target_reads_the_prompt_itself(tmp_path: Path) -> None:
    """Forked sessions hand over no residuals, so such a draft would find nothing to go by and draft short."""
    g = open_gguf(PAIR / "target.gguf")
    argv = ["--spec", "draft-dspark", "-md", str(PAIR / "dspark.gguf"), "--spec-depth", "fixed"]
    config = configs_of(parse("ds4-bench", argv))[0]
    tokenizer = load_tokenizer(g)
    bench = Bench(g, tokenizer, Engine.open(g, EngineOptions(n_ctx=1024, threads=1, max_rows=16)), 40)
    heard: list[int] = []
    options = SessionOptions(trace=lambda done: heard.append(done.drafted))
    session = bench._standing("story", speculating(options, bench.drafters(config)))
    assert session.drafter.pos == len(session.tokens) - 1 and session.drafter.floor == 0
    for _ in session.generate(8):
        pass
    assert heard[0] == 7, "the first draft is a whole block"
    assert bench.run("story", 1.0, 3, config).tokens == 40


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_gguf("llama", tmp_path / "tiny.gguf", max_position_embeddings=4096)
    files = {name: tmp_path / f"bench.{name}" for name in ("csv", "json", "plot")}
    argv = ["-m", str(model), "-t", "1", "--spec", "ngram-map-k,draft-simple", "-md", str(model)]
    argv += ["--spec-ngram-map-k-size-n", "2", "--gen-tokens", "12", "--rounds", "1", "--spec-depth", "fixed"]
    argv += [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "ds4-bench: speculation: ngram-map-k 2/48, up to 48 tokens ahead" in err and "draft-simple with tiny.gguf" in err
    assert out.count("| code edit") == 4 and out.count("| story") == 4 and "drafts may decide the text" in out
    rows = list(csv.DictReader(files["csv"].open()))
    cells = json.loads(files["json"].read_text())["cells"]
    assert len(rows) == len(cells) == 2 * 2 * len(TEXTS)
    drafted = [cell for cell in cells if cell["drafter"] == "draft-simple" and cell["temperature"] == 0]
    assert all(cell["acceptance"] == 1.0 and cell["tokens_per_pass"] > 1.5 for cell in drafted), "a model drafts well for itself"
    assert all(float(row["ratio"]) > 0 and row["tokens"] == "12" for row in rows)
    assert files["plot"].read_bytes().startswith(b"\x89PNG")
