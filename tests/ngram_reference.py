"""Slow, obvious versions of the draftless drafters, written from the documented rules: they keep the tokens and scan them.

Each has observe, truncate and propose(k, last) -> list of tokens. What is learned from acceptance is here a list of offers with
their positions, and what is read off the text is computed anew at every question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ds4py.drafters.config import ModSizes, NgramSizes

Table = dict[tuple[int, ...], dict[int, int]]
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


@dataclass
class SlowSimple:
    sizes: NgramSizes
    tokens: list[int] = field(default_factory=list)

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def truncate(self, pos: int) -> None:
        del self.tokens[pos:]

    def propose(self, k: int, last: int) -> list[int]:
        n, m, text = self.sizes.key, self.sizes.value, self.tokens
        if len(text) <= n + m + 1:
            return []
        key = [*text, last][-n:]
        found = [i for i in range(1, len(text) - n) if text[i : i + n] == key]
        if len(found) < self.sizes.min_hits:
            return []
        copy = text[found[-1] + n :][:m]
        return copy[:k] if len(copy) >= min(n, m) else []


@dataclass
class SlowMap:
    """ngram-map-k, and with n_values=4 ngram-map-k4v."""

    sizes: NgramSizes
    n_values: int = 0
    tokens: list[int] = field(default_factory=list)
    offers: list[tuple[int, int, Any, list[int]]] = field(default_factory=list)  # position, token there, of what, offer

    def observe(self, tokens: Sequence[int]) -> None:
        here = len(self.tokens)
        if tokens:
            self.offers = [offer for offer in self.offers if offer[0] != here or offer[1] == tokens[0]]
        self.tokens += tokens

    def truncate(self, pos: int) -> None:
        del self.tokens[pos:]
        self.offers = [offer for offer in self.offers if offer[0] <= pos]

    def propose(self, k: int, last: int) -> list[int]:
        n, m, text = self.sizes.key, self.sizes.value, self.tokens
        self.offers = [offer for offer in self.offers if offer[0] != len(text)]
        key = [*text, last][-n:]
        found = [i for i in range(1, len(text) - n - m) if text[i : i + n] == key]
        if len(text) < 2 * n + m or len(found) < self.sizes.min_hits:
            return []
        values = [tuple(text[i + n : i + n + m]) for i in found]
        value = values[-1]
        of: Any = tuple(key)
        if self.n_values:
            kept = list(dict.fromkeys(values))[: self.n_values]
            counts = {value: values.count(value) for value in kept}
            value = max(kept, key=lambda value: counts[value])
            if counts[value] < 2 * (sum(counts.values()) - counts[value]):
                return []
            of = tuple(key), value
        held = next((self._held(offer, last) for offer in reversed(self.offers) if offer[2] == of), m)
        self.offers.append((len(text), last, of, list(value)))
        return list(value[: min(held, k)])

    def _held(self, offer: tuple[int, int, Any, list[int]], last: int) -> int:
        came = [*self.tokens, last][offer[0] + 1 :]
        wrong = [i for i, (a, b) in enumerate(zip(offer[3], came, strict=False)) if a != b]
        return wrong[0] if wrong else self.sizes.value


@dataclass
class SlowMod:
    sizes: ModSizes
    n_slots: int
    tokens: list[int] = field(default_factory=list)
    pool: dict[int, int] = field(default_factory=dict)
    offer: tuple[int, int, list[int]] | None = None
    n_low: int = 0
    n_emptied: int = 0

    def _slot(self, ngram: Sequence[int]) -> int:
        return sum(t * 6364136223846793005**i for i, t in enumerate(reversed(ngram))) % 2**64 % self.n_slots

    def _learn(self, first: int) -> None:
        n = self.sizes.n_match
        for i in range(max(first, n), len(self.tokens)):
            self.pool[self._slot(self.tokens[i - n : i])] = self.tokens[i]

    def _empty(self) -> None:
        self.n_emptied += 1
        self.pool.clear()
        self._learn(len(self.tokens) - self.n_slots // 8)

    def observe(self, tokens: Sequence[int]) -> None:
        if len(self.pool) > self.n_slots / 4:
            self._empty()
        if self.offer and tokens and self.offer[:2] == (len(self.tokens), tokens[0]):
            draft = self.offer[2]
            same = [a == b for a, b in zip(draft, tokens[1:], strict=False)]
            accepted = same.index(False) if False in same else len(same)
            self.n_low = 0 if accepted / len(draft) >= 0.25 else self.n_low + 1
            if self.n_low == 5 and accepted / len(draft) < 0.25:
                self._empty()
        self.offer = None
        first = len(self.tokens)
        self.tokens += tokens
        self._learn(first)

    def truncate(self, pos: int) -> None:
        if pos < len(self.tokens):
            self.offer = None
        del self.tokens[pos:]

    def propose(self, k: int, last: int) -> list[int]:
        self.offer = None
        n, text = self.sizes.n_match, [*self.tokens, last]
        if len(text) <= n:
            return []
        while len(text) < len(self.tokens) + 1 + self.sizes.n_max and (slot := self._slot(text[-n:])) in self.pool:
            text.append(self.pool[slot])
        draft = text[len(self.tokens) + 1 :]
        draft = [] if len(draft) < self.sizes.n_min else draft[:k]
        if draft:
            self.offer = len(self.tokens), last, draft
        return draft


@dataclass
class SlowCache:
    static: Table = field(default_factory=dict)
    dynamic: Table = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def truncate(self, pos: int) -> None:
        del self.tokens[pos:]

    def propose(self, k: int, last: int) -> list[int]:
        text = [*self.tokens, last]
        context = table_of(text)
        draft: list[int] = []
        while len(text) >= 2 and len(draft) < min(k, 8):
            choices = [
                self._choose(context, text, {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}),
                self._choose(self.dynamic, text, {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}),
                self._alone(self.static.get(tuple(text[-2:]))),
            ]
            token = next((choice for choice in choices if choice is not None), None)
            if token is None:
                break
            draft.append(token)
            text.append(token)
        return draft

    def _choose(self, table: Table, text: list[int], least: dict[int, tuple[int, int]]) -> int | None:
        boost = self.static.get(tuple(text[-2:]), {})
        for n in (4, 3, 2, 1):
            counts = table.get(tuple(text[-n:])) if len(text) >= n else None
            if counts is None:
                continue
            token = max(counts, key=lambda token: counts[token] * (100 * boost[token] if token in boost else 1))
            if sum(counts.values()) >= least[n][0] and 100 * counts[token] >= least[n][1] * sum(counts.values()):
                return token
        return None

    def _alone(self, counts: dict[int, int] | None) -> int | None:
        if counts is None or sum(counts.values()) < 2:
            return None
        token = max(counts, key=lambda token: counts[token])
        return token if 2 * counts[token] >= sum(counts.values()) else None


def table_of(text: Sequence[int]) -> Table:
    """What followed each 1- to 4-gram of a text, first seen first."""
    table: Table = {}
    for i in range(1, len(text)):
        for n in range(1, min(i, 4) + 1):
            counts = table.setdefault(tuple(text[i - n : i]), Counter())
            counts[text[i]] += 1
    return table


# --- what happens to a drafter ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Feed:
    """Tokens that come from outside: a prompt, or its pieces."""

    tokens: list[int]


@dataclass(frozen=True)
class Cut:
    """Truncate to this share of the history."""

    share: float


@dataclass(frozen=True)
class Ask:
    """Propose at most k after `last`; then, unless `follow` is None, evaluate `last` and so many tokens of the draft."""

    k: int
    last: int
    follow: int | None


def streams(n_alphabet: int = 3) -> st.SearchStrategy[list[Feed | Cut | Ask]]:
    token = st.integers(0, n_alphabet - 1)
    loops = st.builds(lambda part, n: part * n, st.lists(token, min_size=1, max_size=7), st.integers(1, 6))
    texts = st.lists(token, max_size=30) | loops
    asks = st.builds(Ask, st.integers(1, 12), token, st.none() | st.integers(0, 12))
    return st.lists(st.builds(Feed, texts) | asks | asks | st.builds(Cut, st.floats(0, 1)), max_size=40)


def wandering(n: int, n_alphabet: int, seed: int) -> list[Feed | Cut | Ask]:
    """A long session: proposals that are followed for a while, tokens of others, and small steps back."""
    rng = np.random.default_rng(seed)
    stream: list[Feed | Cut | Ask] = [Feed(random_text(40, n_alphabet, seed))]
    for token in rng.integers(0, n_alphabet, n).tolist():
        kind = rng.random()
        if kind < 0.7:
            follow = int(rng.integers(0, 7))
            stream.append(Ask(int(rng.integers(1, 9)), token, follow if follow < 6 else None))
        elif kind < 0.85:
            stream.append(Feed(rng.integers(0, n_alphabet, int(rng.integers(0, 4))).tolist()))
        else:
            stream.append(Cut(1 - 0.1 * float(rng.random())))
    return stream


def play(drafter: Any, slow: Any, stream: list[Feed | Cut | Ask]) -> tuple[int, int]:
    """Do to both what the stream says, as the engine's loop would, and compare every proposal; (asked, answered)."""
    n_asked = n_drafts = 0
    for event in stream:
        if isinstance(event, Feed):
            drafter.observe(event.tokens, {})
            slow.observe(event.tokens)
        elif isinstance(event, Cut):
            pos = int(event.share * drafter.pos)
            drafter.truncate(pos)
            slow.truncate(pos)
        else:
            draft = list(drafter.propose(event.k, event.last, None).tokens)
            assert draft == slow.propose(event.k, event.last)
            assert len(draft) <= event.k
            n_asked, n_drafts = n_asked + 1, n_drafts + bool(draft)
            if event.follow is not None:
                drafter.truncate(drafter.pos)  # as the loop does after a verify
                slow.truncate(len(slow.tokens))
                evaluated = [event.last, *draft[: event.follow]]
                drafter.observe(evaluated, {})
                slow.observe(evaluated)
        assert drafter.pos == len(slow.tokens)
    return n_asked, n_drafts


def random_text(n: int, n_alphabet: int, seed: int) -> list[int]:
    """A text that repeats itself with changes: pieces of what came before, and new tokens in between."""
    rng = np.random.default_rng(seed)
    text = [int(t) for t in rng.integers(0, n_alphabet, 8)]
    while len(text) < n:
        start = int(rng.integers(0, len(text)))
        text += text[start : start + int(rng.integers(1, 20))]
        text += [int(t) for t in rng.integers(0, n_alphabet, int(rng.integers(0, 3)))]
    return text[:n]
