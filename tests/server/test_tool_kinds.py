"""Tools that are no plain functions: raw text, namespaces, and the way of their calls out and back (Codex; spec 3.4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Scripted, calls_of, events_of, reply, serving

from ds4py.chat import ToolCall
from ds4py.server import chat_completions, responses
from ds4py.server.asked import Refusal, Shown, ToolChoice
from ds4py.server.raw_input import RawInput

PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
CALENDAR: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__cal",
    "description": "The calendar.",
    "tools": [
        {"type": "function", "name": "create", "description": "Makes an event.", "parameters": {"type": "object"}},
        {"type": "custom", "name": "note"},
        {"type": "web_search"},
    ],
}
BODY: dict[str, Any] = {"input": "x", "tools": [PATCH, CALENDAR, {"type": "web_search"}]}


def ignore(text: str) -> None:
    return None


def test_every_kind_is_shown_as_a_function() -> None:
    told: list[str] = []
    asked = responses.parse(BODY, told.append)
    assert told == ["tools[1].tools[2].type 'web_search'", "tools[2].type 'web_search'"]
    functions = {tool["function"]["name"]: tool["function"] for tool in asked.tools}
    assert list(functions) == ["apply_patch", "mcp__cal__create", "mcp__cal__note"]
    assert functions["apply_patch"]["parameters"]["required"] == ["input"]
    assert (
        functions["apply_patch"]["description"].startswith("Edits files.") and "Lark" in functions["apply_patch"]["description"]
    )
    assert functions["mcp__cal__create"]["description"] == "The calendar.\n\nMakes an event."
    assert functions["mcp__cal__note"].get("description") is None
    assert asked.shown == {
        "apply_patch": Shown("apply_patch", custom=True),
        "mcp__cal__create": Shown("create", "mcp__cal"),
        "mcp__cal__note": Shown("note", "mcp__cal", True),
    }
    nested = {"type": "custom", "custom": {**{k: v for k, v in PATCH.items() if k not in ("type", "format")}, "format": {
        "type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}}}  # fmt: skip
    in_chat = chat_completions.parse({"messages": [{"role": "user", "content": "x"}], "tools": [nested]}, ignore)
    assert in_chat.shown == {"apply_patch": Shown("apply_patch", custom=True)}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "custom", "name": "apply_patch"}, ("apply_patch",)),
        ({"type": "function", "name": "create", "namespace": "mcp__cal"}, ("mcp__cal__create",)),
    ],
)
def test_a_choice_names_them(choice: Any, names: tuple[str, ...]) -> None:
    assert responses.parse({**BODY, "tool_choice": choice}, ignore).choice == ToolChoice("required", names)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "custom"}, "tools[0].name is missing"),
        ({**PATCH, "format": {"type": "xml"}}, "must be text or grammar"),
        ({**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}, "lark or regex"),
        ({**PATCH, "format": {"type": "grammar", "syntax": "lark"}}, "a definition"),
        ({"type": "namespace", "tools": []}, "a namespace needs a name"),
        ({**CALENDAR, "tools": [{"type": "function"}]}, "tools[0].tools[0].name is missing"),
        ({**CALENDAR, "tools": [CALENDAR["tools"][0]] * 2}, "two tools have the name 'mcp__cal__create'"),
    ],
)
def test_what_is_wrong_with_them_is_said(tool: Any, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        responses.parse({"input": "x", "tools": [tool]}, ignore)
    assert words in str(refused.value) and refused.value.status == 400


def test_a_choice_of_a_tool_that_the_server_would_run_is_refused() -> None:
    with pytest.raises(Refusal, match="names a function or a custom tool"):
        responses.parse({**BODY, "tool_choice": {"type": "web_search"}}, ignore)


def test_calls_come_back_from_a_history() -> None:
    asked = responses.parse(
        {
            "input": [
                {"role": "user", "content": "x"},
                {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": 'a\n"b"'},
                {"type": "function_call", "call_id": "c2", "name": "create", "namespace": "mcp__cal", "arguments": "{}"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
                {"type": "function_call_output", "call_id": "c2", "output": "made"},
            ]
        },
        ignore,
    )
    first, second = asked.messages[1].tool_calls
    assert (first.name, json.loads(first.arguments), first.id) == ("apply_patch", {"input": 'a\n"b"'}, "c1")
    assert second == ToolCall("mcp__cal__create", "{}", "c2")
    assert [m.content for m in asked.messages[2:]] == ["done", "made"]
    history = [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "t", "input": "i"}}]}]
    (call,) = chat_completions.parse({"messages": history}, ignore).messages[0].tool_calls
    assert call == ToolCall("t", '{"input":"i"}', "c")


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=6))
def test_raw_text_survives_json_and_any_cut(text: str, ascii_only: bool, cuts: list[int]) -> None:
    written = json.dumps({"other": [{"input": "no"}], "input": text, "more": 1}, ensure_ascii=ascii_only)
    raw = RawInput()
    at = sorted({min(cut, len(written)) for cut in cuts})
    pieces = [written[a:b] for a, b in zip([0, *at], [*at, len(written)], strict=True)]
    assert "".join(raw.feed(piece) for piece in pieces) + raw.end() == text


PATCH_TEXT = '*** Begin Patch\n"q" \\ end'


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    made = calls_of(("apply_patch", json.dumps({"input": PATCH_TEXT})), ("mcp__cal__create", '{"a": 1}'))
    with serving({"replies": [reply("ok", when="<tool_response>\nmade"), reply(*made)]}) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True])
def test_codex_gets_raw_text_and_namespaces_and_brings_them_back(server: Scripted, stream: bool) -> None:
    body = {**BODY, "input": [{"role": "user", "content": "do"}], "stream": stream}
    answer = server.ask("/v1/responses", body)
    whole = events_of(answer.body)[-1][1]["response"] if stream else answer.json
    patch, create = whole["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", PATCH_TEXT)
    assert (create["name"], create["namespace"], create["arguments"]) == ("create", "mcp__cal", '{"a": 1}')
    results = [
        {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "done"},
        {"type": "function_call_output", "call_id": create["call_id"], "output": "made"},
    ]
    second = server.ask("/v1/responses", {**body, "stream": False, "input": [*body["input"], patch, create, *results]}).json
    assert second["output"][0]["content"][0]["text"] == "ok"
    cached = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached > whole["usage"]["input_tokens"]  # the calls were put back as they were sampled


SEARCHING: dict[str, Any] = {
    "input": [{"role": "user", "content": "do"}],
    "tools": [{"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}}],
}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_a_search_has_found_are_callable_and_the_prompt_before_it_stays(stream: bool) -> None:
    search, make = calls_of(("tool_search", '{"query": "calendar"}')), calls_of(("mcp__cal__create", '{"a": 1}'))
    script = [reply("ok", when="<tool_response>\nmade"), reply(*make, when="<tool_response>\nThese functions"), reply(*search)]
    with serving({"replies": script}) as server:

        def ask(items: list[Any]) -> Any:
            answer = server.ask("/v1/responses", {**SEARCHING, "input": [*SEARCHING["input"], *items], "stream": stream})
            return events_of(answer.body)[-1][1]["response"] if stream else answer.json

        first = ask([])
        (call,) = first["output"]
        assert (call["type"], call["execution"], call["arguments"]) == ("tool_search_call", "client", {"query": "calendar"})
        result = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": [CALENDAR]}
        second = ask([call, result])
        (made,) = second["output"]
        assert (made["type"], made["namespace"], made["name"]) == ("function_call", "mcp__cal", "create")
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > first["usage"]["input_tokens"]
        done = {"type": "function_call_output", "call_id": made["call_id"], "output": "made"}
        third = ask([call, result, made, done])
        assert third["output"][0]["content"][0]["text"] == "ok"
        assert third["usage"]["input_tokens_details"]["cached_tokens"] > second["usage"]["input_tokens"]


def test_a_search_that_the_server_would_do_is_left_out() -> None:
    told: list[str] = []
    asked = responses.parse({"input": "x", "tools": [{"type": "tool_search"}]}, told.append)
    assert told == ["tools[0].type 'tool_search'"] and asked.tools == ()
