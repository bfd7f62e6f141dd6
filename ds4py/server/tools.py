"""The tools of a request: every kind of them as functions, which is what models are trained to call.

Beside functions, OpenAI's APIs know custom tools, whose input is raw text, and namespaces, which group tools under a name. A
model is shown a function in their place: one with a single string for a raw text (its grammar is told in the description; the
client checks it), and one whose name begins with the namespace. A search for more tools that the client does is a function too;
what it finds is told to the model in the result of that call, so that the prompt before it stays as it was. `Shown` remembers
what a function stands for, so that a call comes back in the client's own terms. Kinds that a server would have to run itself (web
search ...) are left out, with a word to the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ds4py.chat import ToolCall
from ds4py.server.asked import Shown, ToolChoice, bad
from ds4py.server.fields import Fields, kind_of
from ds4py.server.sse import to_json

Notice = Callable[[str], None]
Tool = Mapping[str, Any]

INPUT: Final = "input"  # the one parameter of a custom tool
SEARCH: Final = "tool_search"


@dataclass(frozen=True)
class Tools:
    """functions: in the nested form of Chat Completions; shown: what those stand for that are no plain functions, by name;
    strict: one of them is, so calls must obey their schemas."""

    functions: tuple[Tool, ...]
    shown: Mapping[str, Shown]
    strict: bool


def tools_of(body: Fields, notice: Notice) -> Tools:
    """`tools` of a request. Raises Refusal for one without a name or with a name twice."""
    found: dict[str, Tool] = {}
    shown: dict[str, Shown] = {}
    for name, tool, stands_for in _all(body, "tools", notice):
        if name in found:
            raise bad(f"two tools have the name {name!r:.64}", body.path("tools"))
        found[name] = tool
        if stands_for is not None:
            shown[name] = stands_for
    return Tools(tuple(found.values()), shown, any(_is_strict(tool) for tool in body.objects("tools")))


def _is_strict(tool: Fields) -> bool:
    inner = tool.object("function") or tool
    return inner.flag("strict") is True or any(_is_strict(one) for one in inner.objects("tools"))


def _all(body: Fields, field: str, notice: Notice) -> Iterator[tuple[str, Tool, Shown | None]]:
    for tool in body.objects(field):
        kind = tool.text("type") or "function"
        if kind == "function":
            name, made = _function(tool)
            yield name, made, None
        elif kind == "custom":
            name, made = _custom(tool)
            yield name, made, Shown(name, custom=True)
        elif kind == "namespace":
            yield from _namespace(tool, notice)
        elif kind == "tool_search" and tool.text("execution") == "client":
            yield SEARCH, tool_of(SEARCH, tool.text("description"), schema(tool, "parameters")), Shown(SEARCH, searches=True)
        else:
            notice(f"{tool.path('type')} {kind!r:.40}")


def _function(tool: Fields) -> tuple[str, Tool]:
    inner = tool.object("function") or tool
    name = _name(inner, "function")
    return name, tool_of(name, inner.text("description"), schema(inner, "parameters"))


def _custom(tool: Fields) -> tuple[str, Tool]:
    """A tool that takes raw text, as a function of one string."""
    inner = tool.object("custom") or tool
    name = _name(inner, "tool")
    words = [inner.text("description") or ""]
    text: dict[str, Any] = {"type": "string"}
    form = inner.object("format")
    kind = (form.text("type") or "text") if form is not None else "text"
    if form is not None and kind == "grammar":
        grammar = form.object("grammar") or form
        syntax, definition = grammar.text("syntax"), grammar.text("definition")
        if syntax not in ("lark", "regex") or not definition:
            raise bad(f"{grammar.where} must be a grammar with the syntax lark or regex and a definition", grammar.where)
        what = "Lark grammar" if syntax == "lark" else "regular expression"
        words.append(f"The {INPUT} must match this {what}:\n{definition}")
    elif kind != "text":
        raise bad(f"{inner.path('format')}.type must be text or grammar, not {kind!r:.40}", inner.path("format"))
    description = "\n\n".join(word for word in words if word)
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return name, tool_of(name, description or None, parameters)


def _namespace(tool: Fields, notice: Notice) -> Iterator[tuple[str, Tool, Shown]]:
    """The tools of a namespace; the first one's description begins with that of the namespace."""
    namespace, lead = _name(tool, "namespace"), tool.text("description")
    for name, made, stands_for in _all(tool, "tools", notice):
        long = joined_name(namespace, name)
        own = made["function"].get("description")
        words = "\n\n".join(word for word in (lead, own) if word)
        lead = None
        yield (
            long,
            tool_of(long, words or None, made["function"]["parameters"]),
            Shown(name, namespace, stands_for is not None and stands_for.custom),
        )


def joined_name(namespace: str | None, name: str) -> str:
    """A name in a namespace, as one word."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _name(fields: Fields, noun: str) -> str:
    name = fields.text("name")
    if not name:
        raise bad(f"{fields.path('name')} is missing: a {noun} needs a name", fields.path("name"))
    return name


def schema(fields: Fields, name: str) -> Mapping[str, Any] | None:
    found = fields.any(name)
    if found is not None and not isinstance(found, Mapping):
        raise bad(f"{fields.path(name)} must be a JSON schema (an object), not {kind_of(found)}", fields.path(name))
    return found


def tool_of(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Tool:
    """A tool as templates expect it."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def openai_choice(body: Fields, tools: Sequence[Tool]) -> ToolChoice:
    """`tool_choice` and `parallel_tool_calls` of OpenAI's APIs, with the names of tools flat or nested. Raises Refusal."""
    value = body.any("tool_choice")
    parallel = body.flag("parallel_tool_calls") is not False
    if value is None or isinstance(value, str):
        mode = value or "auto"
        if mode not in ("auto", "none", "required"):
            raise bad(f"tool_choice must be auto, none, required or a tool, not {mode!r:.40}", "tool_choice")
        return checked_choice(ToolChoice(mode, (), parallel), tools)
    spoken = Fields(value, "tool_choice")
    kind = spoken.text("type") or "function"
    if kind == "allowed_tools":
        allowed = spoken.object("allowed_tools") or spoken
        names = tuple(name for tool in allowed.objects("tools") if (name := _named(tool)))
        mode = allowed.text("mode") or "auto"
        if mode not in ("auto", "required"):
            raise bad(f"tool_choice.mode must be auto or required, not {mode!r:.40}", "tool_choice")
        return checked_choice(ToolChoice(mode, names, parallel), tools)
    name = _named(spoken)
    if kind not in ("function", "custom") or not name:
        raise bad("tool_choice as an object names a function or a custom tool", "tool_choice")
    return checked_choice(ToolChoice("required", (name,), parallel), tools)


def _named(fields: Fields) -> str | None:
    inner = fields.object("function") or fields.object("custom") or fields
    name = inner.text("name")
    return joined_name(inner.text("namespace"), name) if name else None


def checked_choice(choice: ToolChoice, tools: Sequence[Tool]) -> ToolChoice:
    """`choice`, if the tools allow it. Raises Refusal for a choice without tools or of an unknown one."""
    known = {tool["function"]["name"] for tool in tools}
    for name in choice.names:
        if name not in known:
            raise bad(f"tool_choice asks for {name!r:.64}, which is not among the tools", "tool_choice")
    if choice.mode == "required" and not tools:
        raise bad("tool_choice asks for a call, but there are no tools that a model can call", "tool_choice")
    return choice


# --- calls in a history ----------------------------------------------------------------------------------------------------


def arguments_of(fields: Fields, name: str) -> str:
    """A call's arguments in a history as JSON text: a string as it is, an object written out."""
    value = fields.any(name)
    if value is None or isinstance(value, str):
        return value or ""
    return to_json(value).decode()


def call_of(fields: Fields, id_name: str = "id") -> ToolCall:
    """A call in a history: an object with name and arguments."""
    name = joined_name(fields.text("namespace"), _name(fields, "call"))
    return ToolCall(name, arguments_of(fields, "arguments"), fields.text(id_name) or "")


def custom_call_of(fields: Fields, id_name: str = "id") -> ToolCall:
    """A custom tool's call in a history: an object with name and input."""
    name = joined_name(fields.text("namespace"), _name(fields, "call"))
    return ToolCall(name, to_json({INPUT: fields.text("input") or ""}).decode(), fields.text(id_name) or "")


def as_object(arguments: str) -> Any:
    """Arguments as an object, for APIs that want one; text that is none is kept where a model can see it."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"_invalid_arguments": arguments}
