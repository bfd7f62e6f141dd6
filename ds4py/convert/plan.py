"""What will be written, decided before anything is: metadata, and every tensor with its type, source and size.

The invariant: every tensor of the checkpoint is accounted for. It is written, or it is a second copy of the embedding under the
name of a tied head, or it follows from the config (rotary frequencies), or the user said --drop; anything else is an error, and
so is a tensor that the architecture needs and the checkpoint lacks. The plan holds no weights: values are read when they are
written, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.convert.checkpoint import Checkpoint, listed, open_checkpoint
from ds4py.convert.config import Config
from ds4py.convert.families.registry import family_of
from ds4py.convert.family import Family, Wanted
from ds4py.convert.floats import F32, FLOATS
from ds4py.convert.safetensors import Entry, read_bytes
from ds4py.convert.tokenizer_files import read_vocabulary, tokenizer_metadata
from ds4py.convert.vocabulary import Vocabulary
from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import GgmlType
from ds4py.tokenizer.pretokens import splitting

# "auto" keeps what the checkpoint has; "exact" does so too, where "auto" would round FP8 weights with odd scales to BF16.
OUTTYPES: Mapping[str, GgmlType | None] = {
    "f32": GgmlType.F32, "f16": GgmlType.F16, "bf16": GgmlType.BF16, "q8_0": GgmlType.Q8_0, "auto": None, "exact": None
}  # fmt: skip
_KEPT = {"F64": GgmlType.F32, "F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16, "F8_E4M3": GgmlType.BF16}
_FILE_TYPES = {  # general.file_type
    GgmlType.F32: 0, GgmlType.F16: 1, GgmlType.Q8_0: 7, GgmlType.BF16: 32, GgmlType.MXFP4: 38
}  # fmt: skip
_IDS = ("I64", "I32")  # types of tables of numbers, which become I32
_DERIVED = "rotary_emb.inv_freq"  # buffers that old checkpoints saved
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_COMPARED_BYTES = 1 << 24


@dataclass(frozen=True)
class Options:
    """How to convert. outtype: a key of OUTTYPES. drop: patterns of tensors and weight files to leave out."""

    outtype: str = "auto"
    name: str = ""
    pre_tokenizer: str = ""
    drop: tuple[str, ...] = ()
    vocab_only: bool = False
    target: Path | None = None  # the folder of the model that a draft is for


@dataclass(frozen=True, eq=False)
class Item:
    """One tensor of the new file. `shape` has rows first; `values`, if given, are computed and not read. `sources`: the tensors
    of the checkpoint that it is made of, one after another."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    wanted: Wanted | None = None
    sources: tuple[str, ...] = ()
    values: F32 | npt.NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(prod(self.shape))

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of what one source becomes."""
        return self.shape[1:] if self.wanted is not None and self.wanted.stacked else self.shape

    @property
    def source(self) -> str:
        """Where it comes from, for people."""
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return self.sources[0] + more if self.sources else "(computed)"


@dataclass(frozen=True, eq=False)
class Plan:
    folder: Path
    architecture: str
    kv: Mapping[str, Any]
    items: tuple[Item, ...]
    checkpoint: Checkpoint | None
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Size of all tensor data."""
        return sum(item.nbytes for item in self.items)


def plan_model(folder: Path, config: Config, options: Options) -> Plan:
    """Everything about a whole model, decided. Raises as `make_plan`."""
    family = family_of(config)
    if options.target is not None:
        raise UsageError(f"--target-model-dir is for drafts, and {folder} is a whole model ({config.architecture})")
    config = config.with_defaults(family.defaults)
    own = {f"{family.name}.{key}": value for key, value in family.metadata(config).items()}
    block = config.block()
    vocab = read_vocabulary(folder, options.pre_tokenizer)
    if options.vocab_only:
        vocab = vocab.padded(max(config.count("vocab_size", len(vocab.tokens)), len(vocab.tokens)), config.path)
        kv = {**general_keys(folder, family.name, options, ()), **own, **_vocabulary_keys(folder, config, family, vocab)}
        return Plan(folder, family.name, kv, (), None, vocab.notes)
    checkpoint = open_checkpoint(folder, block, options.drop)
    items, notes = _items(checkpoint, config, family, options)
    n_rows = next(item.shape[0] for item in items if item.name == "token_embd.weight")
    vocab = vocab.padded(n_rows, folder)
    kv = {
        **general_keys(folder, family.name, options, items),
        **own,
        f"{family.name}.vocab_size": n_rows,
        **_vocabulary_keys(folder, config, family, vocab),
    }
    return Plan(folder, family.name, kv, tuple(items), checkpoint, (*vocab.notes, *notes))


def _vocabulary_keys(folder: Path, config: Config, family: Family, vocab: Vocabulary) -> dict[str, Any]:
    """All `tokenizer.*` keys, the splitting by the name that the family's files have."""
    keys = tokenizer_metadata(folder, config, vocab)
    if family.pre_tokenizer and splitting(family.pre_tokenizer) == splitting(vocab.pre):
        keys["tokenizer.ggml.pre"] = family.pre_tokenizer
    return keys


def plan_support(folder: Path, config: Config, options: Options) -> Plan:
    """What drafts for a model and lies in its own folder. Raises as `make_plan`; UsageError if the folder has no such thing."""
    family = family_of(config)
    config = config.with_defaults(family.defaults)
    checkpoint = open_checkpoint(folder, config.block(), options.drop)
    names = canonical_names(checkpoint, family.canonical)
    there = {name: real for name, real in names.items() if _is_support(family, name)}
    if family.support is None or not there:
        raise UsageError(f"{folder}: the checkpoint has no tensors of a draft, so there is no support file to write")
    support = family.support(config, there.keys())
    items, used = _found(checkpoint, support.wanted, there, options)
    list(account_for(checkpoint, there, used, False, config))
    named = replace(options, name=options.name or support.name)
    kv = {**general_keys(folder, support.architecture, named, items), **support.metadata}
    return Plan(folder, support.architecture, kv, tuple(items), checkpoint, ())


def _is_support(family: Family, name: str) -> bool:
    return bool(family.support_prefix) and name.startswith(family.support_prefix)


def _items(checkpoint: Checkpoint, config: Config, family: Family, options: Options) -> tuple[list[Item], list[str]]:
    """The tensors to write, and notes about what is not or not as asked."""
    everything = canonical_names(checkpoint, family.canonical)
    there = {name: real for name, real in everything.items() if not _is_support(family, name)}
    notes = [f"left out as asked: {name}" for name in checkpoint.dropped]
    if len(there) < len(everything):
        n_draft = len(everything) - len(there)
        notes.append(f"{n_draft:,} tensors {family.support_prefix}* draft for the model; --dspark-out FILE writes them")
    tied = config.flag("tie_word_embeddings", family.tied_by_default)
    _check_head(checkpoint, config, there, tied)
    wanted = [item for item in family.wanted(config) if not (tied and item.source == _HEAD)]
    items, used = _found(checkpoint, wanted, there, options)
    notes += account_for(checkpoint, there, used, tied, config)
    for name, values in family.computed(config).items():
        items.append(Item(name, values.shape, GgmlType.F32, values=values))
    fallen = [item.name for item in items if len(item.shape) > 1 and item.type is GgmlType.F16 and _may_fall(item)]
    if fallen and options.outtype == "q8_0":
        notes.append(f"{len(fallen)} matrices have rows that are no multiple of 32 and are stored as F16: {listed(fallen)}")
    return items, notes


def _found(
    checkpoint: Checkpoint, wanted: Iterable[Wanted], there: Mapping[str, str], options: Options
) -> tuple[list[Item], set[str]]:
    """The tensors that are wanted and there, and the names they have used. FormatError for what is missing."""
    items: list[Item] = []
    used: set[str] = set()
    missing: list[str] = []
    for item in wanted:
        absent = [name for name in item.sources if name not in there]
        if absent:
            missing += [] if item.optional else absent
            continue
        used.update(item.sources)
        items.append(item_of(checkpoint, item, tuple(there[name] for name in item.sources), options))
    if missing:
        raise FormatError(f"{checkpoint.folder}: the checkpoint lacks {listed(missing)}")
    return items, used


def canonical_names(checkpoint: Checkpoint, canonical: Callable[[str], str]) -> dict[str, str]:
    """Name as the family spells it -> name in the checkpoint."""
    there: dict[str, str] = {}
    for name in checkpoint.entries:
        if there.setdefault(canonical(name), name) != name:
            raise FormatError(f"{checkpoint.folder}: the tensors {there[canonical(name)]} and {name} mean the same")
    return there


def _may_fall(item: Item) -> bool:
    return item.wanted is None or item.wanted.type is None


def _check_head(checkpoint: Checkpoint, config: Config, there: Mapping[str, str], tied: bool) -> None:
    """A head is there exactly when the config says that it is not the embedding; a second copy of the embedding does no harm."""
    head = checkpoint.entries.get(there.get(_HEAD, ""))
    if head is None:
        if not tied:
            raise FormatError(f"{checkpoint.folder}: {_HEAD} is missing, and config.json does not tie it to the embedding")
        return
    embedding = checkpoint.entries.get(there.get(_EMBEDDING, ""))
    if not tied or embedding is None:
        return
    if not same_bytes(head, embedding):
        raise FormatError(
            f"{config.path}: tie_word_embeddings is true, but {head.name} differs from the embedding; set it to false to use the "
            f"head, or say --drop {head.name} to use the embedding"
        )


def same_bytes(a: Entry, b: Entry) -> bool:
    """Whether two tensors hold the same, byte for byte."""
    starts = range(0, a.nbytes, _COMPARED_BYTES)
    sizes = [min(_COMPARED_BYTES, a.nbytes - at) for at in starts]
    same_kind = (a.dtype, a.shape) == (b.dtype, b.shape)
    return same_kind and all(read_bytes(a, at, n) == read_bytes(b, at, n) for at, n in zip(starts, sizes, strict=True))


def account_for(checkpoint: Checkpoint, there: Mapping[str, str], used: set[str], tied: bool, config: Config) -> Iterator[str]:
    """Notes about tensors that are not written for a good reason; FormatError for those without one."""
    rest = sorted(there.keys() - used)
    if tied and _HEAD in rest:
        rest.remove(_HEAD)
        yield f"{_HEAD} is the embedding again and is not written twice"
    derived = [name for name in rest if name.endswith(_DERIVED)]
    if derived:
        yield f"{len(derived)} tensors of rotary frequencies follow from the config and are not written"
    unknown = [there[name] for name in rest if name not in set(derived)]
    if unknown:
        raise FormatError(
            f"{checkpoint.folder}: {config.architecture} has no place for {listed(unknown)}; a file without them may give "
            "wrong text. If they can be left out, say so with --drop PATTERN"
        )


def item_of(checkpoint: Checkpoint, wanted: Wanted, sources: tuple[str, ...], options: Options) -> Item:
    asked = wanted.shape[1:] if wanted.stacked else wanted.shape
    first = checkpoint.shape(sources[0])
    part = tuple(there if want == 0 else want for want, there in zip(asked, first, strict=False))
    for name in sources:
        entry, shape = checkpoint.entries[name], checkpoint.shape(name)
        if shape != part or len(shape) != len(asked) or 0 in shape:
            shown = ", ".join("any" if want == 0 else str(want) for want in asked)
            raise FormatError(f"{entry.path}: tensor {name} has shape {list(shape)}, the config asks for [{shown}]")
        if entry.dtype not in (_IDS if wanted.type is GgmlType.I32 else FLOATS) and not checkpoint.is_packed(name):
            raise UnsupportedError(f"{entry.path}: tensor {name} has type {entry.dtype}; readable are {', '.join(FLOATS)}")
    shape = (len(sources), *part) if wanted.stacked else part
    return Item(wanted.name, shape, _type(checkpoint, wanted, shape, sources, options.outtype), wanted, sources)


def _type(
    checkpoint: Checkpoint, wanted: Wanted, shape: tuple[int, ...], sources: tuple[str, ...], outtype: str
) -> GgmlType:
    """Vectors stay float32: they are few, and readers expect it."""
    if wanted.type is not None:
        kind = wanted.type
    elif len(shape) == 1:
        kind = GgmlType.F32
    else:
        asked = OUTTYPES[outtype]
        kind = _kept(checkpoint, sources, outtype) if asked is None else asked
    return GgmlType.F16 if shape[-1] % kind.block_len else kind


def _kept(checkpoint: Checkpoint, sources: tuple[str, ...], outtype: str) -> GgmlType:
    """The type that holds what the checkpoint has; the widest, where experts differ."""
    kinds = set()
    for name in sources:
        if checkpoint.is_packed(name):
            kinds.add(GgmlType.MXFP4)
        elif outtype == "exact" and name in checkpoint.scales and not checkpoint.is_exact_in_bf16(name):
            kinds.add(GgmlType.F32)
        else:
            kinds.add(_KEPT[checkpoint.entries[name].dtype])
    return kinds.pop() if len(kinds) == 1 else GgmlType.F32


def general_keys(folder: Path, architecture: str, options: Options, items: Sequence[Item]) -> dict[str, Any]:
    """The `general.*` keys. file_type says what most of the bytes are."""
    n_params = sum(prod(item.shape) for item in items if item.sources)
    keys: dict[str, Any] = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": options.name or folder.resolve().name,
    }
    if n_params:
        keys["general.size_label"] = _size_label(n_params)
        sizes = {kind: sum(item.nbytes for item in items if item.type is kind) for kind in _FILE_TYPES}
        keys["general.file_type"] = _FILE_TYPES[max(sizes, key=lambda kind: sizes[kind])]
    keys["general.quantization_version"] = 2
    return keys


def _size_label(n_params: int) -> str:
    """135M, 1.1B: two digits or three."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if n_params >= unit:
            return f"{n_params / unit:.{1 if n_params < 10 * unit else 0}f}".removesuffix(".0") + letter
    return str(n_params)
