"""What a conversation is made of, before any family's format turns it into text.

The idea: one frozen type for every API and for the terminal. Reasoning has a field of its own, because what becomes of old
reasoning is the model's rule and not the caller's, and a tool call keeps its arguments as the text that was sampled, because
parsing and writing them again would change bytes that are already in the cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ds4py.errors import UsageError
from ds4py.tokenizer import PromptText

ROLES = ("system", "user", "assistant", "tool")


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
    rendered again. UsageError for a role that is none of ROLES."""

    role: str
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    sampled: PromptText | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"a message has the role {self.role!r}; it must be one of {', '.join(ROLES)}")
