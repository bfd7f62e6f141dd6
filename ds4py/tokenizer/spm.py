"""SentencePiece BPE ("llama" vocabularies): merging by score, with byte fallback.

The idea: spaces become U+2581, the text falls into characters, and again and again the two neighbours whose joined text is the
best-scored token are joined (leftmost on ties) until no join is a token. Characters that are no token become bytes.
Joins never leave a word unless some token has U+2581 after another character, which one look over the vocabulary tells; so words
are encoded apart and remembered, which is what makes it fast enough in Python. The invariant: ids are those of merging the
whole text.
Control tokens, markers and byte tokens cannot be reached by merging: `<0x0A>` in a text stays six characters.
Rejected: `tokenizers` with merges derived from scores (other ties, and deriving them for 262,144 tokens takes longer than
opening the file); llama.cpp ignores `remove_extra_whitespaces` for these vocabularies and so do we.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import compress

import numpy as np
import numpy.typing as npt

from ds4py.tokenizer.vocab import TokenType, Vocab

SPACE = "\u2581"
_UNUSED, _BYTE = int(TokenType.UNUSED), int(TokenType.BYTE)
_CACHE_WORDS, _CACHE_CHARS = 1 << 16, 64  # most words remembered, and the longest


class SpmPieces:
    """Plain text to ids and back for one SentencePiece vocabulary; the word cache is bounded."""

    def __init__(self, vocab: Vocab, scores: npt.NDArray[np.float32] | None, add_space_prefix: bool) -> None:
        """scores [V]; without them every token scores the same, so the leftmost join wins."""
        self._vocab = vocab
        self._scores = scores
        self._prefix = SPACE if add_space_prefix else ""
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of valid Unicode `text`, which begins the text or follows a special token."""
        ids: list[int] = []
        for word in self._split(self._prefix + text.replace(" ", SPACE)):
            known = self._words.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(word) <= _CACHE_CHARS:
                    if len(self._words) >= _CACHE_WORDS:
                        self._words.clear()
                    self._words[word] = known
            ids += known
        return ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """One byte token per byte. If one is missing: UNK for all of `data`, or nothing if the vocabulary has no UNK either."""
        try:
            return [self._byte_ids[byte] for byte in data]
        except KeyError:
            return [] if self._vocab.unk_id is None else [self._vocab.unk_id]

    def spelled(self, text: str, kind: int) -> bytes:
        """What a normal or byte token that is stored as `text` stands for."""
        if kind == _UNUSED:
            return b""
        if kind == _BYTE:
            return b"" if (byte := _byte_value(text)) is None else bytes([byte])
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")

    @cached_property
    def _ids(self) -> dict[str, int]:
        reachable = np.isin(self._vocab.types, (TokenType.NORMAL, TokenType.UNDEFINED, TokenType.UNUSED, TokenType.USER_DEFINED))
        reachable[list(self._vocab.markers.values())] = False
        wanted = reachable.tolist()
        tokens = list(self._vocab.tokens)
        return dict(zip(compress(tokens, wanted), compress(range(len(tokens)), wanted), strict=True))

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        ids = np.flatnonzero(self._vocab.types == TokenType.BYTE).tolist()
        return {byte: i for i in ids if (byte := _byte_value(self._vocab.tokens[i])) is not None}

    @cached_property
    def _costs(self) -> Sequence[float]:
        if self._scores is None:
            return [0.0] * len(self._vocab.tokens)
        costs: list[float] = (-self._scores).tolist()
        return costs

    @cached_property
    def _boundary(self) -> re.Pattern[str]:
        """Matches, with no width, where no token can lie across."""
        listing = "\0".join(self._ids)
        joined = set(re.findall(rf"([^{SPACE}\0]){SPACE}", listing))
        if listing.count("\0") >= len(self._ids):  # some token has a NUL inside
            joined.add("\0")
        return re.compile(rf"(?<=[^{SPACE}{re.escape(''.join(sorted(joined)))}])(?={SPACE})")

    def _split(self, text: str) -> list[str]:
        return [word for word in self._boundary.split(text) if word]

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in _merge(word, self._ids, self._costs):
            token = self._ids.get(symbol)
            # A vocabulary without a token for the space gets it as the byte it was, so that it comes back as a space.
            ids += self.encode_bytes(symbol.replace(SPACE, " ").encode()) if token is None else [token]
        return ids


def _merge(word: str, ids: dict[str, int], costs: Sequence[float]) -> list[str]:
    """Join neighbours of `word`'s characters, cheapest token first, until none is left. O(n log n)."""
    symbols = list(word)
    n = len(symbols)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    queue: list[tuple[float, int, int, str]] = []
    for left in range(n - 1):
        pair = symbols[left] + symbols[left + 1]
        if (token := ids.get(pair)) is not None:
            queue.append((costs[token], left, left + 1, pair))
    heapify(queue)
    while queue:
        _, left, right, pair = heappop(queue)
        if not symbols[left] or not symbols[right] or after[left] != right or symbols[left] + symbols[right] != pair:
            continue  # one of the two has been joined with another since
        symbols[left], symbols[right] = pair, ""
        after[left] = following = after[right]
        if following < n:
            before[following] = left
            joined = pair + symbols[following]
            if (token := ids.get(joined)) is not None:
                heappush(queue, (costs[token], left, following, joined))
        if (preceding := before[left]) >= 0:
            joined = symbols[preceding] + pair
            if (token := ids.get(joined)) is not None:
                heappush(queue, (costs[token], preceding, left, joined))
    return [symbol for symbol in symbols if symbol]


def _byte_value(text: str) -> int | None:
    """The byte of a spelling such as <0xEA>."""
    found = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
    return int(found.group(1), 16) if found else None
