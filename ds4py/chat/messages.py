"""What a conversation is made of, before any family's format turns it into text.

The idea: one frozen type for every API and for the terminal. Reasoning has a field of its own, because what becomes of old
reasoning is the model's rule and not the caller's, and a tool call keeps its arguments as the text that was sampled, because
parsing and writing them again would change bytes that are already in the cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ds4py.errors import UsageError
from ds4py.tokenizer import PromptText

# The last two are DeepSeek's: a turn of the user's side with tools of its own, and a note in front of it.
ROLES = ("system", "user", "assistant", "tool", "developer", "latest_reminder")


@dataclass(frozen=True)
class ToolCall:
    """One call made by the model; `arguments` is JSON text as it was written, whole or broken."""

    name: str
    arguments: str = ""
    id: str = ""

    def parsed(self) -> dict[str, Any] | str:
        """The arguments as templates want them: an object; {} for none at all; the text itself if it is no JSON object."""
        if not self.arguments.strip() or self.arguments.strip() == "null":
            return {}
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments
        return value if isinstance(value, dict) else self.arguments


@dataclass(frozen=True)
class Message:
    """One turn. `sampled`: content and calls exactly as they were drawn, to be put in their place when the conversation is
    rendered again. UsageError for a role that is none of ROLES.

    tools, response_schema: what is offered to, and asked of, the model from this message on, where a format has a place for it in
    messages. task: one of a family's small jobs (a title, a search query ...) to be done instead of answering this message."""

    role: str
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    sampled: PromptText | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    response_schema: Mapping[str, Any] | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"a message has the role {self.role!r}; it must be one of {', '.join(ROLES)}")


def separated(message: Message, opening: str, closing: str) -> Message:
    """`message` with a think block at the start of an assistant's content moved to `reasoning`."""
    if message.role != "assistant" or message.reasoning is not None:
        return message
    body = message.content.lstrip()
    if not body.startswith(opening) or closing not in body:
        return message
    reasoning, _, content = body.removeprefix(opening).partition(closing)
    return replace(message, reasoning=reasoning.strip("\n"), content=content.lstrip("\n"))
