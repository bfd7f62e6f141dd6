"""A draft's config beside its target's, and what a family of drafts must tell the converter.

The idea: drafts are published in several wrappings of the same few networks. `flattened` brings a config to one form, with nested
tables (`transformer_layer_config` of speculators, `dflash_config` of DFlash) merged into the top, so that a family reads one set
of names. A draft has no tokenizer of its own and often neither embedding nor head, so the target's folder is asked for sizes.

Layer numbers are where formats differ and where an error costs most of the acceptance without a word, so every family says them
in one form, the file's: n is the residual that enters layer n, which is the output of layer n - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ds4py.convert.config import Config
from ds4py.convert.family import Wanted
from ds4py.convert.floats import F32
from ds4py.errors import FormatError

_NESTED = ("transformer_layer_config", "dflash_config")  # the later ones win


@dataclass(frozen=True)
class Pair:
    """`draft` is flattened."""

    draft: Config
    target: Config

    @property
    def n_vocab(self) -> int:
        """Ids of the target: rows of its embedding."""
        return self.target.count("vocab_size")

    @property
    def n_rows(self) -> int:
        """Rows of the draft's head."""
        n = self.draft.count("draft_vocab_size", self.n_vocab)
        if n > self.n_vocab:
            raise self.draft.fail("draft_vocab_size", f"is {n}, more than the target's {self.n_vocab} tokens")
        return n

    @property
    def target_width(self) -> int:
        """Length of one residual of the target. FormatError if the draft says otherwise."""
        n = self.target.count("hidden_size")
        told = self.draft.count("target_hidden_size", n)
        if told != n:
            raise self.draft.fail("target_hidden_size", f"is {told}, and {self.target.path} has a hidden_size of {n}")
        return n

    @property
    def n_target_layers(self) -> int:
        n = self.target.count("num_hidden_layers")
        told = self.draft.count("num_target_layers", n)
        if told != n:
            raise self.draft.fail("num_target_layers", f"is {told}, and {self.target.path} has {n} layers: another target?")
        return n

    def taps(self, key: str, ids: Any, shift: int, n: int | None = None) -> list[int]:
        """Checked layer numbers, `shift` added: ascending, 0 (the embedding) to the number of layers, `n` of them."""
        good = isinstance(ids, list) and bool(ids) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
        shifted: Sequence[int] = [i + shift for i in ids] if good else []
        inside = good and 0 <= shifted[0] and shifted[-1] <= self.n_target_layers
        if not inside or list(shifted) != sorted(set(shifted)) or (n is not None and len(shifted) != n):
            asked = f"{n} ascending" if n is not None else "ascending"
            raise self.draft.fail(key, f"is {ids!r:.80}, not {asked} layers of a target of {self.n_target_layers}")
        return list(shifted)


@dataclass(frozen=True)
class DraftFamily:
    """One network. classes: what config.json calls it; canonical: a checkpoint's tensor name as `wanted` spells it; frozen: the
    draft's embedding and head, if it has them with all rows, are copies of the target's that training left alone."""

    name: str  # general.architecture
    classes: tuple[str, ...]
    metadata: Callable[[Pair], Mapping[str, Any]]  # keys without the architecture's name in front
    wanted: Callable[[Pair], Iterable[Wanted]]
    canonical: Callable[[str], str]
    tokenizer: Callable[[Pair], Mapping[str, Any]] = field(default=lambda pair: {})  # whole keys
    computed: Callable[[Pair], Mapping[str, F32]] = field(default=lambda pair: {})
    frozen: bool = False


def flattened(config: Config) -> Config:
    """The config with nested tables merged into the top. What the top level says itself is weaker than `dflash_config` and
    stronger than the layers' table."""
    merged: dict[str, Any] = {}
    for name in ("transformer_layer_config", "", "dflash_config"):
        table = config.whole.get(name) if name else config.whole
        if table is None:
            continue
        if not isinstance(table, dict):
            raise FormatError(f"{config.path}: {name} is no table")
        merged |= {key: value for key, value in table.items() if value is not None and key not in _NESTED}
    return replace(config, text=merged)


def from_speculators(config: Config) -> bool:
    """Whether the `speculators` library wrote the checkpoint."""
    return "speculators_model_type" in config.whole or "speculators_config" in config.whole


def stripped(name: str) -> str:
    """A tensor's name without the wrapper's."""
    return name.removeprefix("model.")
