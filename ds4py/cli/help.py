"""Help pages, written from the option table without typer: `ds4 --help` must answer before anything slow is imported.

The idea: a page is the usage line and the rows of one or more topics. Rows that this build refuses are listed on their topic's
own page and in "all", marked, so that nobody searches for them; the default page shows what works.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ds4py.cli.option import Option
from ds4py.cli.options import TOPICS, for_command
from ds4py.cli.terminal import Terminal

USAGE = {
    "ds4": "usage: ds4 [(-p PROMPT | --prompt-file FILE)] [options]",
    "ds4-bench": "usage: ds4-bench [options]",
    "ds4-download": "usage: ./download_model.sh TARGET [options]   (or: ds4-download TARGET)",
    "ds4-server": "usage: ds4-server [options]",
    "ds4-convert": "usage: ds4-convert FOLDER [options]",
    "ds4-eval": "usage: ds4-eval [--spec] [options]",
    "ds4-quantize": "usage: ds4-quantize IN.gguf OUT.gguf --type NAME [options]   (or: IN.gguf OUT.gguf NAME [THREADS])",
}
_ABOUT = {
    "ds4": "Run a GGUF model: with a prompt it answers and leaves, without one it chats.",
    "ds4-bench": "Measure prefill and decode speed of a GGUF model at growing context lengths.",
    "ds4-download": "Get a model: by its name in the list, from a repository of the hub (hf:REPO[:QUANT]), or the small demo.",
    "ds4-server": "Serve a GGUF model over HTTP: OpenAI's Chat Completions, Completions and Responses, Anthropic's Messages.",
    "ds4-convert": "Turn a folder of config.json, safetensors and tokenizer files into one GGUF file.",
    "ds4-eval": "Ask a model questions with known answers; with --spec, measure whether drafting pays.",
    "ds4-quantize": "Make a smaller GGUF file of one: choose a type for every matrix and encode the weights again.",
}
_DEFAULT = {
    "ds4": ("runtime", "sampling"),
    "ds4-bench": ("runtime", "benchmark"),
    "ds4-server": ("api", "runtime", "sampling", "thinking", "kv-cache"),
    "ds4-convert": ("convert",),
    "ds4-download": ("download",),
    "ds4-eval": ("runtime", "evaluation"),
    "ds4-quantize": ("quantize",),
}
_TITLES = {
    "runtime": "Model and machine",
    "sampling": "Prompt, sampling, thinking",
    "thinking": "Thinking",
    "speculation": "Speculation",
    "steering": "Steering",
    "diagnostics": "Diagnostics (each prints and leaves)",
    "distributed": "Several machines",
    "llama.cpp": "Accepted and without effect, since it is always so",
    "benchmark": "Benchmark",
    "api": "Serving",
    "kv-cache": "Prompts kept warm",
    "evaluation": "Evaluation",
    "convert": "Conversion",
    "download": "Download",
    "quantize": "Quantisation",
}

# The REPL's commands: (what is typed, what it does). `repl.py` obeys exactly these.
SLASH_COMMANDS: tuple[tuple[str, str], ...] = (
    ("/help", "this list"),
    ("/think", "let the model think before it answers"),
    ("/think-max", "as much thinking as the model offers"),
    ("/nothink", "no thinking"),
    ("/ctx N", "new context size; the conversation stays and is read again on the next turn"),
    ("/reset", "forget the conversation"),
    ("/read FILE", "the file's text is your next message"),
    ("/status", "model, context used, speed so far"),
    ("/quit, /exit", "leave (also Ctrl-D)"),
)
_NAME_COLUMN = 34
_WIDTH = 110


def page(command: str, topic: str, terminal: Terminal) -> tuple[str, str]:
    """(the page, a note about an unknown topic or ""). topic "" is the default page."""
    topics = TOPICS[command]
    known = ("all", *topics)
    note = f"no help topic {topic!r}; topics are {', '.join(known)}" if topic and topic not in known else ""
    chosen = topics if topic == "all" else (topic,) if topic in topics else _DEFAULT[command]
    everything = topic in known
    parts = [USAGE[command], _ABOUT[command]]
    parts += [_section(command, name, terminal, everything) for name in chosen]
    if not everything:
        parts.append(f"More: {command} --help TOPIC, where TOPIC is {', '.join(known)}.")
        parts.append("Colours: --color, NO_COLOR, TERM=dumb. Environment names in [brackets] are read when the option is absent.")
    return "\n\n".join(parts) + "\n", note


def usage(command: str) -> str:
    """The lines that follow a usage error."""
    return f"{USAGE[command]}\ntry '{command} --help'"


def slash_help(terminal: Terminal) -> str:
    return "\n".join(_entry(terminal, name, text) for name, text in SLASH_COMMANDS)


def _section(command: str, topic: str, terminal: Terminal, everything: bool) -> str:
    if topic == "commands":
        return terminal.bold("Commands of the interactive chat") + "\n" + slash_help(terminal)
    rows = [option for option in for_command(command) if topic in option.topics]
    shown = rows if everything else [option for option in rows if option.status == "works"]
    return terminal.bold(_TITLES[topic]) + "\n" + "\n".join(_lines(shown, terminal))


def _lines(options: Iterable[Option], terminal: Terminal) -> Iterable[str]:
    for option in options:
        shown = [*option.names[1:], option.name] if option.aliases and len(option.aliases[0]) == 2 else option.names
        yield _entry(terminal, ", ".join(shown) + (f" {option.metavar}" if option.metavar else ""), _text(option))


def _text(option: Option) -> str:
    if option.status == "later":
        return f"(not in this build yet) {option.help}"
    if option.status == "never":
        return f"(not supported) {option.help or option.why}"
    default = option.shown_default or ("" if option.default in (None, "") else str(option.default))
    env = f" [{', '.join(option.env)}]" if option.env else ""
    return option.help + (f" (default {default})" if default else "") + env


def _entry(terminal: Terminal, name: str, text: str) -> str:
    """Name and text in two columns; a long name has a line of its own."""
    indent = " " * _NAME_COLUMN
    body = textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    head = "  " + terminal.accent(name)
    if len(name) + 4 > _NAME_COLUMN:
        return f"{head}\n{body}"
    return head + " " * (_NAME_COLUMN - 2 - len(name)) + body[_NAME_COLUMN:]
