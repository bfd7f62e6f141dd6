"""Anthropic's Messages: body to request, events to content blocks. Pure: no sockets, no clock, no engine.

A reply is a list of blocks, thinking, text, tool_use, each opened, filled and closed before the next one, with indices that rise
by one. In a stream arguments go out as far as they can become JSON: clients parse them as they come, and give up on the first
character that cannot. `input_tokens` is what was read anew; what was cached is told beside it. The billing line that one client
puts at the head of its system text, different each time, is set aside: it is addressed to a bill and not to a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ds4py.chat import CallArguments, CallEnd, CallStart, Event, Message, Reasoning, Text, ToolCall, collect
from ds4py.server.asked import Asked, Refusal, ToolChoice, bad
from ds4py.server.fields import Fields
from ds4py.server.json_prefix import JsonPrefix
from ds4py.server.reading import budget, no_media, result_of, sampling, stops, text_of, thinking
from ds4py.server.results import Ended, Meta, Usage, Wire
from ds4py.server.tools import Notice, arguments_of, as_object, checked_choice, schema, tool_of

BILLING: Final = "x-anthropic-billing-header:"


def parse(value: Any, notice: Notice) -> Asked:
    """The request in a body. Raises Refusal; `notice` is told of tools that are left out."""
    body = Fields(value)
    body.skip("metadata", "context_management", "container", "service_tier", "betas", "cache_control", "diagnostics")
    body.skip("inference_geo", "speed", "user_profile_id", "workspace_id")
    messages = [message for item in body.objects("messages") for message in _messages(item)]
    if not messages:
        raise bad("messages is missing or empty: there is nothing to answer", "messages")
    if system := _system(body):
        messages.insert(0, Message("system", system))
    tools = _tools(body, notice)
    thought = thinking(body)
    return Asked(
        model=body.text("model") or "",
        messages=tuple(messages),
        tools=tools,
        strict=any(tool.flag("strict") is True for tool in body.objects("tools")),
        choice=_choice(body, tools),
        sampling=sampling(body),
        think=thought.think,
        effort=thought.effort,
        think_tokens=thought.tokens,
        stop=stops(body, "stop_sequences"),
        max_tokens=budget(body, "max_tokens"),
        grammar=_output_format(body),
        stream=bool(body.flag("stream")),
        ignored=body.unread(),
    )


def _system(body: Fields) -> str:
    """The system text: a string, or blocks, of which those with the billing line are left out."""
    value = body.any("system")
    if not isinstance(value, list):
        text = text_of(body, "system")
        first, _, rest = text.partition("\n")
        return rest.lstrip("\n") if first.startswith(BILLING) else text
    texts = [text_of(Fields({"content": [item]}, f"system[{i}]"), "content") for i, item in enumerate(value)]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING))


def _messages(item: Fields) -> list[Message]:
    """One entry of `messages`; results of tools in it are turns of their own, in front of what else it says."""
    role = item.text("role")
    if role not in ("user", "assistant", "system"):
        raise bad(f"{item.path('role')} must be user or assistant, not {role!r:.40}", item.path("role"))
    value = item.any("content")
    blocks = [{"type": "text", "text": value}] if isinstance(value, str) else item.items("content") or ()
    results: list[Message] = []
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for i, entry in enumerate(blocks):
        block = Fields(entry, f"{item.path('content')}[{i}]")
        kind = block.text("type")
        if kind == "text":
            texts.append(block.text("text") or "")
        elif kind == "document":
            texts.append(_document(block))
        elif kind == "thinking":
            reasoning.append(block.text("thinking") or "")
        elif kind == "tool_use":
            calls.append(ToolCall(block.text("name") or "", arguments_of(block, "input"), block.text("id") or ""))
        elif kind == "tool_result":
            results.append(Message("tool", _result(block), tool_call_id=block.text("tool_use_id")))
        elif kind != "redacted_thinking":
            raise no_media(str(kind), block.where)
    if role == "assistant":
        return [Message(role, "".join(texts), "".join(reasoning) or None, tuple(calls))]
    return [*results, *([Message(role, "\n\n".join(texts))] if texts or not results else [])]


def _document(block: Fields) -> str:
    """A document that is text. Raises Refusal for another one."""
    source = block.object("source")
    kind = source.text("type") if source is not None else None
    if source is None or kind not in ("text", "content"):
        raise no_media("document", block.where)
    text = (source.text("data") or "") if kind == "text" else text_of(source, "content")
    title = block.text("title")
    return f"{title}\n\n{text}" if title else text


def _result(block: Fields) -> str:
    text = result_of(block, "content")
    return f"Error: {text}" if block.flag("is_error") and not text.startswith("Error") else text


def _tools(body: Fields, notice: Notice) -> tuple[Mapping[str, Any], ...]:
    found: dict[str, Mapping[str, Any]] = {}
    for tool in body.objects("tools"):
        kind = tool.text("type") or "custom"
        name = tool.text("name")
        if kind != "custom":
            notice(f"{tool.path('type')} {kind!r:.40}")
            continue
        if not name:
            raise bad(f"{tool.path('name')} is missing: a tool needs a name", tool.path("name"))
        if name in found:
            raise bad(f"two tools have the name {name!r:.64}", "tools")
        found[name] = tool_of(name, tool.text("description"), schema(tool, "input_schema"))
    return tuple(found.values())


def _choice(body: Fields, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    spoken = body.object("tool_choice")
    if spoken is None:
        return ToolChoice()
    kind, name = spoken.text("type"), spoken.text("name")
    parallel = spoken.flag("disable_parallel_tool_use") is not True
    modes = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
    if kind not in modes:
        raise bad(f"tool_choice.type must be auto, any, tool or none, not {kind!r:.40}", "tool_choice")
    if kind == "tool" and not name:
        raise bad("tool_choice.name is missing", "tool_choice")
    return checked_choice(ToolChoice(modes[kind], (name,) if kind == "tool" and name else (), parallel), tools)


def _output_format(body: Fields) -> tuple[str, Any] | None:
    """`output_format`, or `output_config.format`: JSON of a schema."""
    config = body.object("output_config")
    found = body.object("output_format") or (config.object("format") if config is not None else None)
    if found is None:
        return None
    own = schema(found, "schema")
    if found.text("type") != "json_schema" or own is None:
        raise bad(f"{found.where} must be a json_schema with a schema", found.where)
    return "json_schema", own


def stop_reason(ended: Ended, n_calls: int) -> str:
    if ended.cut:
        return "max_tokens" if ended.stop.reason == "length" else "model_context_window_exceeded"
    if n_calls and not ended.unreadable:
        return "tool_use"
    return "end_turn" if ended.stop.stop_string is None else "stop_sequence"


def usage(cost: Usage) -> dict[str, Any]:
    return {
        "input_tokens": cost.prompt - cost.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cost.cached,
        "output_tokens": cost.generated,
    }


def whole(meta: Meta, events: Sequence[Event], ended: Ended) -> dict[str, Any]:
    """The answer of a request that does not stream: the blocks of its stream, filled, and arguments whole."""
    calls = iter(collect(events).calls)
    content: list[dict[str, Any]] = []
    stream = Stream(meta)
    n_calls = sum(isinstance(event, CallStart) for event in events)
    for wire in [wire for event in events for wire in stream.feed(event)] + stream.end(ended):
        if wire.event == "content_block_start":
            content.append(dict(wire.data["content_block"]))
        elif wire.event == "content_block_delta":
            delta = dict(wire.data["delta"])
            if delta.pop("type") != "input_json_delta":
                content[-1] |= {name: content[-1][name] + text for name, text in delta.items()}
        elif wire.event == "content_block_stop" and content[-1]["type"] == "tool_use":
            content[-1]["input"] = as_object(next(calls).arguments)
    return {
        **_base(meta),
        "content": content,
        "stop_reason": stop_reason(ended, n_calls),
        "stop_sequence": ended.stop.stop_string,
        "usage": usage(ended.usage),
    }


class Stream:
    """Events of one reply to server-sent events."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._index = -1
        self._kind = ""  # of the open block
        self._n_calls = 0
        self._json = JsonPrefix()  # of the open call's arguments

    def begin(self) -> list[Wire]:
        return []

    def started(self, cost: Usage) -> list[Wire]:
        """The prompt is about to be read: only now it is known how much of it is cached."""
        message = {**_base(self._meta), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage(cost)}
        return [_wire("message_start", message=message)]

    def feed(self, event: Event) -> list[Wire]:
        match event:
            case Reasoning(text):
                delta = {"type": "thinking_delta", "thinking": text}
                return [*self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""}), self._delta(delta)]
            case Text(text):
                return [*self._open("text", {"type": "text", "text": ""}), self._delta({"type": "text_delta", "text": text})]
            case CallStart(_, name, call_id):
                self._n_calls += 1
                self._json = JsonPrefix()
                self_contained = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                return [*self._close(), *self._open("tool_use", self_contained)]
            case CallArguments(_, text):
                sound = self._json.feed(text)
                return [self._delta({"type": "input_json_delta", "partial_json": sound})] if sound else []
            case CallEnd():
                return self._close()
        return []

    def end(self, ended: Ended) -> list[Wire]:
        delta = {"stop_reason": stop_reason(ended, self._n_calls), "stop_sequence": ended.stop.stop_string}
        return [*self._close(), _wire("message_delta", delta=delta, usage=usage(ended.usage)), _wire("message_stop")]

    def fail(self, refusal: Refusal) -> list[Wire]:
        return [Wire("error", error(refusal))]

    def _open(self, kind: str, block: dict[str, Any]) -> list[Wire]:
        """Open a block of `kind`, unless one is open."""
        if self._kind == kind:
            return []
        wires = self._close()
        self._index, self._kind = self._index + 1, kind
        return [*wires, _wire("content_block_start", index=self._index, content_block=block)]

    def _close(self) -> list[Wire]:
        if not self._kind:
            return []
        wires = [self._delta({"type": "signature_delta", "signature": ""})] if self._kind == "thinking" else []
        self._kind = ""
        return [*wires, _wire("content_block_stop", index=self._index)]

    def _delta(self, delta: dict[str, Any]) -> Wire:
        return _wire("content_block_delta", index=self._index, delta=delta)


PING: Final = Wire("ping", {"type": "ping"})


def error(refusal: Refusal) -> dict[str, Any]:
    """Anthropic's form of an error."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    }
    kind = kinds.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    message = str(refusal)
    if refusal.code == "context_length_exceeded":
        numbers = refusal.numbers
        message = f"prompt is too long: {numbers['n_prompt_tokens']} tokens > {numbers['n_ctx']} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _base(meta: Meta) -> dict[str, Any]:
    return {"id": f"msg_{meta.key}", "type": "message", "role": "assistant", "model": meta.model}


def _wire(kind: str, **fields: Any) -> Wire:
    return Wire(kind, {"type": kind, **fields})
