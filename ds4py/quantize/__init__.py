"""Quantisation: recipes, plans, importance matrices, and the streaming run that turns one GGUF file into a smaller one."""

from ds4py.quantize.imatrix import Entry, Imatrix, read_imatrix, write_imatrix
from ds4py.quantize.plan import Options, Plan, Planned, Rule, make_plan, tensor_type
from ds4py.quantize.provenance import metadata, override
from ds4py.quantize.recipes import RECIPES, Recipe, recipe
from ds4py.quantize.run import Job, is_finished, output_paths, output_size, run

__all__ = [
    "RECIPES",
    "Entry",
    "Imatrix",
    "Job",
    "Options",
    "Plan",
    "Planned",
    "Recipe",
    "Rule",
    "is_finished",
    "make_plan",
    "metadata",
    "output_paths",
    "output_size",
    "override",
    "read_imatrix",
    "recipe",
    "run",
    "tensor_type",
    "write_imatrix",
]
