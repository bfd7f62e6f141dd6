"""Rows that only `ds4-eval` takes: does a model answer right, and does drafting pay. Topics "evaluation" and "sampling"."""

from __future__ import annotations

from dataclasses import replace

from ds4py.cli.option import Kind, Option, Range
from ds4py.cli.tables import runtime, sampling

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
    choices: tuple[str, ...] = (),
) -> Option:
    return Option(
        name, help, kind, aliases, metavar, default, shown, range, choices, repeat=repeat, topics=_TOPIC, commands=_EVAL
    )


def _count(name: str, help: str, default: int | None = None, least: int = 1, shown: str = "") -> Option:
    return _row(name, help, "int", metavar="N", default=default, range=Range(least), shown=shown)


# Rows of ds4 that mean the same here; an evaluation is greedy unless it is told otherwise.
_SHARED = ("--ctx", "--temp", "--top-k", "--top-p", "--min-p", "--think", "--think-max", "--nothink", "--chat-template-file")
_FROM_DS4 = tuple(
    replace(option, commands=_EVAL, default=0.0 if option.name == "--temp" else option.default)
    for option in (*runtime.ROWS, *sampling.ROWS)
    if option.name in _SHARED
)

_QUESTIONS = (
    _row("--suite", "which questions", "text", metavar="NAME", default="core", choices=("core", "hard", "hard-smoke", "all")),
    _row("--source", "only those from these sources", "text", metavar="NAME,NAME", repeat=True),
    _row("--domain", "only those of these domains", "text", metavar="NAME,NAME", repeat=True),
    _row("--case-id", "only these questions, of any suite", "text", metavar="ID,ID", repeat=True),
    _row("--case-sequence", "exactly these questions, in this order", "text", metavar="ID,ID", repeat=True),
    _count("--questions", "ask at most N"),
    _row("--cases", "questions of a JSON Lines file instead of our own", "file", metavar="FILE"),
    _row("--list-cases", "list the questions that would be asked, and leave"),
    _row("--validate-cases", "check the questions and leave"),
    _row("--self-test-extractors", "check how answers are read out of replies, and leave"),
    _row("--trace", "write every question, reply and verdict to FILE, a line each, as they come", "file", metavar="FILE"),
    _row("--retry-incomplete", "go on with --trace: ask what has no answer in it, or was cut off"),
    _row("--regrade-trace", "judge the replies of a trace again, without a model", "file", metavar="FILE"),
    _row("--tokens", "tokens of a reply at most", "int", "-n", metavar="N", range=Range(1), shown="the question's own, or 16000"),
    _count("--soft-limit-reply-budget", "close thinking from N tokens before the end, where it is about to close", 1024, 0),
    _count("--soft-limit-think-close-rank", "... that is, where the closing tag is among the N likeliest tokens", 3),
    _count("--hard-limit-reply-budget", "close thinking N tokens before the end in any case", 512, 0),
    _count("--pause-ms", "pause between questions, on a terminal", 350, 0),
    _row("--plain", "no line of progress, no pauses"),
)


_SPEC = (
    _row("--spec", "does drafting pay? acceptance by position and net speed on code, chat, summaries and translations"),
    _row(
        "--drafters",
        "what --spec measures, separated by commas, a+b being a chain (default ngram-map-k; with -md the draft and the "
        "chain too); for questions, the one that drafts",
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
    _row("--url", "ask or measure a running server that speaks OpenAI's chat completions", "text", metavar="URL"),
    _row("--baseline-url", "... against this one, which does not draft", "text", metavar="URL"),
    _row("--baseline-inputs", "... against itself, asked with these extra fields not to draft", "text", metavar="JSON"),
    _row("--baseline", "... against what an earlier run wrote with --json", "file", metavar="FILE"),
    _row("--extra-inputs", "fields to add to every request, as a JSON object", "text", metavar="JSON"),
    _row("--server-model", "model to ask for", "text", metavar="NAME", shown="the first that the server lists"),
    _row("--api-key", "key to send to the servers", "text", metavar="KEY"),
    _row("--timeout", "seconds to wait for a server", "float", metavar="S", default=600.0, range=Range(0, above=True)),
)

ROWS: tuple[Option, ...] = (*_QUESTIONS, *_SPEC, *_SERVER, *_FROM_DS4)
