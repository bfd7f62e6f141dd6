"""Ids to text, one at a time, without ever showing half a character.

The idea: tokens are bytes and a character may be spread over several of them, so an incremental UTF-8 decoder holds the
incomplete tail back until the next token, or until `flush`, where it becomes U+FFFD. It is a Timeline: what the decoder holds
after each token is remembered (at most three bytes), so a rewind costs nothing. Pushing ids one by one and decoding them at
once give the same text. Control tokens are silent unless asked for, and the space that some vocabularies put before every text
is removed once, at the true start of a text, never in the middle of one.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """A stream of ids becoming text; `pos` counts the ids pushed."""

    floor = 0

    def __init__(self, token_bytes: Callable[[int], bytes], strip_first_space: bool = False) -> None:
        """token_bytes gives the visible bytes of an id; strip_first_space drops one space before the first visible byte."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._journal: list[tuple[bytes, bool]] = [(b"", strip_first_space)]  # after each id: undecoded tail, space still to drop

    @property
    def pos(self) -> int:
        return len(self._journal) - 1

    def push(self, token: int) -> str:
        """The text that `token` completes; may be empty."""
        data = self._token_bytes(token)
        tail, strip = self._journal[-1]
        if strip and data:
            data, strip = data.removeprefix(b" "), False
        self._decoder.setstate((tail, 0))
        text = self._decoder.decode(data)
        self._journal.append((self._decoder.getstate()[0], strip))
        return text

    def flush(self) -> str:
        """What is still held back, as U+FFFD; empty if the last character was whole. For the end of a text: it changes nothing,
        so the timeline may go on."""
        return self._journal[-1][0].decode("utf-8", "replace")

    def truncate(self, pos: int) -> None:
        """Forget the ids from `pos` on; ValueError outside 0..self.pos."""
        if not 0 <= pos <= self.pos:
            raise ValueError(f"cannot truncate to {pos}: the detokenizer holds 0..{self.pos}")
        del self._journal[pos + 1 :]
