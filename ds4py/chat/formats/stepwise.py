"""Parsers of calls that go by steps: what three of the formats have in common.

A parser is in a phase, and each phase has a step, which takes the text that is undecided, adds the parts it decides, and returns
what is left and whether that must wait for more text. All that is remembered is one frozen value (`StepState`), so that a
session that rewinds puts an old one back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from ds4py.chat.calls import CallPart, ObjectState, Plain, before_mark, joined

Step = Callable[[str, list[CallPart]], tuple[str, bool]]


class Phase(Enum):
    START = "start"  # nothing but blanks so far
    TEXT = "text"
    OPENED = "opened"  # behind the mark that opens a call: in which form?
    LIST = "list"  # between the objects of a list
    OBJECT = "object"
    XML = "xml"
    ARGS = "args"
    OTHER = "other"  # nothing that is known; held until the mark that closes
    AFTER = "after"  # the call is complete; what closes it is due
    BETWEEN = "between"  # behind a call, where another may follow


@dataclass(frozen=True)
class StepState:
    """held: undecided text; n_seen: characters fed; index: calls before this one; raw: markup of a call that has no name yet;
    after_call: nothing but blanks came since the last call."""

    phase: Phase = Phase.TEXT
    held: str = ""
    n_seen: int = 0
    index: int = 0
    raw: str = ""
    after_call: bool = False
    object: ObjectState = ObjectState()


S = TypeVar("S", bound=StepState)


class Stepwise(ABC, Generic[S]):
    """The part of a `CallParser` that goes from step to step. `mark` opens a call."""

    state: S
    mark: str = ""

    @abstractmethod
    def steps(self) -> Mapping[Phase, Step]:
        """What each phase does."""

    def feed(self, text: str) -> list[CallPart]:
        rest = self.state.held + text
        self.state = replace(self.state, held="", n_seen=self.state.n_seen + len(text))
        steps, parts, waits = self.steps(), list[CallPart](), False
        while rest and not waits:
            rest, waits = steps[self.state.phase](rest, parts)
        self.state = replace(self.state, held=rest)
        return joined(parts)

    def text(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        """The step of phase TEXT: the answer's own text up to the mark."""
        shown, opens = before_mark(text, self.mark)
        self.plain(shown, len(text), parts)
        if not opens:
            return text[len(shown) :], True
        n = text.index(self.mark) + len(self.mark)
        self.state = replace(self.state, phase=Phase.OPENED, raw=text[len(shown) : n])
        return text[n:], False

    def plain(self, text: str, n_left: int, parts: list[CallPart]) -> None:
        """`text` is the answer's; it begins n_left characters before the end of what was fed (0: it is the end)."""
        if text:
            parts.append(Plain(text, self.state.n_seen - (n_left or len(text))))
            self.state = replace(self.state, after_call=False)

    def no_call(self, rest: str, parts: list[CallPart]) -> tuple[str, bool]:
        """What was taken for a call is text; `rest` was fed behind it."""
        raw = self.state.raw
        self.state = replace(self.state, phase=Phase.TEXT, raw="")
        self.plain(raw, len(rest) + len(raw), parts)
        return rest, False
