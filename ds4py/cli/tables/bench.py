"""Rows that only `ds4-bench` takes: speed at growing context lengths. Topic "benchmark"."""

from __future__ import annotations

from ds4py.cli.option import Option, Range

_TOPIC = ("benchmark",)
_BENCH = ("ds4-bench",)


def _row(name: str, help: str, metavar: str, default: int | None = None, least: int = 1, shown: str = "") -> Option:
    return Option(name, help, "int", (), metavar, default, shown, Range(least), topics=_TOPIC, commands=_BENCH)


def _file(name: str, help: str, metavar: str = "FILE") -> Option:
    return Option(name, help, "file", metavar=metavar, topics=_TOPIC, commands=_BENCH)


def _flag(name: str, help: str) -> Option:
    return Option(name, help, topics=_TOPIC, commands=_BENCH)


ROWS: tuple[Option, ...] = (
    _file("--prompt-file", "text to read, as it is, repeated until it is long enough (default: a text of our own)"),
    _file("--chat-prompt-file", "text to read, inside the chat format; it must be long enough as it is"),
    Option("--system", "system prompt of --chat-prompt-file", "text", ("-sys",), "TEXT", "", topics=_TOPIC, commands=_BENCH),
    _row("--ctx-start", "first frontier, in tokens", "N", shown="2048, or less where the model's context is short"),
    _row("--ctx-max", "last frontier", "N", shown="32768, or what the model was trained for"),
    _row("--ctx-alloc", "context to allocate", "N", shown="what the run needs"),
    _row("--step-incr", "next frontier = this one plus N", "N", shown="2048; 0 with --step-mul", least=0),
    Option("--step-mul", "... or times F, plus --step-incr", "float", (), "F", 1.0, "", Range(1), topics=_TOPIC, commands=_BENCH),
    _row("--gen-tokens", "tokens decoded at each frontier", "N", 128),
    _flag("--teacher-forced-decode", "decode the text's own tokens instead of drawing"),
    _flag("--warmup", "evaluate a few tokens first, unmeasured"),
    _file("--csv", "write the table to FILE (default: standard output)"),
    _file("--plot", "draw the table as a PNG"),
    _file("--dump-frontier-logits-dir", "write the logits at each frontier as JSON files in DIR", "DIR"),
    _flag("--show-output", "print what was decoded, on standard error"),
    _flag("--compare-llama-cpp", "instead: run the same file in llama-cpp-python, side by side, and print a table of ratios"),
    _flag("--kernels", "instead: time every quantised product of the CPU backend, with the code that makes it (no model needed)"),
    Option(
        "--spec",
        "instead: measure these drafters against plain decoding, on a code edit and a story, at temperature 0 and 1",
        "text",
        metavar="TYPE,TYPE",
        topics=_TOPIC,
        commands=_BENCH,
    ),
    _file("--json", "write what --spec measured to FILE, with acceptance by position"),
    _row("--rounds", "rounds of --compare-llama-cpp and --spec", "N", 3),
)
