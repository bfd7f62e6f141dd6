"""Rows about drafting tokens ahead: topic "speculation". llama.cpp's document and ds4's help under all of their names.

Rows that pass for a program with a GPU and mean nothing on a CPU are accepted with the one value that is true here, so that
documented commands run; what would be a wish left unheard is refused.
"""

from __future__ import annotations

from ds4py.cli.option import Kind, Option, Range, Status
from ds4py.cli.tables.cache_types import BARRED

_TOPIC = ("speculation",)
_BOTH = ("ds4", "ds4-bench", "ds4-eval")
_MTP = "it comes with the built-in MTP drafter"
_GONE = "llama.cpp removed it"
_PINNING = "a draft model reads and drafts with the same threads; --spec-draft-cpu-mask and -range are for both"
_TREES = "drafts are chains here, not trees"

def _later(name: str, help: str, why: str, kind: Kind = "flag", aliases: tuple[str, ...] = ()) -> Option:
    metavar = {"flag": "", "file": "FILE", "int": "N", "float": "F", "text": "TEXT"}[kind]
    return Option(name, help, kind, aliases, metavar, topics=_TOPIC, status="later", why=why)


def _never(name: str, why: str, *aliases: str, kind: Kind = "text", env: tuple[str, ...] = ()) -> Option:
    return Option(name, "", kind, aliases, topics=_TOPIC, status="never", why=why, env=env)


def _row(
    name: str,
    help: str,
    kind: Kind,
    *aliases: str,
    metavar: str = "",
    default: str | int | float | None = None,
    range: Range | None = None,
    choices: tuple[str, ...] = (),
    env: str | tuple[str, ...] = "",
    repeat: bool = False,
    status: Status = "works",
    barred: tuple[tuple[str, str], ...] = (),
    shown: str = "",
    commands: tuple[str, ...] = ("ds4",),
) -> Option:
    topics = ("llama.cpp",) if status == "accepted" else _TOPIC
    return Option(
        name,
        help,
        kind,
        aliases,
        metavar,
        default,
        shown,
        range,
        choices,
        repeat=repeat,
        env=env if isinstance(env, tuple) else (env,) if env else (),
        topics=topics,
        commands=commands,
        status=status,
        barred=barred,
    )


def _count(name: str, help: str, default: int, least: int, most: int | None = 1024, env: str = "") -> Option:
    return _row(name, help, "int", metavar="N", default=default, range=Range(least, most), env=env, commands=_BOTH)


_DS4 = (
    _later("--mtp", "use the MTP block inside the model file", _MTP, aliases=("--glm-mtp",)),
    _row(
        "--mtp-model",
        "support file that drafts for the model, as with --spec-draft-model: DSpark, or one-stage MTP (see --mtp-draft)",
        "file",
        metavar="FILE",
    ),
    _row(
        "--mtp-draft",
        "of a one-stage MTP file: tokens per cycle, the one that the model chooses itself included (1: nothing is drafted)",
        "int",
        metavar="N",
        default=1,
        range=Range(1, 16),
    ),
    _row(
        "--mtp-margin",
        "of a one-stage MTP file: end a draft where the best logit leads the second by less than F; 0 = never",
        "float",
        metavar="F",
        default=3.0,
        range=Range(0),
    ),
    _row(
        "--mtp-timing",
        "print cycles, acceptance and times of any drafter at the end",
        "flag",
        "--glm-mtp-timing",
        env=("DS4_DSPARK_STATS", "DS4_MTP_TIMING"),
    ),
    _row("--spec-disable", "draft nothing, whatever else is asked for", "flag", env="DS4_MTP_SPEC_DISABLE"),
    _row(
        "--mtp-exact-sampling",
        "above temperature 0, keep the text of plain sampling with the same seed (default: drafts that are likeliest may decide)",
        "flag",
        "--spec-exact",
        commands=_BOTH,
    ),
    _row("--dspark", "draft with the DSpark support file that --mtp-model names; the same as --spec-type draft-dspark", "flag"),
    _row(
        "--dspark-confidence",
        "end drafts at a confidence below F, 0 = never; the same as --spec-draft-conf-min, and implies --dspark",
        "float",
        metavar="F",
        range=Range(0, 1),
        shown="0.7, and 0.8 with --mtp-exact-sampling",
    ),
    _row(
        "--dspark-scheduler",
        "DSpark's depth where --spec-depth is not given: 1 = ds4's schedule, 0 = whole drafts at every pass",
        "text",
        metavar="0|1",
        choices=("0", "1"),
        env="DS4_DSPARK_SCHEDULER",
    ),
    Option(
        "--dspark-seed-batch",
        "a draft is always verified in one pass with the token before it; 0 and 1 change nothing",
        "text",
        metavar="0|1",
        choices=("0", "1"),
        env=("DS4_DSPARK_SEED_BATCH",),
        topics=_TOPIC,
        status="accepted",
    ),
    _row("--dspark-strict", "load DSpark and decode without it, as a control; implies --dspark", "flag"),
)

_CHOOSING = (
    _row(
        "--spec-type",
        "which drafters, separated by commas: none, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache, "
        "draft-simple, draft-eagle3, draft-mtp, draft-dflash, draft-dspark; asked in this order (default none, or what the "
        "draft's file is)",
        "text",
        metavar="LIST",
        env="LLAMA_ARG_SPEC_TYPE",
        repeat=True,
    ),
    _row("--spec-default", "add ngram-mod with its defaults", "flag"),
    _row(
        "--spec-depth",
        "how far to draft: cost (what pays by measured times), adaptive (by counts), fixed (the longest), ds4 (its own schedule)",
        "text",
        metavar="HOW",
        default="cost",
        choices=("cost", "adaptive", "fixed", "ds4"),
        commands=_BOTH,
    ),
    _row(
        "--spec-skip-streak",
        "leave one draft out after N in a row without an accepted token; 0 = off",
        "int",
        metavar="N",
        default=0,
        range=Range(0, 32),
        env="LLAMA_MTP_SKIP_STREAK_THRESHOLD",
        commands=_BOTH,
    ),
    _row(
        "--spec-trace",
        "add every draft and what was accepted to FILE, as JSON lines; 1 = standard error, 0 = off",
        "text",
        metavar="FILE",
        env=("LLAMA_MTP_ACC_TRACE", "DS4_DSPARK_SPEC_LOG"),
    ),
)

_DRAFT_MODEL = (
    _row(
        "--spec-draft-model",
        "a GGUF that drafts: a smaller model of the same vocabulary, or an EAGLE-3, MTP, DFlash or DSpark draft made for it",
        "file",
        "-md",
        "--model-draft",
        "--mtp-head",
        metavar="FILE",
        env="LLAMA_ARG_SPEC_DRAFT_MODEL",
        commands=_BOTH,
    ),
    _row(
        "--spec-draft-hf",
        "fetch the draft model from the hub; -md then names the file in REPO",
        "text",
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        metavar="REPO[:QUANT]",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    _row(
        "--spec-draft-n-max",
        "longest draft of a draft model; 0 = it drafts nothing",
        "int",
        metavar="N",
        range=Range(0, 1024),
        shown="its block, or 3",
        env="LLAMA_ARG_SPEC_DRAFT_N_MAX",
        commands=_BOTH,
    ),
    _count("--spec-draft-n-min", "shorter drafts of a draft model are dropped", 0, 0, env="LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    _row(
        "--spec-draft-p-min",
        "a draft ends where the draft model gives its likeliest token less than F; above 1 = no drafts",
        "float",
        "--draft-p-min",
        metavar="F",
        default=0.0,
        range=Range(0),
        env="LLAMA_ARG_SPEC_DRAFT_P_MIN",
        commands=_BOTH,
    ),
    _row(
        "--spec-draft-conf-min",
        "the same for the confidence head of a DSpark draft (0: it goes by --spec-draft-p-min)",
        "float",
        metavar="F",
        range=Range(0, 1),
        shown="0; DeepSeek's 0.7, and 0.8 with --mtp-exact-sampling",
        commands=_BOTH,
    ),
    _row(
        "--spec-draft-candidates",
        "DSpark: give the Markov bias to the N likeliest tokens of each guess only; 64 lose next to nothing; 0 = to all",
        "int",
        metavar="N",
        default=0,
        range=Range(0),
        commands=_BOTH,
    ),
    _row(
        "--spec-draft-device",
        "where the draft model runs",
        "text",
        "-devd",
        "--device-draft",
        metavar="LIST",
        choices=("none", "cpu", "CPU"),
        shown="cpu",
    ),
    *(
        _row(
            f"--spec-draft-type-{which}",
            f"storage of the draft model's {what}",
            "text",
            f"-ct{which}d",
            f"--cache-type-{which}-draft",
            metavar="TYPE",
            default="f16",
            choices=("f16",),
            barred=BARRED,
            env=f"LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_{which.upper()}",
        )
        for which, what in (("k", "keys"), ("v", "values"))
    ),
    _row(
        "--spec-draft-threads",
        "CPU threads of the draft model; 0 = a thread for every processor",
        "int",
        "-td",
        "--threads-draft",
        metavar="N",
        range=Range(1, 1024, also=(0, -1)),
        shown="those of -t",
        commands=_BOTH,
    ),
)

_PLACES = (
    _row("--spec-draft-cpu-mask", "processors for threads of the draft model", "text", "-Cd", "--cpu-mask-draft", metavar="M"),
    _row("--spec-draft-cpu-range", "the same as a range", "text", "-Crd", "--cpu-range-draft", metavar="LO-HI"),
)

_NGRAM = (
    _row("--lookup-cache-static", "n-gram statistics that ngram-cache reads", "file", "-lcs", metavar="FILE", commands=_BOTH),
    _row(
        "--lookup-cache-dynamic",
        "n-gram statistics of earlier texts, for ngram-cache; ds4 adds what it saw when it ends",
        "file",
        "-lcd",
        metavar="FILE",
        commands=_BOTH,
    ),
    _count("--spec-ngram-mod-n-match", "ngram-mod: tokens that must match", 24, 1),
    _count("--spec-ngram-mod-n-min", "ngram-mod: shorter drafts are dropped", 48, 0),
    _count("--spec-ngram-mod-n-max", "ngram-mod: longest draft", 64, 0),
    *(
        row
        for kind in ("simple", "map-k", "map-k4v")
        for row in (
            _count(f"--spec-ngram-{kind}-size-n", f"ngram-{kind}: tokens that must match", 12, 1),
            _count(f"--spec-ngram-{kind}-size-m", f"ngram-{kind}: tokens copied at most", 48, 1),
            _count(f"--spec-ngram-{kind}-min-hits", f"ngram-{kind}: times the match must have been seen", 1, 1, most=None),
        )
    ),
)

_SYNTHETIC = (
    _row(
        "--spec-synth-len",
        "for benchmarks: commit F tokens a pass on average, whatever they are; the output is not the model's",
        "float",
        metavar="F",
        range=Range(1),
        env="LLAMA_ARG_SPEC_SYNTH_LEN",
    ),
    _row(
        "--spec-synth-rates",
        "the same by position: shares of drafts whose tokens 1, 1-2, 1-3, ... are accepted",
        "text",
        metavar="P0,P1,...",
        env="LLAMA_ARG_SPEC_SYNTH_RATES",
    ),
)


def _accepted(
    name: str,
    help: str,
    kind: Kind,
    *aliases: str,
    choices: tuple[str, ...] = (),
    range: Range | None = None,
    env: str = "",
) -> Option:
    metavar = "" if kind == "flag" else "|".join(choices) or "N"
    return _row(name, help, kind, *aliases, metavar=metavar, choices=choices, range=range, env=env, status="accepted")


_NO_EFFECT = (
    _accepted("--backend-sampling", "sampling runs where the model runs", "flag", "-bs", env="LLAMA_ARG_BACKEND_SAMPLING"),
    _accepted(
        "--spec-draft-backend-sampling",
        "drafts are sampled where the draft model runs",
        "flag",
        env="LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
    ),
    _accepted("--no-spec-draft-backend-sampling", "the device that drafts is the host", "flag"),
    _accepted(
        "--spec-draft-ngl",
        "there is no GPU to give the draft model's layers to",
        "text",
        "-ngld",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
        env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    _accepted(
        "--spec-draft-threads-batch",
        "the draft model reads prompts with -td threads too",
        "int",
        "-tbd",
        "--threads-batch-draft",
    ),
    _accepted(
        "--spec-draft-cpu-moe",
        "all weights are on the CPU",
        "flag",
        "-cmoed",
        "--cpu-moe-draft",
        env="LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
    ),
    _accepted(
        "--spec-draft-n-cpu-moe",
        "all weights are on the CPU",
        "int",
        "--spec-draft-ncmoe",
        "-ncmoed",
        "--n-cpu-moe-draft",
        range=Range(0),
        env="LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
    ),
    *(
        row
        for batch in ("", "-batch")
        for row in (
            _accepted(
                f"--spec-draft-cpu-strict{batch}",
                "the draft model's threads may run anywhere",
                "text",
                f"--cpu-strict{batch}-draft",
                choices=("0",),
            ),
            _accepted(
                f"--spec-draft-prio{batch}",
                "the draft model's threads have normal priority",
                "text",
                f"--prio{batch}-draft",
                choices=("0",),
            ),
            _accepted(
                f"--spec-draft-poll{batch}",
                "waiting threads poll for a moment, then yield",
                "text",
                f"--poll{batch}-draft",
                choices=("0", "1"),
            ),
        )
    ),
)

_REFUSED = (
    _never("--spec-draft-p-split", _TREES, "--draft-p-split", env=("LLAMA_ARG_SPEC_DRAFT_P_SPLIT",)),
    _never(
        "--draft",
        f"{_GONE}; the name is now --spec-draft-n-max",
        "--draft-n",
        "--draft-max",
        env=("LLAMA_ARG_DRAFT_MAX",),
    ),
    _never("--draft-min", f"{_GONE}; the name is now --spec-draft-n-min", "--draft-n-min", env=("LLAMA_ARG_DRAFT_MIN",)),
    _never("--draft-block-size", "the name is now --spec-draft-n-max, with a number one less"),
    _never("--spec-ngram-size-n", f"{_GONE}; the name now has the kind in it, as in --spec-ngram-simple-size-n"),
    _never("--spec-ngram-size-m", f"{_GONE}; the name now has the kind in it, as in --spec-ngram-simple-size-m"),
    _never("--spec-ngram-min-hits", f"{_GONE}; the name now has the kind in it, as in --spec-ngram-map-k4v-min-hits"),
    _never("--spec-draft-override-tensor", "tensors have one place to be here", "-otd", "--override-tensor-draft"),
    _never("--spec-draft-cpu-mask-batch", _PINNING, "-Cbd", "--cpu-mask-batch-draft"),
    _never("--spec-draft-cpu-range-batch", _PINNING, "-Crbd", "--cpu-range-batch-draft"),
)

ROWS: tuple[Option, ...] = (*_CHOOSING, *_DRAFT_MODEL, *_PLACES, *_NGRAM, *_DS4, *_SYNTHETIC, *_NO_EFFECT, *_REFUSED)
