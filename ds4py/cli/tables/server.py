"""Rows of ds4-server: its own, and what it shares with ds4.

What means the same for both is the same row for another command, taken over here, so that a flag of the engine or of speculation
is written once. Rows about one prompt, or about showing something and leaving, are ds4's alone.
"""

from __future__ import annotations

from dataclasses import replace

from ds4py.cli.option import Kind, Option, Range
from ds4py.cli.tables import download, elsewhere, runtime, sampling, speculation

COMMAND = "ds4-server"
_ONLY = (COMMAND,)
_API, _CACHE, _THINKING = ("api",), ("kv-cache",), ("thinking",)
_DISK = "it comes with the disk store of prompts; what is in memory is kept within --cache-ram"

# Rows of ds4 that are about one prompt, one answer, or a listing.
_NOT_SHARED = frozenset(
    (
        "--prompt --prompt-file --prefix-file --system --raw --escape --ignore-eos --reverse-prompt --logit-bias "
        "--grammar --grammar-file --json-schema --json-schema-file --context-shift --list-devices --server"
    ).split()
)
_CHANGED: dict[str, dict[str, object]] = {
    "--tokens": {"help": "most tokens of an answer whose request gives no limit; -1 = until the context is full", "default": -1},
    "--temp": {"help": "temperature of requests that give none", "aliases": ("--temperature", "--default-temperature")},
    "--top-p": {"aliases": ("--default-top-p",)},
    "--min-p": {"aliases": ("--default-min-p",)},
    "--seed": {"help": "seed of requests that give none; 0 = another one each time"},
    "--think": {"help": "let the model think unless a request says no (the default where it can)", "topics": _THINKING},
    "--think-max": {"topics": _THINKING},
    "--think-level": {"topics": _THINKING},
    "--nothink": {"help": "no thinking unless a request asks for it", "topics": _THINKING},
}


def _shared(option: Option) -> Option:
    return replace(option, commands=_ONLY, **_CHANGED.get(option.name, {}))  # type: ignore[arg-type]  # fields of Option


def _later_disk(name: str, kind: Kind, metavar: str) -> Option:
    text = "prompts kept on disk"
    return Option(name, text, kind, metavar=metavar, topics=_CACHE, commands=_ONLY, status="later", why=_DISK)


_FROM_DS4: tuple[Option, ...] = tuple(
    _shared(option)
    for option in (
        *runtime.ROWS,
        *download.ROWS,
        *sampling.ROWS,
        *speculation.ROWS,
        *elsewhere.STEERING,
        *elsewhere.DISTRIBUTED,
        *elsewhere.LLAMA,
    )
    if "ds4" in option.commands and option.name not in _NOT_SHARED
)

_OWN: tuple[Option, ...] = (
    Option(
        "--host",
        "address to listen on; anything but a loopback address lets the network in",
        "text",
        metavar="ADDRESS",
        default="127.0.0.1",
        env=("LLAMA_ARG_HOST",),
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--port",
        "port to listen on; 0 = any free one",
        "int",
        metavar="N",
        default=8000,
        range=Range(0, 65535),
        env=("LLAMA_ARG_PORT",),
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--api-key",
        "a key that requests must carry, as Bearer or x-api-key; may be given several times",
        "text",
        metavar="KEY",
        repeat=True,
        env=("LLAMA_API_KEY",),
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--api-key-file",
        "a file of such keys, one a line; # begins a comment",
        "file",
        metavar="FILE",
        env=("LLAMA_ARG_API_KEY_FILE",),
        topics=_API,
        commands=_ONLY,
    ),
    Option("--cors", "let web pages of any origin use the server", topics=_API, commands=_ONLY),
    Option(
        "--alias",
        "the model's name in lists and answers",
        "text",
        ("-a",),
        "NAME",
        shown_default="the file's name",
        env=("LLAMA_ARG_ALIAS",),
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--max-queue",
        "requests that may wait; one more gets 429; 0 = any number",
        "int",
        metavar="N",
        default=0,
        range=Range(0, 1_000_000),
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--max-body-mb",
        "largest request body, in MiB",
        "int",
        metavar="N",
        default=64,
        range=Range(1, 4096),
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--reasoning-budget",
        "most tokens of reasoning of requests that give no limit; 0 = no thinking unless a request asks for it; -1 = no limit",
        "int",
        metavar="N",
        default=-1,
        range=Range(-1, 2**31 - 1),
        env=("LLAMA_ARG_THINK_BUDGET",),
        topics=_THINKING,
        commands=_ONLY,
    ),
    Option(
        "--trace",
        "append every rendered prompt and reply to this file, as lines of JSON",
        "file",
        metavar="FILE",
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--scripted",
        "serve the replies in this file instead of a model's: for testing clients",
        "file",
        metavar="FILE",
        topics=_API,
        commands=_ONLY,
    ),
    Option(
        "--cache-ram",
        "memory for the prompts of conversations kept warm, in MiB; the one at work is always kept",
        "int",
        ("-cram",),
        "N",
        2048,
        range=Range(0, 16_777_216),
        topics=_CACHE,
        commands=_ONLY,
    ),
    Option(
        "--system-as-is",
        "leave a date line at the head of a long system text where it is (else it goes to the user's first turn)",
        topics=_CACHE,
        commands=_ONLY,
    ),
    Option(
        "--tool-memory-max-ids",
        "tool calls remembered, so that they come back into prompts exactly as they were sampled; 0 = none",
        "int",
        metavar="N",
        default=100_000,
        range=Range(0, 100_000_000),
        topics=_CACHE,
        commands=_ONLY,
    ),
    Option(
        "--disable-exact-dsml-tool-replay",
        "render calls that come back anew; the same as --tool-memory-max-ids 0",
        topics=_CACHE,
        commands=_ONLY,
    ),
    # --- known elsewhere, not here --------------------------------------------------------------------------------------
    *(
        Option(name, text, topics=("llama.cpp",), commands=_ONLY, status="accepted")
        for name, text in (
            ("--metrics", "metrics are always at /metrics"),
            ("--no-webui", "there is no page for browsers"),
            ("--no-slots", "there is no list of slots"),
        )
    ),
    Option(
        "--threads-http",
        "one thread serves all connections",
        "int",
        metavar="N",
        env=("LLAMA_ARG_THREADS_HTTP",),
        topics=("llama.cpp",),
        commands=_ONLY,
        status="accepted",
    ),
    Option(
        "--batched-session",
        "sessions decoded together",
        "int",
        ("-np", "--parallel"),
        "N",
        topics=_API,
        commands=_ONLY,
        status="later",
        why="requests are answered one after another so far",
    ),
    _later_disk("--kv-disk-dir", "file", "DIR"),
    _later_disk("--kv-disk-space-mb", "int", "N"),
    *(
        _later_disk(f"--kv-cache-{name}-tokens", "int", "N")
        for name in ("min", "cold-max", "continued-interval", "boundary-trim", "boundary-align")
    ),
    _later_disk("--kv-cache-reject-different-quant", "flag", ""),
    Option(
        "--mixed-prefill-quantum",
        "tokens of a prompt that are read between two steps of other sessions",
        "int",
        metavar="N",
        topics=_API,
        commands=_ONLY,
        status="later",
        why="requests are answered one after another so far",
    ),
    Option(
        "--dir-steering-policy",
        "which tokens are steered",
        "text",
        metavar="NAME",
        topics=("steering",),
        commands=_ONLY,
        status="later",
        why="it comes with steering vectors",
    ),
)

ROWS: tuple[Option, ...] = (*_FROM_DS4, *_OWN)
