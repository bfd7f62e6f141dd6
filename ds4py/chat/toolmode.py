"""Sampling that knows what is being written: markup of tool calls greedily, everything else as the request says.

A model that draws the closing tag of a call at temperature 1 will miss it one day, and one that draws file contents greedily
falls into loops. So both are told apart at every position, by the same reader that will turn the reply into events. It is a
`SamplingSchedule`, asked anew at each row of a verified block: a block that crosses the border goes on under the new settings,
since the logits of every row are at hand. Nothing is evaluated again for it, and a rejected draft or a rewind takes the reader
back with the session. Rejected: stopping a block at the border (ds4 goes back to the block's start and evaluates it again).
"""

from __future__ import annotations

from typing import Final

from ds4py.chat.stream import ReplyStream
from ds4py.protocols import F32, SamplingParams, SamplingSchedule

GREEDY: Final = SamplingParams(temperature=0.0)


class ToolSchedule:
    """`inner`, which holds no tokens yet, greedy where the reply that begins at position `start` is markup of a call."""

    def __init__(self, inner: SamplingSchedule, reader: ReplyStream, start: int) -> None:
        """reader: of the reply, for this schedule alone."""
        self._inner, self._reader, self._start = inner, reader, start

    @property
    def pos(self) -> int:
        return self._inner.pos

    @property
    def floor(self) -> int:
        return self._inner.floor

    def push(self, token: int) -> None:
        pos = self.pos
        self._inner.push(token)
        if pos >= self._start:
            self._reader.push(token)

    def truncate(self, pos: int) -> None:
        self._inner.truncate(pos)
        # a reader that has met the end of the reply ignores what comes behind it
        self._reader.truncate(min(max(pos - self._start, 0), self._reader.pos))

    def params(self) -> SamplingParams:
        return GREEDY if self._reader.is_syntax else self._inner.params()

    def adjust(self, row: F32) -> F32:
        return self._inner.adjust(row)

    def allows(self, token: int) -> bool:
        return self._inner.allows(token)
