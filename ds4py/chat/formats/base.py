"""What a chat format is: one family's way of writing a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ds4py.chat.calls import CallSyntax
from ds4py.chat.messages import Message
from ds4py.tokenizer import PromptText


@dataclass(frozen=True)
class ThinkTags:
    """What surrounds reasoning in a model's output. trims: newlines inside and after the tags are the template's, and belong to
    neither side; else every character counts."""

    open: str
    close: str
    trims: bool = True


class ChatFormat(Protocol):
    """Knows one family's text, and no ids but the stop ids."""

    @property
    def name(self) -> str:
        """Which format this is, for people: "template", "chatml", "plain" ..."""
        ...

    @property
    def note(self) -> str | None:
        """A sentence for the user, if the format is not the model's own."""
        ...

    @property
    def think_tags(self) -> ThinkTags | None:
        """What surrounds reasoning, or None for a model that does not reason."""
        ...

    @property
    def call_syntax(self) -> CallSyntax:
        """How the model is asked to write tool calls."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end an answer in this format, where no token does."""
        ...

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
        """The prompt. think: None leaves it to the model's default; effort: a word the family knows; response_schema: of the
        answer, written into the prompt by families that were trained to read it there. Raises UsageError for messages that the
        format refuses."""
        ...

    @property
    def max_effort_ctx(self) -> int:
        """Positions of context below which `effort_for` takes back the highest effort; 0: there is no such limit."""
        ...

    def effort_for(self, asked: str | None, n_ctx: int) -> str | None:
        """The word for `render` that stands for what a user asked (minimal, low, medium, high, xhigh or max) in a context of
        n_ctx positions; None: nothing is said about it."""
        ...

    def opens_thinking(self, prompt: PromptText) -> bool:
        """Whether the answer to `prompt` begins inside reasoning."""
        ...
