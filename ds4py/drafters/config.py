"""What a user may ask of speculation, checked as a whole before anything is opened.

One frozen value holds every setting, so that the command line, the server and the bench build it from their options and hand it
on unread. It is checked when it is made: whoever holds a `SpecConfig` holds one that can be obeyed, as far as that can be known
without files. The order in which types are typed means nothing; they run in llama.cpp's precedence. Rejected: a settings class
for every drafter in the option layer, which would have to know which drafters exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ds4py.errors import UsageError

if TYPE_CHECKING:
    from ds4py.gguf import GgufFile

# All names of llama.cpp's --spec-type, first come first asked; opening.py has an opener for each.
PRECEDENCE: Final = (
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
)
N_MAX: Final = 3  # tokens of a draft, where neither the user nor the draft model says
LONGEST: Final = 1024  # tokens of a draft or an n-gram
ACCEPT_MODES: Final = ("opportunistic", "exact")  # above temperature 0; at 0 both are greedy decoding
DEPTH_POLICIES: Final = ("cost", "adaptive", "fixed", "ds4")
MAX_SKIP_STREAK: Final = 32


def parse_types(names: str) -> tuple[str, ...]:
    """The types in a comma-separated list, in precedence and without repeats; a "none" among them makes it empty.

    Raises UsageError for an unknown name."""
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name != "none" and name not in PRECEDENCE:
            raise UsageError(f"unknown speculative type {name!r}: choose from none, {', '.join(PRECEDENCE)}")
    return () if "none" in wanted else tuple(name for name in PRECEDENCE if name in wanted)


@dataclass(frozen=True)
class NgramSizes:
    """Of ngram-simple, ngram-map-k or ngram-map-k4v."""

    key: int = 12  # tokens that must match ("size-n")
    value: int = 48  # tokens copied at most ("size-m")
    min_hits: int = 1  # times the key must have been seen


@dataclass(frozen=True)
class ModSizes:
    """Of ngram-mod."""

    n_match: int = 24
    n_min: int = 48
    n_max: int = 64


@dataclass(frozen=True)
class SpecConfig:
    """How to speculate. Raises UsageError, naming the setting, for what can never be obeyed."""

    types: tuple[str, ...] = ()  # empty: none, or what `draft_model` turns out to be
    draft_model: Path | GgufFile | None = None
    draft_cpus: frozenset[int] | None = None  # processors of the draft model's own threads; None: those of the target
    draft_threads: int | None = None  # None: the draft model runs on the target's kernels
    n_max: int | None = None  # tokens a draft model proposes at most; None: its block, or N_MAX where it has none
    n_min: int = 0  # shorter proposals of a draft model are dropped
    p_min: float = 0.0  # a draft model stops where its own best token is less likely than this
    margin: float | None = None  # an MTP block stops where its best logit leads the second by less; 0 or None: use p_min
    conf_min: float | None = None  # a confidence head stops where it expects less; 0: use p_min; None: what suits the draft
    candidates: int = 0  # tokens of a row that a Markov head looks at; 0 = all
    ngram_simple: NgramSizes = NgramSizes()
    ngram_map_k: NgramSizes = NgramSizes()
    ngram_map_k4v: NgramSizes = NgramSizes()
    ngram_mod: ModSizes = ModSizes()
    lookup_static: Path | None = None  # files of ngram-cache
    lookup_dynamic: Path | None = None
    accept: str = "opportunistic"
    depth: str = "cost"
    skip_streak: int = 0  # skip one draft after so many in a row without an accepted token; 0 = off

    def __post_init__(self) -> None:
        for name in self.types:
            if name not in PRECEDENCE:
                raise UsageError(f"unknown speculative type {name!r}: choose from none, {', '.join(PRECEDENCE)}")
        object.__setattr__(self, "types", tuple(name for name in PRECEDENCE if name in self.types))
        self._check_draft()
        for kind, sizes in (("simple", self.ngram_simple), ("map-k", self.ngram_map_k), ("map-k4v", self.ngram_map_k4v)):
            _check_count(f"--spec-ngram-{kind}-size-n", sizes.key, 1, LONGEST)
            _check_count(f"--spec-ngram-{kind}-size-m", sizes.value, 1, LONGEST)
            _check_count(f"--spec-ngram-{kind}-min-hits", sizes.min_hits, 1, None)
        _check_count("--spec-ngram-mod-n-match", self.ngram_mod.n_match, 1, LONGEST)
        _check_count("--spec-ngram-mod-n-min", self.ngram_mod.n_min, 0, LONGEST)
        _check_count("--spec-ngram-mod-n-max", self.ngram_mod.n_max, 0, LONGEST)
        _check_choice("accept mode", self.accept, ACCEPT_MODES)
        _check_choice("depth policy", self.depth, DEPTH_POLICIES)
        _check_count("the skip streak", self.skip_streak, 0, MAX_SKIP_STREAK)

    def _check_draft(self) -> None:
        if self.n_max is not None:
            _check_count("--spec-draft-n-max", self.n_max, 0, LONGEST)
        _check_count("--spec-draft-n-min", self.n_min, 0, LONGEST)
        if self.draft_threads is not None:
            _check_count("--spec-draft-threads", self.draft_threads, 1, None)
        _check_share("--spec-draft-p-min", self.p_min)
        _check_share("--spec-draft-conf-min", self.conf_min or 0.0)
        _check_count("--spec-draft-candidates", self.candidates, 0, None)
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin >= 0):
            raise UsageError(f"--mtp-margin must be a number of at least 0, not {self.margin}")
        needy = [name for name in self.types if name.startswith("draft-")]
        if "draft-mtp" in needy and self.draft_model is None:
            raise UsageError(
                "draft-mtp needs the file of the block that drafts: name it with --mtp-model (blocks inside model files are not "
                "in this build yet)"
            )
        if needy and self.draft_model is None:
            raise UsageError(f"{needy[0]} needs a draft model: name its file with --spec-draft-model (-md)")


def _check_count(name: str, value: int, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"{low} to {high}"
        raise UsageError(f"{name} must be {wanted}, not {value}")


def _check_share(name: str, value: float) -> None:
    """p-min above 1 is allowed, as in llama.cpp: nothing is drafted then."""
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be a probability, not {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"unknown {name} {value!r}: choose one of {', '.join(choices)}")
