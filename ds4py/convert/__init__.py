"""Hugging Face checkpoints to GGUF: read safetensors, map names, change what readers expect changed, write one file.

    plan = make_plan(folder, Options(outtype="q8_0"))     # everything is checked, nothing is written
    write_plan(plan, path, progress=lambda done, total, name: ...)

An architecture is one file in `families/`, a kind of draft one in `drafts/`. Nothing here needs torch.
"""

from ds4py.convert.folder import as_gguf, open_folder
from ds4py.convert.plan import OUTTYPES, Item, Options, Plan
from ds4py.convert.planning import make_plan, make_support_plan
from ds4py.convert.writing import is_finished, write_plan

__all__ = [
    "OUTTYPES",
    "Item",
    "Options",
    "Plan",
    "as_gguf",
    "is_finished",
    "make_plan",
    "make_support_plan",
    "open_folder",
    "write_plan",
]
