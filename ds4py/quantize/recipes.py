"""Recipes: which type a matrix gets, by its role in the network and the depth of its layer.

The idea: a recipe is data. It has a base type and exceptions, each "this role, on these layers, takes that type", read from top
to bottom; the names and mixes are those that llama.cpp made common (Q4_K_M and the like), so a file made here can be compared
with one of the same name made elsewhere, plus ds4's mixes for large mixtures of experts. What holds for every quantised recipe
(the output matrix gets more bits; eight-expert models keep keys and values fine) is written once, in `choose`.

The invariant: F16, BF16, F32 and Q8_0 have no exceptions: 'f16' means f16 for the output matrix too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ds4py.errors import UsageError
from ds4py.gguf import GgmlType
from ds4py.quantize.roles import EXPERT_ROLES, Facts, Place

T = GgmlType


@dataclass(frozen=True)
class Mix:
    """An exception of a recipe: matrices of `role` take `type` where `where` holds."""

    role: str
    type: GgmlType
    where: Callable[[Place, Facts], bool] = lambda place, facts: True


@dataclass(frozen=True)
class Recipe:
    """A named way to choose types. `file_type`: the number general.file_type has for files that are mostly `base`."""

    name: str
    base: GgmlType
    file_type: int
    mixes: tuple[Mix, ...] = ()
    output: GgmlType | None = GgmlType.Q6_K  # of the output matrix, where its rows allow; None: like any other
    about: str = ""


def _first(n: int) -> Callable[[Place, Facts], bool]:
    return lambda place, facts: place.index < n


def _head(part: int) -> Callable[[Place, Facts], bool]:
    """The first 1 / part of the layers."""
    return lambda place, facts: place.index < place.count // part


def _more(place: Place, facts: Facts) -> bool:
    """The first and the last eighth of the layers, and every third one between."""
    i, n = place.index, place.count
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _shared_heads(place: Place, facts: Facts) -> bool:
    """A small value matrix (four or more query heads share one), where bits are cheap."""
    return facts.n_gqa >= 4


def _shared_or_experts(place: Place, facts: Facts) -> bool:
    return facts.n_gqa >= 4 or facts.n_expert >= 4


def _head_with_imatrix(place: Place, facts: Facts) -> bool:
    return facts.has_imatrix and _head(8)(place, facts)


def _head_without_imatrix(place: Place, facts: Facts) -> bool:
    return not facts.has_imatrix and _head(8)(place, facts)


def _eight_experts(place: Place, facts: Facts) -> bool:
    return facts.n_expert == 8


def _last(n: int) -> Callable[[Place, Facts], bool]:
    """The last n layers of a model that has more than n."""
    return lambda place, facts: place.count > n and place.index >= place.count - n


def _plain(name: str, kind: GgmlType, file_type: int, about: str = "") -> Recipe:
    """Everything in one type, the output matrix too."""
    return Recipe(name, kind, file_type, output=None, about=about)


_FLOAT_PARTS = ("indexer", "compressor", "hyper")


def _ds4(name: str, gate_up: GgmlType, down: GgmlType, file_type: int, about: str, *finer: Mix) -> Recipe:
    """Routed experts small (but those of `finer`), everything that runs for every token in Q8_0, indexers and the embedding in
    F16."""
    experts = (*finer, *(Mix(role, down if role == "ffn_down_exps" else gate_up) for role in EXPERT_ROLES))
    floats = tuple(Mix(role, T.F16) for role in (*_FLOAT_PARTS, "token_embd"))
    rest = tuple(Mix(role, T.Q8_0) for role in ("output", "other", *_DENSE_ROLES))
    return Recipe(name, gate_up, file_type, (*experts, *floats, *rest), None, about)


_DENSE_ROLES = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

_ALL = (
    _plain("F32", T.F32, 0, "exact, 32 bits"),
    _plain("F16", T.F16, 1, "half precision, everything"),
    _plain("BF16", T.BF16, 32, "bfloat16, everything"),
    _plain("Q8_0", T.Q8_0, 7, "8.5 bits, everything"),
    Recipe("Q4_0", T.Q4_0, 2, (Mix("ffn_down", T.Q4_1, _head_with_imatrix),), about="4.5 bits, one scale"),
    Recipe("Q4_1", T.Q4_1, 3, about="5 bits, scale and minimum"),
    Recipe("Q5_0", T.Q5_0, 8, (Mix("ffn_down", T.Q5_1, _head_with_imatrix),), about="5.5 bits, one scale"),
    Recipe("Q5_1", T.Q5_1, 9, about="6 bits, scale and minimum"),
    Recipe(
        "Q2_K",
        T.Q2_K,
        10,
        (
            Mix("attn_v", T.Q4_K, _shared_heads),
            Mix("attn_v", T.Q3_K),
            Mix("ffn_down", T.Q3_K),
            Mix("attn_output", T.Q5_K, _eight_experts),
            Mix("attn_output", T.Q3_K),
        ),
        about="2.6 bits with parts of Q3_K",
    ),
    Recipe("Q3_K_S", T.Q3_K, 11, (Mix("attn_output", T.Q5_K, _eight_experts),), about="3.4 bits"),
    Recipe(
        "Q3_K_M",
        T.Q3_K,
        12,
        (
            Mix("attn_v", T.Q5_K, _first(2)),
            Mix("attn_v", T.Q4_K),
            Mix("ffn_down", T.Q5_K, _head(16)),
            Mix("ffn_down", T.Q4_K),
            Mix("attn_output", T.Q5_K, _eight_experts),
            Mix("attn_output", T.Q4_K),
            Mix("attn_qkv", T.Q4_K),
        ),
        about="3.4 bits with parts of Q4_K and Q5_K",
    ),
    Recipe(
        "Q3_K_L",
        T.Q3_K,
        13,
        (
            Mix("attn_v", T.Q5_K),
            Mix("ffn_down", T.Q5_K),
            Mix("attn_output", T.Q3_K, _eight_experts),
            Mix("attn_output", T.Q5_K),
            Mix("attn_qkv", T.Q4_K),
        ),
        about="3.4 bits with parts of Q5_K",
    ),
    Recipe(
        "Q4_K_S",
        T.Q4_K,
        14,
        (
            Mix("attn_v", T.Q5_K, _first(4)),
            Mix("ffn_down", T.Q5_K, _head(8)),
            Mix("attn_output", T.Q5_K, _eight_experts),
        ),
        about="4.5 bits with few parts of Q5_K",
    ),
    Recipe(
        "Q4_K_M",
        T.Q4_K,
        15,
        (
            Mix("attn_v", T.Q6_K, _more),
            Mix("ffn_down", T.Q6_K, _more),
            Mix("attn_output", T.Q5_K, _eight_experts),
            Mix("attn_qkv", T.Q5_K),
        ),
        about="4.5 bits with parts of Q6_K: the usual choice",
    ),
    Recipe("Q5_K_S", T.Q5_K, 16, about="5.5 bits"),
    Recipe(
        "Q5_K_M",
        T.Q5_K,
        17,
        (Mix("attn_v", T.Q6_K, _more), Mix("ffn_down", T.Q6_K, _more), Mix("attn_qkv", T.Q6_K)),
        about="5.5 bits with parts of Q6_K",
    ),
    Recipe("Q6_K", T.Q6_K, 18, about="6.6 bits"),
    Recipe(
        "IQ2_XXS",
        T.IQ2_XXS,
        19,
        (
            Mix("attn_v", T.Q4_K, _shared_or_experts),
            Mix("attn_v", T.Q2_K),
            Mix("attn_k", T.Q4_K, _eight_experts),
            Mix("ffn_down", T.Q2_K, _head(8)),
            Mix("attn_output", T.Q5_K, _eight_experts),
            Mix("token_embd", T.Q2_K),
        ),
        T.Q5_K,
        "2.1 bits; wants an importance matrix",
    ),
    Recipe(
        "IQ4_NL",
        T.IQ4_NL,
        25,
        (
            Mix("attn_v", T.Q5_K, _shared_heads),
            Mix("ffn_down", T.Q5_K, _head_without_imatrix),
            Mix("attn_output", T.Q5_K, _eight_experts),
        ),
        about="4.5 bits, values on a curve",
    ),
    Recipe("MXFP4", T.MXFP4, 38, (Mix("token_embd", T.Q8_0),), T.Q8_0, "4.25 bits, powers of two as scales"),
    Recipe(
        "MXFP4_MOE",
        T.MXFP4,
        38,
        (
            *(Mix(role, T.MXFP4) for role in EXPERT_ROLES),
            *(Mix(role, T.Q8_0) for role in ("output", "token_embd", "other", *_DENSE_ROLES)),
        ),
        None,
        "routed experts in MXFP4, the rest in Q8_0",
    ),
    _ds4("DS4_Q2", T.IQ2_XXS, T.Q2_K, 19, "ds4: experts in IQ2_XXS and Q2_K, the rest in Q8_0"),
    _ds4(
        "DS4_Q2_Q4",
        T.IQ2_XXS,
        T.Q2_K,
        19,
        "ds4: as DS4_Q2 with the experts of the last six layers in Q4_K",
        *(Mix(role, T.Q4_K, _last(6)) for role in EXPERT_ROLES),
    ),
    _ds4("DS4_Q4", T.Q4_K, T.Q4_K, 14, "ds4: experts in Q4_K, the rest in Q8_0"),
    _ds4("DS4_MXFP4", T.MXFP4, T.MXFP4, 38, "ds4: experts in MXFP4 (as DeepSeek V4 has them, bit for bit), the rest in Q8_0"),
)
RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in _ALL})
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "FP16": "F16", "FP32": "F32"}

# general.file_type of a file whose weights are mostly of one type; types without a number leave the key out.
FILE_TYPES: Mapping[GgmlType, int] = MappingProxyType(
    {
        T.F32: 0, T.F16: 1, T.Q4_0: 2, T.Q4_1: 3, T.Q8_0: 7, T.Q5_0: 8, T.Q5_1: 9, T.Q2_K: 10, T.Q3_K: 11, T.Q4_K: 14, T.Q5_K: 16,
        T.Q6_K: 18, T.IQ2_XXS: 19, T.IQ2_XS: 20, T.IQ3_XXS: 23, T.IQ1_S: 24, T.IQ4_NL: 25, T.IQ3_S: 26, T.IQ2_S: 28,
        T.IQ4_XS: 30, T.IQ1_M: 31, T.BF16: 32, T.TQ1_0: 36, T.TQ2_0: 37, T.MXFP4: 38, T.NVFP4: 39, T.Q1_0: 40,
    }
)  # fmt: skip


def recipe(name: str) -> Recipe:
    """The recipe called `name` in any case. UsageError listing all of them."""
    found = RECIPES.get(_ALIASES.get(name.upper(), name.upper()))
    if found is None:
        raise UsageError(f"there is no quantisation type {name!r}; types are {', '.join(RECIPES)}")
    return found


def choose(recipe: Recipe, place: Place, facts: Facts) -> GgmlType:
    """The type that `recipe` wants for the matrix at `place`, before its row length is asked."""
    if place.role == "output" and recipe.output is not None:
        # Six bits come in blocks of 256; eight bits are the documented choice for other rows, not an accident.
        return T.Q8_0 if facts.row_len % recipe.base.block_len or facts.row_len % recipe.output.block_len else recipe.output
    small = place.role in ("attn_k", "attn_v") and facts.n_expert == 8  # little beside eight experts
    if small and recipe.output is not None and recipe.base is not T.IQ2_XXS:
        return T.Q8_0
    roles = (place.role, place.role.removesuffix("_exps"))  # a mix that favours ffn_down means the experts' too
    return next((mix.type for mix in recipe.mixes if mix.role in roles and mix.where(place, facts)), recipe.base)
