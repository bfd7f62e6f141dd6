"""dspark: DFlash's backbone with a Markov head and a confidence head, of DeepSpec and speculators; files say `dflash`.

Readers know it by the tensor markov_w1. A native checkpoint guesses from the block's first row on; one of speculators does so
only if it says `sample_from_anchor`. Embedding and head are the target's and were not trained, so readers take the target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4py.convert.drafts import dflash
from ds4py.convert.drafts.pair import DraftFamily, Pair, from_speculators, stripped
from ds4py.convert.family import Wanted
from ds4py.errors import UnsupportedError


def metadata(pair: Pair) -> Mapping[str, Any]:
    c = pair.draft
    kind = c.get("markov_head_type", "vanilla")
    if kind != "vanilla" or not c.get("markov_rank"):
        told = f"of kind {kind!r:.20}, rank {c.get('markov_rank')!r:.20}"
        raise UnsupportedError(f"{c.path}: a Markov head {told}, is not supported")
    c.count("block_size")
    return {
        **dflash.metadata(pair),
        "sample_from_anchor": c.flag("sample_from_anchor", not from_speculators(c)),
        "has_confidence_head": _confident(pair),
    }


def _confident(pair: Pair) -> bool:
    c = pair.draft
    there = c.flag("enable_confidence_head", True)
    if there and not c.flag("confidence_head_with_markov", True):
        raise UnsupportedError(f"{c.path}: a confidence head without the Markov head's features is not supported")
    return there


def wanted(pair: Pair) -> Iterator[Wanted]:
    yield from dflash.wanted(pair)
    rank, d = pair.draft.count("markov_rank"), pair.draft.count("hidden_size")
    yield Wanted("markov_head.markov_w1.weight", "markov_w1.weight", (pair.n_vocab, rank))
    yield Wanted("markov_head.markov_w2.weight", "markov_w2.weight", (pair.n_rows, rank))
    if _confident(pair):
        yield Wanted("confidence_head.proj.weight", "conf_proj.weight", (1, d + rank))
        yield Wanted("confidence_head.proj.bias", "conf_proj.bias", (1,), optional=True)


FAMILY = DraftFamily(
    "dflash",
    ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator"),
    metadata,
    wanted,
    stripped,
    tokenizer=dflash.mask_token,
    frozen=True,
)
