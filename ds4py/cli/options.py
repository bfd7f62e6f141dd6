"""THE option table: every flag of every command, in one tuple.

The idea: `OPTIONS` is the concatenation of the rows in `tables/`, and everything else asks questions of it: which row has this
spelling, which rows does a command take, which environment names are read. The invariant: within one command a spelling belongs
to one row. This module is cheap: importing it brings in neither numpy nor typer, so `ds4 --help` can answer before anything
else is loaded. Rejected: a registry that modules add themselves to at import, since then the table depends on what was
imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ds4py.cli.option import Option, Range, Value
from ds4py.cli.tables import (
    bench,
    convert,
    diagnostics,
    download,
    elsewhere,
    eval,
    quantize,
    runtime,
    sampling,
    server,
    speculation,
)

__all__ = [
    "EXCLUSIVE",
    "OPTIONS",
    "Option",
    "Range",
    "TOPICS",
    "Value",
    "WORDS",
    "environment",
    "for_command",
    "nearest",
    "spellings",
]

OPTIONS: tuple[Option, ...] = (
    *runtime.ROWS,
    *download.ROWS,
    *sampling.ROWS,
    *speculation.ROWS,
    *diagnostics.ROWS,
    *elsewhere.STEERING,
    *elsewhere.DISTRIBUTED,
    *elsewhere.LLAMA,
    *bench.ROWS,
    *eval.ROWS,
    *convert.ROWS,
    *quantize.ROWS,
    *server.ROWS,
)

# Pages of --help, in the order of the "all" page. "commands" is the REPL's and has no rows.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "ds4": ("runtime", "sampling", "speculation", "steering", "diagnostics", "distributed", "llama.cpp", "commands"),
    "ds4-bench": ("runtime", "benchmark", "speculation"),
    "ds4-convert": ("convert",),
    "ds4-download": ("download",),
    "ds4-eval": ("runtime", "evaluation", "sampling", "speculation"),
    "ds4-quantize": ("quantize",),
    "ds4-server": ("api", "runtime", "sampling", "thinking", "speculation", "kv-cache", "steering", "distributed", "llama.cpp"),
}

# How many arguments a command takes that belong to no option; 0 for a command that is not here.
WORDS: Mapping[str, int] = {"ds4-convert": 1, "ds4-download": 1, "ds4-quantize": 4}

# Options of which a command line holds at most one, by command.
EXCLUSIVE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ds4-server": (
        ("--chat-template", "--chat-template-file"),
        ("--cpu", "--backend"),
        ("--model", "--hf-repo"),
        ("--spec-synth-len", "--spec-synth-rates"),
    ),
    "ds4": (
        ("--prompt", "--prompt-file", "--perplexity-file"),
        ("--raw", "--prefix-file"),
        ("--chat-template", "--chat-template-file"),
        ("--cpu", "--backend"),
        ("--model", "--hf-repo"),
        ("--grammar", "--grammar-file", "--json-schema", "--json-schema-file"),
        ("--spec-synth-len", "--spec-synth-rates"),
        (
            "--inspect",
            "--show-prompt",
            "--dump-tokens",
            "--dump-logits",
            "--dump-logprobs",
            "--decode-consistency",
            "--perplexity-file",
            "--imatrix-dataset",
        ),
        ("--prompt", "--prompt-file", "--imatrix-dataset"),
    ),
    "ds4-eval": (
        ("--baseline-url", "--baseline"),
        ("--baseline-inputs", "--baseline"),
        *(("--url", name) for name in ("--model", "--drafters", "--spec-draft-model")),
        *(("--spec", name) for name in ("--suite", "--cases", "--trace", "--regrade-trace", "--list-cases")),
        *(("--spec", name) for name in ("--temp", "--tokens")),
    ),
    "ds4-bench": (
        ("--prompt-file", "--chat-prompt-file"),
        ("--teacher-forced-decode", "--dump-frontier-logits-dir"),
        *(("--compare-llama-cpp", name) for name in ("--plot", "--dump-frontier-logits-dir", "--chat-prompt-file")),
        *(("--kernels", name) for name in ("--compare-llama-cpp", "--spec", "--plot", "--dump-frontier-logits-dir")),
        *(("--spec", name) for name in ("--compare-llama-cpp", "--dump-frontier-logits-dir")),
        *(("--spec", name) for name in ("--prompt-file", "--chat-prompt-file")),
    ),
}


def for_command(command: str) -> tuple[Option, ...]:
    """The rows a command takes, in table order."""
    return tuple(option for option in OPTIONS if command in option.commands)


def normalise(spelling: str) -> str:
    """`--top_p` is `--top-p`: underscores and dashes are one in long names, as in llama.cpp."""
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling


def spellings(options: Iterable[Option]) -> dict[str, Option]:
    """Every spelling of the given rows -> its row. ValueError if two rows of one command share a spelling."""
    found: dict[str, Option] = {}
    for option in options:
        for name in option.names:
            if name in found:
                raise ValueError(f"{name} is a name of both {found[name].name} and {option.name}")
            found[name] = option
    return found


def environment(command: str) -> dict[str, Option]:
    """Every environment name that a command reads -> its row."""
    return {name: option for option in for_command(command) for name in option.env}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The spelling that was probably meant, or None when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return close[0] if close else None
