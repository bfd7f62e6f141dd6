"""What a reply is besides its events: who it is, how it ended, and what it cost.

The names and the clock come from outside, so that translators are functions: the same events and the same values give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds4py.chat import Stop
from ds4py.server.asked import Shown


@dataclass(frozen=True)
class Meta:
    """Who a reply is: `key`, 32 hexadecimal digits that nobody can guess, the second it was begun, the model's name as the client
    spelled it, what the client asked that comes back in the answer, and which functions stand for tools of another kind."""

    key: str
    created: int
    model: str
    include_usage: bool = False
    echo: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Shown] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Tokens. `cached` of the prompt were there already; `reasoning` of the generated ones were reasoning."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Ended:
    """The end of a reply: why, and what it took; `timings` are llama.cpp's. unreadable: it has calls, and none that can be
    made."""

    stop: Stop
    usage: Usage
    timings: Mapping[str, float] = field(default_factory=dict)
    unreadable: bool = False

    @property
    def cut(self) -> bool:
        """Whether a limit ended it."""
        return self.stop.reason in ("length", "context")


@dataclass(frozen=True)
class Wire:
    """One server-sent event: its name (None: unnamed) and its data, a value to be written as JSON or a text as it is."""

    event: str | None
    data: Any
