"""A conversation with a model: messages, the session that has read them, and turns that keep the two in step.

The idea: the messages are the truth, the session is a cache of them. Every turn renders the whole conversation and hands the
session the whole prompt; `Session.sync` finds what it has read already. One thing is added here: a reply that was generated is
in the session as the tokens that were drawn, and its text may not be cut into the same tokens when it is rendered again. So
where the new prompt's text continues the old one's with the reply, the session's own tokens are kept and only the rest is
encoded.

Invariant: after `ask`, whatever happened in it, the messages are a conversation that can go on: a turn that produced nothing
leaves none, one that was interrupted leaves what was said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4py.chat import ChatFormat, Message
from ds4py.cli.answering import Turn, take_turn
from ds4py.cli.constraint import answer_start, masked
from ds4py.cli.opening import Opened
from ds4py.cli.prompting import Prompt, Thinking, chat_prompt, reply_stream
from ds4py.cli.screen import Screen
from ds4py.cli.terminal import Terminal
from ds4py.engine import Session, SessionOptions
from ds4py.errors import ResourceError
from ds4py.tokenizer import PromptText

if TYPE_CHECKING:
    from ds4py.chat.grammar import Grammar, GrammarSchedule


class Conversation:
    """Turns over one session at a time."""

    def __init__(
        self,
        opened: Opened,
        chat: ChatFormat,
        options: SessionOptions,
        messages: Sequence[Message],
        how: Thinking,
        stop_strings: Sequence[str] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """`grammar`: what every answer obeys."""
        self.opened = opened
        self.chat = chat
        self.how = how
        self._options = options
        self._grammar = grammar
        self._masks: GrammarSchedule | None = None  # of the session
        self.session = self._new_session()
        self.messages = list(messages)
        self._opening = tuple(messages)
        self._stop_strings = tuple(stop_strings)
        self._read = ""  # text of what the session holds, as far as it is a prompt and its reply

    def ask(self, text: str, n_tokens: int | None, out: Terminal, log: Terminal) -> Turn:
        """Add the user's `text`, show the reply. Raises what rendering and the session raise, with the message taken back."""
        self.messages.append(Message("user", text))
        try:
            prompt = self._prompt()
            if self._masks is not None:
                self._masks.restart(*answer_start(prompt, self.opened.tokenizer, self.chat))
            screen = Screen(out, reply_stream(self.opened.tokenizer, self.chat, prompt, self._stop_strings), self.chat.think_tags)
            turn = take_turn(self.session, prompt.ids, n_tokens, screen, log)
        except BaseException:
            self.messages.pop()
            self._read = ""
            raise
        if turn.generated == 0:
            self.messages.pop()
            return turn
        self.messages.append(Message("assistant", screen.text, reasoning=screen.reasoning or None))
        self._remember(prompt, screen)
        return turn

    def reset(self) -> None:
        """A fresh conversation: the system prompt and the prefix stay."""
        self._learn()
        self.messages = list(self._opening)

    def resize(self, n_ctx: int) -> None:
        """A new session of `n_ctx` positions; the messages stay. ResourceError, and the old session, if memory is short."""
        engine = dataclasses.replace(self.opened.engine, n_ctx=n_ctx)
        old = self.opened
        self.opened = dataclasses.replace(old, engine=engine)
        try:
            session = self._new_session()
        except ResourceError:
            self.opened = old
            raise
        self._learn()
        self.session = session
        self._read = ""

    def _new_session(self) -> Session:
        if self._grammar is None:
            return self.opened.session(self._options)
        masks = masked(self._options, self._grammar, self.opened)
        session = self.opened.session(dataclasses.replace(self._options, schedule=masks))
        self._masks = masks
        return session

    def _learn(self) -> None:
        """The session is about to forget: what drafts are made from may be worth keeping."""
        if self.opened.speculation is not None:
            self.opened.speculation.learn(self.session)

    def _prompt(self) -> Prompt:
        """The prompt of the whole conversation, made of the session's own tokens as far as its text allows."""
        n_ctx = self.opened.engine.n_ctx
        effort = self.chat.effort_for(self.how.effort, n_ctx)
        rendered = self.chat.render(self.messages, think=self.how.think, effort=effort)
        rest = after(rendered, self._read) if self._read else None
        if rest is None:
            return chat_prompt(self.opened.tokenizer, self.chat, self.messages, self.how, n_ctx)
        ids = [*self._live(), *self.opened.tokenizer.encode_prompt(rest, add_bos=False)]
        return Prompt(ids, str(rendered), self.chat.opens_thinking(rendered))

    def _live(self) -> list[int]:
        """The session's tokens without a final stop token, which the format may spell otherwise."""
        tokens = self.session.tokens
        return tokens[:-1] if tokens and tokens[-1] in self.session.stop_ids else tokens

    def _remember(self, prompt: Prompt, screen: Screen) -> None:
        if screen.stop is not None and screen.stop.stop_string is not None:
            self.session.rewind(len(prompt.ids) + screen.stop.kept)  # the stop string is no part of the conversation
        spell = self.opened.tokenizer.detokenizer(special=True)
        self._read = prompt.text + "".join(map(spell.push, self._live()[len(prompt.ids) :])) + spell.flush()


def after(prompt: PromptText, text: str) -> PromptText | None:
    """The part of `prompt` behind `text`; None unless the prompt begins with it and is cut between two segments there."""
    at = 0
    for i, (part, _) in enumerate(prompt.segments):
        if at == len(text):
            return PromptText(prompt.segments[i:])
        if not text.startswith(part, at):
            # The reply and what follows it may be one plain segment only if they were never apart as tokens.
            return None
        at += len(part)
    return None
