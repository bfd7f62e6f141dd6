"""What `--spec` measures, from the options: contenders, prompts, temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ds4py.cli.eval.prompts import Prompt, chosen, own_prompts, read_prompts
from ds4py.cli.parsing import Values
from ds4py.errors import UsageError

if TYPE_CHECKING:
    from ds4py.cli.eval.runs import Contender

_NGRAM: Final = "ngram-map-k"


def contenders(values: Values) -> list[Contender]:
    """What --drafters names, `a+b` being a chain; without it n-grams, and with a draft model the draft and the chain of both.
    UsageError for types that need a draft model and have none."""
    from ds4py.cli.eval.runs import Contender
    from ds4py.cli.speculating import checked_types, spec_config
    from ds4py.drafters import recognise
    from ds4py.gguf import open_gguf

    path = Path(values.text("spec_draft_model")) if values.has("spec_draft_model") else None
    draft = open_gguf(path) if path is not None else None
    own = recognise(draft) if draft is not None else ""
    text = values.text("drafters") if values.has("drafters") else ",".join([_NGRAM, *([own, f"{_NGRAM}+{own}"] if own else [])])
    accept = "exact" if values.flag("mtp_exact_sampling") else "opportunistic"
    found = []
    for name in dict.fromkeys(part.strip() for part in text.split(",")):
        types = checked_types(name.split("+"))
        if not types:
            raise UsageError("--drafters needs drafters to measure, such as ngram-map-k,ngram-mod or ngram-map-k+draft-simple")
        needs_draft = any(kind.startswith("draft-") for kind in types)
        config = spec_config(values, types, path if needs_draft else None, accept, values.text("spec_depth"))
        found.append(Contender("+".join(types), config))
    return found


def prompts_of(values: Values) -> list[Prompt]:
    own = own_prompts() if not values.has("prompts") else read_prompts(Path(values.text("prompts")))
    categories = [name.strip() for text in values.texts("category") for name in text.split(",")]
    return chosen(own, categories, values.integer("limit") if values.has("limit") else None)


def temperatures(values: Values) -> list[float]:
    """UsageError for what are no temperatures."""
    text = values.text("temps")
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= one < 100 for one in found):
        raise UsageError(f"--temps takes temperatures separated by commas, such as 0,1, not {text!r}")
    return list(dict.fromkeys(found))
