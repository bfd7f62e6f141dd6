"""Identity runs: a drafter against plain decoding, by tokens, hashes of logits, and hashes of caches in position order.

An *episode* is a prompt and some tokens generated after it, always the same for one number. A *run* is one drafter under one
setting; it goes through episodes until enough proposals were accepted and enough rejected to call the comparison one. What plain
decoding does in an episode is computed once per setting and compared with every drafter.

Prompts are of two kinds. Natural texts have the model's own distribution. In the others a logit bias leaves five words, so that
at any temperature n-grams come again, are continued in several ways, and drafts are right and wrong by the hundred. Under a
grammar prompt and answer are JSON lists of a few words and numbers instead.

Greedy texts of so few words run into loops, where every guess is right. Every other greedy episode is therefore shaken: at some
positions, always the same ones, the words' logits are moved by random numbers, always the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
from scripted_drafters import Scripted, always_right, always_wrong, from_table

from ds4py.drafters import Drafters
from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions
from ds4py.engine.accept import TargetDraw
from ds4py.engine.cost import CostAware
from ds4py.engine.schedule import FixedSchedule
from ds4py.protocols import F32, DepthPolicy, Draft, Drafter, SamplerView, SamplingParams, SamplingSchedule

FILTERS: dict[str, Any] = dict(top_k=40, top_p=0.95, min_p=0.02)
MODES = {
    "greedy": SamplingParams(0),
    "T 0.7": SamplingParams(0.7, **FILTERS),
    "T 1.3": SamplingParams(1.3, **FILTERS),
}
VARIATIONS = ("base", "penalty", "grammar")
SCRIPTED = ("second-choice", "always-wrong", "always-right")
SCHEMA: dict[str, Any] = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "array",
    "minItems": 400,
    "items": {
        "type": "object",
        "properties": {"name": {"enum": ["ash", "birch", "oak"]}, "size": {"enum": [1, 2, 3]}, "old": {"type": "boolean"}},
        "required": ["name", "size", "old"],
        "additionalProperties": False,
    },
}
DEPTH = 5


@dataclass(frozen=True)
class Subject:
    """A model under test. `words`: ids of five words; `text`: ids of a natural text; `grammar`: makes the schedule of an
    answer that obeys SCHEMA from position n on around another one, and `encode` its prompts' ids, or both are None."""

    name: str
    engine: Engine
    words: Sequence[int]
    text: Sequence[int]
    grammar: Callable[[SamplingSchedule, int], SamplingSchedule] | None = None
    encode: Callable[[str], list[int]] | None = None


@dataclass(frozen=True)
class Record:
    """What decoding an episode gave."""

    tokens: Sequence[int]
    rows: Sequence[bytes]  # hash of the logits of each generated token
    caches: Sequence[bytes]  # hash of each cache's content below pos
    second: dict[int, int] = field(default_factory=dict)  # position -> the second likeliest token of its row


@dataclass
class Counts:
    """Of a run."""

    episodes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    passes: int = 0

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted

    def enough(self, least: int, drafter: str) -> bool:
        """Whether both kinds of proposals occurred; scripted drafters count what they can produce."""
        right = self.accepted >= least or drafter in ("always-wrong", "second-choice")
        return right and (self.rejected >= least or drafter == "always-right")


class Shaken:
    """Another schedule whose logits of `tokens` are moved at a position in four, by numbers that belong to both and to `seed`."""

    def __init__(self, inner: SamplingSchedule, tokens: Sequence[int], seed: int) -> None:
        self.inner, self.tokens, self.seed = inner, sorted({*tokens}), seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def adjust(self, row: F32) -> F32:
        rng = np.random.default_rng([self.seed, self.inner.pos])
        if rng.integers(4):
            return self.inner.adjust(row)
        moved = row.copy()
        moved[self.tokens] += rng.normal(scale=10, size=len(self.tokens)).astype(np.float32)
        return self.inner.adjust(moved)


def episode(subject: Subject, number: int, mode: str, variation: str) -> tuple[list[int], SessionOptions]:
    """(prompt, options) of an episode."""
    rng = np.random.default_rng([number, 17])
    penalties = Penalties(repeat=1.5) if variation == "penalty" else Penalties()
    options = SessionOptions(MODES[mode], penalties, seed=number + 1)
    shaken = mode == "greedy" and number % 2 == 0
    if variation == "grammar":
        assert subject.grammar is not None and subject.encode is not None
        prompt = subject.encode(_listing(rng))
        inner: SamplingSchedule = FixedSchedule(options.params, penalties, {}, subject.engine.model.vocab_size)
        if shaken:
            inner = Shaken(inner, prompt, number)
        return prompt, replace(options, schedule=subject.grammar(inner, len(prompt)))
    if number % 4 == 3:
        at = int(rng.integers(0, len(subject.text) - 96))
        piece = list(subject.text[at : at + 48])
        return piece + piece[:32], options
    words: list[int] = rng.choice(subject.words, size=56).tolist()
    bias = dict.fromkeys(subject.words, 100.0)
    if shaken:
        inner = FixedSchedule(options.params, penalties, bias, subject.engine.model.vocab_size)
        return words, replace(options, schedule=Shaken(inner, subject.words, number))
    return words, replace(options, bias=bias)


def _listing(rng: np.random.Generator) -> str:
    """Some items that obey SCHEMA, as its answers are written."""
    choices = {name: kind.get("enum", [False, True]) for name, kind in SCHEMA["items"]["properties"].items()}
    items = [{name: values[rng.integers(len(values))] for name, values in choices.items()} for _ in range(5)]
    return json.dumps(items, separators=(",", ":")) + "\n"


class SecondChoices:
    """An accept rule that is TargetDraw and remembers the second likeliest token, of those that are allowed, at each position."""

    def __init__(self) -> None:
        self.found: dict[int, int] = {}

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        adjusted = sampler.schedule.adjust(rows[0])  # type: ignore[attr-defined]
        others = adjusted.copy()
        others[others.argmax()] = -np.inf
        self.found[sampler.pos] = int(others.argmax())
        yield from TargetDraw().walk(draft, rows, sampler)


def decode(session: Session, prompt: Sequence[int], n_tokens: int) -> Record:
    session.sync(prompt)
    rows = [sha256(row.tobytes()).digest() for step in session.generate(n_tokens) for row in step.rows]
    return Record(list(session.tokens), rows, cache_hashes(session))


def cache_hashes(session: Session) -> list[bytes]:
    """Of every cache, what a next row may see, in position order."""
    hashes = []
    for cache in session.state.caches:
        lo = max(0, session.state.pos - cache.window + 1) if cache.window else 0
        keys, values = cache.logical(lo, session.state.pos)  # type: ignore[attr-defined]
        hashes.append(sha256(keys.tobytes() + values.tobytes()).digest())
    return hashes


class Plain:
    """Plain decoding of episodes, each done once."""

    def __init__(self, subject: Subject, n_tokens: int) -> None:
        self.subject, self.n_tokens = subject, n_tokens
        self._records: dict[tuple[int, str, str], Record] = {}

    def record(self, number: int, mode: str, variation: str) -> Record:
        key = number, mode, variation
        if key not in self._records:
            prompt, options = episode(self.subject, number, mode, variation)
            choices = SecondChoices()
            found = decode(self.subject.engine.session(replace(options, rule=choices)), prompt, self.n_tokens)
            self._records[key] = replace(found, second=choices.found)
        return self._records[key]


def run(
    plain: Plain, drafter: str, drafters: Drafters | None, mode: str, variation: str, least: int, most_episodes: int
) -> Counts:
    """Compare until `least` proposals were accepted and rejected, or `most_episodes` are over. AssertionError for a difference.

    Every fourth episode is at the cost-aware depth, whose passes differ from run to run; the others at a fixed one."""
    counts = Counts()
    subject = plain.subject
    for number in range(most_episodes):
        right = plain.record(number, mode, variation)
        prompt, options = episode(subject, number, mode, variation)
        depth: DepthPolicy = CostAware(DEPTH) if number % 4 == 1 else FixedDepth(DEPTH)
        session = subject.engine.session(replace(options, drafter=_drafter(drafter, drafters, right), depth=depth))
        found = decode(session, prompt, plain.n_tokens)
        where = f"{subject.name}, {drafter}, {mode}, {variation}, episode {number}"
        assert found.tokens == right.tokens, f"{where}: other tokens"
        assert found.rows == right.rows, f"{where}: other logits"
        assert found.caches == right.caches, f"{where}: other caches"
        stats = session.stats
        counts.episodes += 1
        counts.tokens += len(found.rows)
        counts.drafted += stats.drafted
        counts.accepted += stats.accepted
        counts.passes += stats.passes
        if counts.enough(least, drafter):
            break
    return counts


def _drafter(name: str, drafters: Drafters | None, right: Record) -> Drafter:
    if name in SCRIPTED:
        guess = {"always-wrong": always_wrong, "always-right": always_right}.get(name) or from_table(right.second)
        return Scripted(right.tokens, guess)
    assert drafters is not None
    made = drafters.new(opportunistic=False)
    assert made is not None
    return made
