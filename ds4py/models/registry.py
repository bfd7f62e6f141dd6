"""Which file of this folder reads which GGUF architecture. A new architecture is one file here and one line in `SUPPORTED`.

Modules are imported when asked for, so that a table of forty architectures costs nothing at start-up.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

import numpy.typing as npt

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgufFile
from ds4py.models.header import Header
from ds4py.models.running import LoadedModel, Network
from ds4py.models.tensors import Tensors
from ds4py.protocols import Kernels

SUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "llama": "ds4py.models.llama",
        "qwen2": "ds4py.models.qwen2",
        "qwen3": "ds4py.models.qwen3",
        "qwen3moe": "ds4py.models.qwen3moe",
        "gemma3": "ds4py.models.gemma3",
        "deepseek4": "ds4py.models.deepseek4",
    }
)

# known by name, to say "not yet" rather than "never heard of it"
PLANNED = frozenset(
    {"glm4moe", "glm-dsa", "qwen2moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp"}
)


def refuse_other_network(g: GgufFile) -> None:
    """UnsupportedError for DeepSeek V4.1, which shares V4's name and not its network; its files are known by architecture or by
    the checkpoint they say they are of."""
    variants = (g.kv.get(f"{prefix}.checkpoint_variant") for prefix in ("deepseek4", "general"))
    if g.architecture == "deepseek41" or any(str(variant).lower().startswith("v4.1") for variant in variants):
        raise UnsupportedError(
            f"{g.path} is DeepSeek V4.1 Flash, another network than V4 Flash; this build does not have it yet."
        )


def load_model(g: GgufFile, kernels: Kernels, kv_dtype: npt.DTypeLike = "float16") -> LoadedModel:
    """The model in `g`, its weights taken by `kernels`. `kv_dtype` of the attention caches is float16, or float32 for oracles.

    Raises UnsupportedError for an architecture or a part of it that this build does not have, FormatError for metadata or
    tensors that contradict each other."""
    refuse_other_network(g)
    name = g.architecture
    if name not in SUPPORTED:
        reason = "is not supported yet" if name in PLANNED else "is not one this program knows"
        raise UnsupportedError(f"{g.path}: the architecture {name!r} {reason}; supported are {', '.join(sorted(SUPPORTED))}.")
    tensors = Tensors(g, kernels)
    network: Network = importlib.import_module(SUPPORTED[name]).Model(Header(g), tensors)
    tensors.refuse_unused_blocks(network.n_layers)
    model = LoadedModel(network, kernels, kv_dtype)
    kernels.ready(model, network.graph)
    return model
