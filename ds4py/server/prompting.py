"""From a request to what the engine needs: ids, settings, a grammar, and how the reply is to be read.

All that can be refused is refused here, before a stream begins and before a place in the queue is taken: a conversation that the
template cannot write, a prompt that does not fit the context (with both numbers), a grammar or a bias that cannot be obeyed. It
runs beside the engine's thread and touches nothing of it.

A grammar and thinking: where the prompt leaves the model inside its reasoning, the grammar begins behind the closing tag; where
the model would have to open it itself, that is done for it if the request asks for thinking, and else it is told not to think,
since no mask could know whether it will. A grammar of the answer and tools that may be called: either of the two is held.

Tools that are strict: from the token that begins a call on, its schema holds, so what comes can be read.

A conversation that ends with words of the assistant is continued where they end, without thinking, as Anthropic's API and
llama.cpp do it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final

from ds4py.chat import Called, ChatFormat, Message, ReplyStream
from ds4py.chat.calls import schema_of
from ds4py.chat.fitting import render_fitting
from ds4py.chat.formats.replay import merged
from ds4py.chat.grammar import Grammar, GrammarCompiler
from ds4py.chat.toolmode import ToolSchedule
from ds4py.engine import FixedSchedule, Penalties, SessionOptions
from ds4py.errors import Ds4Error
from ds4py.protocols import SamplingParams, SamplingSchedule
from ds4py.server.asked import Asked, Refusal, bad
from ds4py.server.replays import Replays
from ds4py.server.volatile import settled
from ds4py.tokenizer import PromptText, Tokenizer

_SEED: Final = 2**64


@dataclass(frozen=True)
class Defaults:
    """What holds where a request says nothing."""

    params: SamplingParams = SamplingParams(1.0, 0, 1.0, 0.05)
    penalties: Penalties = Penalties()
    think: bool | None = None
    think_tokens: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    move_dates: bool = True
    strict: bool = True  # strict tools are held to their schemas


@dataclass(frozen=True)
class Prompt:
    """A request, ready to be answered. `text`: None for a prompt of token ids."""

    asked: Asked
    ids: Sequence[int]
    text: PromptText | None
    inside_thinking: bool
    params: SamplingParams
    penalties: Penalties
    seed: int
    tools: Sequence[Mapping[str, Any]]  # whose calls are to be read
    grammar: Grammar | None = None
    after: int | None = None  # the grammar begins behind this token
    marked: bool = False  # ... or with it
    max_tokens: int | None = None
    think_tokens: int | None = None


class Prompting:
    """Makes prompts for one model; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat, n_ctx: int, vocab_size: int, replays: Replays, defaults: Defaults):
        self.tokenizer, self.chat, self.n_ctx, self.replays, self.defaults = tokenizer, chat, n_ctx, replays, defaults
        self._vocab_size = vocab_size
        self._compiler: GrammarCompiler | None = None
        self._lock = Lock()

    def prepare(self, asked: Asked) -> Prompt:
        """Raises Refusal for what cannot be obeyed."""
        try:
            made = self._prepare(asked)
            FixedSchedule(made.params, made.penalties, asked.sampling.bias, self._vocab_size)  # what it refuses is refused now
        except Ds4Error as error:
            raise bad(str(error)) from error
        n = len(made.ids)
        if n >= self.n_ctx:
            raise Refusal(
                400,
                # programs look for the words at the beginning
                f"this model's maximum context length is {self.n_ctx} tokens, but the prompt has {n} and leaves no room for an "
                "answer: shorten it, or serve with a larger -c",
                code="context_length_exceeded",
                param="messages",
                numbers={"n_prompt_tokens": n, "n_ctx": self.n_ctx},
            )
        return made

    def after_bad_call(self, prompt: Prompt, said: str, call: Called) -> Prompt | None:
        """The prompt of a second try after `said`, which made a call that cannot be read; None if it does not fit."""
        tool = next((tool for tool in prompt.tools if tool["function"]["name"] == call.name), None)
        schema = f" The arguments of {call.name} have this schema: {json.dumps(schema_of(tool))}" if tool is not None else ""
        error = Message("user", f"Error: the call of {call.name} could not be read: {call.fault}.{schema} Write the call again.")
        asked = replace(prompt.asked, messages=(*prompt.asked.messages, Message("assistant", said), error))
        try:
            return replace(self.prepare(asked), seed=prompt.seed)
        except Refusal:
            return None

    def _prepare(self, asked: Asked) -> Prompt:
        base, own = self.defaults.params, asked.sampling
        params = SamplingParams(
            base.temperature if own.temperature is None else own.temperature,
            base.top_k if own.top_k is None else own.top_k,
            base.top_p if own.top_p is None else own.top_p,
            base.min_p if own.min_p is None else own.min_p,
        )
        usual = self.defaults.penalties
        penalties = Penalties(
            usual.repeat if own.repeat_penalty is None else own.repeat_penalty,
            usual.frequency if own.frequency_penalty is None else own.frequency_penalty,
            usual.presence if own.presence_penalty is None else own.presence_penalty,
            usual.last_n,
        )
        seed = own.seed if own.seed is not None else self.defaults.seed
        made = Prompt(
            asked,
            (),
            None,
            False,
            params,
            penalties,
            secrets.randbits(64) if seed is None else seed % _SEED,
            (),
            max_tokens=asked.max_tokens if asked.max_tokens is not None else self.defaults.max_tokens,
            think_tokens=asked.think_tokens if asked.think_tokens is not None else self.defaults.think_tokens,
        )
        return self._raw(made) if asked.prompt is not None else self._chat(made)

    def _raw(self, made: Prompt) -> Prompt:
        """A prompt that is continued as it is."""
        given = made.asked.prompt
        ids = self.tokenizer.encode(given, add_bos=True, special=True) if isinstance(given, str) else given or ()
        if any(not 0 <= token < self._vocab_size for token in ids):
            raise bad(f"prompt: token ids go from 0 to {self._vocab_size - 1}", "prompt")
        grammar = self._compiled(*made.asked.grammar) if made.asked.grammar is not None else None
        return replace(made, ids=ids, grammar=grammar)

    def _chat(self, made: Prompt) -> Prompt:
        asked, choice = made.asked, made.asked.choice
        tools, found = ((), ()) if choice.mode == "none" else (asked.tools, asked.found)
        if choice.names and choice.mode == "auto":
            tools = tuple(tool for tool in tools if tool["function"]["name"] in choice.names)
        grammar = self._grammar(asked, (*tools, *found))
        think = self.defaults.think if asked.think is None else asked.think
        text = self._render(asked, tools, think)
        inside, after = self.chat.opens_thinking(text), None
        if grammar is not None and self.chat.think_tags is not None:
            closing = self.tokenizer.encode(self.chat.think_tags.close, special=True)
            if not inside and asked.think is True and len(closing) == 1 and not _continues(asked):
                text = self._opened(text)
                inside = True
            if inside and len(closing) == 1:
                after = closing[0]
            elif think is not False:
                text = self._render(asked, tools, False)
                inside = self.chat.opens_thinking(text)
        marked = grammar is None and asked.strict and self.defaults.strict and bool(tools or found)
        if marked:
            grammar, after = self._strict_calls(asked, (*tools, *found))
        ids = self.tokenizer.encode_prompt(text)
        made = replace(made, marked=marked)
        return replace(made, ids=ids, text=text, inside_thinking=inside, tools=(*tools, *found), grammar=grammar, after=after)

    def _render(self, asked: Asked, tools: Sequence[Mapping[str, Any]], think: bool | None) -> PromptText:
        if _continues(asked):
            before = self._render(replace(asked, messages=asked.messages[:-1]), tools, False)
            return PromptText(merged((*before.segments, (asked.messages[-1].content, False))))
        messages = [self.replays.put_back(message) for message in asked.messages]
        if self.defaults.move_dates:
            messages = list(settled(messages))
        effort = self.chat.effort_for(asked.effort, self.n_ctx)
        schema = _schema_of(asked)
        return render_fitting(
            lambda shape: self.chat.render(shape, tools=tools, think=think, effort=effort, response_schema=schema), messages
        )

    def _opened(self, text: PromptText) -> PromptText:
        """`text` with the reasoning opened behind it."""
        tags = self.chat.think_tags
        assert tags is not None
        opening = tags.open, tags.open in self.tokenizer.vocab.markers
        return PromptText(merged((*text.segments, opening, ("\n" if tags.trims else "", False))))

    def _grammar(self, asked: Asked, tools: Sequence[Mapping[str, Any]]) -> Grammar | None:
        must_call = asked.choice.mode == "required"
        if asked.grammar is not None and not tools:
            return self._compiled(*asked.grammar)
        if asked.grammar is None and not must_call:
            return None
        allowed = [tool for tool in tools if not asked.choice.names or tool["function"]["name"] in asked.choice.names]
        several = asked.choice.parallel and not (must_call and len(asked.choice.names) == 1)  # who names one tool wants one call
        calls = self.chat.call_syntax.grammar(allowed, several, self.tokenizer.vocab.markers)
        if must_call or asked.grammar is None:
            return self._compiled("lark", calls)
        kind, source = asked.grammar
        if kind not in ("json_schema", "json_object"):
            raise bad("a grammar and tools cannot both be obeyed; set tool_choice to none", "grammar")
        schema = {"type": "object"} if kind == "json_object" else source
        self._compiled("json_schema", schema)  # what is wrong with it is said of it alone
        either = f"start: calls | answer\nanswer: %json {json.dumps(schema)}\ncalls"
        return self._compiled("lark", either + calls.removeprefix("start"))

    def _strict_calls(self, asked: Asked, tools: Sequence[Mapping[str, Any]]) -> tuple[Grammar | None, int | None]:
        """(what calls obey once one is begun, the token that begins them), if calls begin with a token of their own and the
        schemas can be obeyed; else the model's word is taken for it, as it is for tools that are not strict."""
        syntax, markers = self.chat.call_syntax, self.tokenizer.vocab.markers
        marker = markers.get(syntax.opener or "")
        if marker is None:
            return None, None
        try:
            return self._compiled("lark", syntax.grammar(tools, asked.choice.parallel, markers)), marker
        except Ds4Error:
            return None, None

    def _compiled(self, kind: str, source: Any) -> Grammar:
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self.tokenizer)
            return self._compiler.compile(kind, source)

    def reader(self, prompt: Prompt) -> ReplyStream:
        """What turns the ids of the reply into events."""
        if prompt.asked.prompt is not None:
            return ReplyStream(self.tokenizer, stop_strings=prompt.asked.stop)
        syntax = self.chat.call_syntax if prompt.tools else None
        return ReplyStream(
            self.tokenizer,
            stop_ids=self.chat.stop_ids,
            stop_strings=(*self.chat.stop_strings, *prompt.asked.stop),
            think_tags=self.chat.think_tags,
            inside_thinking=prompt.inside_thinking,
            calls=syntax.parser(prompt.tools) if syntax is not None else None,
            syntax=syntax,
        )

    def options(self, prompt: Prompt, n_prompt: int) -> SessionOptions:
        """How a session answers `prompt`, which has n_prompt tokens in it; without drafting."""
        schedule: SamplingSchedule | None = None
        if prompt.tools or prompt.grammar is not None:
            schedule = FixedSchedule(prompt.params, prompt.penalties, prompt.asked.sampling.bias, self._vocab_size)
            if prompt.tools:
                schedule = ToolSchedule(schedule, self.reader(prompt), n_prompt)
            if prompt.grammar is not None:
                schedule = prompt.grammar.schedule(schedule, n_prompt, prompt.after, prompt.marked)
        return SessionOptions(
            params=prompt.params,
            penalties=prompt.penalties,
            bias=prompt.asked.sampling.bias,
            schedule=schedule,
            seed=prompt.seed,
            stop_ids=self.chat.stop_ids if prompt.asked.prompt is None else self.tokenizer.stop_ids,
        )


def _continues(asked: Asked) -> bool:
    """Whether the conversation ends with words of the assistant, which are to be continued."""
    last = asked.messages[-1]
    return len(asked.messages) > 1 and last.role == "assistant" and bool(last.content) and not last.tool_calls


def _schema_of(asked: Asked) -> Mapping[str, Any] | None:
    """The schema that the whole answer must have, if one is asked."""
    kind, source = asked.grammar or ("", None)
    return source if kind == "json_schema" and isinstance(source, Mapping) else None
