"""From token ids to what a reader sees: text, reasoning, tool calls, and the end.

The idea: ids go through the detokenizer (whole characters), the think splitter (reasoning or answer), the parser of tool calls
and the stop strings (text of the answer only: a stop string met while the model is still thinking, or in the arguments of a
call, must not end the reply). Each holds back what it cannot decide yet, and all of it comes out at the end, so the events of
a stream, joined, are the same however the ids were grouped. The stream is a Timeline over the ids of one reply: after each id the
small states of all of them are remembered, so the session's rewinds are followed by `truncate`. Text already handed out cannot
be taken back by it; `shown` tells a caller how much of it still counts. When a stop string ends the reply, `Stop.kept` says how
many ids lie wholly in front of it, for the session to rewind to. Ids behind the end are ignored, so a caller may push the rest of
a block.

A call that a model begins before it has closed its thinking is not read as one. It is held back and reported as `stray_call`, for
the caller to go back before it, close the thinking and go on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Any

from ds4py.chat.calls import CallParser, CallPart, CallSyntax, Plain
from ds4py.chat.events import Event, Reasoning, Stop, Text
from ds4py.chat.formats.base import ThinkTags
from ds4py.chat.stops import StopStrings
from ds4py.chat.think import Part, Phase, ThinkSplitter, ThinkState
from ds4py.tokenizer import PromptText, Tokenizer

_STRAY_LEN = 200  # characters within which a call must look like one


@dataclass(frozen=True)
class _Mark:
    """Everything that is remembered after one id."""

    n_raw: int  # characters that came out of the detokenizer
    think: ThinkState
    calls: Any  # of the parser
    held: str  # by the stop strings
    stray: str = ""  # reasoning held back, since it may be a call
    n_text: int = 0  # characters of answer and of reasoning handed out
    n_reasoning: int = 0
    base: int = 0  # characters of the answer, in front of what the stop strings look at, that are not text
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
        calls: CallParser | None = None,
        syntax: CallSyntax | None = None,
    ) -> None:
        """stop_ids: default the tokenizer's. inside_thinking: the prompt ends in an open think block. calls: None reads markup of
        calls as text; `syntax` is the one it belongs to."""
        tags = (think_tags.open, think_tags.close) if think_tags else ()
        markers = tokenizer.vocab.markers
        shown = (*tags, *(syntax.markers if syntax else ()))
        self._detokenizer = tokenizer.detokenizer(show=frozenset(markers[tag] for tag in shown if tag in markers))
        self._stop_ids = tokenizer.stop_ids if stop_ids is None else stop_ids
        self._think = ThinkSplitter(think_tags, inside_thinking)
        self._calls = calls
        self._syntax = syntax
        self._stops = StopStrings(stop_strings)
        self._marker_ids = frozenset(markers.values())
        self._ids: list[int] = []
        self._raw: list[str] = []  # the text that each of them brought
        self._journal = [_Mark(0, self._think.state, calls.state if calls else None, "")]
        self._unfinished: _Mark | None = None  # the last mark as it was before `finish`
        self.stray_call: int | None = None  # ids of the reply in front of a call that was begun inside reasoning

    @property
    def pos(self) -> int:
        """Ids pushed and not ignored, a stop id included."""
        return len(self._journal) - 1

    @property
    def done(self) -> bool:
        """Whether the reply has ended; later ids are ignored."""
        return self._journal[-1].done

    @property
    def thinking(self) -> bool:
        """Whether the next id belongs to reasoning."""
        return self._think.state.phase in (Phase.OPENED, Phase.THINK)

    @property
    def is_syntax(self) -> bool:
        """Whether the next character is markup of a call, to be drawn greedily."""
        in_answer = self._think.state.phase in (Phase.TEXT, Phase.CLOSED, Phase.START)
        return self._calls is not None and in_answer and not self.done and self._calls.is_syntax

    @property
    def shown(self) -> tuple[int, int]:
        """Characters of (answer, reasoning) handed out for the ids that count."""
        return self._journal[-1].n_text, self._journal[-1].n_reasoning

    def ids_of(self, n_answer: int) -> int:
        """How many ids are needed for the first `n_answer` characters of the answer."""
        n_raw = self._think.state.text_base + n_answer
        return bisect_left([mark.n_raw for mark in self._journal], n_raw)

    def sampled(self, n_answer: int) -> PromptText:
        """The first `n_answer` characters of the answer as they were drawn, tokens that are markers told apart from text that
        spells them."""
        base = self._think.state.text_base
        segments: list[tuple[str, bool]] = []
        for i, raw in enumerate(self._raw):
            start = self._journal[i].n_raw
            text = raw[max(base - start, 0) : max(base + n_answer - start, 0)]
            is_marker = self._ids[i] in self._marker_ids
            if segments and not is_marker and not segments[-1][1]:
                segments[-1] = (segments[-1][0] + text, False)
            elif text:
                segments.append((text, is_marker))
        return PromptText(tuple(segments))

    def push(self, token: int) -> list[Event]:
        """The events that `token` decides; empty for ids behind the end."""
        if self.done:
            return []
        tail = self._detokenizer.flush()
        text = self._detokenizer.push(token)
        self._journal.append(self._journal[-1])
        ends = token in self._stop_ids
        self._ids.append(token)
        self._raw.append(tail if ends else text)
        return self._end("stop", self.pos - 1, tail) if ends else self._take(text)

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
        del self._journal[pos + 1 :], self._raw[pos:], self._ids[pos:]
        mark = self._journal[pos]
        self._think.state, self._stops.state = mark.think, mark.held
        self.stray_call = None
        if self._calls is not None:
            self._calls.state = mark.calls

    def _take(self, text: str) -> list[Event]:
        """Run new text through all of them; the last mark becomes the state after it."""
        mark = self._journal[-1]
        self._journal[-1] = replace(mark, n_raw=mark.n_raw + len(text))
        return self._emit(self._think.feed(text))

    def _emit(self, parts: list[Part]) -> list[Event]:
        events = list[Event]()
        for is_reasoning, text in parts:
            if is_reasoning:
                self._reason(text, events)
                continue
            self._release(events)
            if self._calls is not None:
                self._answer(self._calls.feed(text), events)
            else:
                mark = self._journal[-1]
                self._answer([Plain(text, mark.base + mark.n_text + len(self._stops.state))], events)
            if self.done:
                break
        if not self.thinking:
            self._release(events)
        self._remember()
        return events

    def _reason(self, text: str, events: list[Event]) -> None:
        """Hand out reasoning, but for what may be the beginning of a call."""
        opener = self._syntax.opener if self._syntax and self._calls else None
        mark = self._journal[-1]
        text, held = mark.stray + text, ""
        if opener is not None and self._syntax is not None:
            begun = self._syntax.begun(text)
            at = begun if begun is not None else text.rfind(opener)
            if begun is not None and self.stray_call is None:
                self.stray_call = self._ids_within("".join(self._raw).rfind(opener))
            if begun is None and (at < 0 or len(text) - at > _STRAY_LEN):
                at = next((len(text) - n for n in range(len(opener) - 1, 0, -1) if text.endswith(opener[:n])), len(text))
            text, held = text[:at], text[at:]
        if text:
            events.append(Reasoning(text))
        self._journal[-1] = replace(mark, stray=held, n_reasoning=mark.n_reasoning + len(text))

    def _release(self, events: list[Event]) -> None:
        """Thinking has ended: what was held back of it was no call."""
        mark = self._journal[-1]
        if mark.stray:
            events.append(Reasoning(mark.stray))
            self._journal[-1] = replace(mark, stray="", n_reasoning=mark.n_reasoning + len(mark.stray))

    def _answer(self, parts: list[CallPart], events: list[Event]) -> None:
        """Text through the stop strings, calls as they are; ends the reply at a stop string."""
        for part in parts:
            mark = self._journal[-1]
            if not isinstance(part, Plain):
                self._show(self._stops.flush(), events)
                events.append(part)
                continue
            base = part.at - mark.n_text - len(self._stops.state)
            self._journal[-1] = replace(mark, base=base)
            text, stop = self._stops.feed(part.text)
            self._show(text, events)
            if stop is not None:
                n_text = self._journal[-1].n_text
                events.append(Stop("stop", stop, self._ids_within(self._think.state.text_base + base + n_text)))
                self._journal[-1] = replace(self._journal[-1], done=True)
                return

    def _show(self, text: str, events: list[Event]) -> None:
        if text:
            events.append(Text(text))
            self._journal[-1] = replace(self._journal[-1], n_text=self._journal[-1].n_text + len(text))

    def _remember(self) -> None:
        calls = self._calls.state if self._calls is not None else None
        self._journal[-1] = replace(self._journal[-1], think=self._think.state, calls=calls, held=self._stops.state)

    def _end(self, reason: str, kept: int, tail: str) -> list[Event]:
        events = self._take(tail)
        if not self.done:
            events += self._emit(self._think.flush())
        if not self.done:
            self._release(events)
        if not self.done and self._calls is not None:
            self._answer(self._calls.flush(), events)
        if self.done:  # the last characters completed a stop string
            self._remember()
            return events
        self._show(self._stops.flush(), events)
        self._remember()
        self._journal[-1] = replace(self._journal[-1], done=True)
        return [*events, Stop(reason, None, kept)]

    def _ids_within(self, n_raw: int) -> int:
        """How many ids lie wholly in the first `n_raw` characters (ids without text at the boundary not counted)."""
        ends = [mark.n_raw for mark in self._journal]
        last = bisect_right(ends, n_raw) - 1
        return bisect_left(ends, ends[last])
