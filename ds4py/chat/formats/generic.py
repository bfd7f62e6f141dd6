"""The format that a model file brings along: its own Jinja template.

The idea: nothing is known about the family but what its template and vocabulary show. Whether it reasons is read off both: tags
that are tokens or that the template handles. Whether reasoning can be switched is read off the template's variables; a template
without a switch is obeyed when thinking is wanted and has its thinking closed at once when it is not. Reasoning in a history is
handed over in the way the template understands: in its own field, or in front of the content between real tags if the template
handles those itself; a template that knows neither gets the content alone. Either way the model's own rule decides which old
reasoning the prompt keeps. An assistant's content that begins with a think block counts as reasoning and content; tags anywhere
else in a message are text (guard.py).

How calls are written is read off the template too. One that takes tools and writes them in a syntax that is known here is given
them; for any other they are described (described.py). Calls that carry what was sampled are put back as they were (replay.py).
Arguments that are no JSON object, as a broken history may have them, are handed over as the text they are; a template that fails
on that is given an object with the text in it, so that the conversation can go on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ds4py.chat.calls import CallSyntax
from ds4py.chat.formats import replay
from ds4py.chat.formats.bare_json import TAG, BareCalls
from ds4py.chat.formats.base import ThinkTags
from ds4py.chat.formats.described import described
from ds4py.chat.formats.mistral import ARGS, CALL_ID, MARK, MistralCalls
from ds4py.chat.formats.tagged import OPEN, TaggedCalls
from ds4py.chat.formats.xml_call import ARG_KEY, FUNCTION
from ds4py.chat.guard import Guard
from ds4py.chat.messages import Message, separated
from ds4py.chat.template import ChatTemplate
from ds4py.errors import FormatError
from ds4py.tokenizer import PromptText, Tokenizer

_TAGS = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("<seed:think>", "</seed:think>"),
    ThinkTags("[THINK]", "[/THINK]"),
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>"),
)
_SWITCHES = ("enable_thinking", "thinking")  # the variable names templates use
_SHORT_IDS = re.compile(r"length\s*!=\s*9\b")  # Mistral's templates refuse ids of calls that are not of this length
_RARE_EFFORTS = ("xhigh", "max")
_RARE_ROLES = ("developer", "latest_reminder")  # which most templates do not know
_FIELDS = ("reasoning_content", "reasoning", "thinking")  # where templates look for reasoning in a message


class TemplateFormat:
    """A chat format made of a template and a vocabulary; immutable."""

    max_effort_ctx = 0

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        name: str = "template",
        note: str | None = None,
        tool_template: ChatTemplate | None = None,
        stop_strings: tuple[str, ...] = (),
    ) -> None:
        """tool_template is used instead when tools are given."""
        self.name = name
        self.note = note
        self.stop_ids = tokenizer.stop_ids
        self.stop_strings = stop_strings
        self._template = template
        self._tool_template = tool_template or template
        self._tokens = {"bos_token": _spelling(tokenizer, tokenizer.bos_id), "eos_token": _spelling(tokenizer, tokenizer.eos_id)}
        self.think_tags = tags = _find_tags(tokenizer, template.source)
        self._guard = Guard(tokenizer.vocab.markers, (tags.open, tags.close) if tags else ())
        native = _find_syntax(self._tool_template)
        self._takes_tools = native is not None
        self.call_syntax = native or TaggedCalls()
        self.can_switch_thinking = not template.variables.isdisjoint(_SWITCHES)
        self._short_ids = bool(_SHORT_IDS.search(self._tool_template.source))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | None = None,
        effort: str | None = None,
        response_schema: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> PromptText:
        """See ChatFormat.render; templates say nothing about schemas."""
        tools = tools or [tool for message in messages for tool in message.tools]
        if any(message.sampled is not None for message in messages):
            mark = self._guard.sentinel([_texts(messages), list(tools), self._template.source])
            placed = replay.with_places(messages, mark, whole=not self._takes_tools)
            rendered, sentinel = self._rendered(placed, tools, think, effort, add_generation_prompt)
            found = replay.gathered(rendered, messages, mark, self.call_syntax) if self._takes_tools else rendered
            sampled = {i: message.sampled for i, message in enumerate(messages) if message.sampled is not None}
            prompt = replay.spliced(self._guard.reveal(found, sentinel), sampled, mark) if found is not None else None
            if prompt is not None:
                return prompt
        return self._guard.reveal(*self._rendered(messages, tools, think, effort, add_generation_prompt))

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        think: bool | None,
        effort: str | None,
        add_generation_prompt: bool,
    ) -> tuple[str, str]:
        """(the prompt with the sentinel in it, the sentinel)."""
        if not self._takes_tools and (tools or any(message.tool_calls for message in messages)):
            messages, tools = described(messages, tools), ()
        template = self._tool_template if tools else self._template
        plain = [self._as_dict(message, template) for message in messages]
        sentinel = self._guard.sentinel([plain, list(tools), template.source])
        hidden = [self._hide(message, sentinel) for message in plain]
        variables: dict[str, Any] = {**self._tokens, "messages": hidden, "add_generation_prompt": add_generation_prompt}
        variables["tools"] = self._guard.hide(tools, sentinel) if tools else None
        if think is not None:
            variables |= dict.fromkeys(_SWITCHES, think)
        if effort is not None:
            variables["reasoning_effort"] = effort
        rendered = self._written(template, variables)
        if think is False and add_generation_prompt:
            rendered += self._closed_at_once(rendered, template.source)
        return rendered, sentinel

    def _written(self, template: ChatTemplate, variables: dict[str, Any]) -> str:
        """The template's text; broken arguments as an object, if it cannot take them otherwise."""
        try:
            return template.render(**variables)
        except FormatError:
            messages = [_with_objects(message) for message in variables["messages"]]
            if messages == variables["messages"]:
                raise
            return template.render(**{**variables, "messages": messages})

    def effort_for(self, asked: str | None, n_ctx: int) -> str | None:
        """See ChatFormat.effort_for. Most templates know low, medium and high."""
        return "high" if asked in _RARE_EFFORTS and asked not in self._template.fields else asked

    def opens_thinking(self, prompt: PromptText) -> bool:
        """See ChatFormat.opens_thinking."""
        return self.think_tags is not None and str(prompt).rstrip().endswith(self.think_tags.open)

    def _as_dict(self, message: Message, template: ChatTemplate) -> dict[str, Any]:
        """`message` as templates expect it; reasoning to be put back between real tags is kept apart under a key of ours."""
        if self.think_tags is not None:
            message = separated(message, self.think_tags.open, self.think_tags.close)
        role = "system" if message.role in _RARE_ROLES and message.role not in template.fields else message.role
        out: dict[str, Any] = {"role": role, "content": message.content}
        if message.name is not None:
            out["name"] = message.name
        if message.tool_call_id is not None:
            out["tool_call_id"] = self._id_of(message.tool_call_id)
        if message.tool_calls:
            out["tool_calls"] = [
                {"id": self._id_of(call.id), "type": "function", "function": {"name": call.name, "arguments": call.parsed()}}
                for call in message.tool_calls
            ]
        if message.reasoning is not None:
            field = next((name for name in _FIELDS if name in template.fields), None)
            if field:
                out[field] = message.reasoning
            elif self.think_tags and self.think_tags.close in template.source:
                out["_inline"] = message.reasoning
        return out

    def _id_of(self, call_id: str) -> str:
        """A call's id as the template takes it."""
        if not self._short_ids or re.fullmatch("[a-zA-Z0-9]{9}", call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]

    def _hide(self, message: dict[str, Any], sentinel: str) -> dict[str, Any]:
        hidden: dict[str, Any] = self._guard.hide(message, sentinel)
        inline = hidden.pop("_inline", None)
        if inline is not None and self.think_tags:
            hidden["content"] = f"{self.think_tags.open}\n{inline}\n{self.think_tags.close}\n\n{hidden['content']}"
        return hidden

    def _closed_at_once(self, rendered: str, source: str) -> str:
        """What keeps a model from thinking whose template has no switch but handles thinking: an empty think block."""
        tags = self.think_tags
        if self.can_switch_thinking or tags is None or tags.close not in source or rendered.rstrip().endswith(tags.close):
            return ""
        if not rendered.rstrip().endswith(tags.open):
            return f"{tags.open}\n\n{tags.close}\n\n"
        return f"\n{tags.close}\n\n" if rendered.endswith("\n") else f"\n\n{tags.close}\n\n"


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message as a template sees it, with arguments that are text in an object."""
    made = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        arguments = {"arguments": arguments} if isinstance(arguments, str) else arguments
        made.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": made} if made else message


def _spelling(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.vocab.tokens[token]


def _find_tags(tokenizer: Tokenizer, source: str) -> ThinkTags | None:
    markers = tokenizer.vocab.markers
    for tags in _TAGS:
        if tags.close in source or (tags.open in markers and tags.close in markers):
            return tags
    return None


def _texts(messages: Sequence[Message]) -> list[list[str]]:
    """Everything in `messages` that is text, what was sampled too."""
    calls = [[call.name + call.arguments for call in message.tool_calls] for message in messages]
    return [[m.content, m.reasoning or "", str(m.sampled or ""), *calls[i]] for i, m in enumerate(messages)]


def _find_syntax(template: ChatTemplate) -> CallSyntax | None:
    """How a template writes calls; None if it takes no tools, or writes calls in a way that is not known here."""
    if "tools" not in template.variables:
        return None
    if MARK in template.source:
        return MistralCalls(ARGS in template.source, CALL_ID in template.source)
    if OPEN in template.source and ARG_KEY in template.source:
        return TaggedCalls(glm="\n" if re.search(r"</arg_key>\s+<arg_value>", template.source) else "")
    if OPEN in template.source:
        return TaggedCalls(xml=FUNCTION in template.source)
    if TAG in template.source or '"parameters": ' in template.source:
        return BareCalls()
    return None
