"""Bodies to requests: three spellings of one conversation, what is refused, what is ignored (FC-19, FC-23, FC-35)."""

from __future__ import annotations

from typing import Any

import pytest

from ds4py.chat import Message, ToolCall
from ds4py.server import chat_completions, completions, messages, responses
from ds4py.server.asked import Asked, Refusal, ToolChoice
from ds4py.server.fields import read_json

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
USER = {"messages": [{"role": "user", "content": "hi"}]}


def ignore(text: str) -> None:
    return None


def chat(**fields: Any) -> Asked:
    return chat_completions.parse({**USER, **fields}, ignore)


def test_three_spellings_of_one_conversation() -> None:
    call = {"name": "f", "arguments": '{"a": "b"}'}
    in_chat = chat_completions.parse(
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "S"},
                {"role": "user", "content": [{"type": "text", "text": "do"}]},
                {"role": "assistant", "content": None, "reasoning_content": "plan", "tool_calls": [
                    {"id": "call_1", "type": "function", "function": call}
                ]},
                {"role": "tool", "tool_call_id": "call_1", "content": "done"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": "D", "parameters": SCHEMA}}],
            "max_completion_tokens": 5,
            "temperature": 0,
            "reasoning_effort": "high",
        },
        ignore,
    )  # fmt: skip
    in_messages = messages.parse(
        {
            "model": "m",
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cc=1"}, {"type": "text", "text": "S"}],
            "messages": [
                {"role": "user", "content": "do"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "plan", "signature": "s"},
                    {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": "b"}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "done"}]},
            ],
            "tools": [{"name": "f", "description": "D", "input_schema": SCHEMA}],
            "max_tokens": 5,
            "temperature": 0,
            "output_config": {"effort": "high"},
            "context_management": {},
        },
        ignore,
    )  # fmt: skip
    in_responses = responses.parse(
        {
            "model": "m",
            "instructions": "S",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "do"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "plan"}], "content": None},
                {"type": "function_call", "call_id": "call_1", **call},
                {"type": "function_call_output", "call_id": "call_1", "output": "done"},
            ],
            "tools": [{"type": "function", "name": "f", "description": "D", "parameters": SCHEMA}],
            "max_output_tokens": 5,
            "temperature": 0,
            "reasoning": {"effort": "high"},
        },
        ignore,
    )
    want = (
        Message("system", "S"),
        Message("user", "do"),
        Message("assistant", "", "plan", (ToolCall("f", '{"a": "b"}', "call_1"),)),
        Message("tool", "done", tool_call_id="call_1"),
    )
    assert in_chat.messages == in_responses.messages == want
    assert [m.tool_calls[0].parsed() for m in in_messages.messages if m.tool_calls] == [{"a": "b"}]
    for asked in (in_chat, in_messages, in_responses):
        assert asked.tools == in_chat.tools and asked.sampling.temperature == 0 and asked.max_tokens == 5
        assert (asked.think, asked.effort, asked.ignored) == (None, "high", ())
        assert [m.role for m in asked.messages] == [m.role for m in want] and asked.messages[2].reasoning == "plan"


REFUSED = [  # field, value, words of the sentence
    ("n", 2, "n must be 1"),
    ("logprobs", True, "logprobs"),
    ("response_format", {"type": "xml"}, "response_format.type"),
    ("response_format", {"type": "json_schema"}, "schema is missing"),
    ("modalities", ["audio"], "text only"),
    ("temperature", -1, "temperature must be a number from 0"),
    ("temperature", "hot", "'hot'"),
    ("top_p", 1.5, "from 0 to 1"),
    ("max_tokens", 1.5, "whole number"),
    ("stop", 5, "stop must be"),
    ("stream", "yes", "true or false"),
    ("logit_bias", {"abc": 5}, "'abc'"),
    ("logit_bias", {"-1": 5}, "'-1'"),
    ("logit_bias", {"5": "NaN"}, "logit_bias.5"),
    ("logit_bias", {"5": 101}, "from -100 to 100"),
    ("tools", [{"type": "function"}], "a function needs a name"),
    ("tools", [{"type": "function", "function": {"name": "f"}}] * 2, "two tools"),
    ("tools", {"f": 1}, "tools must be a list"),
    ("tool_choice", "sometimes", "tool_choice must be"),
    ("tool_choice", "required", "no tools that a model can call"),
    ("tool_choice", {"type": "function", "function": {"name": "g"}}, "not among the tools"),
    ("functions", [], "use tools"),
    ("reasoning_effort", "huge", "the effort must be"),
    ("messages", [], "nothing to answer"),
    ("messages", [{"role": "wizard", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "text only"),
    ("messages", [{"role": "assistant", "tool_calls": [{"id": "x"}]}], "tool_calls[0].function is missing"),
    ("messages", ["x"], "messages[0] must be a JSON object"),
]


@pytest.mark.parametrize(("field", "value", "words"), REFUSED)
def test_what_cannot_be_obeyed_is_refused_by_name(field: str, value: Any, words: str) -> None:
    with pytest.raises(Refusal, match="."):
        chat(**{field: value})
    try:
        chat(**{field: value})
    except Refusal as refusal:
        assert words in str(refusal) and refusal.status == 400


def test_unknown_fields_and_tools_are_left_out_and_told() -> None:
    told: list[str] = []
    asked = chat_completions.parse(
        {**USER, "wild": 1, "store": False, "nothing": None, "tools": [{"type": "web_search"}], "n": 1, "logprobs": False},
        told.append,
    )
    assert asked.ignored == ("wild",) and told == ["tools[0].type 'web_search'"] and asked.tools == ()


@pytest.mark.parametrize(
    ("given", "want"),
    [
        *[(text, text) for text in ('{"path": "a', "", "null", "[]")],
        ({"a": 1}, '{"a":1}'),
        (5, "5"),
        (["\ud83d"], '["\ufffd"]'),  # half a character, which no UTF-8 can hold
    ],
)
def test_arguments_of_any_kind_in_a_history(given: Any, want: str) -> None:
    history = [*USER["messages"], {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": given}}]}]
    assert chat(messages=history).messages[1].tool_calls[0].arguments == want


def test_choices_of_tools() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    assert chat(tools=tools, tool_choice="required").choice == ToolChoice("required")
    assert chat(tools=tools, parallel_tool_calls=False).choice == ToolChoice("auto", (), False)
    one = {"type": "function", "function": {"name": "g"}}
    assert chat(tools=tools, tool_choice=one).choice == ToolChoice("required", ("g",))
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [one]}}
    assert chat(tools=tools, tool_choice=some).choice == ToolChoice("auto", ("g",))
    flat = [{"type": "function", "name": "f"}]
    base = {"input": "x", "tools": flat}
    assert responses.parse({**base, "tool_choice": {"type": "function", "name": "f"}}, ignore).choice.names == ("f",)
    claude = {**USER, "tools": [{"name": "f"}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    assert messages.parse(claude, ignore).choice == ToolChoice("required", (), False)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, (None, None)),
        ({"thinking": {"type": "disabled"}}, (False, None)),
        ({"thinking": {"type": "adaptive"}}, (True, None)),
        ({"thinking": True}, (True, None)),
        ({"think": False}, (False, None)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, (False, None)),
        ({"reasoning_effort": "none"}, (False, None)),
        ({"reasoning_effort": "low"}, (None, "low")),
        ({"reasoning_effort": "none", "think": True}, (True, None)),
    ],
)
def test_all_ways_to_speak_of_thinking(fields: dict[str, Any], want: tuple[Any, Any]) -> None:
    asked = chat(**fields)
    assert (asked.think, asked.effort) == want


@pytest.mark.parametrize(
    ("fields", "think", "tokens"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True, 2000),
        ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, False, None),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking_budget": 7, "thinking_budget_tokens": 5}, None, 5),
        ({"thinking_budget": 0}, False, None),
        ({"thinking_budget_tokens": -1}, None, None),
    ],
)
def test_limits_of_thinking(fields: dict[str, Any], think: bool | None, tokens: int | None) -> None:
    for asked in (chat(**fields), messages.parse({**USER, **fields}, ignore), responses.parse({"input": "x", **fields}, ignore)):
        assert (asked.think, asked.think_tokens) == (think, tokens) and asked.ignored == ()


def test_formats_of_the_answer() -> None:
    assert chat(response_format={"type": "json_object"}).grammar == ("json_object", "")
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    assert chat(response_format=named).grammar == ("json_schema", SCHEMA)
    assert chat(response_format={"type": "text"}).grammar is None
    flat = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"}
    assert responses.parse({"input": "x", "text": flat}, ignore).grammar == ("json_schema", SCHEMA)
    claude = {**USER, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    assert messages.parse(claude, ignore).grammar == ("json_schema", SCHEMA)


def test_responses_keep_nothing() -> None:
    for field in ("previous_response_id", "conversation"):
        with pytest.raises(Refusal, match="send the whole conversation"):
            responses.parse({"input": "x", field: "resp_1"}, ignore)


def test_items_of_one_turn_become_one_message() -> None:
    asked = responses.parse(
        {
            "input": [
                {"type": "message", "role": "user", "content": "a"},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
                {"type": "item_reference", "id": "x"},
            ]
        },
        ignore,
    )
    calls = (ToolCall("f", "{}", "c1"), ToolCall("g", "{}", "c2"))
    assert asked.messages[1:] == (Message("assistant", "b", "r", calls), Message("tool", "1", tool_call_id="c1"))


def test_a_picture_that_a_tool_gave_does_not_end_the_conversation() -> None:
    """It stays in the history, so a refusal would come back with every request; a picture of the user's is refused."""
    parts: list[Any] = [{"type": "text", "text": "see "}, {"type": "image", "source": {"type": "base64", "data": "x"}}]
    want = "see (image: not shown, only text can be read here)"
    result = {"type": "tool_result", "tool_use_id": "t", "content": parts}
    assert messages.parse({"messages": [{"role": "user", "content": [result]}]}, ignore).messages[0].content == want
    assert chat(messages=[{"role": "tool", "tool_call_id": "t", "content": parts}]).messages[0].content == want
    output = {"type": "function_call_output", "call_id": "t", "output": parts}
    assert responses.parse({"input": [output]}, ignore).messages[0].content == want
    for parse, body in (
        (messages.parse, {"messages": [{"role": "user", "content": parts}]}),
        (responses.parse, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ):
        with pytest.raises(Refusal, match="text only"):
            parse(body, ignore)


def test_documents_that_are_text_are_read() -> None:
    def read(**fields: Any) -> str:
        block = {"type": "document", **fields}
        return messages.parse({"messages": [{"role": "user", "content": [block]}]}, ignore).messages[0].content

    assert read(source={"type": "text", "media_type": "text/plain", "data": "abc"}) == "abc"
    assert read(title="T", source={"type": "content", "content": [{"type": "text", "text": "abc"}]}) == "T\n\nabc"
    for source in ({"type": "base64", "data": "x"}, None):
        with pytest.raises(Refusal, match="text only"):
            read(source=source)


def test_the_billing_line_is_set_aside_however_it_comes() -> None:
    for system in ("x-anthropic-billing-header: a\nS", [{"type": "text", "text": "x-anthropic-billing-header: b"}, "S"]):
        assert messages.parse({**USER, "system": system}, ignore).messages[0] == Message("system", "S")


def test_results_come_before_the_words_beside_them() -> None:
    content = [
        {"type": "text", "text": "and"},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}], "is_error": True},
    ]
    asked = messages.parse({"messages": [{"role": "user", "content": content}]}, ignore)
    assert asked.messages == (Message("tool", "Error: r", tool_call_id="t"), Message("user", "and"))


def test_prompts_of_completions() -> None:
    assert completions.parse({"prompt": "x"}, ignore).prompt == completions.parse({"prompt": ["x"]}, ignore).prompt == "x"
    assert completions.parse({"prompt": [1, 2]}, ignore).prompt == (1, 2)
    for prompt in (None, "", [], ["a", "b"], [1, "a"], [True]):
        with pytest.raises(Refusal):
            completions.parse({"prompt": prompt}, ignore)
    for field, value in (("echo", True), ("suffix", "x"), ("best_of", 2)):
        with pytest.raises(Refusal, match=field):
            completions.parse({"prompt": "x", field: value}, ignore)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": NaN}', b"[" * 100_000, b"\xff", b'"\x00'])
def test_bodies_that_are_no_json(body: bytes) -> None:
    with pytest.raises(Refusal):
        read_json(body)


def test_half_surrogates_are_taken() -> None:
    assert read_json(b'{"a": "\\ud83d\\ude00", "b": "\\ud83d"}') == {"a": "\U0001f600", "b": "\ud83d"}
