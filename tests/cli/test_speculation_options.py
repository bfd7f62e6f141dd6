"""The options of speculation: every documented name, what they become, and the sentence for what cannot be."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4py.cli.chat import main
from ds4py.cli.options import for_command, spellings
from ds4py.cli.parsing import Values, parse
from ds4py.cli.speculating import Speculation, asked_types, config_of, rows_needed
from ds4py.cli.terminal import Terminal
from ds4py.drafters import Drafters, ModSizes, NgramSizes, SpecConfig
from ds4py.engine import SessionOptions
from ds4py.errors import UnsupportedError, UsageError
from ds4py.gguf import write_gguf
from ds4py.protocols import Draft, Pass, SpecStats

NOWHERE = Terminal(io.StringIO(), False, False)

# Every name of llama.cpp's document on speculation, its old spellings, ds4's and the fork's.
NAMES = (
    "--spec-type --spec-default --spec-draft-model -md --model-draft --mtp-head --spec-draft-hf -hfd -hfrd --hf-repo-draft "
    "--spec-draft-n-max --spec-draft-n-min --spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min "
    "--spec-draft-conf-min --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-device -devd "
    "--device-draft --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft "
    "--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
    "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd "
    "--cpu-mask-batch-draft --spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft --spec-draft-cpu-strict-batch "
    "--cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft "
    "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft "
    "--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-cpu-moe -cmoed --cpu-moe-draft "
    "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-ngram-mod-n-match --spec-ngram-mod-n-min "
    "--spec-ngram-mod-n-max --spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits "
    "--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
    "--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --lookup-cache-static -lcs --lookup-cache-dynamic -lcd "
    "--spec-synth-rates --spec-synth-len --backend-sampling -bs --spec-draft-backend-sampling "
    "--no-spec-draft-backend-sampling --list-devices --mtp-exact-sampling --spec-exact --mtp-timing --glm-mtp-timing "
    "--spec-trace --spec-disable --spec-depth --spec-skip-streak -fa --jinja -ngl --device -dev"
).split()
ENVIRONMENT = (
    "LLAMA_ARG_SPEC_TYPE LLAMA_ARG_SPEC_DRAFT_MODEL LLAMA_ARG_SPEC_DRAFT_HF_REPO LLAMA_ARG_SPEC_DRAFT_N_MAX "
    "LLAMA_ARG_SPEC_DRAFT_N_MIN LLAMA_ARG_SPEC_DRAFT_P_MIN LLAMA_ARG_SPEC_DRAFT_P_SPLIT "
    "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING LLAMA_ARG_N_GPU_LAYERS_DRAFT LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K "
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V LLAMA_ARG_SPEC_DRAFT_CPU_MOE LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE LLAMA_ARG_SPEC_SYNTH_LEN "
    "LLAMA_ARG_SPEC_SYNTH_RATES LLAMA_ARG_BACKEND_SAMPLING LLAMA_MTP_ACC_TRACE LLAMA_MTP_SKIP_STREAK_THRESHOLD "
    "LLAMA_ARG_DRAFT_MAX LLAMA_ARG_DRAFT_MIN DS4_MTP_SPEC_DISABLE DS4_DSPARK_STATS"
).split()


def values(*argv: str) -> Values:
    return parse("ds4", argv)


def config(*argv: str) -> SpecConfig:
    return config_of(values(*argv), NOWHERE)


@pytest.mark.parametrize("name", NAMES)
def test_documented_names_are_rows(name: str) -> None:
    assert name in spellings(for_command("ds4"))


def test_one_name_switches_everything_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """ds4's environment name for it, and the flag that it is the default of."""
    asked = ["--spec-type", "ngram-mod", "--spec-default", "-md", "/nowhere.gguf", "-lcd", "/nowhere"]
    assert config(*asked, "--spec-disable") == SpecConfig()
    monkeypatch.setenv("DS4_MTP_SPEC_DISABLE", "1")
    assert config(*asked) == SpecConfig()
    monkeypatch.setenv("DS4_MTP_SPEC_DISABLE", "0")
    assert config("--spec-default").types == ("ngram-mod",)


def test_documented_environment_names_are_read() -> None:
    assert set(ENVIRONMENT) <= {name for option in for_command("ds4") for name in option.env}


def test_defaults() -> None:
    assert config() == SpecConfig()
    assert rows_needed(config()) == 0


@pytest.mark.parametrize(
    ("argv", "types"),
    [
        (["--spec-type", "ngram-mod,ngram-simple"], ("ngram-simple", "ngram-mod")),
        (["--spec-type", "ngram-cache", "--spec-type", "ngram-cache,ngram-map-k"], ("ngram-map-k", "ngram-cache")),
        (["--spec-type", "none"], ()),
        (["--spec-type", "ngram-mod,none"], ()),
        (["--spec-default"], ("ngram-mod",)),
        (["--spec-default", "--spec-type", "ngram-map-k4v"], ("ngram-map-k4v", "ngram-mod")),
        (["--spec-type", "ngram_map_k, draft"], ("ngram-map-k", "draft-simple")),
    ],
)
def test_types(argv: list[str], types: tuple[str, ...]) -> None:
    assert asked_types(values(*argv)) == types


def test_every_setting_arrives(tmp_path: Path) -> None:
    for name in ("static", "dynamic"):
        (tmp_path / name).write_bytes(b"")
    found = config(
        *"--spec-type ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache --spec-ngram-simple-size-n 3".split(),
        *"--spec-ngram-simple-size-m 30 --spec-ngram-simple-min-hits 2 --spec-ngram-map-k-size-n 4 --spec-draft-n-max 7".split(),
        *"--spec-ngram-map-k-size-m 40 --spec-ngram-map-k-min-hits 3 --spec-ngram-map-k4v-size-n 5 --spec-draft-n-min 2".split(),
        *"--spec-ngram-map-k4v-size-m 50 --spec-ngram-map-k4v-min-hits 4 --spec-ngram-mod-n-match 16".split(),
        *"--spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 100 --spec-draft-p-min 0.5 --spec-draft-conf-min 0.25 -td 2".split(),
        *"--spec-draft-candidates 64".split(),
        *f"-lcs {tmp_path}/static -lcd {tmp_path}/dynamic --spec-exact --spec-depth adaptive --spec-skip-streak 6".split(),
    )
    assert found == SpecConfig(
        types=("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
        draft_threads=2,
        n_max=7,
        n_min=2,
        p_min=0.5,
        conf_min=0.25,
        candidates=64,
        ngram_simple=NgramSizes(3, 30, 2),
        ngram_map_k=NgramSizes(4, 40, 3),
        ngram_map_k4v=NgramSizes(5, 50, 4),
        ngram_mod=ModSizes(16, 1, 100),
        lookup_static=tmp_path / "static",
        lookup_dynamic=tmp_path / "dynamic",
        accept="exact",
        depth="adaptive",
        skip_streak=6,
    )
    assert rows_needed(found) == 104


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_TYPE", "ngram-map-k,ngram-mod")
    monkeypatch.setenv("LLAMA_MTP_SKIP_STREAK_THRESHOLD", "8")
    found = config()
    assert found.types == ("ngram-map-k", "ngram-mod") and found.skip_streak == 8
    monkeypatch.setenv("LLAMA_ARG_DRAFT_MAX", "16")
    with pytest.raises(UsageError, match="LLAMA_ARG_DRAFT_MAX.*--spec-draft-n-max"):
        config()


@pytest.mark.parametrize("bad", ["0", "1025", "-1", "3abc", "1.5", ""])
@pytest.mark.parametrize("name", ["--spec-ngram-simple-size-m", "--spec-ngram-mod-n-match"])
def test_lengths_are_1_to_1024(name: str, bad: str) -> None:
    for good in ("1", "64", "1024"):
        values(name, good)
    with pytest.raises(UsageError, match=f"{name} must be a whole number from 1 to 1024"):
        values(name, bad)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--spec-type", "ngram-best"], "unknown speculative type 'ngram-best': choose from none, ngram-simple"),
        (["--spec-type", "draft-eagle3"], "draft-eagle3 needs a draft model: name its file with --spec-draft-model"),
        (["--dspark"], "--dspark needs the support file that drafts: name it with --mtp-model"),
        (["--dspark-confidence", "0.5"], "--dspark needs the support file"),
        (["--dspark-strict"], "--dspark needs the support file"),
        (["--mtp-model", "a", "-md", "b"], "--mtp-model and --spec-draft-model both name the file"),
        (["--spec-draft-candidates", "-1"], "--spec-draft-candidates must be a whole number"),
        (["--spec-type", "ngram-mod,mtp"], "draft-mtp needs the file of the block that drafts"),
        (["--mtp-draft", "17"], "--mtp-draft must be a whole number from 1 to 16"),
        (["--mtp-margin", "-1"], "--mtp-margin must be a number"),
        (["--spec-type", "draft-simple"], "draft-simple needs a draft model"),
        (["-ctkd", "q8_0"], "--spec-draft-type-k q8_0 is not available: .* quantised storage comes later"),
        (["-ctvd", "turbo3"], "--spec-draft-type-v turbo3 is not available: .*TurboQuant"),
        (["-ctk", "q4_0"], "--cache-type-k q4_0 is not available"),
        (["-devd", "cuda0"], "--spec-draft-device must be none, cpu or CPU, not 'cuda0'"),
        (["--spec-draft-p-split", "0.1"], "chains here, not trees"),
        (["--draft-p-split", "0.1"], "chains here, not trees"),
        (["-Cd", "0xg"], "--spec-draft-cpu-mask takes a mask in hexadecimal .*, such as 0x3, not '0xg'"),
        (["-Cd", "0"], "--spec-draft-cpu-mask takes a mask"),
        (["-Crd", "3-1"], "--spec-draft-cpu-range takes processors from the first to the last, such as 0-3, not '3-1'"),
        (["-Cbd", "0x3"], "-Cbd is not supported: .*the same threads"),
        (["-otd", "x=CPU"], "-otd is not supported"),
        (["--prio-draft", "2"], "--spec-draft-prio must be 0, not '2'"),
        (["--draft-max", "16"], "llama.cpp removed it; the name is now --spec-draft-n-max"),
        (["--draft-block-size", "4"], "a number one less"),
        (["--spec-ngram-size-n", "4"], "the name now has the kind in it"),
        (["--spec-draft-p-min", "x"], "--spec-draft-p-min must be a number"),
        (["--spec-draft-p-min", "-0.1"], "--spec-draft-p-min must be a number"),
        (["--spec-draft-conf-min", "2"], "--spec-draft-conf-min must be a number from 0 to 1"),
        (["--spec-skip-streak", "33"], "--spec-skip-streak must be a whole number from 0 to 32"),
        (["--spec-depth", "deep"], "--spec-depth must be cost, adaptive, fixed or ds4"),
        (["-lcs", "x"], "--lookup-cache-static is a file of the drafter ngram-cache"),
        (["--spec-synth-len", "2"], "synthetic acceptance needs something that drafts"),
        (["--spec-synth-len", "2", "--spec-synth-rates", "1"], "cannot be used together"),
        (["--spec-type", "ngram-mod", "--spec-synth-rates", "1,x"], "numbers separated by commas, not '1,x'"),
        (["--spec-type", "ngram-mod", "--spec-synth-rates", "0.5,0.6"], "must not rise"),
        (["--spec-type", "ngram-mod", "--spec-synth-rates", "2"], "must be probabilities"),
    ],
)
def test_what_cannot_be_obeyed_is_one_sentence(argv: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        config(*argv)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_documented_commands_run() -> None:
    """The flags of llama.cpp's and the fork's example commands, without their models."""
    found = config(
        *"-fa on --jinja -ngl 99 -ngld all -bs --spec-draft-backend-sampling --no-spec-draft-backend-sampling -devd none".split(),
        *"-cmoed -ncmoed 4 -tbd 4 --prio-draft 0 --poll-draft 1 --cpu-strict-draft 0 -ctkd f16 -ctvd f16".split(),
        *"--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8 --spec-ngram-map-k4v-size-m 8".split(),
        *"--spec-ngram-map-k4v-min-hits 2 --spec-draft-n-max 64 -ctk f16".split(),
    )
    assert found.types == ("ngram-map-k4v",) and found.ngram_map_k4v == NgramSizes(8, 8, 2)


@pytest.mark.parametrize(
    ("kind", "architecture", "tensor"),
    [
        ("draft-mtp", "gemma4-assistant", "x"),
        ("draft-mtp", "llama", "blk.0.nextn.eh_proj.weight"),
    ],
)
def test_a_draft_file_of_a_later_kind_is_recognised(kind: str, architecture: str, tensor: str, tmp_path: Path) -> None:
    import numpy as np

    from ds4py.gguf import GgmlType, NewTensor

    path = tmp_path / "draft.gguf"
    tensors = [NewTensor(tensor, (32,), GgmlType.F32, np.zeros(32, np.float32))]
    write_gguf(path, {"general.architecture": architecture, f"{architecture}.block_count": 1}, tensors)
    with pytest.raises(UnsupportedError, match=f"draft.gguf is made for {kind}, which this build has for DeepSeek V4 only"):
        config("-md", str(path))
    assert config("-md", str(path), "--spec-type", "none").draft_model is None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="missing.gguf"):
        config("-md", str(tmp_path / "missing.gguf"))


def test_an_unknown_type_is_told_before_the_model_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "/nonexistent.gguf", "-p", "x", "--spec-type", "nonsense"]) == 2
    assert "unknown speculative type 'nonsense'" in capsys.readouterr().err


def test_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Available devices:" and lines[1].startswith("  cpu: ")


class TestClosingLines:
    def speculation(self, **changes: object) -> Speculation:
        return Speculation(Drafters(SpecConfig(), ("ngram-mod",), "", 4, 0), **changes)  # type: ignore[arg-type]

    def stats(self) -> SpecStats:
        stats = SpecStats(begins=1)
        stats.count(Pass(0, 1, 4, Draft([1, 2, 3, 4], source="ngram-mod"), 3, 0.001, 0.1, 5))
        stats.count(Pass(3, 1, 4, Draft(), 1, 0.0, 0.1, 1))
        return stats

    def test_nothing_drafted_nothing_said(self) -> None:
        assert list(self.speculation().closing_lines(SpecStats())) == []

    def test_llama_lines(self) -> None:
        lines = list(self.speculation().closing_lines(self.stats()))
        assert lines[0] == "draft acceptance = 0.50000 (    2 accepted /     4 generated), mean len =  3.00"
        assert lines[2].startswith("statistics ngram-mod: #calls(b,g,a) = 1 2 1, ")

    def test_timing(self) -> None:
        text = "\n".join(self.speculation(timing=True).closing_lines(self.stats()))
        assert "1 verify cycles, 2 drafts accepted (50.0%)" in text and "net of drafting and verifying 19.90 t/s" in text

    def test_made_up_acceptance(self) -> None:
        assert "made up" in next(self.speculation(rates=(1.0,)).closing_lines(self.stats()))


def test_options_of_a_session_are_its_own() -> None:
    from ds4py.drafters import Target, open_drafters

    target = Target(None, 32, 64, SimpleNamespace(max_rows=64))  # type: ignore[arg-type]
    speculation = Speculation(open_drafters(SpecConfig(types=("ngram-map-k",)), target))
    first, second = (speculation.options(SessionOptions()) for _ in range(2))
    assert first.drafter is not None and first.drafter is not second.drafter and first.depth is not second.depth
