"""The calls that went out, so that they can be put back exactly as they were drawn.

A client sends a call back as JSON of its own making. Its id finds here what was sampled: the text and the calls of that turn, as
segments. If the turn comes back as it went out, the prompt is rendered with those, byte for byte; if anything in it was changed,
what the client says holds. Ids are 32 random hexadecimal digits: one that nobody was given finds nothing.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from ds4py.chat import Called, Message
from ds4py.tokenizer import PromptText


@dataclass(frozen=True)
class _Turn:
    keys: tuple[str, ...]
    content: str
    calls: tuple[tuple[str, Any], ...]  # name and parsed arguments
    sampled: PromptText


class Replays:
    """The latest turns with calls; safe to use from several threads."""

    def __init__(self, max_ids: int, max_bytes: int = 64 << 20) -> None:
        """max_ids: calls to remember; 0: none."""
        self._max_ids, self._max_bytes = max_ids, max_bytes
        self._turns: OrderedDict[str, _Turn] = OrderedDict()  # by the key of its first call
        self._n_ids = self._n_bytes = 0
        self._lock = Lock()

    def remember(self, keys: Sequence[str], content: str, calls: Sequence[Called], sampled: PromptText) -> None:
        """keys: the ids of the calls, without what APIs put in front."""
        turn = _Turn(tuple(keys), content, tuple((call.name, _parsed(call.arguments)) for call in calls), sampled)
        with self._lock:
            self._turns[keys[0]] = turn
            self._count(turn, 1)
            while self._turns and (self._n_ids > self._max_ids or self._n_bytes > self._max_bytes):
                self._count(self._turns.popitem(last=False)[1], -1)

    def put_back(self, message: Message) -> Message:
        """`message` with what was sampled, if it is a turn that went out from here and came back unchanged."""
        if message.role != "assistant" or not message.tool_calls:
            return message
        keys = tuple(key_of(call.id) for call in message.tool_calls)
        with self._lock:
            turn = self._turns.get(keys[0])
            if turn is not None:
                self._turns.move_to_end(keys[0])
        if turn is None or turn.keys != keys or turn.content.strip() != message.content.strip():
            return message
        if turn.calls != tuple((call.name, _parsed(call.arguments)) for call in message.tool_calls):
            return message
        return replace(message, sampled=turn.sampled)

    def _count(self, turn: _Turn, sign: int) -> None:
        self._n_ids += sign * len(turn.keys)
        self._n_bytes += sign * (len(str(turn.sampled)) + 200)


def key_of(call_id: str) -> str:
    """The random part of an id: call_KEY, toolu_KEY."""
    return call_id.rpartition("_")[2]


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
