"""Rows about getting model files: what `ds4-download` takes, and the ones it shares with `ds4 -hf`. Topic "download"."""

from __future__ import annotations

from ds4py.cli.option import Kind, Option, Range

_TOPIC = ("download",)
_SHARED_TOPICS = ("runtime", "download")
_ONLY = ("ds4-download",)
_SHARED = ("ds4", "ds4-download")


def _shared(
    name: str, help: str, kind: Kind, metavar: str, env: str, *aliases: str, default: str | None = None, shown: str = ""
) -> Option:
    return Option(
        name,
        help,
        kind,
        aliases,
        metavar,
        default,
        shown,
        env=(env,),
        topics=_SHARED_TOPICS,
        commands=_SHARED,
    )


def _flag(name: str, help: str) -> Option:
    return Option(name, help, topics=_TOPIC, commands=_ONLY)


ROWS: tuple[Option, ...] = (
    _shared(
        "--hf-repo",
        "download a model from the hub, once; of several quants Q4_K_M, unless one is named",
        "text",
        "REPO[:QUANT]",
        "LLAMA_ARG_HF_REPO",
        "-hf",
        "-hfr",
    ),
    _shared("--hf-file", "the file to take from the repository of -hf", "text", "FILE", "LLAMA_ARG_HF_FILE", "-hff"),
    _shared(
        "--token",
        "who asks the hub; HF_TOKEN is safer, since a command line can be seen by others",
        "text",
        "TOKEN",
        "HF_TOKEN",
        "--hf-token",
        "-hft",
        shown="HF_HOME/token, or ~/.cache/huggingface/token",
    ),
    _shared("--gguf-dir", "the folder for downloads", "file", "DIR", "DS4_GGUF_DIR", default="gguf"),
    _shared("--hf-endpoint", "address of the hub or a mirror", "text", "URL", "HF_ENDPOINT", shown="the public hub"),
    _shared(
        "--hf-cache",
        "a cache of the hub's other tools; what it holds is used",
        "file",
        "DIR",
        "HF_HUB_CACHE",
        shown="HF_HOME/hub, or ~/.cache/huggingface/hub",
    ),
    _flag("--list", "every target with its size and whether it fits here; no network"),
    _flag("--dry-run", "what would be downloaded, and whether it fits; no network for a target of the list"),
    _flag("--verify", "read files that are here already again and check their hashes"),
    _flag("--force", "replace a file of the same name that is something else"),
    _flag("--no-link", "leave ds4flash.gguf as it is"),
    Option(
        "--ctx",
        "context for the memory estimate",
        "int",
        ("-c",),
        "N",
        32768,
        range=Range(1, 16_777_216),
        topics=_TOPIC,
        commands=_ONLY,
    ),
    Option(
        "--timeout",
        "seconds without a byte after which a connection counts as dead",
        "float",
        (),
        "SECONDS",
        30.0,
        "",
        Range(0, 3600, above=True),
        env=("HF_HUB_DOWNLOAD_TIMEOUT",),
        topics=_TOPIC,
        commands=_ONLY,
    ),
)
