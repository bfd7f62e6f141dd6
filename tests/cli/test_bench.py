"""ds4-bench: frontiers, rows, files and the comparison, on the real small model and on figures made by hand."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds4py.cli import bench, compare, peers
from ds4py.cli.frontier import Row, frontiers, kv_in_use, measure
from ds4py.cli.parsing import parse
from ds4py.cli.peers import Figures, Job, from_json
from ds4py.cli.ratios import amx_gains, remarks, summarise, table
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.errors import UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams

AMX = frozenset({"avx512f", "amx_tile", "amx_int8"})
AVX2 = frozenset({"avx2"})
BUILT_WITH = "CPU : AVX512 = 1 | AMX_INT8 = 1"
BUILT_WITHOUT = "CPU : AVX512 = 1"
ENVIRON = os.environ | {"PYTHONPATH": str(Path(bench.__file__).resolve().parents[2])}


def run_bench(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ds4py.cli.bench", *args]
    return subprocess.run(command, cwd=cwd, env=ENVIRON, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("start", "last", "factor", "increment", "expected"),
    [
        (2048, 8192, 1.0, 2048, [2048, 4096, 6144, 8192]),
        (2048, 7000, 1.0, 2048, [2048, 4096, 6144, 7000]),
        (512, 5000, 2.0, 0, [512, 1024, 2048, 4096, 5000]),
        (100, 1000, 2.0, 50, [100, 250, 550, 1000]),
        (64, 64, 1.0, 2048, [64]),
    ],
)
def test_frontiers(start: int, last: int, factor: float, increment: int, expected: list[int]) -> None:
    assert frontiers(start, last, factor, increment) == expected


@pytest.mark.parametrize(("start", "factor", "increment"), [(200, 1.0, 10), (10, 1.0, 0), (1, 1.5, 0)])
def test_frontiers_that_cannot_be(start: int, factor: float, increment: int) -> None:
    with pytest.raises(UsageError, match="--ctx-start 200 is above --ctx-max 100|stay at"):
        frontiers(start, 100, factor, increment)


class TestPlan:
    def plan(self, *args: str, trained: int = 8192) -> bench.Plan:
        return bench.make_plan(parse("ds4-bench", args), trained)

    def test_defaults_stay_within_the_trained_context(self) -> None:
        plan = self.plan()
        assert (plan.frontiers[0], plan.frontiers[-1], plan.n_gen, plan.n_ctx) == (2048, 8192 - 128, 128, 8192)
        assert self.plan(trained=131072).frontiers == tuple(range(2048, 32769, 2048))
        assert self.plan(trained=1024).frontiers == (896,)

    def test_what_is_asked_is_taken(self) -> None:
        words = "--ctx-start 100 --ctx-max 20000 --step-mul 10 --gen-tokens 5 --ctx-alloc 30000"
        plan = self.plan(*words.split())
        assert plan == bench.Plan((100, 1000, 10000, 20000), 5, 30000, False)

    def test_too_small_an_allocation(self) -> None:
        with pytest.raises(UsageError, match="--ctx-alloc 600 is too small: --ctx-max 512 and --gen-tokens 128 need 640"):
            self.plan("--ctx-max", "512", "--ctx-alloc", "600", "--ctx-start", "1")

    def test_teacher_reads_further(self) -> None:
        assert self.plan("--ctx-max", "2048", "--teacher-forced-decode").n_text == 2048 + 128


@pytest.mark.parametrize(
    "args",
    [
        ["--ctx-start", "0"], ["--gen-tokens", "-1"], ["--step-mul", "nan"], ["--step-mul", "0.5"], ["--frobnicate"],
        ["--prompt-file", "a", "--chat-prompt-file", "b"], ["--compare-llama-cpp", "--plot", "x.png"],
    ],
)  # fmt: skip
def test_usage_errors_exit_2(args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(args) == 2
    told = capsys.readouterr()
    assert told.out == "" and "ds4-bench: " in told.err and "Traceback" not in told.err


def test_missing_model_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["-m", str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err


def small(path: Path) -> list[str]:
    return ["-m", str(path), "--ctx-start", "70", "--step-incr", "70", "--ctx-max", "200", "--gen-tokens", "6"]


def test_sweep_prints_ds4s_columns(smollm2_path: Path, tmp_path: Path) -> None:
    done = run_bench(*small(smollm2_path), "--warmup", "--show-output", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    columns = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes,first_token_ms,steady_tps"
    assert done.stdout.splitlines()[0] == columns
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [int(row["ctx_tokens"]) for row in rows] == [70, 140, 200]
    # The last token of a frontier is evaluated by the first decode pass: 69 rows, then only what is new.
    assert [int(row["prefill_tokens"]) for row in rows] == [69, 70, 60]
    assert all(int(row["gen_tokens"]) == 6 and float(row["gen_tps"]) > 0 and float(row["prefill_tps"]) > 0 for row in rows)
    assert all(float(row["first_token_ms"]) > 0 and float(row["steady_tps"]) > 0 for row in rows)
    sizes = [int(row["kvcache_bytes"]) for row in rows]
    assert sizes[0] == 69 * 30 * 2 * 3 * 64 * 2  # positions x layers x (keys, values) x kv heads x head size x f16
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert done.stderr.count("ds4-bench: at ") == 3
    assert list(tmp_path.iterdir()) == []


def test_sweep_writes_files(smollm2_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--csv", "rows.csv", "--plot", "rows.png", "--dump-frontier-logits-dir", "logits"]
    done = run_bench(*small(smollm2_path), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 4
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(path.name for path in (tmp_path / "logits").iterdir()) == [f"frontier_{n}.json" for n in (140, 200, 70)]
    dumped = json.loads((tmp_path / "logits" / "frontier_70.json").read_text())
    assert len(dumped["logits"]) == 49152
    assert max(range(49152), key=dumped["logits"].__getitem__) == dumped["argmax_token"]


def test_nothing_is_left_where_nothing_can_be_written(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for option in ("--csv", "--dump-frontier-logits-dir"):
        done = run_bench(*small(smollm2_path), option, "file/inside", cwd=tmp_path)
        assert done.returncode == 1 and "cannot" in done.stderr and "Traceback" not in done.stderr, option
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_measure_leaves_the_session_at_the_frontier_and_teacher_forces(smollm2_path: Path) -> None:
    engine = Engine.open(open_gguf(smollm2_path), EngineOptions(n_ctx=128))
    session = engine.session(SessionOptions(params=SamplingParams(temperature=0.0)))
    ids = list(range(1000, 1100))
    seen: list[int] = []
    row, decoded = measure(session, ids, 50, 4, on_logits=lambda logits: seen.append(int(logits.argmax())))
    assert session.tokens == ids[:50] and row.gen_tokens == 4
    assert seen == decoded[:1]
    row, forced = measure(session, ids, 60, 4, teacher=True)
    assert forced == ids[60:64] and row.gen_tokens == 4 and row.prefill_tokens == 10
    assert kv_in_use(session) == row.kvcache_bytes


def test_prompt_file_is_repeated_and_empty_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("One, two, three. ")
    done = run_bench(*small(smollm2_path), "--prompt-file", "short.txt", cwd=tmp_path)
    assert done.returncode == 0 and "is repeated up to 200" in done.stderr
    (tmp_path / "empty.txt").touch()
    done = run_bench(*small(smollm2_path), "--prompt-file", "empty.txt", cwd=tmp_path)
    assert done.returncode == 2 and "empty" in done.stderr


def test_own_text_is_long_and_varied() -> None:
    text = bench.own_text()
    assert len(text) > 4000 and len(set(text.split())) > 350


# --- the comparison ------------------------------------------------------------------------------------------------------


def figures(speed: float, seconds: float = 1.0) -> Figures:
    times = (10 * seconds, 15 * seconds, 20 * seconds)
    return Figures(seconds, 10 * seconds, (speed, 2 * speed), (speed, speed / 2), times, 100 * seconds, "info")


VERIFIED = ["verify 1", "verify 2", "verify 8", "verify 2", "verify 8"]
JOB = Job("m.gguf", (1, 2, 3), 2, 64, (128, 512), 128, "auto", (2048,), (1, 2, 8))


def test_ratios_are_formed_inside_rounds() -> None:
    """Both engines slow down together in round two: the ratio does not move, though the medians of the speeds would."""
    lines = summarise([figures(100), figures(10), figures(90)], [figures(50), figures(5), figures(60)], JOB, (1.0, 1.0))
    by_name = {line.name: line for line in lines}
    speeds = ["pp128", "pp512", "tg128", "tg128 at 2048"]
    assert [line.name for line in lines] == [*speeds, "load", "first token", "peak memory", *VERIFIED]
    assert by_name["tg128 at 2048"].ours == 45
    decode = by_name["tg128"]
    assert (decode.ours, decode.theirs) == (90, 50)
    assert (decode.ratio, decode.low, decode.high) == (2.0, 1.5, 2.0)


def test_costs_are_turned_round_and_gains_divide_speeds_only() -> None:
    lines = {line.name: line for line in summarise([figures(100, 1)], [figures(50, 3)], JOB, (2.0, 4.0))}
    assert lines["tg128"].ratio == lines["tg128 at 2048"].ratio == 1.0 and lines["pp512"].ratio == 0.5
    assert lines["load"].ratio == lines["peak memory"].ratio == 3.0


def test_verify_is_compared_in_ms_and_as_a_multiple_of_one_row() -> None:
    """An engine that is three times slower at everything pays the same multiple."""
    lines = summarise([figures(100, 1)], [figures(50, 3)], JOB, (1.0, 1.0))[-5:]
    assert [(line.name, line.unit, line.ours, line.ratio) for line in lines] == [
        ("verify 1", "ms", 10, 3), ("verify 2", "ms", 15, 3), ("verify 8", "ms", 20, 3),
        ("verify 2", "x 1 row", 1.5, 1), ("verify 8", "x 1 row", 2, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "prefill", "depths", "n_ctx"),
    [
        ([], (128, 512, 2048), (2048, 8191 - 128), 8192),
        (["--ctx-max", "3000"], (128, 512, 2048), (2048, 3000 - 129), 3072),
        (["--ctx-max", "600", "--gen-tokens", "8"], (128, 512), (600 - 9,), 768),
        (["--ctx-max", "1", "--gen-tokens", "8"], (128,), (), 256),
    ],
)
def test_the_comparison_goes_as_far_as_the_context(
    smollm2_path: Path, args: list[str], prefill: tuple[int, ...], depths: tuple[int, ...], n_ctx: int
) -> None:
    job = compare.make_job(open_gguf(smollm2_path), parse("ds4-bench", args), "One, two, three. ")
    assert (job.prefill, job.depths, job.n_ctx) == (prefill, depths, n_ctx)
    assert len(job.ids) > max(*prefill, *depths, 128 + 16) and job.verify[0] == 1 and job.verify[-1] == 16


def test_gains_need_a_build_without_amx_on_a_processor_with_it() -> None:
    smollm2 = 98_362_432
    assert amx_gains(smollm2, BUILT_WITHOUT, AMX) == (2.1, 4.2)
    assert amx_gains(smollm2, BUILT_WITH, AMX) is None
    assert amx_gains(smollm2, BUILT_WITHOUT, AVX2) is None
    assert amx_gains(12345, BUILT_WITHOUT, AMX) is None
    assert "divided by 2.1" in remarks(BUILT_WITHOUT, (2.1, 4.2), AMX)[-1]
    assert "unknown factor" in remarks(BUILT_WITHOUT, None, AMX)[-1]
    assert len(remarks(BUILT_WITHOUT, None, AVX2)) == len(remarks(BUILT_WITH, None, AMX)) == 1
    assert "not worth keeping" in remarks(BUILT_WITH, None, AMX, busy=0.4)[-1]


def test_busy_share_sees_another_process() -> None:
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert compare.busy_share(0.6) > 0.5 / (os.cpu_count() or 1)
    finally:
        spinner.kill()
        spinner.wait()


def test_table_is_markdown() -> None:
    rows = table(summarise([figures(100)], [figures(40)], JOB, (1.0, 1.0)))
    assert len({len(row) for row in rows}) == 1 and all(row.count("|") == 6 for row in rows)
    assert "2.50" in rows[2] and "2.50-2.50" in rows[2]


def test_crash_of_a_peer_becomes_a_sentence() -> None:
    """A real process that really dies; the sentence about GCC 12 only where the processor has the units."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "GCC 12" in compare.failure("llama.cpp", died.returncode, died.stderr, AMX)
    for name, flags in (("llama.cpp", AVX2), ("ds4py", AMX)):
        told = compare.failure(name, died.returncode, died.stderr, flags)
        assert "GCC" not in told and "SIGSEGV" in told
    assert compare.failure("ds4py", 1, "Traceback\nValueError: so\n", AVX2).endswith("failed: ValueError: so")


def test_job_and_figures_survive_json() -> None:
    job = Job("m.gguf", (1, 2, 3), 2, 64, (2,), 1)
    assert from_json(Job, json.dumps(job.__dict__)) == job
    assert from_json(Figures, json.dumps(figures(3).__dict__)) == figures(3)


def test_without_llama_cpp_it_says_so(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None if name == "llama_cpp" else real(name))
    assert bench.main(["-m", str(smollm2_path), "--compare-llama-cpp"]) == 1
    assert "needs llama-cpp-python, which is not installed" in capsys.readouterr().err


def test_peer_measures_our_engine(smollm2_path: Path, tmp_path: Path) -> None:
    job = Job(str(smollm2_path), tuple(range(1000, 1150)), 2, 256, (40, 64), 4, "auto", (70, 90), (1, 2))
    (tmp_path / "job.json").write_text(json.dumps(job.__dict__))
    found = compare.run_peer("ds4py", tmp_path / "job.json")
    assert len(found.prefill_tps) == len(found.verify_ms) == 2 and len(found.decode_tps) == 3 and found.load_s > 0
    assert min(*found.prefill_tps, *found.verify_ms, *found.decode_tps) > 0
    assert 98 < found.peak_mb < 5000 and found.info.startswith("kernels cpu")


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_both_engines_do_the_same_work(smollm2_path: Path) -> None:
    """Same ids in, and the two greedy continuations begin alike: neither side skips tokens or reads them at other positions."""
    ids = tuple(bench.bench_ids(parse("ds4-bench", []), open_gguf(smollm2_path), _tokenizer(smollm2_path), 40))
    job = Job(str(smollm2_path), ids, 2, 256, (32,), 3)
    chosen = []
    for kind in peers.PEERS.values():
        kind.prepare()
        peer = kind(job)
        for _ in range(2):  # the second time on a used context
            peer.prefill(ids[:31], ids[31])  # after this token the best logit leads by 2.7, far above any rounding
            chosen.append(peer.decode(3))
        peer.extend(ids[:20], ids[20])  # shorter, then longer again: what stands there is reused
        peer.verify(ids[20:25])  # and taken back
        peer.extend(ids[:31], ids[31])
        assert peer.decode(3) == chosen[-1]
    assert chosen[0] == chosen[1] and chosen[2] == chosen[3]
    assert chosen[0][0] == chosen[2][0]


def _tokenizer(path: Path):  # type: ignore[no-untyped-def]
    from ds4py.tokenizer import load_tokenizer

    return load_tokenizer(open_gguf(path))


def test_rows_have_one_header() -> None:
    row = Row(1, 2, 3.0, 4, 5.0, 6, 7.0, 8.125)
    assert len(row.header().split(",")) == len(row.csv().split(",")) == 8
    assert row.csv().endswith(",6,7.00,8.12")


def test_reader_that_leaves_early_is_no_traceback(smollm2_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ds4py.cli.bench", *small(smollm2_path)]
    run = subprocess.Popen(command, cwd=tmp_path, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stderr is not None
    assert run.stdout.readline().startswith("ctx_tokens")
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait(timeout=120) == 141 and "Traceback" not in err
