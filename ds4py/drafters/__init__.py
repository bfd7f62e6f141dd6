"""Guessing what the target will say next. A drafter is one file here and one line in `opening.py`."""

from ds4py.drafters.config import ModSizes, NgramSizes, SpecConfig, parse_types
from ds4py.drafters.opened import Target
from ds4py.drafters.opening import Drafters, check_file, draft_len, open_drafters, recognise

__all__ = [
    "Drafters",
    "ModSizes",
    "NgramSizes",
    "SpecConfig",
    "Target",
    "check_file",
    "draft_len",
    "open_drafters",
    "parse_types",
    "recognise",
]
