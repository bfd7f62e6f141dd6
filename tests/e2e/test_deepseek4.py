"""DeepSeek V4 through the command, on tiny files with the mix of real ones: it answers, drafts with its support file without
changing a letter where none may change, and says what it cannot do. Accepted drafts of every length: tests/drafters."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deepseek4_reference import mtp_weights, spark_weights
from tiny_deepseek4 import PREVIEW, save_checkpoint
from tiny_v4 import make_tiny, spark_keys, write_support

from ds4py.cli import convert
from ds4py.cli.chat import main
from ds4py.engine import Engine, EngineOptions
from ds4py.gguf import GgmlType, open_gguf

RUN = "--raw -n 60 -c 200 -t 2 --ignore-eos"
TEXT = "the quick brown fox"
Ds4 = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, tiny = tmp_path_factory.mktemp("flash"), make_tiny(hca=32)
    tiny.write(made / "flash.gguf", GgmlType.Q8_0)
    stages = spark_weights(tiny.config, 32, 3)
    keys = spark_keys([1, 2, 3], 32, 319)
    write_support(made / "support.gguf", stages, tiny.config, keys, GgmlType.Q8_0)
    write_support(made / "vision.gguf", stages, tiny.config, {**keys, "dspark.checkpoint_variant": "vision-exp"}, GgmlType.Q8_0)
    named = {"general.architecture": "deepseek4-mtp", "general.name": "DeepSeek V4 Flash MTP support"}
    write_support(made / "mtp.gguf", mtp_weights(tiny.config), tiny.config, named, GgmlType.Q8_0)
    tiny.extra["deepseek4.checkpoint_variant"] = "0731"
    tiny.write(made / "stated.gguf", GgmlType.Q8_0)
    return made


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], folder: Path) -> Ds4:
    def run(options: str, model: str = "flash.gguf") -> tuple[int, str, str]:
        filled = options.format(support=folder / "support.gguf", vision=folder / "vision.gguf", mtp=folder / "mtp.gguf")
        code = main(["-m", str(folder / model), *RUN.split(), "-p", TEXT, *filled.split()])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def drafted(err: str) -> int:
    found = re.search(r"draft acceptance = .* accepted / *(\d+) generated", err)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("sampling", ["--temp 0", "--temp 1 --seed 7 --mtp-exact-sampling", "--temp 0 --backend reference -n 12"])
def test_drafting_changes_no_letter(ds4: Ds4, sampling: str) -> None:
    plain = ds4(sampling)
    spark = ds4(f"{sampling} --dspark --mtp-model {{support}} --dspark-confidence 0 --spec-depth fixed")
    assert plain[0] == spark[0] == 0 and len(plain[1]) > 10
    assert spark[1] == plain[1]
    assert drafted(spark[2]) > 20 and "draft-dspark with support.gguf, up to 5 tokens ahead" in spark[2]


@pytest.mark.parametrize("sampling", ["--temp 0", "--temp 1 --seed 7 --mtp-exact-sampling", "--temp 0 --backend reference -n 12"])
def test_one_stage_mtp_changes_no_letter(ds4: Ds4, sampling: str) -> None:
    plain = ds4(sampling)
    mtp = ds4(f"{sampling} --mtp-model {{mtp}} --mtp-draft 4 --mtp-margin 0 --spec-depth fixed")
    assert plain[0] == mtp[0] == 0 and mtp[1] == plain[1]
    assert drafted(mtp[2]) > 20 and "draft-mtp with mtp.gguf (mtp.gguf was taken for one" in mtp[2] and "up to 3 tokens" in mtp[2]
    strict = ds4(f"{sampling} --mtp-model {{mtp}} --mtp-draft 4 --spec-depth fixed")  # no guess of random weights leads by 3
    assert strict[1] == plain[1] and drafted(strict[2]) == 0 and "up to 3 tokens ahead, fixed depth" in strict[2]


def test_one_stage_mtp_drafts_when_it_is_asked_to(ds4: Ds4) -> None:
    """As in ds4 --mtp-draft is 1 where nobody says, which is the model's own token; -md drafts as in llama.cpp."""
    code, out, err = ds4("--temp 0 --mtp-model {mtp}")
    assert code == 0 and drafted(err) == 0 and "off, because of --mtp-draft 1; draft-mtp with mtp.gguf" in err
    for named in ("-md {mtp}", "--spec-type draft-mtp --mtp-model {mtp}"):
        code, again, err = ds4(f"--temp 0 {named} --spec-depth fixed")
        assert code == 0 and again == out and drafted(err) > 20 and "up to 3 tokens ahead" in err
    assert "warning: flash.gguf does not say which checkpoint it is of; if mtp.gguf was not made for that of flash.gguf" in err
    for options in ("--mtp-model {support} --mtp-draft 2 --mtp-margin 1", "--dspark --mtp-model {support} --mtp-draft 9"):
        code, again, err = ds4(f"--temp 0 {options}")
        assert code == 0 and again == out and "draft-dspark with support.gguf" in err and "up to 5 tokens ahead" in err
        assert "changed nothing: they are for one-stage MTP, and this file is for draft-dspark" in err


def test_the_preview_s_checkpoint_becomes_a_model_and_its_mtp_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both files say which checkpoint they are of, so there is nothing to warn of."""
    small = {"num_hidden_layers": 3, "n_routed_experts": 2, "num_hash_layers": 1, "index_n_heads": 32}
    folder = save_checkpoint(tmp_path / "Preview", draft="mtp", **{**PREVIEW, **small, "compress_ratios": [0, 4, 128, 0]})
    out, mtp = str(tmp_path / "m.gguf"), str(tmp_path / "mtp.gguf")
    assert convert.main([str(folder.path), "-o", out, "--dspark-out", mtp]) == 0
    words = ["-m", out, *RUN.split(), "-p", TEXT, "--temp", "0", "-n", "30"]
    assert main(words) == 0
    plain = capsys.readouterr().out
    draft = ["--mtp-model", mtp, "--mtp-draft", "3", "--mtp-margin", "0", "--spec-depth", "fixed"]
    assert main([*words, *draft]) == 0
    drafting = capsys.readouterr()
    assert plain.endswith(drafting.out) and len(drafting.out) > 5
    assert drafted(drafting.err) > 10 and "warning" not in drafting.err


@pytest.mark.parametrize(
    ("options", "model", "code", "says"),
    [
        ("--dspark --mtp-model {mtp}", "flash.gguf", 1, "mtp.gguf is made for draft-mtp, not for draft-dspark"),
        ("--mtp-model {mtp}", "stated.gguf", 1, "mtp.gguf is made for the checkpoint preview, but stated.gguf is of 0731"),
        ("--mtp-model {mtp} --mtp-draft 0", "flash.gguf", 2, "--mtp-draft must be a whole number from 1 to 16"),
        ("-md {mtp} --mtp-draft 2 --spec-draft-n-max 3", "flash.gguf", 2, "--mtp-draft and --spec-draft-n-max set"),
        ("", "mtp.gguf", 1, "mtp.gguf is a one-stage MTP file for DeepSeek V4 Flash, not a model"),
        ("--mtp", "flash.gguf", 2, "--mtp is not in this build yet"),
    ],
)
def test_what_one_stage_mtp_cannot_do_is_one_sentence(ds4: Ds4, options: str, model: str, code: int, says: str) -> None:
    found, out, err = ds4(options, model)
    assert found == code and not out and says in err and "Traceback" not in err


@pytest.mark.parametrize("option", ["--dspark-strict", "--dspark --quality"])
def test_strict_and_quality_load_and_draft_nothing(ds4: Ds4, option: str) -> None:
    """Also above temperature 0, where drafts could decide."""
    sampling = "--temp 1 --seed 5"
    plain, strict = ds4(sampling), ds4(f"{sampling} {option} --mtp-model {{support}}")
    assert strict[:2] == plain[:2] and drafted(strict[2]) == 0
    assert f"off, because of {option.split()[-1]}; draft-dspark with support.gguf" in strict[2]


def test_ds4_s_schedule_runs_where_drafts_may_decide(ds4: Ds4) -> None:
    hot, cold = (ds4(f"--temp {t} --seed 3 --dspark --mtp-model {{support}}") for t in (1, 0))
    assert hot[0] == cold[0] == 0
    assert "ds4's schedule, opportunistic" in hot[2] and "depth by cost, greedy" in cold[2]


def test_ds4_s_environment_is_read(ds4: Ds4, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DS4_DSPARK_SCHEDULER=0 drafts whole blocks at every pass, 1 by ds4's schedule, also greedily; --spec-depth says more.
    DS4_DSPARK_SPEC_LOG is a trace; DS4_DSPARK_SEED_BATCH changes nothing, since a pass always begins with the seed."""
    plain, log = ds4("--temp 0"), tmp_path / "log"
    monkeypatch.setenv("DS4_DSPARK_SPEC_LOG", str(log))
    for name, value, says in (
        ("SCHEDULER", "0", "fixed depth, greedy"),
        ("SCHEDULER", "1", "ds4's schedule, greedy"),
        ("SEED_BATCH", "0", "depth by cost, greedy"),
    ):
        monkeypatch.setenv(f"DS4_DSPARK_{name}", value)
        spark = ds4("--temp 0 --dspark --mtp-model {support} --dspark-confidence 0")
        assert spark[:2] == plain[:2] and says in spark[2]
        if name == "SCHEDULER":
            assert "depth by cost" in ds4("--temp 0 --dspark --mtp-model {support} --spec-depth cost")[2]
        monkeypatch.delenv(f"DS4_DSPARK_{name}")
    assert log.read_text().count('"evt"') > 20
    monkeypatch.setenv("DS4_DSPARK_SCHEDULER_WINDOW", "8")
    monkeypatch.setenv("DS4_DSPARK_PROBE", "1")
    said = "DS4_DSPARK_PROBE, DS4_DSPARK_SCHEDULER_WINDOW are set and not read"
    assert said in ds4("--temp 0 -n 2 --dspark --mtp-model {support}")[2] and said not in ds4("--temp 0 -n 2")[2]
    monkeypatch.setenv("DS4_DSPARK_SCHEDULER", "off")
    code, out, err = ds4("--temp 0 --dspark --mtp-model {support}")
    assert code == 2 and "DS4_DSPARK_SCHEDULER (environment, for --dspark-scheduler) must be 0 or 1, not 'off'" in err


def test_files_that_do_not_belong_together_are_refused(ds4: Ds4, folder: Path) -> None:
    code, out, err = ds4("--temp 0 --dspark --mtp-model {vision}", "stated.gguf")
    assert code == 1 and not out and "made for the checkpoint vision-exp, but stated.gguf is of 0731" in err
    code, out, err = ds4("--temp 0", "support.gguf")
    assert code == 1 and not out and "a DSpark support file for DeepSeek V4 Flash, not a model" in err


def test_compiled_kernels_need_no_torch(folder: Path) -> None:
    """The command runs where torch cannot be imported at all."""
    code = "import sys; sys.modules['torch'] = None\nfrom ds4py.cli.chat import main\nsys.exit(main(sys.argv[1:]))"
    spark = ["--dspark", "--mtp-model", str(folder / "support.gguf"), "--temp", "0"]
    argv = [sys.executable, "-c", code, "-m", str(folder / "flash.gguf"), *RUN.split(), "-p", TEXT, *spark]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and len(done.stdout) > 10 and "backend=cpu-" in done.stderr, done.stderr


def test_the_memory_line_tells_raw_from_compressed_rows(ds4: Ds4, folder: Path) -> None:
    """It said 0.00 GiB and 0 rows compressed, whatever the pools took."""
    err = ds4("--temp 0 -n 1 -c 400")[2]
    assert "raw_kv_rows=400 compressed_kv_rows=100" in err  # an entry for every four positions
    assert ", draft 0.00 GiB, total" in ds4("--temp 0 -n 1 --dspark --mtp-model {support}")[2] and ", draft" not in err
    info = Engine.open(open_gguf(folder / "flash.gguf"), EngineOptions(n_ctx=400)).info()
    assert 0 < info.pooled_bytes < info.kv_bytes and info.pooled_rows == 100
