"""One question to a model: the reply, within a budget, with thinking closed in time.

A model that thinks to the end of its budget has answered nothing. So near the end thinking is closed for it: from `soft`
tokens before the end as soon as the closing tag is among the likeliest tokens (the model is about to stop anyway), and `hard`
tokens before the end in any case. Closing is a rewind to before the token that was drawn, the tag put in its place, and going
on from there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ds4py.chat import ChatFormat, Event, Message, ReplyStream, collect
from ds4py.cli.eval.client import Server
from ds4py.cli.prompting import Thinking
from ds4py.drafters import Drafters
from ds4py.engine import Engine, Session, SessionOptions
from ds4py.engine.speculation import speculating
from ds4py.errors import ContextError
from ds4py.protocols import F32
from ds4py.tokenizer import Tokenizer


@dataclass(frozen=True)
class Budget:
    """Of one reply. A budget that is small for its margins has smaller ones: half of it, and a quarter."""

    tokens: int
    soft: int
    hard: int
    rank: int  # the closing tag counts as likely among so many

    def due(self, left: int, row: F32, close: int) -> str:
        """Whether thinking is closed before the token that was drawn from `row` [V], with `left` tokens to go: "soft", "hard"
        or ""."""
        if left <= min(self.hard, self.tokens // 4):
            return "hard"
        near = left <= min(self.soft, self.tokens // 2)
        return "soft" if near and int((row > row[close]).sum()) < self.rank else ""


@dataclass(frozen=True)
class Told:
    """A reply. closed: how thinking was ended for the model, "" if it was not."""

    text: str
    reasoning: str
    tokens: int
    seconds: float
    finish: str
    closed: str = ""


class Asker(Protocol):
    """Who is asked: a model here, or a server."""

    def ask(self, prompt: str, tokens: int, seed: int) -> Told:
        """Raises Ds4Error or RequestFailed for a question that came to nothing."""
        ...


@dataclass(frozen=True)
class ModelAsker:
    engine: Engine
    tokenizer: Tokenizer
    chat: ChatFormat
    thinking: Thinking
    options: SessionOptions
    budget: Budget  # its tokens are replaced by those of the question
    drafters: Drafters | None = None

    def ask(self, prompt: str, tokens: int, seed: int) -> Told:
        effort = self.chat.effort_for(self.thinking.effort, self.engine.n_ctx)
        rendered = self.chat.render([Message("user", prompt)], think=self.thinking.think, effort=effort)
        ids = self.tokenizer.encode_prompt(rendered)
        room = self.engine.n_ctx - len(ids)
        if room < 1:
            raise ContextError(f"the question has {len(ids)} tokens and the context {self.engine.n_ctx}; raise --ctx")
        stops = self.chat.stop_ids | self.tokenizer.stop_ids
        tags = self.chat.think_tags
        stream = ReplyStream(
            self.tokenizer,
            stop_ids=stops,
            stop_strings=self.chat.stop_strings,
            think_tags=tags,
            inside_thinking=self.chat.opens_thinking(rendered),
        )
        options = replace(self.options, seed=seed, stop_ids=stops)
        session = self.engine.session(options if self.drafters is None else speculating(options, self.drafters))
        close = self.tokenizer.encode(f"{tags.close}\n\n", special=True) if tags is not None else []
        return answered(session, ids, stream, close, replace(self.budget, tokens=min(tokens, room)))


def answered(session: Session, ids: Sequence[int], stream: ReplyStream, close: Sequence[int], budget: Budget) -> Told:
    """Generate the reply to the prompt `ids`; `close`: ids that end thinking, empty for a model that does not think."""
    began = time.perf_counter()
    session.sync(ids)
    end, closed = len(ids) + budget.tokens, ""
    events: list[Event] = []
    while True:
        cut = ""
        for done in session.generate(end - len(session.tokens)):
            for token, row in zip(done.tokens, done.rows, strict=True):
                left = end - len(ids) - stream.pos
                if stream.thinking and close and not closed and token != close[0]:
                    cut = budget.due(left, row, close[0])
                if cut:
                    break
                events += stream.push(token)
            if cut or stream.done:
                break
        if not cut:
            break
        closed = cut
        session.rewind(len(ids) + stream.pos)
        for _ in session.force(close):
            pass
        for token in close:
            events += stream.push(token)
    events += stream.finish(session.finish or "stop")
    reply = collect(events)
    finish = reply.stop.reason if reply.stop is not None else "length"
    return Told(reply.text, reply.reasoning, stream.pos, time.perf_counter() - began, finish, closed)


@dataclass(frozen=True)
class ServerAsker:
    """A server's own budget and thinking are its own affair."""

    server: Server
    body: dict[str, object]

    def ask(self, prompt: str, tokens: int, seed: int) -> Told:
        request = {**self.body, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "seed": seed}
        reply = self.server.chat(request)
        return Told(reply.text, "", reply.tokens, reply.first + reply.seconds, reply.finish or "stop")
