"""`--inspect`: what a model file holds, what it would cost to run, and which drafters it could use.

The idea: nothing is estimated that can be asked. Cache sizes come from the model code itself, loaded over `_Shapes`, a backend
that notes the shape of every weight and computes nothing; so the figures are right for any architecture there is, and a file
whose tensors do not fit its metadata is found out here, before anybody waits for it to load. Other facts are read from the
metadata.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4py.chat.formats.deepseek4 import ARCHITECTURE, revision
from ds4py.cli.advice import memory_gb
from ds4py.cli.draftable import drafters_for, named, support_kind, vocabulary
from ds4py.cli.terminal import Terminal
from ds4py.cli.traffic import traffic
from ds4py.engine import EngineOptions
from ds4py.errors import Ds4Error
from ds4py.gguf import GgufFile, Tensor
from ds4py.protocols import F32, Buf, Ops, Out, Rows

_LABEL_LEN = 18
_DRAFTERS = "Drafters this file could use"


@dataclass(frozen=True)
class _Shape:
    shape: tuple[int, int]


@dataclass(frozen=True)
class _ExpertShape:
    shape: tuple[int, int, int]


class _Shapes:
    """A backend that keeps no weights: enough to build a model and ask it for its caches."""

    name = "none"
    prefill_tile = 0
    max_rows = EngineOptions().max_rows  # rings are longer by what one forward may write
    n_threads = 1

    def weight(self, tensor: Tensor) -> _Shape:
        return _Shape((tensor.n_rows, tensor.row_len))

    def experts(self, tensor: Tensor) -> _ExpertShape:
        return _ExpertShape((tensor.shape[2], tensor.shape[1], tensor.shape[0]))

    def vector(self, tensor: Tensor) -> F32:
        return np.zeros(math.prod(tensor.shape), np.float32)

    def ready(self, key: object, graph: Callable[[Ops], Buf]) -> None:
        pass  # nothing is prepared, since nothing will run

    def run(self, key: object, graph: Callable[[Ops], Buf], rows: Rows, taps: Sequence[int]) -> Out:
        raise NotImplementedError("this backend computes nothing")


def inspect(g: GgufFile, n_ctx: int, terminal: Terminal) -> None:
    """Print the summary of an open file. Never fails for a file that merely cannot run: it says why."""
    alone = support_kind(g) is None  # what only drafts has neither layers of its own to tell of nor a tokenizer
    model = (("Model", _model(g)), ("Tokenizer and chat", _tokenizer(g))) if alone else ()
    sections = (("", _file(g)), *model, ("Weights", _weights(g)))
    for title, lines in (*sections, ("Memory", _memory(g, n_ctx)), (_DRAFTERS, drafters_for(g))):
        if title:
            terminal.say("\n" + terminal.bold(title))
        for label, text in lines:
            terminal.say(f"  {label:<{_LABEL_LEN}}{text}")


def _file(g: GgufFile) -> Iterator[tuple[str, str]]:
    yield "file", f"{g.path} ({len(g.shards)} files)" if len(g.shards) > 1 else str(g.path)
    yield "format", f"GGUF version {g.version}, {size(g.nbytes)}, {len(g.tensors):,} tensors, {len(g.kv):,} keys"
    for key, label in (("general.name", "name"), ("general.license", "licence"), ("general.quantized_by", "quantised by")):
        if key in g.kv:
            yield label, str(g.kv[key])
    for note in g.notes:
        yield "note", note


def _model(g: GgufFile) -> Iterator[tuple[str, str]]:
    yield "architecture", named(g)
    values = sum(tensor.n_values for tensor in g.tensors.values())
    tied = "" if "output.weight" in g.tensors else ", output tied to the embedding"
    yield "parameters", f"{values / 1e6:,.1f} M{tied}"
    width = f"feed-forward {_int(g, 'feed_forward_length')}"
    if g.get("feed_forward_length") is None and g.get("expert_feed_forward_length"):
        width = f"feed-forward {_int(g, 'expert_feed_forward_length')} in each expert"
    yield "layers", f"{_int(g, 'block_count')}, hidden size {_int(g, 'embedding_length')}, {width}"
    heads = g.get("attention.head_count", "?")
    key_len = g.get("attention.key_length") or _ratio(g.get("embedding_length"), heads)
    yield "heads", f"{heads} query, {g.get('attention.head_count_kv', heads)} key/value, {key_len} wide"
    yield "trained for", f"{_int(g, 'context_length')} positions of context"
    ratios = g.get("attention.compress_ratios")
    if g.get("attention.sliding_window"):
        where = "a part of" if ratios is None else "all"
        yield "sliding window", f"{_int(g, 'attention.sliding_window')} positions on {where} the layers"
    if ratios is not None:
        counts = Counter(list(ratios)[: g.get("block_count", 0)])
        parts = [f"{n} x " + (f"1 row for {ratio} positions" if ratio else "none") for ratio, n in sorted(counts.items())]
        yield "compressed rows", ", ".join(parts)
    if g.get("expert_count"):
        hashed = g.get("hash_layer_count")
        by_token = f"; the first {hashed} layers choose by the token alone" if hashed else ""
        shared = f" and {g.get('expert_shared_count')} shared" if g.get("expert_shared_count") else ""
        yield "experts", f"{_int(g, 'expert_count')}, {_int(g, 'expert_used_count')} per token{shared}{by_token}"
    if g.get("rope.scaling.type"):
        yield "rope scaling", str(g.get("rope.scaling.type"))


def _tokenizer(g: GgufFile) -> Iterator[tuple[str, str]]:
    yield "vocabulary", vocabulary(g)
    special = [f"{label} {g.kv[key]}" for label, key in _SPECIAL if key in g.kv]
    yield "special ids", ", ".join(special) or "none named"
    if g.architecture == ARCHITECTURE:
        yield "chat format", f"DeepSeek V4's own, revision {revision(g)}; tools (DSML), thinking, system prompt"
        return
    template = str(g.kv.get("tokenizer.chat_template", ""))
    if not template:
        yield "chat template", "none in the file: a base model, or use --chat-template-file"
        return
    offers = [name for name, mark in (("tools", "tools"), ("thinking", "think"), ("system prompt", "system")) if mark in template]
    dialect = next((name for mark, name in _DIALECTS if mark in template), "its own markers")
    yield "chat template", f"{dialect}, {len(template):,} characters" + (f"; mentions {', '.join(offers)}" if offers else "")


_SPECIAL = tuple((name, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "padding", "unknown"))
_DIALECTS = (
    ("<|im_start|>", "ChatML"),
    ("<start_of_turn>", "Gemma turns"),
    ("<|start_header_id|>", "Llama 3 headers"),
    ("[INST]", "[INST] blocks"),
    ("<｜User｜>", "DeepSeek turns"),
    ("<|user|>", "<|user|> turns"),
)


def _weights(g: GgufFile) -> Iterator[tuple[str, str]]:
    """Quantisation mix: types by their share of the bytes."""
    n_bytes: Counter[str] = Counter()
    n_tensors: Counter[str] = Counter()
    for tensor in g.tensors.values():
        n_bytes[tensor.type.name] += tensor.nbytes
        n_tensors[tensor.type.name] += 1
    total = max(1, n_bytes.total())
    for name, count in n_bytes.most_common():
        yield (
            name,
            f"{size(count):>9}  {100 * count / total:5.1f} %  {n_tensors[name]:,} tensor{'s' if n_tensors[name] > 1 else ''}",
        )


def _memory(g: GgufFile, n_ctx: int) -> Iterator[tuple[str, str]]:
    from ds4py.models import load_model

    if support_kind(g) is not None:
        yield "weights", f"{size(g.nbytes)} beside the model it drafts for"
        return
    trained = g.get("context_length")
    n_ctx = min(n_ctx, trained) if isinstance(trained, int) and trained > 0 else n_ctx
    yield "weights", f"{size(g.nbytes)}, mapped from the file or repacked to about the same size"
    try:
        n_cache = load_model(g, _Shapes()).new_state(n_ctx, _Shapes.max_rows).n_bytes
    except Ds4Error as error:
        yield "cannot run", str(error).removeprefix(f"{g.path}: ")
        return
    yield (
        "keys and values",
        f"{size(n_cache)} at {n_ctx:,} positions ({n_cache / n_ctx / 1024:.1f} KiB each), taken as the context fills",
    )
    one = traffic(g.tensors.values(), g.get("expert_used_count") or 0, tied="output.weight" not in g.tensors)
    routed = f", {size(one.experts)} of them experts" if one.experts else ""
    at = f"{1e3 * one.seconds(100e9):.3g} ms at 100 GB/s of memory, {1e3 * one.seconds(4e12):.3g} ms at 4 TB/s"
    yield "read per token", f"{size(one.total)} of weights{routed}: no less than {at}"
    need, here = (g.nbytes + n_cache) * 1.1 / 1e9, memory_gb()
    verdict = "" if not here else ", it fits this machine" if need < here else ", more than this machine has"
    yield "together", f"about {need:.2f} GB of {here:.1f} GB{verdict}" if here else f"about {need:.2f} GB"


def size(n_bytes: float) -> str:
    """Bytes in units of 10^3, three digits: "98.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def _int(g: GgufFile, key: str) -> str:
    value = g.get(key)
    return f"{value:,}" if isinstance(value, int) else "not stated" if value is None else str(value)


def _ratio(width: Any, heads: Any) -> str:
    return str(width // heads) if isinstance(width, int) and isinstance(heads, int) and heads else "?"
