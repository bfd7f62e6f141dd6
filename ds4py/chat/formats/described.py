"""Tools for models whose template knows none: described in words, and answered in `<tool_call>` tags.

The conversation is rewritten to one without tools before the template sees it: the description joins the system text, calls are
written into the assistant's text, results come from the user. Gemma and small or old chat models are served so. The tags are
those of tagged.py, because they cannot be mistaken for an answer that happens to be JSON; whether a model was trained on them
matters less than that. Rejected: a bare JSON object as Google's guide for Gemma shows it, for that reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ds4py.chat.calls import function_of
from ds4py.chat.formats.tagged import CLOSE, OPEN
from ds4py.chat.messages import Message, ToolCall


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """`messages` and `tools` as a conversation without tools."""
    out: list[Message] = []
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.content}\n</tool_response>"
            if out and out[-1].role == "user" and out[-1].name == "tool":
                out[-1] = replace(out[-1], content=f"{out[-1].content}\n{result}")
            else:
                out.append(Message("user", result, name="tool"))
        elif message.tool_calls:
            blocks = "\n".join(call_text(call) for call in message.tool_calls)
            content = f"{message.content}\n{blocks}" if message.content else blocks
            out.append(replace(message, content=content, tool_calls=()))
        else:
            out.append(message)
    out = [replace(message, name=None) if message.name == "tool" else message for message in out]
    if not tools:
        return out
    text = description(tools)
    if out and out[0].role == "system":
        return [replace(out[0], content=f"{out[0].content}\n\n{text}" if out[0].content else text), *out[1:]]
    return [Message("system", text), *out]


def description(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the model is told about its tools."""
    lines = "\n".join(json.dumps(dict(function_of(tool)), ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call functions. These are their signatures, one JSON object per line:\n"
        f"<tools>\n{lines}\n</tools>\n\n"
        "To call a function, write its name and arguments as a JSON object between tags, and nothing after it:\n"
        f'{OPEN}\n{{"name": "function-name", "arguments": {{"parameter": "value"}}}}\n{CLOSE}\n'
        "The result comes back between <tool_response> tags. If no function is needed, answer in plain words."
    )


def call_text(call: ToolCall) -> str:
    """One call as the model is asked to write it."""
    name = json.dumps(call.name, ensure_ascii=False)
    parsed = call.parsed()
    arguments = json.dumps(parsed, ensure_ascii=False)
    return f'{OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{CLOSE}'
