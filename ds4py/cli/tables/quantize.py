"""Rows that only `ds4-quantize` takes: a GGUF file, or a Hugging Face folder, to a smaller GGUF. Topic "quantize".

Names are llama-quantize's where it has one.
"""

from __future__ import annotations

from ds4py.cli.option import Kind, Option, Range

_TOPIC = ("quantize",)
_QUANTIZE = ("ds4-quantize",)


def _row(
    name: str, help: str, kind: Kind = "flag", metavar: str = "", aliases: tuple[str, ...] = (), repeat: bool = False
) -> Option:
    return Option(name, help, kind, aliases, metavar, repeat=repeat, topics=_TOPIC, commands=_QUANTIZE)


ROWS: tuple[Option, ...] = (
    _row("--type", "what to make: a type or a recipe, see --list", "text", "NAME"),
    _row(
        "--tensor-type",
        "type of the matrices whose names PATTERN, a regular expression, is found in; the first rule that fits decides, and a "
        "rule that decides nothing is an error; may be given several times",
        "text",
        "PATTERN=TYPE",
        repeat=True,
    ),
    _row("--output-tensor-type", "type of the output matrix", "text", "TYPE"),
    _row("--token-embedding-type", "type of the token embedding", "text", "TYPE"),
    _row("--leave-output-tensor", "keep the output matrix as it is"),
    _row("--pure", "one type for all matrices, without the recipe's exceptions"),
    _row("--imatrix", "importance matrix (.dat or GGUF), as `ds4 --imatrix-out` makes them", "file", "FILE"),
    _row("--imatrix-strict", "fail if the importance matrix lacks a tensor that is packed below eight bits"),
    _row("--dspark-out", "from a Hugging Face folder: also write what drafts for the model (DSpark, MTP)", "file", "FILE"),
    _row("--resume", "keep what is done when the run stops, in OUT.partial, and go on from there when it is started again"),
    _row("--allow-requantize", "quantise what is quantised already: each loss adds to the last"),
    _row("--strict", "fail where rows do not fit the type's blocks, instead of taking the next type that does"),
    _row("--keep-split", "write as many files as the source has"),
    _row("--override-kv", "set a metadata key; TYPE is int, float, bool or str", "text", "KEY=TYPE:VALUE", repeat=True),
    _row("--dry-run", "print the type and size of every tensor and the size of the file, and write nothing"),
    Option(
        "--threads",
        "CPU threads",
        "int",
        ("-t",),
        "N",
        shown_default="all that this process may use",
        range=Range(1, 1024),
        topics=_TOPIC,
        commands=_QUANTIZE,
    ),
    _row("--list", "print the types and recipes"),
)
