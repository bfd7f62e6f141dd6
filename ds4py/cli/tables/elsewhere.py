"""Rows that belong to other machines, other processes or other programs.

`DISTRIBUTED` and `STEERING` are ds4's topics of those names. `LLAMA` holds llama.cpp's spellings of things that are always so
here: they are accepted, so that commands from its documentation run, and change nothing.
"""

from __future__ import annotations

from ds4py.cli.option import Kind, Option

_ONE_HOST = "this build runs on one machine"
_STEERING = "it comes with steering vectors"


def _multi_host(name: str, kind: Kind = "text") -> Option:
    return Option(name, "several machines", kind, topics=("distributed",), status="never", why=_ONE_HOST)


def _steering(name: str, help: str, kind: Kind) -> Option:
    return Option(
        name, help, kind, metavar="FILE" if kind == "file" else "F", topics=("steering",), status="later", why=_STEERING
    )


def _accepted(
    name: str, help: str, *aliases: str, kind: Kind = "flag", choices: tuple[str, ...] = (), bare: str | None = None
) -> Option:
    metavar = "" if kind == "flag" else "|".join(choices) or "N"
    return Option(name, help, kind, aliases, metavar, choices=choices, bare=bare, topics=("llama.cpp",), status="accepted")


DISTRIBUTED: tuple[Option, ...] = (
    *(
        _multi_host(name)
        for name in ("--role", "--layers", "--listen", "--coordinator", "--transport", "--rdma-device", "--rdma-gid-index")
    ),
    *(_multi_host(f"--dist-{name}") for name in ("prefill-chunk", "prefill-window", "activation-bits")),
    *(
        _multi_host(name, "flag")
        for name in ("--dist-replay-check", "--tensor-parallel", "--tensor-parallel-token-prefill", "--debug")
    ),
    _multi_host("--debug-hash"),
    Option("--rpc", "several machines", "text", topics=("distributed",), status="never", why=_ONE_HOST),
)

STEERING: tuple[Option, ...] = (
    _steering("--dir-steering-file", "steering directions", "file"),
    _steering("--dir-steering-ffn", "scale at feed-forward blocks", "float"),
    _steering("--dir-steering-attn", "scale at attention blocks", "float"),
)

LLAMA: tuple[Option, ...] = (
    _accepted("--flash-attn", "attention is always the fused form", "-fa", kind="text", choices=("auto", "on", "off"), bare="on"),
    _accepted("--jinja", "the model's own template is always rendered by Jinja"),
    _accepted("--n-gpu-layers", "there is no GPU to give layers to", "-ngl", "--gpu-layers", kind="text"),
    _accepted("--batch-size", "how much is read at once is --prefill-chunk", "-b", kind="int"),
    _accepted("--threads-batch", "prompts use -t threads too", "-tb", kind="int"),
    _accepted("--poll", "waiting threads poll for a moment, then yield", kind="int"),
    _accepted("--poll-batch", "waiting threads poll for a moment, then yield", kind="int"),
    _accepted("--mmap", "files are always mapped"),
    _accepted("--no-mmap", "files are always mapped"),
    _accepted("--mlock", "weights in use stay in memory as the system decides"),
    _accepted("--warmup", "nothing needs warming"),
    _accepted("--no-warmup", "nothing needs warming"),
    _accepted("--conversation", "chat is the default", "-cnv"),
    _accepted("--single-turn", "-p always gives one turn", "-st"),
    _accepted("--no-display-prompt", "the prompt is never echoed"),
    _accepted("--no-context-shift", "text is never dropped silently"),
    _accepted("--simple-io", "pipes are recognised"),
    _accepted("--no-kv-offload", "there is no GPU to offload to", "-nkvo"),
    _accepted("--log-disable", "there is no log file"),
    _accepted("--perf", "the speed line is always printed"),
    _accepted("--offline", "answering never uses the network"),
    _accepted("--quality", "exact kernels are the only ones; with a DeepSeek V4 draft: load it, draft nothing"),
    _accepted("--ui-logo", "there is no picture at the start", kind="text", choices=("auto",)),
    _accepted("--warm-weights", "weights are read when the model loads"),
)
