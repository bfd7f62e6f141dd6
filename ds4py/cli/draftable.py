"""Which drafters a model file could use, told from its metadata and tensor names.

The idea: every way of drafting leaves a mark in a GGUF (an architecture name, a `nextn_predict_layers` count, tensors called
`mtp.*`, `markov_w1`), so the answer needs no weights. The module describes files; what this build cannot draft with yet is
marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ds4py.gguf import GgufFile
from ds4py.models.deepseek4_config import PRO_LAYERS

# Architecture name -> what such a file is. A `dflash` file with a Markov head is a DSpark draft.
_SUPPORT = {
    "eagle3": "an EAGLE-3 draft",
    "dflash": "a DFlash draft",
    "deepseek4-dspark": "a DSpark support file for DeepSeek V4 Flash",
    "deepseek4-mtp": "a one-stage MTP file for DeepSeek V4 Flash",
    "deepseek41-dspark": "a DSpark support file for DeepSeek V4.1 Flash",
    "gemma4-assistant": "a Gemma 4 assistant (MTP) draft",
    "gemma4_assistant": "a Gemma 4 assistant (MTP) draft",
}


def support_kind(g: GgufFile) -> str | None:
    """What the file is if it only drafts for another model ("a DSpark draft"), None for a model of its own."""
    if g.architecture == "dflash" and "markov_w1.weight" in g.tensors:
        return "a DSpark draft"
    if g.architecture in _SUPPORT:
        return _SUPPORT[g.architecture]
    if _count(g) and "blk.0.attn_norm.weight" not in g.tensors:
        return "an MTP block without its model"
    if "token_embd.weight" not in g.tensors and any(name.startswith(("mtp.", "dspark.")) for name in g.tensors):
        return "a DSpark support file" if any("markov" in name for name in g.tensors) else "a one-stage MTP file"
    return None


def named(g: GgufFile) -> str:
    """The architecture, and which model it is where that decides what can be done: "deepseek4 (DeepSeek V4 PRO)"."""
    if g.architecture == "deepseek4" and g.get("block_count") == PRO_LAYERS:
        return f"{g.architecture} (DeepSeek V4 PRO, for which there are no drafts)"
    return g.architecture


def drafters_for(g: GgufFile) -> Iterator[tuple[str, str]]:
    """(drafter, whether and how this file can use it), for a model file; a support file has one entry of its own."""
    kind = support_kind(g)
    if kind is not None:
        yield "support file", f"this is {kind}: it drafts for another model and answers nothing alone"
        return
    yield "n-gram", "yes: looks the text so far up, needs no other file (--spec-type ngram-mod and others)"
    yield "draft model", f"yes, with a smaller GGUF of the same vocabulary ({vocabulary(g)}): -md FILE"
    yield "built-in MTP", _built_in(g)
    hidden = g.get("embedding_length", 0)
    yield "support file", f"yes, an EAGLE-3, DFlash or DSpark file made for this model (hidden size {hidden:,}): -md FILE"


def vocabulary(g: GgufFile) -> str:
    """The tokenizer in a few words: "gpt2 BPE, smollm, 49,152 tokens"."""
    tokens = g.kv.get("tokenizer.ggml.tokens", ())
    parts = [str(g.kv.get("tokenizer.ggml.model", "no tokenizer")), str(g.kv.get("tokenizer.ggml.pre", ""))]
    return ", ".join([part for part in parts if part] + [f"{len(tokens):,} tokens"])


def _count(g: GgufFile) -> int:
    value = g.get("nextn_predict_layers", 0)
    return value if isinstance(value, int) else 0


def _built_in(g: GgufFile) -> str:
    blocks = _count(g)
    marked = [t for name, t in g.tensors.items() if ".nextn." in name or name.startswith(("mtp.", "nextn."))]
    if not marked:
        return (
            "no: the file says it had such blocks, but their tensors were stripped" if blocks else "no: the file has no MTP block"
        )
    values = sum(prod(tensor.shape) for tensor in marked)
    held = f"{len(marked)} tensors of their own, {values / 1e6:.1f} M values"
    return f"yes: {blocks or 1} MTP block(s), {held}; drafting with them is not in this build yet"
