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
    """What surrounds reasoning in a model's output."""

    open: str
    close: str


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
        add_generation_prompt: bool = True,
    ) -> PromptText:
        """The prompt. think: None leaves it to the model's default; effort: a word the family knows. Raises UsageError for
        messages that the format refuses."""
        ...

    def opens_thinking(self, prompt: PromptText) -> bool:
        """Whether the answer to `prompt` begins inside reasoning."""
        ...
