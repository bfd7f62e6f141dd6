"""Every option that llama.cpp's and ds4's documents on speculation list: names, environment, default, what is taken, what is not.

The table is theirs, written down from the documents; where a default or a range here differs, the comment after it says why. A
row: names | environment name | default | values that are taken | values that are refused, each with exit code 2 and one sentence
that names the option. "-": none. A row of which nothing can be obeyed has "refused" for its values.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from ds4py.cli.options import environment, for_command, spellings
from ds4py.cli.parsing import Checked, Values, parse
from ds4py.cli.speculating import config_of, spec_config
from ds4py.cli.tables import speculation
from ds4py.cli.terminal import Terminal
from ds4py.engine.snapshots import CHECKPOINT_STEP
from ds4py.errors import UsageError

TABLE = """
--spec-type | LLAMA_ARG_SPEC_TYPE | none | none ngram-simple,ngram-mod ngram-cache | ngram-best ngram-mod,x draft-mtp
--spec-default | - | off | flag | -
--spec-draft-model -md --model-draft --mtp-head | LLAMA_ARG_SPEC_DRAFT_MODEL | - | a.gguf | -
--spec-draft-hf -hfd -hfrd --hf-repo-draft | LLAMA_ARG_SPEC_DRAFT_HF_REPO | - | a/b a/b:Q4_K_M | -
--spec-draft-n-max | LLAMA_ARG_SPEC_DRAFT_N_MAX | - | 0 1 3 1024 | -1 1025 3abc 1.5 x
--spec-draft-n-min | LLAMA_ARG_SPEC_DRAFT_N_MIN | 0 | 0 5 1024 | -1 1025 x
--spec-draft-p-min --draft-p-min | LLAMA_ARG_SPEC_DRAFT_P_MIN | 0.0 | 0 0.75 1.01 | -0.1 nan x
--spec-draft-conf-min | - | - | 0 0.7 1 | -0.1 1.01 nan x
--spec-draft-p-split --draft-p-split | LLAMA_ARG_SPEC_DRAFT_P_SPLIT | - | refused | 0.1
--spec-draft-backend-sampling | LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING | off | flag | -
--no-spec-draft-backend-sampling | - | off | flag | -
--backend-sampling -bs | LLAMA_ARG_BACKEND_SAMPLING | off | flag | -
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft | LLAMA_ARG_N_GPU_LAYERS_DRAFT | - | 0 99 auto all | -
--spec-draft-device -devd --device-draft | - | - | none cpu | cuda0 cpu,cuda0
--spec-draft-threads -td --threads-draft | - | - | -1 0 1 1024 | -2 1025 x
--spec-draft-threads-batch -tbd --threads-batch-draft | - | - | 0 4 | x
--spec-draft-cpu-mask -Cd --cpu-mask-draft | - | - | 0x3 ff | 0 0xg x
--spec-draft-cpu-range -Crd --cpu-range-draft | - | - | 0-3 1-1 | 3-1 1 x
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft | - | - | refused | 0x3
--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft | - | - | refused | 0-3
--spec-draft-cpu-strict --cpu-strict-draft | - | - | 0 | 1 x
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft | - | - | 0 | 1 x
--spec-draft-prio --prio-draft | - | - | 0 | 1 3 4 x
--spec-draft-prio-batch --prio-batch-draft | - | - | 0 | 1 3 4 x
--spec-draft-poll --poll-draft | - | - | 0 1 | 2 x
--spec-draft-poll-batch --poll-batch-draft | - | - | 0 1 | 2 x
--spec-draft-type-k -ctkd --cache-type-k-draft | LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K | f16 | f16 | f32 bf16 q8_0 iq4_nl q5_1 turbo3
--spec-draft-type-v -ctvd --cache-type-v-draft | LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V | f16 | f16 | f32 bf16 q8_0 iq4_nl q5_1 turbo3
--spec-draft-override-tensor -otd --override-tensor-draft | - | - | refused | x=CPU
--spec-draft-cpu-moe -cmoed --cpu-moe-draft | LLAMA_ARG_SPEC_DRAFT_CPU_MOE | off | flag | -
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft | LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE | - | 0 4 | -1 x
--lookup-cache-static -lcs | - | - | a | -
--lookup-cache-dynamic -lcd | - | - | a | -
--spec-ngram-mod-n-match | - | 24 | 1 16 1024 | 0 1025 x
--spec-ngram-mod-n-min | - | 48 | 0 1 1024 | -1 1025 x
--spec-ngram-mod-n-max | - | 64 | 0 1 1024 | -1 1025 x
--spec-ngram-simple-size-n | - | 12 | 1 1024 | 0 1025 x
--spec-ngram-simple-size-m | - | 48 | 1 1024 | 0 1025 x
--spec-ngram-simple-min-hits | - | 1 | 1 9999 | 0 x
--spec-ngram-map-k-size-n | - | 12 | 1 1024 | 0 1025 x
--spec-ngram-map-k-size-m | - | 48 | 1 1024 | 0 1025 x
--spec-ngram-map-k-min-hits | - | 1 | 1 9999 | 0 x
--spec-ngram-map-k4v-size-n | - | 12 | 1 1024 | 0 1025 x
--spec-ngram-map-k4v-size-m | - | 48 | 1 1024 | 0 1025 x
--spec-ngram-map-k4v-min-hits | - | 1 | 1 9999 | 0 x
--spec-synth-len | LLAMA_ARG_SPEC_SYNTH_LEN | - | 1 2.5 | 0.9 -1 inf 2x
--spec-synth-rates | LLAMA_ARG_SPEC_SYNTH_RATES | - | 0.5,0.25 1 | 0.5,0.6 2 nan 0.5,x
--draft --draft-n --draft-max | LLAMA_ARG_DRAFT_MAX | - | refused | 16
--draft-min --draft-n-min | LLAMA_ARG_DRAFT_MIN | - | refused | 1
--draft-block-size | - | - | refused | 4
--spec-ngram-size-n | - | - | refused | 4
--spec-ngram-size-m | - | - | refused | 4
--spec-ngram-min-hits | - | - | refused | 1
--mtp --glm-mtp | - | off | refused | -
--mtp-draft | - | 1 | 1 2 16 | 0 17 x
--mtp-margin | - | 3.0 | 0 3 | -1 nan x
--mtp-model | - | - | a.gguf | -
--mtp-timing --glm-mtp-timing | DS4_DSPARK_STATS DS4_MTP_TIMING | off | flag | -
--mtp-exact-sampling --spec-exact | - | off | flag | -
--spec-disable | DS4_MTP_SPEC_DISABLE | off | flag | -
--dspark | - | off | flag | -
--dspark-confidence | - | - | 0 0.7 1 | -0.1 1.5 x
--dspark-scheduler | DS4_DSPARK_SCHEDULER | - | 0 1 | 2 x
--dspark-seed-batch | DS4_DSPARK_SEED_BATCH | - | 0 1 | 2 x
--dspark-strict | - | off | flag | -
--spec-skip-streak | LLAMA_MTP_SKIP_STREAK_THRESHOLD | 0 | 0 1 32 | -1 33 x
--spec-trace | LLAMA_MTP_ACC_TRACE DS4_DSPARK_SPEC_LOG | - | 0 1 a.ndjson | -
--spec-depth | - | cost | cost adaptive fixed ds4 | deep
--spec-draft-candidates | - | 0 | 0 64 | -1 x
"""
# Documented otherwise: --spec-draft-n-max has no default of its own, since drafts of blocks have theirs (3 without one);
# --spec-draft-conf-min 0 and no value differ for DeepSeek's drafts, as in ds4; a depth of more than 1024 is refused for all.
NEEDS = {  # what else a command line needs, for an option that says nothing alone
    "--lookup-cache-static": ["--spec-type", "ngram-cache"],
    "--lookup-cache-dynamic": ["--spec-type", "ngram-cache"],
    "--spec-synth-len": ["--spec-type", "ngram-mod"],
    "--spec-synth-rates": ["--spec-type", "ngram-mod"],
}
NO_FILES = ("--spec-draft-model", "--spec-draft-hf", "--mtp-model", "--dspark", "--dspark-confidence", "--dspark-strict")
LISTENER = Terminal(io.StringIO(), False, False)


@dataclass(frozen=True)
class Documented:
    names: Sequence[str]
    env: Sequence[str]
    default: str | None
    good: Sequence[str]
    bad: Sequence[str]
    refused: bool
    flag: bool

    @property
    def key(self) -> str:
        return self.names[0].lstrip("-").replace("-", "_")


def read(line: str) -> Documented:
    names, env, default, good, bad = (part.strip() for part in line.split("|"))
    listed = [] if good in ("flag", "refused") else good.split()
    return Documented(
        names.split(),
        () if env == "-" else tuple(env.split()),
        None if default == "-" else default,
        listed,
        [] if bad == "-" else bad.split(),
        good == "refused",
        good == "flag",
    )


ROWS = [read(line) for line in TABLE.strip().splitlines()]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment("ds4"):
        monkeypatch.delenv(name, raising=False)


def check(values: Values) -> None:
    """Everything that is checked before a file is opened."""
    if any(values.has(row.key) for row in ROWS if row.names[0] in NO_FILES and not row.flag):
        spec_config(values, (), None, "exact", "cost")
    else:
        config_of(values, LISTENER)


def test_the_table_is_whole() -> None:
    """No row of ours is missing in it, and no name of it is missing in ours."""
    assert {option.name for option in speculation.ROWS} == {row.names[0] for row in ROWS}
    for command in ("ds4", "ds4-server"):
        rows = spellings(for_command(command))
        for row in ROWS:
            option = rows[row.names[0]]
            assert sorted(option.names) == sorted(row.names) and option.env == row.env, row.names


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names[0])
def test_defaults(row: Documented) -> None:
    found: Checked = parse("ds4", []).table[row.key]
    wanted = {None: None, "off": False, "none": ()}
    assert found == wanted[row.default] if row.default in wanted else str(found) == row.default


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names[0])
def test_what_is_taken_under_every_name_and_from_the_environment(row: Documented, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in row.names:
        for value in row.good:
            values = parse("ds4", [*NEEDS.get(row.names[0], []), name, value])
            check(values)
            assert values.has(row.key)
        if row.flag:
            assert parse("ds4", [name]).flag(row.key)
    for env in row.env if row.good or row.flag else ():
        monkeypatch.setenv(env, row.good[-1] if row.good else "1")
        values = parse("ds4", NEEDS.get(row.names[0], []))
        check(values)
        assert values.table[row.key] == parse("ds4", [row.names[0], *row.good[-1:]]).table[row.key]
        assert values.was_given(row.names[0])
        if row.flag:
            monkeypatch.setenv(env, "0")
            assert not parse("ds4", []).flag(row.key)
        monkeypatch.delenv(env)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names[0])
def test_what_is_refused_is_one_sentence_that_names_it(row: Documented, monkeypatch: pytest.MonkeyPatch) -> None:
    def sentence(argv: Sequence[str]) -> str:
        with pytest.raises(UsageError) as caught:
            check(parse("ds4", argv))
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
        return str(caught.value)

    for name in row.names:
        for value in row.bad or [""] * row.refused:
            told = sentence([*NEEDS.get(row.names[0], []), name, *([value] if value else [])])
            assert row.names[0] in told or name in told or "synthetic" in told or value.split(",")[-1] in told, told
    for env in row.env if row.bad else ():
        monkeypatch.setenv(env, row.bad[-1])
        sentence(NEEDS.get(row.names[0], []))
        monkeypatch.delenv(env)


def test_threads_of_a_draft_may_be_all() -> None:
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for asked in ("0", "-1"):
        assert config_of(parse("ds4", ["-td", asked]), LISTENER).draft_threads == n
    assert config_of(parse("ds4", ["-td", "0", "-Cd", "0x7"]), LISTENER).draft_threads == 3


def test_rows_of_other_tables_that_the_documents_name() -> None:
    values = parse("ds4", ["--ui-logo", "auto", "--checkpoint-min-step", "8192"])
    assert values.integer("checkpoint_min_step") == 8192
    assert parse("ds4", []).integer("checkpoint_min_step") == CHECKPOINT_STEP
    for argv in (["--ui-logo", "image"], ["--checkpoint-min-step", "0"]):
        with pytest.raises(UsageError, match=argv[0]):
            parse("ds4", argv)
