"""Rows about mixtures of experts that are larger than memory: ds4's --ssd-streaming family, on topic "runtime"."""

from __future__ import annotations

from ds4py.cli.option import Option, Range

_COMMANDS = ("ds4", "ds4-bench", "ds4-eval")

ROWS: tuple[Option, ...] = (
    Option(
        "--ssd-streaming",
        "keep experts in the file and only some in memory; changes speed and memory, never a result (any --ssd-... implies it)",
        shown_default="when a model's experts do not fit in memory",
        commands=_COMMANDS,
    ),
    Option(
        "--ssd-streaming-cache-experts",
        "experts to keep in memory, or GiB for them, such as 2000 or 24GB; less where there are fewer or memory is short",
        "text",
        metavar="N|NGB",
        shown_default="what memory is free",
        commands=_COMMANDS,
    ),
    Option(
        "--ssd-streaming-full-layers",
        "of the first N layers keep all experts, as far as they fit",
        "int",
        metavar="N",
        default=0,
        range=Range(0, 1000),
        commands=_COMMANDS,
    ),
    Option(
        "--ssd-streaming-preload-experts",
        "experts to read before the first token, of every layer equally many; the rest is read when it is taken",
        "int",
        metavar="N",
        default=0,
        range=Range(0, 1_000_000),
        commands=_COMMANDS,
    ),
    Option("--ssd-streaming-cold", "read no experts before the first token, whatever else says so", commands=_COMMANDS),
)
