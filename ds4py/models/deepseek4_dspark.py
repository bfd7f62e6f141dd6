"""deepseek4-dspark: the three stages that draft for DeepSeek V4 Flash (0731 and Vision), with the graphs of a block draft.

A stage is a block of the target without a pool. Its *context* is one latent per position that the target has evaluated, made from
the target's residuals alone: the means over the streams of what leaves some layers, joined, projected and normed once for all
stages (`inject`). The *block* is the last chosen token and noise tokens behind it; its rows have queries and latents of their own
and see the window before the block and all of the block (`block`). Embedding and head are the target's.

The confidence head reads the collapsed streams before the last norm, which `block` offers as tap `HIDDEN`.

Files: all keys have three spellings, tensors two. A file of this kind has no sizes of its own; those of the target's metadata are
what its shapes are checked against. Since checkpoints of different months have equal shapes, what a file says about its origin is
checked too (`check_pair`): a pair that does not belong together would draft, and be accepted a tenth as often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgufFile
from ds4py.models.deepseek4 import Block, Head
from ds4py.models.deepseek4 import Model as Target
from ds4py.models.deepseek4_config import Config, LayerCaches
from ds4py.models.drafts import HIDDEN
from ds4py.models.running import CacheSpec
from ds4py.models.tensors import Tensors
from ds4py.protocols import I64, Buf, Ops

SPELLINGS: Final = ("deepseek4.dspark.{}", "deepseek4.dspark_{}", "dspark.{}")
BLOCK_SIZE, NOISE_TOKEN = 5, 128799  # where a file does not say; the taps are then the last three layers
MOST_TOKENS, MOST_STAGES, MOST_TAPS = 16, 8, 8
VISION: Final = "vision-exp"
_REVISIONS: Final = ("general.source.revision", "general.source_revision", "dspark.source_revision")
_VARIANTS: Final = ("dspark.checkpoint_variant", "deepseek4.checkpoint_variant", "general.checkpoint_variant")
# what community files call the parts that are not in a stage -> their names in a stage, first or last
_FIRST: Final = ("main_proj.", "main_norm.")
_LAST: Final[Mapping[str, str]] = MappingProxyType(
    {
        "norm.": "norm.",
        "hc_head_": "hc_head_",
        "markov_w": "markov_head.markov_w",
        "markov_head.": "markov_head.",
        "conf_proj.": "confidence_head.proj.",
        "confidence_head.": "confidence_head.",
    }
)


@dataclass(frozen=True)
class Keys:
    """What a support file's metadata says."""

    block_size: int
    noise_token: int
    taps: tuple[int, ...]  # layers of the target, after which the residual is tapped
    n_stages: int

    @classmethod
    def read(cls, g: GgufFile, c: Config, vocab_size: int) -> Keys:
        n_stages = stage_count(g)
        stated = key(g, "stage_count")
        if stated is not None and stated != n_stages:
            raise FormatError(f"{g.path}: dspark.stage_count is {stated}, but there are tensors of {n_stages} stages.")
        if not 1 <= n_stages <= MOST_STAGES:
            raise FormatError(f"{g.path} has {n_stages} drafting stages; 1 to {MOST_STAGES} are possible.")
        block_size = _count(g, "block_size", BLOCK_SIZE, 1, MOST_TOKENS)
        noise = _count(g, "noise_token_id", NOISE_TOKEN, 0, vocab_size - 1)
        taps = key(g, "target_layer_ids")
        taps = [c.n_layers - 3, c.n_layers - 2, c.n_layers - 1] if taps is None else taps
        if not isinstance(taps, Sequence) or isinstance(taps, str) or not 1 <= len(taps) <= MOST_TAPS:
            raise FormatError(f"{g.path}: dspark.target_layer_ids is no list of 1 to {MOST_TAPS} layers.")
        if list(taps) != sorted(set(taps)) or not all(isinstance(i, int) and 0 <= i < c.n_layers for i in taps):
            raise FormatError(f"{g.path}: dspark.target_layer_ids is {list(taps)}, not rising numbers of {c.n_layers} layers.")
        return cls(block_size, noise, tuple(taps), n_stages)


def key(g: GgufFile, name: str) -> Any:
    """The value under whichever spelling of `name` the file has, or None."""
    return next((g.kv[s.format(name)] for s in SPELLINGS if s.format(name) in g.kv), None)


def _count(g: GgufFile, name: str, default: int, low: int, high: int) -> int:
    value = key(g, name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FormatError(f"{g.path}: dspark.{name} is {value!r}; it must be a number from {low} to {high}.")
    return value


def stage_count(g: GgufFile) -> int:
    """Stages that the (canonical) file has tensors of."""
    numbers = {int(found[1]) for found in (re.match(r"mtp\.(\d+)\.", name) for name in g.tensors) if found}
    return max(numbers, default=-1) + 1


def canonical(g: GgufFile) -> GgufFile:
    """The file with the tensor names of released support files (mtp.*) where it has those of community files (dspark.*)."""
    if not any(name.startswith("dspark.") for name in g.tensors):
        return g
    numbers = [int(found[1]) for found in (re.match(r"dspark\.(\d+)\.", name) for name in g.tensors) if found]
    last = max(numbers, default=0)

    def renamed(name: str) -> str:
        rest = name.removeprefix("dspark.")
        if rest == name or rest[0].isdigit():
            return name.replace("dspark.", "mtp.", 1)
        if rest.startswith(_FIRST):
            return f"mtp.0.{rest}"
        for theirs, ours in _LAST.items():
            if rest.startswith(theirs):
                return f"mtp.{last}.{ours}{rest.removeprefix(theirs)}"
        return name

    return replace(g, tensors={renamed(name): tensor for name, tensor in g.tensors.items()})


def is_support(g: GgufFile) -> bool:
    """Whether a file has a Markov head on DeepSeek stages, whatever it calls itself."""
    return any(name.startswith(("mtp.", "dspark.")) and "markov_w1" in name for name in g.tensors)


def variant(g: GgufFile) -> str | None:
    """The checkpoint that a file says it is of, or that its name and its list of layers show; None if nothing does."""
    for name in _VARIANTS:
        if isinstance(g.kv.get(name), str):
            return str(g.kv[name]).lower()
    if "vision" in str(g.kv.get("general.name", "")).lower():
        return VISION
    ratios, n_layers = g.kv.get("deepseek4.attention.compress_ratios"), g.kv.get("deepseek4.block_count")
    if isinstance(ratios, Sequence) and isinstance(n_layers, int):
        return {1: "preview", 3: "0731"}.get(len(ratios) - n_layers)
    return None


def check_pair(g: GgufFile, target: GgufFile, c: Config) -> str:
    """UnsupportedError if the DSpark file `g` was not made for the model `target`, as far as both tell. What they do not tell, in
    a sentence, or ""."""
    if c.is_pro:
        raise UnsupportedError(f"{g.path} drafts for DeepSeek V4 Flash; {target.path.name} is V4 PRO, which has no such draft.")
    ours = variant(g)
    if g.architecture.startswith("deepseek41") or (ours or "").startswith("v4.1"):
        raise UnsupportedError(f"{g.path} drafts for DeepSeek V4.1 Flash; {target.path.name} is V4 Flash, another network.")
    if ours is None and variant(target) == "preview":
        raise UnsupportedError(
            f"{g.path} is made for 0731 or later, but {target.path.name} is of preview: take the file made for it."
        )
    return check_origin(g, target, ours)


def check_origin(g: GgufFile, target: GgufFile, ours: str | None) -> str:
    """UnsupportedError if the file `g`, which drafts for the checkpoint `ours`, contradicts what `target` says of itself. What
    the two leave open, in a sentence, or ""."""
    theirs = variant(target)
    if ours is not None and theirs is not None and ours != theirs:
        made = f"for the checkpoint {ours}"
        raise UnsupportedError(f"{g.path} is made {made}, but {target.path.name} is of {theirs}: take the file made for it.")
    one, other = (next((f.kv[name] for name in _REVISIONS if f.kv.get(name)), None) for f in (g, target))
    if one is not None and other is not None and one != other:
        raise UnsupportedError(
            f"{g.path} is made from revision {str(one)[:12]}, {target.path.name} from {str(other)[:12]}: "
            "take the file that belongs to the model."
        )
    if (one is None or other is None) and (ours is None or theirs is None):
        silent = g if ours is None else target
        return (
            f"{silent.path.name} does not say which checkpoint it is of; if {g.path.name} was not made for that of "
            f"{target.path.name}, few drafts will be accepted"
        )
    return ""


class Model:
    """A block draft's network (drafters/block.py)."""

    d2t: I64 | None = None  # all ids have rows
    from_anchor = True

    def __init__(self, g: GgufFile, t: Tensors, target: Target) -> None:
        """`g` and `t` are of the canonical file."""
        c = self.config = target.config
        keys = Keys.read(g, c, target.vocab_size)
        self.taps, self.block_size, self.mask_token = keys.taps, keys.block_size, keys.noise_token
        self.last = f"mtp.{keys.n_stages - 1}"  # prefix of the heads
        self.feature_len = len(keys.taps) * c.n_embd
        self.main_proj = t.matrix("mtp.0.main_proj.weight", c.n_embd, self.feature_len)
        self.main_norm = t.vector("mtp.0.main_norm.weight", c.n_embd)
        clamp = c.clamps[-1]
        self.stages = [Block.read(t, f"mtp.{i}", 0, False, clamp, target.vocab_size, c) for i in range(keys.n_stages)]
        self.head = Head.read(t, f"{self.last}.hc_head", f"{self.last}.norm.weight", c)
        self.markov = f"{self.last}.markov_head."
        rank, stated = t.raw(f"{self.markov}markov_w1.weight").row_len, key(g, "markov_rank")
        if stated is not None and stated != rank:
            raise FormatError(f"{g.path}: dspark.markov_rank is {stated}, but {self.markov}markov_w1.weight has {rank} columns.")
        self.token_embd, self.output = target.token_embd, target.output
        # a block sees the whole window before it, so the ring holds one position more than a target's
        self.caches: Sequence[CacheSpec] = [CacheSpec(1, 0, c.heads.head_len, window=c.window + 1)] * keys.n_stages

    def inject(self, ops: Ops) -> Buf:
        """Rows of joined taps, given, to latents at the rows' positions. No logits."""
        x = ops.rms_norm(ops.linear(ops.given(self.feature_len), self.main_proj), self.main_norm, self.config.eps)
        for i, stage in enumerate(self.stages):
            ops.latent.put(stage.attention.latent(ops, self.config, x), i)
        return ops.pick(x)

    def block(self, ops: Ops) -> Buf:
        """One block per span: the chosen token and noise tokens."""
        c = self.config
        h = ops.latent.spread(ops.embed(self.token_embd), c.n_streams)
        for i, stage in enumerate(self.stages):
            h = stage.run(ops, c, h, LayerCaches(ring=i), block=True)
        x = self.head.collapse(ops, c, ops.pick(h))
        ops.tap(HIDDEN, x)
        return ops.linear(ops.rms_norm(x, self.head.norm, c.eps), self.output)
