"""What a tensor is for, told from its name and shape: its role, its layer, and whether it is quantised at all.

The idea: recipes speak of roles ("the value projection"), not of names, so that they hold for every architecture. Experts
come stacked in three dimensions, with `.weight` at the end of the name or without; both are matrices. What stays as it is:
vectors, norms, biases, routers, convolutions and the like, which are a thousandth of the bytes and a good part of the quality.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ds4py.gguf import GgufFile, Tensor

EXPERT_ROLES = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps")

# Parts of names, each with the role it gives. The first that fits wins.
_ROLES = (
    ("ffn_gate_up_exps", "ffn_gate_up_exps"),
    ("ffn_gate_exps", "ffn_gate_exps"),
    ("ffn_up_exps", "ffn_up_exps"),
    ("ffn_down_exps", "ffn_down_exps"),
    ("indexer", "indexer"),
    ("compressor", "compressor"),
    ("hc_", "hyper"),
    ("attn_qkv", "attn_qkv"),
    ("attn_kv_b", "attn_v"),
    ("attn_v", "attn_v"),
    ("attn_k", "attn_k"),
    ("attn_q", "attn_q"),
    ("attn_output", "attn_output"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_up", "ffn_up"),
    ("ffn_down", "ffn_down"),
)
_STAYS = re.compile(
    r"_norm\b|norm\.weight|\.bias$|ffn_gate_inp|position_embd|token_types|ssm_conv1d|shortconv|time_mix_|attn_rel_b|altup|laurel"
    r"|per_layer_model_proj|rope_freqs|rope_factors"
)
_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
SHORTEST_ROW = 32  # a row that no block fits into stays as it is


@dataclass(frozen=True)
class Place:
    """Where a matrix stands: `index` of `count` layers that have such a role, counted from the first."""

    role: str
    index: int = 0
    count: int = 1


@dataclass(frozen=True)
class Facts:
    """What recipes ask about the model, and the row length of the matrix in question."""

    n_gqa: int  # query heads per key/value head
    n_expert: int
    has_imatrix: bool
    row_len: int


def stays(tensor: Tensor) -> bool:
    """Whether no recipe touches the tensor."""
    if len(tensor.shape) < 2 or tensor.n_rows == 1 or tensor.row_len < SHORTEST_ROW or _STAYS.search(tensor.name):
        return True
    stacked = len(tensor.shape) == 3 and "_exps" in tensor.name
    return not (tensor.name.endswith(".weight") or stacked)


def places(g: GgufFile) -> Mapping[str, Place]:
    """The place of every tensor that recipes may touch."""
    found = {tensor.name: (_role(tensor.name, g), layer(tensor.name)) for tensor in g.tensors.values() if not stays(tensor)}
    layers: dict[str, list[int]] = {}
    for role, at in set(found.values()):
        layers.setdefault(_family(role), []).append(at)
    order = {role: sorted(set(numbers)) for role, numbers in layers.items()}
    return {name: Place(role, order[_family(role)].index(at), len(order[_family(role)])) for name, (role, at) in found.items()}


def layer(name: str) -> int:
    """The layer in a tensor's name, -1 where it has none."""
    match = _LAYER.search(name)
    return int(match[1]) if match else -1


def grouping(g: GgufFile) -> int:
    """Query heads per key/value head, 1 where the file does not tell."""
    heads, shared = (_largest(g.get(f"attention.{key}")) for key in ("head_count", "head_count_kv"))
    return heads // shared if heads and shared else 1


def experts(g: GgufFile) -> int:
    return _largest(g.get("expert_count"))


def _role(name: str, g: GgufFile) -> str:
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        tied = "output.weight" not in g.tensors and name == "token_embd.weight"
        return "output" if tied else "token_embd"
    return next((role for part, role in _ROLES if part in name), "other")


def _family(role: str) -> str:
    """Roles whose layers are counted together: dense and expert layers of one model take turns."""
    return role.removesuffix("_exps")


def _largest(value: object) -> int:
    """A count that may be one number or one per layer."""
    numbers = (
        [value] if isinstance(value, int) else list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []
    )
    return max((n for n in numbers if isinstance(n, int)), default=0)
