"""Conversations that a template refuses, in a shape it takes.

APIs allow what many templates do not: a system text in the middle, two turns of the user in a row, a system text at all. A
template is asked first with the conversation as it is. If it refuses, system texts behind the first turn become the user's,
neighbours of one role are joined, and as a last resort the system text goes to the head of the first user's turn: text may
change its place and never gets lost. What is refused then is refused for good, with the template's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ds4py.chat.messages import Message
from ds4py.errors import FormatError, UsageError
from ds4py.tokenizer import PromptText


def render_fitting(render: Callable[[Sequence[Message]], PromptText], messages: Sequence[Message]) -> PromptText:
    """`render` of the first shape that it takes. Raises what it raised for `messages` as they are."""
    try:
        return render(messages)
    except (UsageError, FormatError) as error:
        for shape in (alternating(messages), without_system(alternating(messages))):
            try:
                return render(shape)
            except (UsageError, FormatError):
                continue
        raise error


def alternating(messages: Sequence[Message]) -> list[Message]:
    """At most one system text, at the head; no two turns of one role in a row (results of tools aside)."""
    n_lead = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    out: list[Message] = []
    for i, message in enumerate(messages):
        if message.role == "system" and i >= n_lead:
            message = replace(message, role="user")
        last = out[-1] if out else None
        if last is not None and last.role == message.role and message.role != "tool" and not last.tool_calls:
            texts = [text for text in (last.content, message.content) if text]
            reasoning = "\n\n".join(text for text in (last.reasoning, message.reasoning) if text)
            out[-1] = replace(message, content="\n\n".join(texts), reasoning=reasoning or None, sampled=None)
        else:
            out.append(message)
    return out


def without_system(messages: Sequence[Message]) -> list[Message]:
    """The system text at the head of the first user's turn."""
    if not messages or messages[0].role != "system":
        return list(messages)
    system, *rest = messages
    at = next((i for i, message in enumerate(rest) if message.role == "user"), None)
    if at is None:
        return [replace(system, role="user"), *rest]
    rest[at] = replace(rest[at], content=f"{system.content}\n\n{rest[at].content}")
    return rest
