"""Telling reasoning from answer while text streams in.

The idea: an answer may begin with one think block (after whitespace), or the prompt has opened it already; after its closing
tag everything is answer, tags or not. The newlines that templates put inside and after the tags belong to neither side and are
dropped. The invariant, as for stop strings: the result depends on the text, never on how it was cut.
Rejected: going by token ids alone (not every vocabulary has the tags as tokens).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ds4py.chat.formats.base import ThinkTags


class Phase(Enum):
    START = "start"  # whitespace so far; a tag may come
    OPENED = "opened"  # after the opening tag, before the first character of reasoning
    THINK = "think"
    CLOSED = "closed"  # after the closing tag, before the first character of the answer
    TEXT = "text"


@dataclass(frozen=True)
class ThinkState:
    """Where the splitter is. n_seen: characters fed; text_base: the character at which the answer begins, once it has."""

    phase: Phase
    held: str = ""
    n_seen: int = 0
    text_base: int = 0


Part = tuple[bool, str]  # (is reasoning, text)


class ThinkSplitter:
    """Incremental splitter; `state` is all it remembers."""

    def __init__(self, tags: ThinkTags | None, inside: bool = False) -> None:
        """inside: the prompt has opened the think block. Without tags everything is answer."""
        self._tags = tags or ThinkTags("", "")
        self._blank = "\n" if self._tags.trims else ""  # characters at the tags that are nobody's
        self.state = ThinkState(Phase.TEXT if tags is None else Phase.OPENED if inside else Phase.START)

    def feed(self, text: str) -> list[Part]:
        """The parts that `text` decides, none of them empty."""
        rest = self.state.held + text
        self.state = replace(self.state, held="", n_seen=self.state.n_seen + len(text))
        steps = {Phase.START: self._start, Phase.OPENED: self._opened, Phase.THINK: self._think, Phase.CLOSED: self._closed}
        parts: list[Part] = []
        waits = False
        while rest and not waits and self.state.phase is not Phase.TEXT:
            rest, waits = steps[self.state.phase](rest, parts)
        if waits:
            self.state = replace(self.state, held=rest)
        elif rest:
            parts.append((False, rest))
        return parts

    def flush(self) -> list[Part]:
        """What is held back: the text has ended."""
        held = self.state.held
        self.state = replace(self.state, held="")
        if held and self.state.phase is Phase.START:
            self._enter(Phase.TEXT, held)
            return [(False, held)]
        return [(True, held)] if held else []

    def _enter(self, phase: Phase, rest: str) -> None:
        base = self.state.n_seen - len(rest) if phase is Phase.TEXT else 0
        self.state = replace(self.state, phase=phase, text_base=base)

    # A step takes the undecided text, adds the parts it decides and returns (what is left, whether that must wait for more).

    def _start(self, text: str, parts: list[Part]) -> tuple[str, bool]:
        body = text.lstrip()
        if body.startswith(self._tags.open):
            self._enter(Phase.OPENED, "")
            return body.removeprefix(self._tags.open), False
        if self._tags.open.startswith(body):
            return text, True
        self._enter(Phase.TEXT, text)
        return text, False

    def _opened(self, text: str, parts: list[Part]) -> tuple[str, bool]:
        body = text.lstrip(self._blank)
        if body.startswith(self._tags.open):  # the prompt opened the block, and the model does so again
            return body.removeprefix(self._tags.open), False
        if self._tags.open.startswith(body):
            return body, True
        self._enter(Phase.THINK, body)
        return body, False

    def _think(self, text: str, parts: list[Part]) -> tuple[str, bool]:
        at = text.find(self._tags.close)
        if at >= 0:
            self._enter(Phase.CLOSED, "")
            if reasoning := text[:at].rstrip(self._blank):
                parts.append((True, reasoning))
            return text[at + len(self._tags.close) :], False
        lengths = range(min(len(self._tags.close) - 1, len(text)), 0, -1)
        tail = next((n for n in lengths if self._tags.close.startswith(text[-n:])), 0)
        decided = text[: len(text) - tail].rstrip(self._blank)
        if decided:
            parts.append((True, decided))
        return text[len(decided) :], True

    def _closed(self, text: str, parts: list[Part]) -> tuple[str, bool]:
        body = text.lstrip(self._blank)
        if body:
            self._enter(Phase.TEXT, body)
        return body, False
