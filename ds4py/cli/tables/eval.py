"""Rows that only `ds4-eval` takes: does drafting pay, and does a model answer right. Topic "evaluation"."""

from __future__ import annotations

from ds4py.cli.option import Kind, Option, Range

_TOPIC = ("evaluation",)
_EVAL = ("ds4-eval",)


def _row(
    name: str,
    help: str,
    kind: Kind = "flag",
    *aliases: str,
    metavar: str = "",
    default: str | int | float | None = None,
    range: Range | None = None,
    repeat: bool = False,
    shown: str = "",
) -> Option:
    return Option(
        name, help, kind, aliases, metavar, default, shown, range, repeat=repeat, topics=_TOPIC, commands=_EVAL
    )


_SPEC = (
    _row("--spec", "does drafting pay? acceptance by position and net speed on code, chat, summaries and translations"),
    _row(
        "--drafters",
        "what --spec measures, separated by commas; a+b is a chain (default ngram-map-k; with -md the draft and the chain too)",
        "text",
        metavar="LIST",
    ),
    _row("--prompts", "JSON Lines with id, category and turns, instead of our own prompts", "file", metavar="FILE"),
    _row("--category", "only these kinds of prompts", "text", metavar="NAME,NAME", repeat=True),
    _row("--limit", "at most N prompts of each kind", "int", metavar="N", range=Range(1)),
    _row("--gen-tokens", "tokens of an answer at most", "int", "--osl", metavar="N", default=128, range=Range(1)),
    _row("--rounds", "answers to every prompt, each with another seed", "int", metavar="N", default=1, range=Range(1)),
    _row("--temps", "temperatures to measure at", "text", metavar="T,T", default="0,1"),
    _row("--seed", "first seed", "int", metavar="N", default=0, range=Range(0, 2**63 - 1)),
    _row("--csv", "write the table to FILE", "file", metavar="FILE"),
    _row("--json", "write everything that was measured to FILE", "file", "--output", metavar="FILE"),
    _row("--plot", "draw the table as a PNG", "file", metavar="FILE"),
)

_SERVER = (
    _row("--url", "measure a running server that speaks OpenAI's chat completions, such as llama-server", "text", metavar="URL"),
    _row("--baseline-url", "... against this one, which does not draft", "text", metavar="URL"),
    _row("--baseline-inputs", "... against itself, asked with these extra fields not to draft", "text", metavar="JSON"),
    _row("--baseline", "... against what an earlier run wrote with --json", "file", metavar="FILE"),
    _row("--extra-inputs", "fields to add to every request, as a JSON object", "text", metavar="JSON"),
    _row("--server-model", "model to ask for", "text", metavar="NAME", shown="the first that the server lists"),
    _row("--api-key", "key to send to the servers", "text", metavar="KEY"),
    _row("--timeout", "seconds to wait for a server", "float", metavar="S", default=600.0, range=Range(0, above=True)),
)

ROWS: tuple[Option, ...] = (*_SPEC, *_SERVER)
