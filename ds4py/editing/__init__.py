"""Looking into GGUF files and rearranging them: list, split, merge, splice. No weight is decoded here."""

from ds4py.editing.listing import describe, lines
from ds4py.editing.splice import parse_layers, plan_splice, splice, spliced
from ds4py.editing.split import Limit, merge, parse_size, plan_split, sizes, split

__all__ = [
    "Limit",
    "describe",
    "lines",
    "merge",
    "parse_layers",
    "parse_size",
    "plan_splice",
    "plan_split",
    "sizes",
    "splice",
    "spliced",
    "split",
]
