"""OpenAI's older Completions: text that is continued as it is. Pure, like its sisters.

The prompt is the caller's own: no template, and markers that it spells count as markers, since who sends a whole prompt is its
author. No thinking is told apart, and no calls are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds4py.chat import Event, Text, collect
from ds4py.server.asked import Asked, Refusal, bad
from ds4py.server.chat_completions import error, finish_reason, refuse_unsupported, response_format, usage
from ds4py.server.fields import Fields
from ds4py.server.reading import budget, sampling, stops
from ds4py.server.results import Ended, Meta, Usage, Wire
from ds4py.server.tools import Notice

__all__ = ["Stream", "error", "parse", "whole"]


def parse(value: Any, notice: Notice) -> Asked:
    """The request in a body. Raises Refusal."""
    body = Fields(value)
    refuse_unsupported(body)
    for name, harmless in (("echo", False), ("suffix", ""), ("best_of", 1)):
        if body.any(name) not in (None, harmless):
            raise bad(f"{name} is not supported", name)
    options = body.object("stream_options")
    return Asked(
        model=body.text("model") or "",
        prompt=_prompt(body),
        sampling=sampling(body),
        stop=stops(body),
        max_tokens=budget(body, "max_tokens", "n_predict"),
        grammar=response_format(body),
        stream=bool(body.flag("stream")),
        include_usage=bool(options is not None and options.flag("include_usage")),
        ignored=body.unread(),
    )


def _prompt(body: Fields) -> str | tuple[int, ...]:
    value = body.any("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        if not value:
            raise bad("prompt is empty: there is nothing to continue", "prompt")
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    raise bad("prompt must be a string or a list of token ids, one prompt for a request", "prompt")


def whole(meta: Meta, events: Sequence[Event], ended: Ended) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    body = _body(meta, collect(events).text, finish_reason(ended, 0))
    return {**body, "usage": usage(ended.usage), "timings": dict(ended.timings)}


class Stream:
    """Events of one reply to chunks."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def begin(self) -> list[Wire]:
        return []

    def started(self, cost: Usage) -> list[Wire]:
        return []

    def feed(self, event: Event) -> list[Wire]:
        return [Wire(None, _body(self._meta, event.text, None))] if isinstance(event, Text) else []

    def end(self, ended: Ended) -> list[Wire]:
        last = {**_body(self._meta, "", finish_reason(ended, 0)), "timings": dict(ended.timings)}
        wires = [Wire(None, last)]
        if self._meta.include_usage:
            wires.append(Wire(None, {**_body(self._meta, "", None), "choices": [], "usage": usage(ended.usage)}))
        return [*wires, Wire(None, "[DONE]")]

    def fail(self, refusal: Refusal) -> list[Wire]:
        return [Wire(None, error(refusal))]


def _body(meta: Meta, text: str, finish: str | None) -> dict[str, Any]:
    return {
        "id": f"cmpl-{meta.key}",
        "object": "text_completion",
        "created": meta.created,
        "model": meta.model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}],
    }
