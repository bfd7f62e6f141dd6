"""Rows about drafting tokens ahead: topic "speculation". None is obeyed yet, so none is silently ignored either."""

from __future__ import annotations

from ds4py.cli.option import Kind, Option

_CORE = "it comes with the speculative core"
_DRAFT = "it comes with draft models"
_DSPARK = "it comes with the DSpark drafter"
_MTP = "it comes with the built-in MTP drafter"
_GONE = "llama.cpp removed it"
_PINNING = "CPU masks and priorities of a drafter are not set here"


def _later(name: str, help: str, why: str, kind: Kind = "flag", aliases: tuple[str, ...] = (), env: str = "") -> Option:
    return Option(
        name,
        help,
        kind,
        aliases,
        "" if kind == "flag" else "FILE" if kind == "file" else "N" if kind == "int" else "F" if kind == "float" else "TEXT",
        env=(env,) if env else (),
        topics=("speculation",),
        status="later",
        why=why,
    )


def _never(name: str, why: str, *aliases: str) -> Option:
    return Option(name, "", "text", aliases, topics=("speculation",), status="never", why=why)


_DS4 = (
    _later("--mtp", "use the MTP block inside the model file", _MTP, aliases=("--glm-mtp",)),
    _later("--mtp-model", "DSpark or legacy MTP support file", _DSPARK, "file"),
    _later("--mtp-draft", "legacy MTP draft length", _MTP, "int"),
    _later("--mtp-margin", "legacy MTP verifier margin", _MTP, "float"),
    _later("--mtp-timing", "print acceptance and timing counters", _MTP, aliases=("--glm-mtp-timing",)),
    _later("--mtp-exact-sampling", "keep plain sampling's text at any temperature", _CORE, aliases=("--spec-exact",)),
    _later("--dspark", "draft with a DSpark support file", _DSPARK),
    _later("--dspark-confidence", "prune drafts below this confidence", _DSPARK, "float"),
    _later("--dspark-strict", "load DSpark and decode without it", _DSPARK),
)

_LLAMA = (
    _later("--spec-type", "which drafters", _CORE, "text", env="LLAMA_ARG_SPEC_TYPE"),
    _later("--spec-default", "n-gram drafting with good defaults", _CORE),
    _later("--spec-trace", "write acceptance as NDJSON", _CORE, "file"),
    _later(
        "--model-draft",
        "a smaller model that drafts",
        _DRAFT,
        "file",
        ("-md", "--spec-draft-model", "--mtp-head"),
        "LLAMA_ARG_SPEC_DRAFT_MODEL",
    ),
    _later(
        "--hf-repo-draft",
        "fetch a draft model",
        _DRAFT,
        "text",
        ("-hfd", "-hfrd", "--spec-draft-hf"),
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    _later("--lookup-cache-static", "n-gram file", _CORE, "file", ("-lcs",)),
    _later("--lookup-cache-dynamic", "n-gram file", _CORE, "file", ("-lcd",)),
    _later("--spec-draft-n-max", "draft length", _CORE, "int", env="LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    _later("--spec-draft-n-min", "shortest draft", _CORE, "int", env="LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    _later("--spec-draft-p-min", "least draft probability", _CORE, "float", ("--draft-p-min",), "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
    _later("--spec-draft-conf-min", "least draft confidence", _DSPARK, "float"),
    _later("--spec-draft-backend-sampling", "sample drafts on the device", _DRAFT),
    _later("--no-spec-draft-backend-sampling", "sample drafts on the host", _DRAFT),
    _later("--backend-sampling", "sample on the device", _CORE, aliases=("-bs",), env="LLAMA_ARG_BACKEND_SAMPLING"),
    _later(
        "--spec-draft-ngl",
        "layers on the GPU",
        _DRAFT,
        "text",
        ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    _later("--spec-draft-device", "where the draft model runs", _DRAFT, "text", ("-devd", "--device-draft")),
    _later(
        "--spec-draft-type-k",
        "draft key storage",
        _DRAFT,
        "text",
        ("-ctkd", "--cache-type-k-draft"),
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
    ),
    _later(
        "--spec-draft-type-v",
        "draft value storage",
        _DRAFT,
        "text",
        ("-ctvd", "--cache-type-v-draft"),
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
    ),
    _later("--spec-draft-threads", "draft threads", _DRAFT, "int", ("-td", "--threads-draft")),
    _later("--spec-draft-threads-batch", "draft prompt threads", _DRAFT, "int", ("-tbd", "--threads-batch-draft")),
    _later("--spec-ngram-mod-n-match", "n-gram length", _CORE, "int"),
    _later("--spec-ngram-mod-n-min", "shortest draft", _CORE, "int"),
    _later("--spec-ngram-mod-n-max", "longest draft", _CORE, "int"),
    *(
        _later(f"--spec-ngram-{kind}-{field}", "n-gram drafting", _CORE, "int")
        for kind in ("simple", "map-k", "map-k4v")
        for field in ("size-n", "size-m", "min-hits")
    ),
    _later("--spec-synth-len", "pretended acceptance, for benchmarks", _CORE, "float", env="LLAMA_ARG_SPEC_SYNTH_LEN"),
    _later("--spec-synth-rates", "pretended acceptance, for benchmarks", _CORE, "text", env="LLAMA_ARG_SPEC_SYNTH_RATES"),
)

_REFUSED = (
    _never("--spec-draft-p-split", "drafts are chains here, not trees", "--draft-p-split"),
    _never("--draft", f"{_GONE}; the name is now --spec-draft-n-max", "--draft-n", "--draft-max"),
    _never("--draft-min", f"{_GONE}; the name is now --spec-draft-n-min", "--draft-n-min"),
    _never("--spec-ngram-size-n", f"{_GONE}; the name now has the kind in it, as in --spec-ngram-simple-size-n"),
    _never("--spec-ngram-size-m", f"{_GONE}; the name now has the kind in it, as in --spec-ngram-simple-size-m"),
    _never("--spec-ngram-min-hits", f"{_GONE}; the name now has the kind in it, as in --spec-ngram-map-k4v-min-hits"),
    _never("--spec-draft-cpu-mask", _PINNING, "-Cd", "--cpu-mask-draft"),
    _never("--spec-draft-cpu-range", _PINNING, "-Crd", "--cpu-range-draft"),
    _never("--spec-draft-cpu-strict", _PINNING, "--cpu-strict-draft"),
    _never("--spec-draft-prio", _PINNING, "--prio-draft"),
    _never("--spec-draft-poll", _PINNING, "--poll-draft"),
)

ROWS: tuple[Option, ...] = _DS4 + _LLAMA + _REFUSED
