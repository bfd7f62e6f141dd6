"""OpenAI's Chat Completions: body to request, events to chunks or to one answer. Pure: no sockets, no clock, no engine.

The order of a stream is the one that every client accepts: the role, reasoning, text, each call's header (index, id, name) and
then its arguments, one chunk with the finish reason, the usage if it was asked for, [DONE]. Indices rise from 0 and arguments are
always strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ds4py.chat import CallArguments, CallEnd, CallStart, Event, Message, Reasoning, Text, ToolCall, collect
from ds4py.server.asked import Asked, Refusal, bad
from ds4py.server.fields import Fields
from ds4py.server.raw_input import RawInput
from ds4py.server.reading import budget, result_of, sampling, stops, text_of, thinking
from ds4py.server.results import Ended, Meta, Usage, Wire
from ds4py.server.tools import Notice, call_of, custom_call_of, openai_choice, schema, tools_of

_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def parse(value: Any, notice: Notice) -> Asked:
    """The request in a body. Raises Refusal; `notice` is told of tools that are left out."""
    body = Fields(value)
    refuse_unsupported(body)
    if body.any("functions") is not None or body.any("function_call") is not None:
        raise bad("functions and function_call are not supported; use tools and tool_choice", "functions")
    messages = tuple(_message(item) for item in body.objects("messages"))
    if not messages:
        raise bad("messages is missing or empty: there is nothing to answer", "messages")
    tools = tools_of(body, notice)
    thought = thinking(body)
    options = body.object("stream_options")
    return Asked(
        model=body.text("model") or "",
        messages=messages,
        tools=tools.functions,
        shown=tools.shown,
        strict=tools.strict,
        choice=openai_choice(body, tools.functions),
        sampling=sampling(body),
        think=thought.think,
        effort=thought.effort,
        think_tokens=thought.tokens,
        stop=stops(body),
        max_tokens=budget(body, "max_tokens", "max_completion_tokens", "n_predict"),
        grammar=response_format(body),
        stream=bool(body.flag("stream")),
        include_usage=bool(options is not None and options.flag("include_usage")),
        ignored=body.unread(),
    )


def refuse_unsupported(body: Fields) -> None:
    """Fields of OpenAI's text APIs that would change the answer and cannot be obeyed."""
    if body.integer("n", 1) not in (None, 1):
        raise bad("n must be 1: this server makes one answer to a request", "n")
    if body.any("logprobs") not in (None, False) or type(body.any("logprobs")) is int or body.any("top_logprobs"):
        raise bad("logprobs are not supported", "logprobs")
    if body.any("audio") is not None or any(kind != "text" for kind in body.items("modalities") or ()):
        raise bad("modalities: this server answers in text only", "modalities")
    body.skip("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "cache_prompt")
    body.skip("prompt_cache_options", "prompt_cache_retention")


def response_format(body: Fields) -> tuple[str, Any] | None:
    """`response_format`, llama.cpp's `json_schema` and `grammar`, vLLM's `guided_json` and `guided_regex`, as a kind of
    grammar and its source."""
    found = body.object("response_format")
    if found is not None:
        kind = found.text("type") or "text"
        if kind == "json_object":
            own = schema(found, "schema")  # llama.cpp's
            return ("json_object", "") if own is None else ("json_schema", own)
        if kind == "json_schema":
            inner = found.object("json_schema") or found
            own = schema(inner, "schema")
            if own is None:
                raise bad(f"{inner.path('schema')} is missing", inner.path("schema"))
            return "json_schema", own
        if kind != "text":
            raise bad(f"response_format.type must be text, json_object or json_schema, not {kind!r:.40}", "response_format")
    own = schema(body, "json_schema") or schema(body, "guided_json")
    if own is not None:
        return "json_schema", own
    for name, form in (("grammar", "gbnf"), ("guided_regex", "regex")):
        if text := body.text(name):
            return form, text
    return None


def _message(item: Fields) -> Message:
    role = item.text("role")
    if role not in _ROLES:
        raise bad(f"{item.path('role')} must be one of {', '.join(_ROLES)}, not {role!r:.40}", item.path("role"))
    calls = tuple(_call(call) for call in item.objects("tool_calls")) if role == "assistant" else ()
    reasoning = (item.text("reasoning_content") or item.text("reasoning")) if role == "assistant" else None
    return Message(
        _ROLES[role],
        result_of(item, "content") if role == "tool" else text_of(item, "content"),
        reasoning or None,
        calls,
        item.text("name") if role != "tool" else None,
        item.text("tool_call_id") if role == "tool" else None,
    )


def _call(call: Fields) -> ToolCall:
    if (custom := call.object("custom")) is not None:
        return replace(custom_call_of(custom), id=call.text("id") or "")
    inner = call.object("function")
    if inner is None:
        raise bad(f"{call.path('function')} is missing", call.path("function"))
    return replace(call_of(inner), id=call.text("id") or "")


def finish_reason(ended: Ended, n_calls: int) -> str:
    return "length" if ended.cut else "tool_calls" if n_calls and not ended.unreadable else "stop"


def usage(cost: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": cost.prompt,
        "completion_tokens": cost.generated,
        "total_tokens": cost.prompt + cost.generated,
        "prompt_tokens_details": {"cached_tokens": cost.cached, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": cost.reasoning},
    }


def whole(meta: Meta, events: Sequence[Event], ended: Ended) -> dict[str, Any]:
    """The answer of a request that does not stream."""
    reply = collect(events)
    ids = [event.id for event in events if isinstance(event, CallStart)]
    message: dict[str, Any] = {"role": "assistant", "content": reply.text if reply.text or not reply.calls else None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": ids[i], **_whole_call(meta, call.name, call.arguments)} for i, call in enumerate(reply.calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(ended, len(reply.calls))}
    return {
        "id": f"chatcmpl-{meta.key}",
        "object": "chat.completion",
        "created": meta.created,
        "model": meta.model,
        "choices": [choice],
        "usage": usage(ended.usage),
        "timings": dict(ended.timings),
    }


def _whole_call(meta: Meta, name: str, arguments: str) -> dict[str, Any]:
    shown = meta.shown.get(name)
    if shown is None or not shown.custom:
        return {"type": "function", "function": {"name": name, "arguments": arguments}}
    raw = RawInput()
    return {"type": "custom", "custom": {"name": shown.name, "input": raw.feed(arguments) + raw.end()}}


class Stream:
    """Events of one reply to chunks."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._n_calls = 0
        self._raw: RawInput | None = None  # of the call at hand, if it is a custom tool's

    def begin(self) -> list[Wire]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def started(self, cost: Usage) -> list[Wire]:
        """The prompt is about to be read."""
        return []

    def feed(self, event: Event) -> list[Wire]:
        match event:
            case Text(text):
                return [self._chunk({"content": text})]
            case Reasoning(text):
                return [self._chunk({"reasoning_content": text})]
            case CallStart(index, name, call_id):
                self._n_calls += 1
                header = {"index": index, "id": call_id, **_whole_call(self._meta, name, "")}
                self._raw = RawInput() if header["type"] == "custom" else None
                return [self._chunk({"tool_calls": [header]})]
            case CallArguments(index, text) if self._raw is not None:
                return self._input(index, self._raw.feed(text))
            case CallArguments(index, text):
                return [self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})]
            case CallEnd(index, _, _) if self._raw is not None:
                return self._input(index, self._raw.end())
        return []

    def _input(self, index: int, text: str) -> list[Wire]:
        """A piece of a custom tool's input."""
        return [self._chunk({"tool_calls": [{"index": index, "custom": {"input": text}}]})] if text else []

    def end(self, ended: Ended) -> list[Wire]:
        last = self._chunk({}, finish_reason(ended, self._n_calls))
        last.data["timings"] = dict(ended.timings)
        wires = [last]
        if self._meta.include_usage:
            wires.append(Wire(None, {**self._base(), "choices": [], "usage": usage(ended.usage)}))
        return [*wires, Wire(None, "[DONE]")]

    def fail(self, refusal: Refusal) -> list[Wire]:
        return [Wire(None, error(refusal))]

    def _base(self) -> dict[str, Any]:
        meta = self._meta
        return {
            "id": f"chatcmpl-{meta.key}",
            "object": "chat.completion.chunk",
            "created": meta.created,
            "model": meta.model,
        }

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> Wire:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return Wire(None, {**self._base(), "choices": [choice]})


def error(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's form of an error, also that of Responses and Completions."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    body = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": body | refusal.numbers}
