"""Where every n-gram of a session occurred, and how far what followed it held: the arithmetic of ngram-simple and the maps.

`NgramIndex` is a stack of tokens with an index on top. An occurrence is usable from the moment that `n_after` tokens follow it;
it then becomes the latest one of its n-gram and remembers the one it replaced. Tokens are only pushed and popped at the end, so
popping undoes the last push exactly, and after truncate(p) the index is the one of a fresh drafter that saw p tokens. A push
costs a rolled hash and a dictionary entry, a look-up one pass over the n tokens of the key, whatever the length of the history.
Rejected: llama.cpp's table of 2^18 slots with a linear scan behind it, whose answers depend on when it was asked and which
must be repaired after the history shrinks.

Two n-grams with one hash are told apart by comparing tokens; the later one moves to the next free number. Since the index is a
stack, whoever sits on a number was there before everybody that had to move past it, so popping never leaves a gap.

An occurrence at position 0 is not counted, as in llama.cpp: the token there starts the text and is never copied from.

`Uses` remembers how many tokens of a continuation were accepted. It is not told: acceptance can be read off the text. What a
key offered at position p is compared, the next time that the key comes up, with the tokens that took positions p + 1 onwards.
Where they first differ is the accepted length. So no call of the engine is needed, a draft that was cut short by a budget is not
blamed for it, an offer that was held back is judged too, and truncation takes back evidence with the text it came from.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ds4py.drafters.config import LONGEST, NgramSizes
from ds4py.drafters.rolling_hash import MAP_FACTOR, RollingHash
from ds4py.errors import UsageError


def check_sizes(name: str, sizes: NgramSizes) -> NgramSizes:
    """Raises UsageError for sizes that the drafter `name` can never work with."""
    for what, value in (("size-n", sizes.key), ("size-m", sizes.value)):
        if not 1 <= value <= LONGEST:
            raise UsageError(f"--spec-{name}-{what} must be 1 to {LONGEST}, not {value}")
    if sizes.min_hits < 1:
        raise UsageError(f"--spec-{name}-min-hits must be at least 1, not {sizes.min_hits}")
    return sizes


class NgramIndex:
    """The tokens of a session, and for each n-gram its latest usable occurrence and how many there are.

    A key's number, given by `find`, names the n-gram as long as at least one occurrence is usable."""

    def __init__(self, n: int, n_after: int) -> None:
        self.tokens: list[int] = []
        self._n = n
        self._n_needed = n + n_after  # tokens from a start on that make it usable
        self._hash = RollingHash(n, MAP_FACTOR, 32)
        self._h: int | None = None  # of the n-gram at the newest usable start; None: read it anew
        self._latest: dict[int, int] = {}  # key -> newest usable start
        # of usable start s, at index s: its key, the usable start before it (0: none), how many there are with it
        self._keys, self._before, self._counts = [0], [0], [0]

    def __len__(self) -> int:
        return len(self.tokens)

    def push(self, token: int) -> int | None:
        """Append a token; returns the start that became usable with it, if one did."""
        tokens = self.tokens
        tokens.append(int(token))  # numpy's integers would overflow in a hash
        start = len(tokens) - self._n_needed
        if start < 1:
            return None
        end = start + self._n
        if self._h is None:
            self._h = self._hash.of(tokens[start:end])
        else:
            self._h = self._hash.roll(self._h, tokens[start - 1], tokens[end - 1])
        key = self._h
        before = self._latest.get(key, 0)
        while before and tokens[before : before + self._n] != tokens[start:end]:
            key += 1
            before = self._latest.get(key, 0)
        self._latest[key] = start
        self._keys.append(key)
        self._before.append(before)
        self._counts.append(self._counts[before] + 1)
        return start

    def pop(self) -> int | None:
        """Take the last token back; returns the start that is no longer usable, if there is one."""
        self.tokens.pop()
        start = len(self._keys) - 1
        if start < 1 or start + self._n_needed <= len(self.tokens):
            return None
        key, before = self._keys.pop(), self._before.pop()
        self._counts.pop()
        if before:
            self._latest[key] = before
        else:
            del self._latest[key]
        self._h = None
        return start

    def truncate(self, pos: int) -> list[int]:
        """Pop down to `pos` tokens; returns the starts that are no longer usable, newest first. ValueError outside 0 .. len."""
        if not 0 <= pos <= len(self.tokens):
            raise ValueError(f"truncate({pos}) of a history of {len(self.tokens)}")
        popped = [self.pop() for _ in range(len(self.tokens) - pos)]
        return [start for start in popped if start is not None]

    def key_at(self, start: int) -> int:
        """The key of a usable start."""
        return self._keys[start]

    def find(self, last: int) -> int | None:
        """The key of the n-gram that ends in the newest tokens and `last`; None if it has no usable occurrence."""
        if len(self.tokens) < self._n - 1:
            return None
        wanted = [*self.tokens[len(self.tokens) - self._n + 1 :], last]
        key = self._hash.of(wanted)
        while start := self._latest.get(key):
            if self.tokens[start : start + self._n] == wanted:
                return key
            key += 1
        return None

    def latest(self, key: int) -> int:
        """The newest usable start of a key."""
        return self._latest[key]

    def count(self, key: int) -> int:
        """Usable occurrences of a key."""
        return self._counts[self._latest[key]]


@dataclass(frozen=True)
class _Use:
    pos: int  # of the key's last token
    last: int  # that token
    key: Hashable
    source: int  # start of what was offered to follow it
    before: _Use | None  # the key's use before this one


class Uses:
    """What each key offered the last time it came up, to be compared with what came."""

    def __init__(self, m: int) -> None:
        self._m = m
        self._journal: list[_Use] = []
        self._latest: dict[Hashable, _Use] = {}

    def record(self, pos: int, last: int, key: Hashable, source: int) -> None:
        """`key`, whose last token is `last` at `pos` (the end of the evaluated history), offers the tokens from `source` on."""
        use = _Use(pos, last, key, source, self._latest.get(key))
        self._journal.append(use)
        self._latest[key] = use

    def arrive(self, pos: int, token: int) -> None:
        """`token` was evaluated at `pos`; an offer that was made for another token there is void."""
        if self._journal and self._journal[-1].pos == pos and self._journal[-1].last != token:
            self._pop()

    def truncate(self, pos: int, inclusive: bool = False) -> None:
        """Forget offers above `pos`, and with `inclusive` at `pos` too."""
        while self._journal and self._journal[-1].pos > pos - inclusive:
            self._pop()

    def held(self, key: Hashable, tokens: Sequence[int], last: int) -> int:
        """How many tokens of the key's last offer came true: at most m, and m if nothing has contradicted it.

        tokens: the evaluated history, which `last` follows."""
        use = self._latest.get(key)
        if use is None:
            return self._m
        offer = tokens[use.source : use.source + self._m]
        came = [*tokens[use.pos + 1 : use.pos + 1 + self._m], last]
        return next((i for i, (a, b) in enumerate(zip(offer, came, strict=False)) if a != b), self._m)

    def _pop(self) -> None:
        use = self._journal.pop()
        if use.before is None:
            del self._latest[use.key]
        else:
            self._latest[use.key] = use.before
