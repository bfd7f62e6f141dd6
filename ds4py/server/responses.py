"""OpenAI's Responses: input items to messages, events to output items. Pure: no sockets, no clock, no engine.

A reply is a list of items: a reasoning item with its text as a summary, messages, function calls. Each is added, filled part by
part, and done, and the last event holds them all again in one response. Every event tells its own type and its number. Nothing
is stored: a conversation is replayed by its client, and a request that points to an earlier response is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ds4py.chat import CallArguments, CallEnd, CallStart, Event, Message, Reasoning, Text, ToolCall
from ds4py.server.asked import Asked, Refusal, Shown, bad
from ds4py.server.chat_completions import error
from ds4py.server.fields import Fields
from ds4py.server.raw_input import RawInput
from ds4py.server.reading import budget, result_of, sampling, stops, text_of, thinking
from ds4py.server.results import Ended, Meta, Usage, Wire
from ds4py.server.sse import to_json
from ds4py.server.tools import SEARCH, Notice, arguments_of, as_object, call_of, custom_call_of, openai_choice, schema, tools_of

__all__ = ["Stream", "error", "parse", "whole"]

_ID_LEADS: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "tool_search_call": "tsc",
}
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def parse(value: Any, notice: Notice) -> Asked:
    """The request in a body. Raises Refusal; `notice` is told of tools and items that are left out."""
    body = Fields(value)
    for name in ("previous_response_id", "conversation"):
        if body.any(name) is not None:
            raise bad(f"{name}: this server keeps no responses; send the whole conversation as input", name)
    if body.flag("background"):
        raise bad("background: this server answers while the client waits", "background")
    if body.integer("top_logprobs") or "message.output_text.logprobs" in (body.items("include") or ()):
        raise bad("logprobs are not supported", "top_logprobs")
    if body.any("prompt") is not None:
        raise bad("prompt: this server keeps no prompts; send the whole conversation as input", "prompt")
    body.skip("store", "include", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key", "truncation")
    body.skip("client_metadata", "stream_options", "max_tool_calls", "prompt_cache_options", "prompt_cache_retention")
    found = _Found({}, {})
    messages = _input(body, notice, found)
    if not messages:
        raise bad("input is missing or empty: there is nothing to answer", "input")
    if instructions := body.text("instructions"):
        messages.insert(0, Message("system", instructions))
    tools = tools_of(body, notice)
    given = {tool["function"]["name"] for tool in tools.functions}
    thought = thinking(body)
    return Asked(
        model=body.text("model") or "",
        messages=tuple(messages),
        tools=tools.functions,
        found=tuple(tool for name, tool in found.tools.items() if name not in given),
        shown={**found.shown, **tools.shown},
        strict=tools.strict,
        choice=openai_choice(body, tools.functions),
        sampling=sampling(body),
        think=thought.think,
        effort=thought.effort,
        think_tokens=thought.tokens,
        stop=stops(body),
        max_tokens=budget(body, "max_output_tokens"),
        grammar=_text_format(body),
        stream=bool(body.flag("stream")),
        ignored=body.unread(),
    )


@dataclass
class _Found:
    """Tools that searches in the conversation have found, by name, and what they stand for."""

    tools: dict[str, Mapping[str, Any]]
    shown: dict[str, Shown]


def _input(body: Fields, notice: Notice, found_tools: _Found) -> list[Message]:
    """Messages of the input items. Reasoning and calls join the assistant's turn they belong to."""
    value = body.any("input")
    if isinstance(value, str):
        return [Message("user", value)] if value else []
    found: list[Message] = []
    reasoning = ""
    for item in body.objects("input"):
        kind = item.text("type") or "message"
        if kind == "reasoning":
            reasoning += _reasoning(item)
            continue
        message = _item(item, kind, notice, found_tools)
        if message is None:
            continue
        if message.role == "assistant":
            last = found[-1] if found and found[-1].role == "assistant" else None
            if last is not None and not reasoning and not (message.content and last.tool_calls):
                found[-1] = replace(
                    last, content=last.content + message.content, tool_calls=(*last.tool_calls, *message.tool_calls)
                )
                continue
            message, reasoning = replace(message, reasoning=reasoning or None), ""
        found.append(message)
    return found


def _item(item: Fields, kind: str, notice: Notice, found: _Found) -> Message | None:
    if kind == "message":
        role = item.text("role")
        if role not in _ROLES:
            raise bad(f"{item.path('role')} must be one of {', '.join(_ROLES)}, not {role!r:.40}", item.path("role"))
        return Message(_ROLES[role], text_of(item, "content"))
    if kind == "function_call":
        return Message("assistant", tool_calls=(call_of(item, "call_id"),))
    if kind == "custom_tool_call":
        return Message("assistant", tool_calls=(custom_call_of(item, "call_id"),))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return Message("tool", result_of(item, "output"), tool_call_id=item.text("call_id"))
    if kind == "tool_search_call":
        return Message("assistant", tool_calls=(ToolCall(SEARCH, arguments_of(item, "arguments"), item.text("call_id") or ""),))
    if kind == "tool_search_output":
        tools = tools_of(item, notice)
        found.tools.update({tool["function"]["name"]: tool for tool in tools.functions})
        found.shown.update(tools.shown)
        lines = [to_json(tool["function"]).decode() for tool in tools.functions]
        told = "\n".join(("These functions can be called now:", *lines)) if lines else "No tool was found."
        return Message("tool", told, tool_call_id=item.text("call_id"))
    notice(f"{item.path('type')} {kind!r:.40}")
    return None


def _reasoning(item: Fields) -> str:
    """The text of a reasoning item: its content, or its summary, which is what this server sends."""
    content = text_of(item, "content", ("reasoning_text", "text"))
    return content or text_of(item, "summary", ("summary_text", "text"))


def _text_format(body: Fields) -> tuple[str, Any] | None:
    text = body.object("text")
    if text is None:
        return None
    text.skip("verbosity")
    found = text.object("format")
    kind = (found.text("type") or "text") if found is not None else "text"
    if found is None or kind == "text":
        return None
    if kind == "json_object":
        return "json_object", ""
    own = schema(found, "schema")
    if kind != "json_schema" or own is None:
        raise bad("text.format must be text, json_object, or json_schema with a schema", "text.format")
    return "json_schema", own


def usage(cost: Usage) -> dict[str, Any]:
    return {
        "input_tokens": cost.prompt,
        "input_tokens_details": {"cached_tokens": cost.cached, "cache_write_tokens": 0},
        "output_tokens": cost.generated,
        "output_tokens_details": {"reasoning_tokens": cost.reasoning},
        "total_tokens": cost.prompt + cost.generated,
    }


def whole(meta: Meta, events: Sequence[Event], ended: Ended) -> dict[str, Any]:
    """The answer of a request that does not stream: what its stream ends with."""
    stream = Stream(meta)
    for event in events:
        stream.feed(event)
    final: dict[str, Any] = stream.end(ended)[-1].data["response"]
    return final


class Stream:
    """Events of one reply to server-sent events."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._number = -1
        self._output: list[dict[str, Any]] = []  # items that are done
        self._kind = ""  # of the open item
        self._text = ""  # of the open item
        self._call: dict[str, Any] = {}
        self._raw = RawInput()  # of the open item, if it is a custom tool's call

    def begin(self) -> list[Wire]:
        return [self._wire(f"response.{name}", response=self._response("in_progress")) for name in ("created", "in_progress")]

    def started(self, cost: Usage) -> list[Wire]:
        return []

    def feed(self, event: Event) -> list[Wire]:
        match event:
            case Reasoning(text):
                return self._more("reasoning", text, "response.reasoning_summary_text.delta", summary_index=0)
            case Text(text):
                return self._more("message", text, "response.output_text.delta", content_index=0, logprobs=[])
            case CallStart(_, name, call_id):
                wires = self._done()
                shown = self._meta.shown.get(name, Shown(name))
                self._call = {"call_id": call_id, "name": shown.name}
                if shown.namespace is not None:
                    self._call["namespace"] = shown.namespace
                self._raw = RawInput()
                kind = "tool_search_call" if shown.searches else "custom_tool_call" if shown.custom else "function_call"
                return wires + self._open(kind)
            case CallArguments(_, text) if self._kind == "custom_tool_call":
                return self._input(self._raw.feed(text))
            case CallArguments(_, text) if self._kind == "tool_search_call":
                self._text += text  # it is sent when it is whole
                return []
            case CallArguments(_, text):
                return self._more("function_call", text, "response.function_call_arguments.delta")
            case CallEnd(_, complete, _):
                wires = self._input(self._raw.end()) if self._kind == "custom_tool_call" else []
                return wires + self._done("completed" if complete else "incomplete")
        return []

    def _input(self, text: str) -> list[Wire]:
        """A piece of a custom tool's input."""
        return self._more("custom_tool_call", text, "response.custom_tool_call_input.delta") if text else []

    def end(self, ended: Ended) -> list[Wire]:
        wires = self._done("incomplete" if ended.cut else "completed")
        final = self._response("incomplete" if ended.cut else "completed", ended)
        return [*wires, self._wire(f"response.{final['status']}", response=final)]

    def fail(self, refusal: Refusal) -> list[Wire]:
        final = self._response("failed")
        final["error"] = {"code": refusal.code or "server_error", "message": str(refusal)}
        return [self._wire("response.failed", response=final)]

    def _more(self, kind: str, text: str, name: str, **fields: Any) -> list[Wire]:
        """A piece of the item of `kind`, which is opened if it is not open."""
        wires = [] if self._kind == kind else [*self._done(), *self._open(kind)]
        self._text += text
        return [*wires, self._at(name, delta=text, **fields)]

    def _open(self, kind: str) -> list[Wire]:
        self._kind, self._text = kind, ""
        wires = [self._wire("response.output_item.added", output_index=len(self._output), item=self._item("in_progress"))]
        if kind == "message":
            wires.append(self._at("response.content_part.added", content_index=0, part=_text_part("")))
        elif kind == "reasoning":
            wires.append(self._at("response.reasoning_summary_part.added", summary_index=0, part=_summary("")))
        return wires

    def _done(self, status: str = "completed") -> list[Wire]:
        if not self._kind:
            return []
        text, wires = self._text, list[Wire]()
        if self._kind == "message":
            wires.append(self._at("response.output_text.done", content_index=0, text=text, logprobs=[]))
            wires.append(self._at("response.content_part.done", content_index=0, part=_text_part(text)))
        elif self._kind == "reasoning":
            wires.append(self._at("response.reasoning_summary_text.done", summary_index=0, text=text))
            wires.append(self._at("response.reasoning_summary_part.done", summary_index=0, part=_summary(text)))
        elif self._kind == "tool_search_call":
            pass  # its arguments are an object, which no event can give a piece of
        elif self._kind == "custom_tool_call":
            wires.append(self._at("response.custom_tool_call_input.done", input=text))
        else:
            wires.append(self._at("response.function_call_arguments.done", name=self._call["name"], arguments=text))
        item = self._item(status)
        wires.append(self._wire("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._kind = ""
        return wires

    def _item(self, status: str) -> dict[str, Any]:
        """The open item as it stands."""
        done = status != "in_progress"
        if self._kind == "message":
            content = [_text_part(self._text)] if done else []
            return {"type": "message", "id": self._item_id(), "status": status, "role": "assistant", "content": content}
        if self._kind == "reasoning":
            summary = [_summary(self._text)] if done else []
            return {"type": "reasoning", "id": self._item_id(), "summary": summary, "encrypted_content": None}
        if self._kind == "tool_search_call":
            base = {"type": self._kind, "id": self._item_id(), "status": status, "call_id": self._call["call_id"]}
            return {**base, "execution": "client", "arguments": as_object(self._text)}
        field = "input" if self._kind == "custom_tool_call" else "arguments"
        return {"type": self._kind, "id": self._item_id(), "status": status, **self._call, field: self._text}

    def _item_id(self) -> str:
        return f"{_ID_LEADS[self._kind]}_{self._meta.key}{len(self._output):04d}"

    def _at(self, kind: str, **fields: Any) -> Wire:
        return self._wire(kind, item_id=self._item_id(), output_index=len(self._output), **fields)

    def _wire(self, kind: str, **fields: Any) -> Wire:
        self._number += 1
        return Wire(kind, {"type": kind, "sequence_number": self._number, **fields})

    def _response(self, status: str, ended: Ended | None = None) -> dict[str, Any]:
        echo: Callable[[str, Any], Any] = self._meta.echo.get
        reason = "max_output_tokens" if ended is not None and ended.cut else None
        return {
            "id": f"resp_{self._meta.key}",
            "object": "response",
            "created_at": self._meta.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "instructions": echo("instructions", None),
            "max_output_tokens": echo("max_output_tokens", None),
            "model": self._meta.model,
            "output": list(self._output),
            "parallel_tool_calls": echo("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": echo("reasoning", {"effort": None, "summary": None}),
            "store": False,
            "temperature": echo("temperature", None),
            "text": echo("text", {"format": {"type": "text"}}),
            "tool_choice": echo("tool_choice", "auto"),
            "tools": echo("tools", []),
            "top_p": echo("top_p", None),
            "truncation": "disabled",
            "usage": usage(ended.usage) if ended is not None else None,
            "metadata": echo("metadata", {}),
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}
