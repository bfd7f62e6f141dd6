"""What a reply is made of, as it comes: pieces of reasoning, of answer, of tool calls, and the end.

The idea: one small closed set of frozen values, whatever the family wrote and whichever API or terminal shows it. Everything that
reads a reply is a function of this list. The invariant: joining neighbours of a kind changes nothing (a piece is where a token
happened to end), so readers may not look at how a text is cut. A call is `CallStart`, any number of `CallArguments`, `CallEnd`,
with nothing in between; the arguments, joined, are the JSON text that the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The model calls the tool `name`; it is call number `index` of the reply, from 0. `id`: given by whoever serves it."""

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True)
class CallArguments:
    """A piece of the arguments' JSON text, never empty."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """The call is over. `complete`: its arguments ended as they should, and were not cut by the end of the reply. `end`:
    characters of the answer up to the end of the call's markup."""

    index: int
    complete: bool
    end: int = 0


@dataclass(frozen=True)
class Stop:
    """The end. reason: "stop" (a stop id or stop string) or what `finish` was told ("length", "cancelled" ...); stop_string:
    the one that was met; kept: ids of the reply whose text lies wholly before the end, the stop id not among them."""

    reason: str
    stop_string: str | None
    kept: int


CallEvent = CallStart | CallArguments | CallEnd
Event = Text | Reasoning | CallEvent | Stop


@dataclass(frozen=True)
class Called:
    """One whole call of a reply."""

    name: str
    arguments: str
    complete: bool

    @property
    def readable(self) -> bool:
        """Whether the arguments are a JSON object."""
        try:
            return self.complete and isinstance(json.loads(self.arguments or "{}"), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def fault(self) -> str:
        """What is wrong with a call that is not readable."""
        return "its arguments are cut off" if not self.complete else "its arguments are not a JSON object"


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    text: str
    reasoning: str
    stop: Stop | None
    calls: tuple[Called, ...] = field(default=())


def joined(events: Iterable[Event]) -> list[Event]:
    """The same reply in as few events as it can be: neighbours of a kind are one."""
    found: list[Event] = []
    for _, group in groupby(events, lambda event: (type(event), getattr(event, "index", 0))):
        alike = list(group)
        text = "".join(getattr(event, "text", "") for event in alike)
        match alike[0]:
            case Text():
                found.append(Text(text))
            case Reasoning():
                found.append(Reasoning(text))
            case CallArguments(index, _):
                found.append(CallArguments(index, text))
            case _:
                found += alike
    return found


def collect(events: Iterable[Event]) -> Reply:
    """The events of a stream as one value; `stop` is None if the stream has not ended."""
    text: list[str] = []
    reasoning: list[str] = []
    names: list[str] = []
    arguments: list[list[str]] = []
    complete: dict[int, bool] = {}
    stop = None
    for event in events:
        match event:
            case Text():
                text.append(event.text)
            case Reasoning():
                reasoning.append(event.text)
            case CallStart():
                names.append(event.name)
                arguments.append([])
            case CallArguments():
                arguments[event.index].append(event.text)
            case CallEnd():
                complete[event.index] = event.complete
            case Stop():
                stop = event
    calls = [Called(name, "".join(arguments[i]), complete.get(i, False)) for i, name in enumerate(names)]
    return Reply("".join(text), "".join(reasoning), stop, tuple(calls))
