"""From token ids to what a reader sees: text, reasoning, and the end.

The idea: ids go through the detokenizer (whole characters), the think splitter (reasoning or answer) and the stop strings
(answer only: a stop string met while the model is still thinking must not end the reply before it has begun). Each of the three
holds back what it cannot decide yet, and all of it comes out at the end, so the events of a stream, joined, are the same text
however the ids were grouped. The stream is a Timeline over the ids of one reply: after each id the small states of the three
are remembered, so the session's rewinds are followed by `truncate`. Text already handed out cannot be taken back by it; `shown`
tells a caller how much of it still counts. When a stop string ends the reply, `Stop.kept` says how many ids lie wholly in front
of it, for the session to rewind to. Ids behind the end are ignored, so a caller may push the rest of a block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from ds4py.chat.formats.base import ThinkTags
from ds4py.chat.stops import StopStrings
from ds4py.chat.think import Part, ThinkSplitter, ThinkState
from ds4py.tokenizer import Tokenizer


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class Stop:
    """The end. reason: "stop" (a stop id or stop string) or what `finish` was told ("length", "cancelled" ...); stop_string:
    the one that was met; kept: ids of the reply whose text lies wholly before the end, the stop id not among them."""

    reason: str
    stop_string: str | None
    kept: int


Event = Text | Reasoning | Stop


@dataclass(frozen=True)
class _Mark:
    """Everything that is remembered after one id."""

    n_raw: int  # characters that came out of the detokenizer
    think: ThinkState
    held: str
    n_text: int  # characters of answer and of reasoning handed out
    n_reasoning: int
    done: bool = False


class ReplyStream:
    """Events of one reply."""

    floor = 0

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_ids: Set[int] | None = None,
        stop_strings: Iterable[str] = (),
        think_tags: ThinkTags | None = None,
        inside_thinking: bool = False,
    ) -> None:
        """stop_ids: default the tokenizer's. inside_thinking: the prompt ends in an open think block."""
        tags = (think_tags.open, think_tags.close) if think_tags else ()
        markers = tokenizer.vocab.markers
        self._detokenizer = tokenizer.detokenizer(show=frozenset(markers[tag] for tag in tags if tag in markers))
        self._stop_ids = tokenizer.stop_ids if stop_ids is None else stop_ids
        self._think = ThinkSplitter(think_tags, inside_thinking)
        self._stops = StopStrings(stop_strings)
        self._journal = [_Mark(0, self._think.state, "", 0, 0)]
        self._unfinished: _Mark | None = None  # the last mark as it was before `finish`

    @property
    def pos(self) -> int:
        """Ids pushed and not ignored, a stop id included."""
        return len(self._journal) - 1

    @property
    def done(self) -> bool:
        """Whether the reply has ended; later ids are ignored."""
        return self._journal[-1].done

    @property
    def shown(self) -> tuple[int, int]:
        """Characters of (answer, reasoning) handed out for the ids that count."""
        return self._journal[-1].n_text, self._journal[-1].n_reasoning

    def push(self, token: int) -> list[Event]:
        """The events that `token` decides; empty for ids behind the end."""
        if self.done:
            return []
        tail = self._detokenizer.flush()
        text = self._detokenizer.push(token)
        self._journal.append(self._journal[-1])
        return self._end("stop", self.pos - 1, tail) if token in self._stop_ids else self._take(text)

    def finish(self, reason: str) -> list[Event]:
        """The end without a stop id: what is held back, then Stop(reason); empty if the reply has ended already."""
        if self.done:
            return []
        self._unfinished = self._journal[-1]
        return self._end(reason, self.pos, self._detokenizer.flush())

    def truncate(self, pos: int) -> None:
        """Forget the ids from `pos` on; ValueError outside 0..self.pos."""
        self._detokenizer.truncate(pos)
        if self._unfinished is not None:
            self._journal[-1], self._unfinished = self._unfinished, None
        del self._journal[pos + 1 :]
        mark = self._journal[pos]
        self._think.state, self._stops.state = mark.think, mark.held

    def _take(self, text: str) -> list[Event]:
        """Run new text through splitter and stop strings; the last mark becomes the state after it."""
        mark = self._journal[-1]
        self._journal[-1] = mark = replace(mark, n_raw=mark.n_raw + len(text))
        return self._emit(self._think.feed(text))

    def _emit(self, parts: list[Part]) -> list[Event]:
        mark, events = self._journal[-1], list[Event]()
        n_text, n_reasoning, stop = mark.n_text, mark.n_reasoning, None
        for is_reasoning, text in parts:
            if is_reasoning:
                n_reasoning += len(text)
                events.append(Reasoning(text))
                continue
            text, stop = self._stops.feed(text)
            n_text += len(text)
            if text:
                events.append(Text(text))
            if stop is not None:
                events.append(Stop("stop", stop, self._ids_within(self._think.state.text_base + n_text)))
                break
        self._journal[-1] = _Mark(mark.n_raw, self._think.state, self._stops.state, n_text, n_reasoning, stop is not None)
        return events

    def _end(self, reason: str, kept: int, tail: str) -> list[Event]:
        events = self._take(tail)
        if not self.done:
            events += self._emit(self._think.flush())
        if self.done:  # the last characters completed a stop string
            return events
        if held := self._stops.flush():
            events.append(Text(held))
        mark = self._journal[-1]
        self._journal[-1] = replace(mark, held="", n_text=mark.n_text + len(held), done=True)
        return [*events, Stop(reason, None, kept)]

    def _ids_within(self, n_raw: int) -> int:
        """How many ids lie wholly in the first `n_raw` characters (ids without text at the boundary not counted)."""
        ends = [mark.n_raw for mark in self._journal]
        last = bisect_right(ends, n_raw) - 1
        return bisect_left(ends, ends[last])


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    text: str
    reasoning: str
    stop: Stop | None


def collect(events: Iterable[Event]) -> Reply:
    """The events of a stream as one value; `stop` is None if the stream has not ended."""
    text, reasoning, stop = [], [], None
    for event in events:
        match event:
            case Text():
                text.append(event.text)
            case Reasoning():
                reasoning.append(event.text)
            case Stop():
                stop = event
    return Reply("".join(text), "".join(reasoning), stop)
