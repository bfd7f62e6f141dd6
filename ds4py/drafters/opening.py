"""From what the user asked for to a drafter for each session, and the line that says which one runs or why none does.

Two steps, because they happen at different times. `open_drafters` is called once, beside the target model: it reads files, loads
a draft model, builds what sessions share, and refuses what cannot work. `Drafters.new` is called for every session and costs
next to nothing. Speculation is never enabled silently: without a type and without a draft model there is no drafter, and `line`
says so; a draft model without a type is recognised from its file, and `line` says what it was taken for.

A type is one entry of `_OPENERS` and one file of this folder, imported when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ds4py.drafters import with_model
from ds4py.drafters.config import N_MAX, PRECEDENCE, SpecConfig
from ds4py.drafters.opened import Maker, Notice, Opened, Target
from ds4py.drafters.price import Price, row_price
from ds4py.errors import UnsupportedError, UsageError
from ds4py.gguf import GgufFile, open_gguf
from ds4py.models.deepseek4_mtp import is_mtp
from ds4py.protocols import Drafter

_MAX_POOLS: Final = 16  # that ngram-mod keeps for as many users, of 16 MiB each


@dataclass(frozen=True)
class Drafters:
    """What `open_drafters` opened, for any number of sessions."""

    config: SpecConfig
    types: tuple[str, ...]  # that run, in the order in which they are asked; empty: none
    line: str  # for the user, without a prefix
    n_max: int  # tokens of the longest draft
    n_min: int  # a depth below this gets no draft from any of them
    makers: Sequence[Maker] = ()
    counted: str = "adaptive"  # the depth policy where only counts may decide
    prices: Sequence[Price] = ()  # of each type
    unsure: tuple[str, ...] = ()  # what could not be checked, sentences for the user
    hopeless: frozenset[str] = frozenset()  # types that gain nothing by these prices, however often they are right

    def new(self, opportunistic: bool, user: str = "") -> Drafter | None:
        """A drafter for one session, None if no type runs. `opportunistic`: drafts will decide the text, so they are greedy and
        nothing is shared with other sessions, and types that are too dear are left out; else sessions of one `user` share what
        ngram-mod has seen."""
        dear = self.too_dear() if opportunistic else {}
        made = [make(opportunistic, user) for name, make in zip(self.types, self.makers, strict=True) if name not in dear]
        if len(made) < 2:
            return made[0] if made else None
        from ds4py.drafters.chain import Chain

        return Chain(made)

    def too_dear(self) -> dict[str, Price]:
        """Hopeless types, which the default policy does not ask where it cannot measure. Another policy is the user's wish and
        asks them."""
        judged = self.config.depth == "cost" and self.counted == "adaptive"
        priced = zip(self.types, self.prices, strict=False)
        return {name: price for name, price in priced if judged and name in self.hopeless}

    def in_vain(self) -> Price | None:
        """Of the cheapest type, if every type that runs is a hopeless one."""
        hopeless = self.types and self.hopeless.issuperset(self.types)
        return min(self.prices, key=lambda price: price.of(1)) if hopeless else None

    def price(self) -> Price:
        """Of the dearest type that is asked where only counts may decide."""
        dear = self.too_dear()
        asked = [price for name, price in zip(self.types, self.prices, strict=False) if name not in dear]
        return max(asked, key=lambda price: price.of(1), default=Price())


def recognise(g: GgufFile) -> str:
    """The speculative type a draft file was made for. By llama.cpp's marks; a model without any of them drafts by itself."""
    if g.architecture == "dflash":
        return "draft-dspark" if "markov_w1.weight" in g.tensors else "draft-dflash"
    if with_model.is_deepseek(g):
        return "draft-dspark"
    if g.architecture == "eagle3":
        return "draft-eagle3"
    last = g.get("block_count", 0)
    if is_mtp(g):
        return "draft-mtp"
    if g.architecture in ("gemma4-assistant", "gemma4_assistant") or f"blk.{last - 1}.nextn.eh_proj.weight" in g.tensors:
        return "draft-mtp"
    return "draft-simple"


def open_drafters(config: SpecConfig, target: Target, notice: Notice | None = None) -> Drafters:
    """Open what `config` asks for. `notice` is told, once per session, what ends drafting early.

    Raises UnsupportedError for a type that this build lacks or a draft model that cannot draft for the target, and what opening
    files raises."""
    g = _draft_file(config)
    types, taken = config.types, ""
    if g is not None and not types:
        types = (recognise(g),)
        taken = f" ({g.path.name} was taken for one; choose with --spec-type)"
    if not types:
        return Drafters(config, (), "speculation: off, because no --spec-type was given", 0, 0)
    check_file(types, g)
    types, silent = _speaking(config, types)
    if not types:
        return Drafters(config, (), f"speculation: off, because {silent}", 0, 0)
    opened = [_OPENERS[name](config, target, g, notice) for name in types]
    says = ", then ".join(one.says for one in opened)
    unused = f"; {g.path.name} is not used by any of them" if g is not None and not _FILED.intersection(types) else ""
    n_max = min(max(one.n_max for one in opened), target.kernels.max_rows - 1)
    line = f"speculation: {says}{taken}, up to {n_max} tokens ahead{unused}{f'; {silent}' if silent else ''}"
    counted = {one.counted for one in opened}
    makers = [one.make for one in opened]
    n_min = min(one.n_min for one in opened)
    rows = Price(row_price(target.gguf)) if target.gguf is not None else Price()
    prices = [one.price or rows for one in opened]
    hopeless = frozenset(
        name for name, one, price in zip(types, opened, prices, strict=True) if not price.can_pay(min(one.n_max, n_max))
    )
    unsure = tuple(one.unsure for one in opened if one.unsure)
    policy = counted.pop() if len(counted) == 1 else "adaptive"
    return Drafters(config, types, line, n_max, n_min, makers, policy, prices, unsure, hopeless)


def _speaking(config: SpecConfig, types: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The types that may draft, and why the others may not. MTP is loaded all the same, as in ds4."""
    if config.n_max != 0:
        return tuple(types), ""
    mute = [name for name in types if name in _FILED and name != "draft-mtp"]
    why = f"--spec-draft-n-max 0 lets {' and '.join(mute)} draft nothing" if mute else ""
    return tuple(name for name in types if name not in mute), why


def draft_len(config: SpecConfig) -> int:
    """Rows beyond the first that a forward must take for the draft model that `config` names: its drafts, or its own block."""
    g = _draft_file(config)
    block = 0
    if g is not None and with_model.is_deepseek(g):
        from ds4py.models.deepseek4_dspark import BLOCK_SIZE, key

        block = key(g, "block_size") or BLOCK_SIZE
    elif g is not None and g.architecture == "dflash":
        block = g.get("block_size", 0)
    asked = config.n_max if config.n_max is not None else N_MAX
    return max(asked, block) if isinstance(block, int) else asked


def check_file(types: Sequence[str], g: GgufFile | None) -> None:
    """Raises UsageError if a type of `types` needs a file, UnsupportedError if `g` is made for another type, or is a draft of
    another family's MTP."""
    if g is not None and (not types or "draft-mtp" in types) and recognise(g) == "draft-mtp" and not is_mtp(g):
        raise UnsupportedError(f"{g.path.name} is made for draft-mtp, which this build has for DeepSeek V4 only")
    needy = [name for name in types if name in _FILED]
    if needy and g is None:
        raise UsageError(f"{needy[0]} needs a draft model: name its file with --spec-draft-model (-md)")
    if len(needy) > 1:
        raise UsageError(f"{' and '.join(needy)} cannot share one draft model: choose one of them")
    if needy and g is not None and (kind := recognise(g)) != needy[0]:
        raise UnsupportedError(f"{g.path} is made for {kind}, not for {needy[0]}: choose --spec-type {kind}")


def _draft_file(config: SpecConfig) -> GgufFile | None:
    return open_gguf(config.draft_model) if isinstance(config.draft_model, Path) else config.draft_model


def _open_ngram_simple(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.ngram_simple import NgramSimple

    sizes = config.ngram_simple
    return Opened(lambda opportunistic, user: NgramSimple(sizes), sizes.value, f"ngram-simple {sizes.key}/{sizes.value}")


def _open_ngram_map_k(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.ngram_map_k import NgramMapK

    sizes = config.ngram_map_k
    return Opened(lambda opportunistic, user: NgramMapK(sizes), sizes.value, f"ngram-map-k {sizes.key}/{sizes.value}")


def _open_ngram_map_k4v(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.ngram_map_k4v import NgramMapK4V

    sizes = config.ngram_map_k4v
    return Opened(lambda opportunistic, user: NgramMapK4V(sizes), sizes.value, f"ngram-map-k4v {sizes.key}/{sizes.value}")


def _open_ngram_mod(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.ngram_mod import NgramMod, NgramModPool

    sizes = config.ngram_mod
    pools: dict[str, NgramModPool] = {}

    def make(opportunistic: bool, user: str) -> Drafter:
        if opportunistic:
            return NgramMod(sizes)
        pool = pools.pop(user) if user in pools else NgramModPool()
        pools[user] = pool  # the most recent user comes last
        while len(pools) > _MAX_POOLS:
            del pools[next(iter(pools))]
        return NgramMod(sizes, pool)

    says = f"ngram-mod {sizes.n_match}/{sizes.n_min}-{sizes.n_max}"
    advice = NgramMod(sizes, NgramModPool(1)).advice
    return Opened(make, sizes.n_max, f"{says} ({advice})" if advice else says)


def _open_ngram_cache(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.ngram_cache import LONGEST_DRAFT, NgramCache, open_lookup_caches

    caches = open_lookup_caches(config.lookup_static, config.lookup_dynamic, target.vocab_size)
    files = [path.name for path in (config.lookup_static, config.lookup_dynamic) if path is not None]
    says = f"ngram-cache with {' and '.join(files)}" if files else "ngram-cache"
    return Opened(lambda opportunistic, user: NgramCache(caches), LONGEST_DRAFT, says)


# types that need a file
_FILED: Final = frozenset({"draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"})
_Opener = Callable[[SpecConfig, Target, GgufFile | None, Notice | None], Opened]
_OPENERS: Final = MappingProxyType[str, _Opener](
    {
        "ngram-simple": _open_ngram_simple,
        "ngram-map-k": _open_ngram_map_k,
        "ngram-map-k4v": _open_ngram_map_k4v,
        "ngram-mod": _open_ngram_mod,
        "ngram-cache": _open_ngram_cache,
        "draft-simple": with_model.open_draft_simple,
        "draft-eagle3": with_model.open_draft_eagle3,
        "draft-mtp": with_model.open_draft_mtp,
        "draft-dflash": with_model.open_draft_dflash,
        "draft-dspark": with_model.open_draft_dspark,
    }
)
assert set(PRECEDENCE) == set(_OPENERS)
