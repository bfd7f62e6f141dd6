"""One answer on one session: read the prompt, generate, turn ids into events, and mend what models get wrong.

What is mended, by going back to a token and putting a few others there (`rewind`, `force`), never by inventing an answer:
* a call that is begun before thinking is closed: back to the token before it, thinking is closed, and the model goes on;
* an answer that ends while the model is still thinking: thinking is closed, and the model goes on to say something.
Each is done once for an answer. A reply that a limit ends while thinking stays as it is; where a request limits the thinking
alone, it is closed there in the same way. And a call whose arguments cannot be
read is put to the model once more, with what is wrong and the tool's schema, if nobody has seen it yet (a reply that is not
streamed); both tries share one budget. Else it goes out as it was written, and the reply ends with a sentence that says so and
not with the reason of a reply that wants its calls to be made: a client that goes by that reason runs nothing half-written, and
one that reads the arguments tells the model.

The session keeps everything that was finished, whatever ends the work: a client that goes away in the middle of a prompt finds
the part that was read when it comes back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ds4py.chat import CallArguments, Called, CallEnd, CallStart, Event, Stop, Text, collect
from ds4py.engine import Session, SessionOptions
from ds4py.engine.statistics import timings
from ds4py.server.jobs import Events, Job, Progress, Started
from ds4py.server.prefixes import Taken
from ds4py.server.prompting import Prompt, Prompting
from ds4py.server.results import Ended, Usage
from ds4py.server.sound_json import SoundJson


@dataclass
class _Count:
    """Of one answer: tokens drawn, of them while thinking, tokens put there by us."""

    drawn: int = 0
    reasoning: int = 0
    forced: int = 0
    cached: int = 0
    mended: bool = False
    events: list[Event] = field(default_factory=list)


class Answer:
    """The work on one job; `run` does all of it."""

    def __init__(
        self,
        job: Job,
        prompt: Prompt,
        taken: Taken,
        prompting: Prompting,
        equip: Callable[[SessionOptions], SessionOptions],
        first: Usage | None = None,
    ) -> None:
        """prompt: the job's own, or that of a second try, of which `first` is what the first one cost. equip: adds a drafter to
        the options of a session."""
        self._job, self._prompt, self._prompting, self._equip, self._first = job, prompt, prompting, equip, first
        self._session: Session = taken.kept.session
        self._ids = list(taken.ids)
        self._reader = prompting.reader(prompt)
        self._count = _Count(drawn=first.generated if first else 0)
        self._keys: list[str] = []
        self._json = SoundJson()  # of the call at hand
        self.prompt_seconds = self.seconds = 0.0

    def run(self) -> Ended:
        """Answer; tells the job of the events. Raises Cancelled, and what the session raises."""
        begun = time.monotonic()
        try:
            self._read_prompt()
        finally:
            self.prompt_seconds = time.monotonic() - begun
        try:
            self._generate()
        finally:
            self.seconds = time.monotonic() - begun - self.prompt_seconds
        self._remember()
        if self._job.prompt.asked.stream or self._first is not None:
            self.excuse()  # there will be no other try
        return self._ended()

    @property
    def events(self) -> Sequence[Event]:
        """The reply so far."""
        return self._count.events

    @property
    def cost(self) -> Usage:
        count, first = self._count, self._first
        if first is not None:
            return Usage(first.prompt, first.cached, count.drawn, first.reasoning + count.reasoning)
        return Usage(len(self._ids), count.cached, count.drawn, count.reasoning)

    @property
    def own_cost(self) -> Usage:
        """Of this try alone."""
        count, before = self._count, self._first.generated if self._first else 0
        return Usage(len(self._ids), count.cached, count.drawn - before, count.reasoning)

    def again(self) -> Prompt | None:
        """The prompt of a second try, if this one made a call that cannot be read and nobody has seen it; None if all is well."""
        bad = self._unreadable()
        if bad is None or self._first is not None or self._job.prompt.asked.stream:
            return None
        return self._prompting.after_bad_call(self._prompt, str(self._reader.sampled(1 << 30)), bad)

    def excuse(self) -> None:
        """Say so, if the reply has a call that cannot be read."""
        bad = self._unreadable()
        if bad is not None:
            self._hand_on([Text(f"\n\n(The call of {bad.name} could not be read: {bad.fault}.)")])

    def _unreadable(self) -> Called | None:
        """A call that the model ended by itself and that cannot be read; what a limit or a stop string cut is not meant."""
        stop = next((event for event in reversed(self.events) if isinstance(event, Stop)), None)
        if stop is None or stop.reason != "stop" or stop.stop_string is not None:
            return None
        return next((call for call in collect(self.events).calls if not call.readable), None)

    def _read_prompt(self) -> None:
        session, total_at_start = self._session, len(self._ids) - 1
        session.renew(SessionOptions(drafter=session.drafter))  # plain settings while the tokens change

        def progress(done: int, total: int) -> None:
            if done == 0:
                self._count.cached = total_at_start - total
                if self._first is None:
                    self._job.tell(Started(self.cost))
            self._job.tell(Progress(done, total))
            self._job.check()

        session.sync(self._ids, progress)
        session.renew(self._equip(self._prompting.options(self._prompt, len(self._ids))))

    def _generate(self) -> None:
        """Until the reply has ended; what ended it is in the last event."""
        while not self._reader.done:
            budget = self._prompt.max_tokens
            left = None if budget is None else max(budget - self._count.drawn, 0)
            if not self._steps(left):
                continue  # something was mended
            if self._session.error is not None:
                raise self._session.error
            self._tell(self._reader.finish(self._session.finish or "stop"))

    def _steps(self, left: int | None) -> bool:
        """Generate until the end; False if it goes on after something was mended."""
        session, reader = self._session, self._reader
        for step in session.generate(left):
            for token in step.tokens:
                self._count.drawn += 1
                self._count.reasoning += reader.thinking
                if reader.thinking and token in session.stop_ids and self._mend(reader.pos):
                    return False
                self._tell(reader.push(token))
                if reader.stray_call is not None and self._mend(reader.stray_call):
                    return False
                enough = reader.thinking and self._count.reasoning == self._prompt.think_tokens
                if enough and self._close_thinking(reader.pos):
                    return False
                if reader.done:
                    self._settle()
                    return True
            self._job.check()
        return True

    def _mend(self, kept: int) -> bool:
        """Close the thinking after `kept` ids of the reply; False if that was done before or there is no room."""
        if self._count.mended or not self._close_thinking(kept):
            return False
        self._count.mended = True
        return True

    def _close_thinking(self, kept: int) -> bool:
        """Put the closing tag behind `kept` ids of the reply, in place of what came there; False if there is no room."""
        tags = self._prompting.chat.think_tags
        if tags is None:
            return False
        closing = self._prompting.tokenizer.encode(tags.close, special=True) + self._prompting.tokenizer.encode("\n\n")
        at = len(self._ids) + kept
        if at + len(closing) >= self._session.limits.n_ctx:
            return False
        self._session.rewind(at)
        self._reader.truncate(kept)
        for _ in self._session.force(closing):
            pass
        self._count.forced += len(closing)
        for token in closing:
            self._tell(self._reader.push(token))
        return True

    def _tell(self, events: list[Event]) -> None:
        """Give calls their ids, and hand on; a second call where one is allowed ends the reply before it."""
        told: list[Event] = []
        for event in self._sound(events):
            if isinstance(event, CallStart):
                if self._keys and not self._job.prompt.asked.choice.parallel:
                    told.append(Stop("stop", None, self._reader.pos))
                    self._only_one(told)
                    return
                self._keys.append(secrets.token_hex(16))
                event = replace(event, id=self._job.call_lead + self._keys[-1])
            told.append(event)
        self._hand_on(told)

    def _sound(self, events: list[Event]) -> Iterator[Event]:
        """`events` with arguments that strict parsers take."""
        for event in events:
            if isinstance(event, CallStart):
                self._json = SoundJson()
            text = self._json.feed(event.text) if isinstance(event, CallArguments) else ""
            if isinstance(event, CallEnd) and (rest := self._json.end()):
                yield CallArguments(event.index, rest)
            if text:
                yield CallArguments(event.index, text)  # type: ignore[union-attr]  # only arguments have text here
            elif not isinstance(event, CallArguments):
                yield event

    def _only_one(self, told: list[Event]) -> None:
        end = next(event.end for event in reversed([*self._count.events, *told]) if isinstance(event, CallEnd))
        kept = self._reader.ids_of(end)
        self._reader.truncate(kept)
        self._reader.finish("stop")
        self._session.rewind(len(self._ids) + kept)
        self._hand_on(told)

    def _hand_on(self, told: list[Event]) -> None:
        """Tell the job; what is not streamed is told when it is whole (see the worker), for there may be a second try."""
        self._count.events += told
        if told and self._job.prompt.asked.stream:
            self._job.tell(Events(told))

    def _settle(self) -> None:
        """The reply has ended: a stop string is no part of the conversation."""
        stop = next((event for event in reversed(self._count.events) if isinstance(event, Stop)), None)
        if stop is not None and stop.stop_string is not None:
            self._session.rewind(len(self._ids) + stop.kept)

    def _remember(self) -> None:
        """Keep what was sampled of a turn with calls, for when it comes back."""
        ends = [event for event in self._count.events if isinstance(event, CallEnd)]
        if not ends or not all(event.complete for event in ends) or len(ends) != len(self._keys):
            return
        reply = collect(self._count.events)
        if ends[-1].end:
            self._prompting.replays.remember(self._keys, reply.text, reply.calls, self._reader.sampled(ends[-1].end))

    def _ended(self) -> Ended:
        stop = next(event for event in reversed(self._count.events) if isinstance(event, Stop))
        n_read = len(self._ids) - self._count.cached
        times = timings(self._count.cached, n_read, self.prompt_seconds, self._session.stats, self.seconds)
        calls = collect(self._count.events).calls
        return Ended(stop, self.cost, times, unreadable=bool(calls) and not any(call.readable for call in calls))
