"""openai-python against our server: chat, responses, completions, streaming and not, tools, errors, a stream that is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from client_scenarios import NUMBERS, SCHEMA, SCRIPT
from scripted_server import Scripted, copying, plain, serving

from ds4py.server.app import Settings
from ds4py.server.guard import Access

openai = pytest.importorskip("openai", reason="the openai client is not installed: pip install ds4py[clients]")

TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "add", "parameters": NUMBERS}},
]
FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module", params=[None, copying()], ids=["plain", "drafting"])
def server(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    print(f"openai-python {openai.__version__}")
    with serving(SCRIPT, equip=request.param or plain) as found:
        yield found


@pytest.fixture
def client(server: Scripted) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)


def asks(word: str) -> Any:
    return [{"role": "user", "content": f"#{word}#"}]


@pytest.mark.parametrize("word", ["hello", "think", "two", "texttool", "emoji"])
def test_a_stream_adds_up_to_the_whole(client: Any, word: str) -> None:
    whole = client.chat.completions.create(model="m", messages=asks(word), tools=TOOLS)
    message = whole.choices[0].message
    with client.chat.completions.stream(model="m", messages=asks(word), tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    got = final.choices[0].message
    assert (got.content or "") == (message.content or "")
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert getattr(got, "reasoning_content", None) == getattr(message, "reasoning_content", None)
    calls, streamed = message.tool_calls or [], got.tool_calls or []
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        (c.function.name, json.loads(c.function.arguments)) for c in streamed
    ]
    assert len({call.id for call in [*calls, *streamed]}) == len(calls) + len(streamed)
    assert len(calls) == {"two": 2, "texttool": 1}.get(word, 0)


def test_two_calls_have_their_own_arguments(client: Any) -> None:
    choice = client.chat.completions.create(model="m", messages=asks("two"), tools=TOOLS).choices[0]
    first, second = choice.message.tool_calls
    assert json.loads(first.function.arguments) == {"city": "Rome", "note": 'caf\u00e9 "x"'}
    assert json.loads(second.function.arguments) == {"a": 2, "b": 3} and choice.finish_reason == "tool_calls"


def test_a_turn_with_tools_goes_on(client: Any, server: Scripted) -> None:
    first = client.chat.completions.create(model="m", messages=asks("two"), tools=TOOLS).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in first.tool_calls]
    history = [*asks("two"), first.model_dump(exclude_none=True), *results]
    second = client.chat.completions.create(model="m", messages=history, tools=TOOLS)
    assert second.choices[0].message.content == "It is sunny and five."
    assert second.usage.prompt_tokens_details.cached_tokens > 0.8 * len(server.prompts[-2])


def test_usage_only_when_asked(client: Any) -> None:
    chunks = list(client.chat.completions.create(model="m", messages=asks("hello"), stream=True))
    assert all(chunk.usage is None for chunk in chunks) and chunks[-1].choices[0].finish_reason == "stop"
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="m", messages=asks("hello"), stream=True, stream_options=options))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 6


def test_limits(client: Any) -> None:
    cut = client.chat.completions.create(model="m", messages=asks("length"), max_tokens=5)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 5
    stopped = client.chat.completions.create(model="m", messages=asks("hello"), stop=["wor"])
    assert stopped.choices[0].message.content == "Hello, "


def test_structured_output(client: Any) -> None:
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str
        degrees: int

    parsed = client.chat.completions.parse(model="m", messages=asks("json"), response_format=Weather, max_tokens=400)
    assert isinstance(parsed.choices[0].message.parsed, Weather)


def test_responses(client: Any) -> None:
    whole = client.responses.create(model="m", input="#think#")
    assert whole.output_text == "The answer" and [item.type for item in whole.output] == ["reasoning", "message"]
    with client.responses.stream(model="m", input="#two#", tools=FLAT) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    calls = [item for item in final.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather", "add"] and json.loads(calls[1].arguments) == {"a": 2, "b": 3}
    items: Any = [{"role": "user", "content": "#two#"}, *[item.model_dump(exclude_none=True) for item in final.output]]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]
    again = client.responses.create(model="m", input=items, tools=FLAT)
    assert again.output_text == "It is sunny and five." and again.usage.input_tokens_details.cached_tokens > 100
    cut = client.responses.create(model="m", input="#length#", max_output_tokens=4)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="m", input="#hello#", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello, world!"


def test_raw_text_and_namespaces(client: Any) -> None:
    inner = {"type": "function", "name": "create", "parameters": NUMBERS, "strict": False}
    space = {"type": "namespace", "name": "mcp__cal", "description": "A calendar.", "tools": [inner]}
    asked: Any = {"model": "m", "input": "#kinds#", "tools": [{"type": "custom", "name": "note"}, space]}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.custom_tool_call_input.delta" in kinds and "response.custom_tool_call_input.done" in kinds
    for output in (whole.output, final.output):
        note, create = output
        assert (note.type, note.name, note.input) == ("custom_tool_call", "note", 'a "b"\n\u00e9')
        assert (create.type, create.namespace, create.name) == ("function_call", "mcp__cal", "create")
    items: Any = [{"role": "user", "content": "#kinds#"}, *[item.model_dump(exclude_none=True) for item in final.output]]
    items += [{"type": "custom_tool_call_output", "call_id": note.call_id, "output": "ok"}]
    items += [{"type": "function_call_output", "call_id": create.call_id, "output": "ok"}]
    assert client.responses.create(**{**asked, "input": items}).output_text == "It is sunny and five."
    in_chat = client.chat.completions.create(
        model="m", messages=asks("kinds"), tools=[{"type": "custom", "custom": {"name": "note"}}]
    )
    assert in_chat.choices[0].message.tool_calls[0].custom.input == 'a "b"\n\u00e9'


def test_a_call_that_cannot_be_read_breaks_no_client(client: Any) -> None:
    asked: Any = {"model": "m", "messages": asks("broken"), "tools": TOOLS}
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    whole = client.chat.completions.create(**asked).choices[0]
    assert text == whole.message.content and "add could not be read" in text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason == "stop"
    events = list(client.responses.create(model="m", input="#broken#", tools=FLAT, stream=True))
    assert events[-1].type == "response.completed" and "could not be read" in events[-1].response.output_text


def test_completions_and_models(client: Any) -> None:
    assert client.completions.create(model="m", prompt="#hello#").choices[0].text == "Hello, world!"
    streamed = client.completions.create(model="m", prompt="#hello#", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello, world!"
    assert [model.id for model in client.models.list()] == ["scripted"] and client.models.retrieve("scripted").id == "scripted"


def test_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 30_000}], stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        client.chat.completions.create(model="m", messages=asks("hello"), n=2)
    with serving(SCRIPT, settings=Settings(Access(keys=("right",)))) as closed:
        wrong = openai.OpenAI(base_url=f"{closed.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            wrong.chat.completions.create(model="m", messages=asks("hello"))
        right = openai.OpenAI(base_url=f"{closed.url}/v1", api_key="right", max_retries=0)
        assert right.chat.completions.create(model="m", messages=asks("hello")).choices[0].message.content == "Hello, world!"


def test_a_stream_that_is_left_is_cancelled(client: Any, server: Scripted) -> None:
    stream = client.chat.completions.create(model="m", messages=asks("slow"), stream=True)
    for _, _ in zip(range(4), stream, strict=False):
        pass
    stream.close()
    server.until(lambda: server.running == 0)
