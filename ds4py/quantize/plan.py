"""The plan of a quantisation: a type for every tensor, decided before the first byte is written.

The idea: all decisions and all refusals are here, so `--dry-run` is the plan printed, and its sizes are those of the file. A type
is chosen in this order: an explicit rule (the first that fits), the options for output matrix and embedding, the recipe. Then
the row length has its say: a row that is no whole number of blocks takes the next type of a fixed chain, and the plan remembers
what was wanted. The label of the file (general.file_type) follows from what most weights are, whatever was asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import GgmlType, GgufFile, Tensor
from ds4py.quantize.encoding import can_encode
from ds4py.quantize.recipes import FILE_TYPES, Recipe, choose
from ds4py.quantize.roles import Facts, Place, experts, grouping, places
from ds4py.quants import QUANTS

T = GgmlType
FLOATS = (T.F32, T.F16, T.BF16)

# What a row takes that is not whole blocks of the wanted type; F16 fits any row.
FALLBACKS: Mapping[GgmlType, GgmlType] = MappingProxyType(
    {
        T.IQ2_XXS: T.IQ4_NL,
        T.Q2_K: T.Q4_0,
        T.Q3_K: T.Q4_0,
        T.Q4_K: T.Q5_0,
        T.Q5_K: T.Q5_1,
        T.Q6_K: T.Q8_0,
    }
)


@dataclass(frozen=True)
class Rule:
    """`--tensor-type PATTERN=TYPE`: matrices whose name the regular expression is found in."""

    pattern: str
    type: GgmlType

    @classmethod
    def parse(cls, text: str) -> Rule:
        """UsageError for what is no rule."""
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern:
            raise UsageError(f"--tensor-type must be PATTERN=TYPE, not {text!r}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--tensor-type {text}: {pattern!r} is no regular expression: {error}") from None
        return cls(pattern, tensor_type(name, "--tensor-type"))

    def fits(self, name: str) -> bool:
        return re.search(self.pattern, name) is not None

    def __str__(self) -> str:
        return f"{self.pattern}={self.type.name}"


@dataclass(frozen=True)
class Options:
    """What the user asked. `pure`: no exceptions of the recipe; `strict`: a fallback is an error."""

    recipe: Recipe
    rules: Sequence[Rule] = ()
    output_type: GgmlType | None = None
    embedding_type: GgmlType | None = None
    leave_output: bool = False
    pure: bool = False
    allow_requantize: bool = False
    strict: bool = False


@dataclass(frozen=True, eq=False)
class Planned:
    """One tensor's future. `wanted` differs from `type` where the row length forced a fallback; `rule`: who decided."""

    tensor: Tensor
    type: GgmlType
    wanted: GgmlType
    rule: Rule | None = None

    @property
    def changes(self) -> bool:
        return self.type is not self.tensor.type

    @property
    def fell_back(self) -> bool:
        return self.type is not self.wanted

    @property
    def n_mat(self) -> int:
        """Matrices in the tensor: its experts."""
        return prod(self.tensor.shape[2:])

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(self.tensor.n_values)


@dataclass(frozen=True, eq=False)
class Plan:
    options: Options
    tensors: Sequence[Planned]

    @property
    def fallbacks(self) -> list[Planned]:
        return [item for item in self.tensors if item.fell_back]

    @property
    def main_type(self) -> GgmlType:
        """The type that most weights have."""
        values: Counter[GgmlType] = Counter()
        for item in self.tensors:
            values[item.type] += item.tensor.n_values
        return values.most_common(1)[0][0] if values else GgmlType.F32

    @property
    def file_type(self) -> int | None:
        """general.file_type: the recipe's number where most weights are of its base type, else that of the main type."""
        recipe = self.options.recipe
        return recipe.file_type if self.main_type is recipe.base else FILE_TYPES.get(self.main_type)


def tensor_type(name: str, option: str) -> GgmlType:
    """A tensor type by name, in any case. UsageError naming the option."""
    kind = next((kind for kind in GgmlType if kind.name == name.upper()), None)
    if kind is None or not can_encode(kind):
        names = ", ".join(kind.name for kind in GgmlType if can_encode(kind))
        raise UsageError(f"{option}: {name!r} is no type that can be written; types are {names}")
    return kind


def make_plan(g: GgufFile, options: Options, has_imatrix: bool = False) -> Plan:
    """Decide. Raises UsageError (a rule that decides nothing, requantising unasked), FormatError (a fallback under `strict`),
    UnsupportedError (a source type without decoder)."""
    where = places(g)
    n_gqa, n_expert = (grouping(g), experts(g)) if "general.architecture" in g.kv else (1, 0)
    planned = [
        _decide(tensor, where.get(tensor.name), Facts(n_gqa, n_expert, has_imatrix, tensor.row_len), options)
        for tensor in g.tensors.values()
    ]
    _check_rules(options.rules, planned)
    _check_sources(g, planned, options)
    plan = Plan(options, planned)
    if options.strict and plan.fallbacks:
        first = plan.fallbacks[0]
        raise FormatError(
            f"{g.path}: {len(plan.fallbacks)} tensor(s) cannot have the type they should, the first is {first.tensor.name}: rows "
            f"of {first.tensor.row_len} are not whole blocks of {first.wanted.name}, and --strict allows no {first.type.name}"
        )
    return plan


def fitting(kind: GgmlType, row_len: int) -> GgmlType:
    """`kind`, or what rows of `row_len` values take in its place."""
    for candidate in (kind, FALLBACKS.get(kind, T.F16)):
        if row_len % candidate.block_len == 0:
            return candidate
    return T.F16


def _decide(tensor: Tensor, place: Place | None, facts: Facts, options: Options) -> Planned:
    rule = next((rule for rule in options.rules if rule.fits(tensor.name) and _may(rule, tensor, place)), None)
    if rule is not None:
        return Planned(tensor, fitting(rule.type, tensor.row_len), rule.type, rule)
    wanted = tensor.type if place is None else _by_options(tensor, place, facts, options)
    if place is None or wanted is tensor.type:
        return Planned(tensor, tensor.type, tensor.type)
    return Planned(tensor, fitting(wanted, tensor.row_len), wanted)


def _may(rule: Rule, tensor: Tensor, place: Place | None) -> bool:
    """Matrices take any type; what recipes leave alone may only change from one float type to another, so that a pattern like
    `ffn_gate` does not ruin the router `ffn_gate_inp`."""
    return place is not None or (len(tensor.shape) > 1 and rule.type in FLOATS)


def _by_options(tensor: Tensor, place: Place, facts: Facts, options: Options) -> GgmlType:
    is_embedding = tensor.name.startswith("token_embd.")
    if place.role == "output" and options.leave_output:
        return tensor.type
    if is_embedding and options.embedding_type is not None:
        return options.embedding_type
    if place.role == "output" and options.output_type is not None:
        return options.output_type
    return options.recipe.base if options.pure else choose(options.recipe, place, facts)


def _check_rules(rules: Sequence[Rule], planned: Sequence[Planned]) -> None:
    for rule in rules:
        if any(item.rule is rule for item in planned):
            continue
        hits = sum(rule.fits(item.tensor.name) for item in planned)
        why = "matches no tensor" if not hits else f"decides nothing: earlier rules take its {hits} tensor(s), or they stay float"
        raise UsageError(f"--tensor-type {rule} {why}")


def _check_sources(g: GgufFile, planned: Sequence[Planned], options: Options) -> None:
    changing = [item for item in planned if item.changes]
    for item in changing:
        if item.tensor.type not in QUANTS:
            raise UnsupportedError(
                f"{g.path}: tensor {item.tensor.name} has type {item.tensor.type.name}, which cannot be decoded"
            )
    lossy = [item for item in changing if item.tensor.type not in FLOATS]
    if lossy and not options.allow_requantize:
        first = lossy[0]
        raise UsageError(
            f"{g.path} is quantised already: {len(lossy)} tensor(s) would be encoded a second time, the first is "
            f"{first.tensor.name} ({first.tensor.type.name} to {first.type.name}); quantise the original, or insist with "
            "--allow-requantize"
        )
