"""Putting sampled calls back into a rendered prompt, byte for byte.

A template writes calls in its own spacing and order of keys; what the model drew differs, and one differing byte costs the whole
cached conversation behind it. So a message that carries what was sampled is rendered with placeholders (a noncharacter around a
number) for its text and the names of its calls. In the rendered prompt the syntax finds each call around its placeholder, the
stretch from the text to the last call gives way to one placeholder, and that one to the sampled segments, markers still told
apart from text that spells them. Where a template does something else with names and texts, nothing is found and nothing is
replaced: the caller renders the canonical way. Rejected: rendering and searching for the calls (a text may quote one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ds4py.chat.calls import CallSyntax
from ds4py.chat.messages import Message, ToolCall
from ds4py.tokenizer import PromptText


def with_places(messages: Sequence[Message], mark: str, whole: bool) -> list[Message]:
    """`messages`, those with sampled calls holding placeholders made with `mark`; whole: their calls stand in the text."""
    return [message if message.sampled is None else _placed(message, i, mark, whole) for i, message in enumerate(messages)]


def _placed(message: Message, i: int, mark: str, whole: bool) -> Message:
    if whole:
        return replace(message, content=_place(i, mark), tool_calls=())
    calls = tuple(ToolCall(_place(i, mark, k), "{}", call.id) for k, call in enumerate(message.tool_calls))
    return replace(message, content=_place(i, mark) if message.content else "", tool_calls=calls)


def gathered(rendered: str, messages: Sequence[Message], mark: str, syntax: CallSyntax) -> str | None:
    """`rendered` with one placeholder for each sampled message, where its text and calls stood; None if one is not found.
    For templates that write calls themselves."""
    for i, message in enumerate(messages):
        if message.sampled is None:
            continue
        spans = [syntax.find(rendered, rendered.find(_place(i, mark, k))) for k in range(len(message.tool_calls))]
        first, last = spans[0], spans[-1]
        start = rendered.find(_place(i, mark)) if message.content else first[0] if first else -1
        if start < 0 or last is None or last[1] <= start:
            return None
        rendered = rendered[:start] + _place(i, mark) + rendered[last[1] :]
    return rendered


def spliced(prompt: PromptText, sampled: Mapping[int, PromptText], mark: str) -> PromptText | None:
    """`prompt` with the sampled segments in place of their placeholders; None if one is missing."""
    segments: list[tuple[str, bool]] = []
    missing = set(sampled)
    for text, is_control in prompt.segments:
        parts = [text] if is_control else text.split(mark)
        for k, part in enumerate(parts):
            if k % 2 and part.isdigit() and int(part) in missing:
                missing.remove(int(part))
                segments += sampled[int(part)].segments
            elif part:
                segments.append((part, is_control))
    return None if missing else PromptText(merged(segments))


def merged(segments: Sequence[tuple[str, bool]]) -> tuple[tuple[str, bool], ...]:
    """Neighbouring plain segments made one: how text is cut into tokens may not depend on where it came from."""
    out: list[tuple[str, bool]] = []
    for text, is_control in segments:
        if out and not is_control and not out[-1][1]:
            out[-1] = (out[-1][0] + text, False)
        elif text:
            out.append((text, is_control))
    return tuple(out)


def _place(i: int, mark: str, call: int | None = None) -> str:
    """The text of message i, or the name of one of its calls (no digits alone, so that the two differ)."""
    return f"{mark}{i}{mark}" if call is None else f"{mark}{i}c{call}{mark}"
