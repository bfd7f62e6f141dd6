"""The plan for a draft: its own tensors, the target's tokenizer, and no copy of what the target has anyway.

A draft that carries the target's embedding or head again would cost its memory and, worse, its bandwidth, so equal copies are
left out: byte for byte equal to the target's checkpoint if that is there, or known to be frozen copies by the kind of draft.
Where that cannot be known they are written. `d2t` comes as offsets and is written as the target's ids, as llama.cpp wants it; a
map that was never filled in, or that leads outside, is refused, since a draft with a wrong map runs and is never right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ds4py.convert.checkpoint import Checkpoint, listed, open_checkpoint
from ds4py.convert.config import Config, read_config
from ds4py.convert.drafts.pair import DraftFamily, Pair, flattened
from ds4py.convert.families.registry import FAMILIES
from ds4py.convert.family import Wanted
from ds4py.convert.floats import integers
from ds4py.convert.plan import Item, Options, Plan, account_for, canonical_names, general_keys, item_of, same_bytes
from ds4py.convert.safetensors import Entry
from ds4py.convert.tokenizer_files import read_vocabulary, tokenizer_metadata
from ds4py.errors import FormatError, UsageError
from ds4py.gguf import GgmlType

_OF_TARGET = {"embed_tokens.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
_MAPS = ("d2t", "t2d")


def plan_draft(folder: Path, config: Config, family: DraftFamily, options: Options) -> Plan:
    """Everything about a draft, decided. Raises as `make_plan`; UsageError without a target's folder."""
    if options.target is None:
        raise UsageError(
            f"{folder} is a draft ({config.architecture}); say whose with --target-model-dir FOLDER, which has its tokenizer"
        )
    if options.vocab_only:
        raise UsageError("--vocab-only is for whole models: a draft's vocabulary is its target's")
    pair = Pair(flattened(config), read_config(options.target))
    own = {f"{family.name}.{key}": value for key, value in family.metadata(pair).items()}
    vocab = read_vocabulary(options.target, options.pre_tokenizer).padded(pair.n_vocab, options.target)
    checkpoint = open_checkpoint(folder, config.block(), options.drop)
    items, notes = _items(checkpoint, pair, family, options)
    kv = {
        **general_keys(folder, family.name, options, items),
        **own,
        **tokenizer_metadata(options.target, pair.target, vocab),
        **family.tokenizer(pair),
    }
    return Plan(folder, family.name, kv, tuple(items), checkpoint, (*vocab.notes, *notes))


def _items(checkpoint: Checkpoint, pair: Pair, family: DraftFamily, options: Options) -> tuple[list[Item], list[str]]:
    there = canonical_names(checkpoint, family.canonical)
    notes = [f"left out as asked: {name}" for name in checkpoint.dropped]
    borrowed = dict(_borrowed(checkpoint, there, pair, family, options))
    notes += [f"{name} is the target's{why} and is not written" for name, why in borrowed.items()]
    used, missing, items = {*borrowed, *_MAPS} & there.keys(), list[str](), list[Item]()
    for wanted in family.wanted(pair):
        if wanted.source in borrowed:
            continue
        if wanted.source not in there:
            missing += [] if wanted.optional else [wanted.source]
            continue
        used.add(wanted.source)
        items.append(item_of(checkpoint, wanted, (there[wanted.source],), options))
    if missing:
        raise FormatError(f"{checkpoint.folder}: the checkpoint lacks {listed(missing)}")
    notes += account_for(checkpoint, there, used, False, pair.draft)
    for name, values in family.computed(pair).items():
        items.append(Item(name, values.shape, GgmlType.F32, values=values))
    ids = _draft_vocabulary(checkpoint, there, pair)
    if ids is not None:
        items.append(Item("d2t", ids.shape, GgmlType.I64, Wanted("d2t", "d2t", ids.shape), ("d2t",), ids))
    return items, notes


def _borrowed(
    checkpoint: Checkpoint, there: Mapping[str, str], pair: Pair, family: DraftFamily, options: Options
) -> Iterator[tuple[str, str]]:
    """Tensors that need not be written, each with how that is known."""
    theirs = _target_tensors(options.target, pair.target)
    for name in _OF_TARGET.keys() & there.keys():
        entry = checkpoint.entries[there[name]]
        if entry.shape != (pair.n_vocab, pair.target_width) or (name == "lm_head.weight" and pair.n_rows < pair.n_vocab):
            continue
        original = theirs.get(name)
        if original is not None and same_bytes(entry, original):
            yield name, ", byte for byte"
        elif original is None and family.frozen:
            yield name, " in drafts of this kind"


def _target_tensors(folder: Path | None, config: Config) -> Mapping[str, Entry]:
    """The target's embedding and head by the draft's names; empty if its weights are not there."""
    if folder is None or not any(folder.glob("*.safetensors")):
        return {}
    family = next((family for family in FAMILIES if config.architecture in family.classes), None)
    checkpoint = open_checkpoint(folder, config.block())
    names = canonical_names(checkpoint, family.canonical if family is not None else str)
    found = {ours: checkpoint.entries[names[theirs]] for ours, theirs in _OF_TARGET.items() if theirs in names}
    if "embed_tokens.weight" in found and config.flag("tie_word_embeddings", family is not None and family.tied_by_default):
        found["lm_head.weight"] = found["embed_tokens.weight"]
    return found


def _draft_vocabulary(checkpoint: Checkpoint, there: Mapping[str, str], pair: Pair) -> npt.NDArray[np.int64] | None:
    """The target's id of each row of the draft's head [n_rows]; None if the head has all rows in order."""
    n, folder = pair.n_rows, checkpoint.folder
    if "d2t" not in there:
        if n < pair.n_vocab:
            raise FormatError(f"{folder}: the draft has {n:,} of {pair.n_vocab:,} tokens, and d2t, which says which, is missing")
        return None
    table = integers(checkpoint.entries[there["d2t"]])
    if table.shape != (n,):
        raise FormatError(f"{folder}: d2t has shape {list(table.shape)}, and the draft has {n:,} tokens")
    ids = table + np.arange(n)
    if n < pair.n_vocab and not table.any():
        raise FormatError(f"{folder}: d2t is all zeros, so it was never filled in; the draft's head cannot be understood")
    if "t2d" in there:
        ids = _agreed(table, ids, integers(checkpoint.entries[there["t2d"]]), folder)
    if ids.min() < 0 or ids.max() >= pair.n_vocab or len(np.unique(ids)) != n:
        raise FormatError(f"{folder}: d2t leads outside of the target's {pair.n_vocab:,} tokens, or twice to the same one")
    return None if n == pair.n_vocab and not table.any() else ids


def _agreed(
    table: npt.NDArray[np.int64], by_offset: npt.NDArray[np.int64], t2d: npt.NDArray[np.int64], folder: Path
) -> npt.NDArray[np.int64]:
    """The ids that `t2d`, a mark for each of the target's tokens, agrees with: offsets usually, ids themselves in some files."""
    marked = np.flatnonzero(t2d)
    for ids in (by_offset, table):
        if np.array_equal(np.sort(ids), marked):
            return ids
    raise FormatError(f"{folder}: d2t and t2d do not speak of the same tokens")
