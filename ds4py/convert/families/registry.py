"""Which family converts which class of checkpoint. A new architecture is one file here and one line in `FAMILIES`."""

from __future__ import annotations

from ds4py.convert.config import Config
from ds4py.convert.families import deepseek4, gemma3, llama, qwen2, qwen3, qwen3moe
from ds4py.convert.family import Family
from ds4py.errors import UnsupportedError

FAMILIES: tuple[Family, ...] = (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY, qwen3moe.FAMILY, gemma3.FAMILY, deepseek4.FAMILY)


def is_known(config: Config) -> bool:
    """Whether a whole model of this class can be converted."""
    return any(config.architecture in family.classes for family in FAMILIES)


def family_of(config: Config) -> Family:
    """The family of a checkpoint; UnsupportedError lists what can be converted, and knows DeepSeek V4.1, which only shares V4's
    name."""
    kinds = {str(values.get("model_type", "")) for values in (config.whole, config.text)}
    if any(kind.startswith("deepseek_v41") for kind in kinds):
        raise UnsupportedError(
            f"{config.path} is of DeepSeek V4.1 Flash, another network than V4 Flash; it cannot be converted yet"
        )
    name = config.architecture
    for family in FAMILIES:
        if name in family.classes:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.classes)
    raise UnsupportedError(f"{config.path}: the architecture {name!r:.80} cannot be converted yet; supported are {known}")
