"""Which family of drafts a checkpoint belongs to. A new one is one file here and one line in `FAMILIES`."""

from __future__ import annotations

from ds4py.convert.config import Config
from ds4py.convert.drafts import dflash, dspark, eagle3
from ds4py.convert.drafts.pair import DraftFamily

FAMILIES: tuple[DraftFamily, ...] = (eagle3.FAMILY, dflash.FAMILY, dspark.FAMILY)


def draft_family_of(config: Config) -> DraftFamily | None:
    """The family of a draft; None for a checkpoint that is none."""
    names = config.whole.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    for family in FAMILIES:
        if name in family.classes:
            return family
    return None


def draft_classes() -> list[str]:
    return [name for family in FAMILIES for name in family.classes]
