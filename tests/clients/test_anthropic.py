"""anthropic-python against our server: blocks in order, thinking, tools, counts, stop sequences, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from client_scenarios import NUMBERS, SCHEMA, SCRIPT
from scripted_server import Scripted, copying, plain, serving

from ds4py.server.app import Settings
from ds4py.server.guard import Access

anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed: pip install ds4py[clients]")

TOOLS: Any = [{"name": "get_weather", "input_schema": SCHEMA}, {"name": "add", "input_schema": NUMBERS}]


@pytest.fixture(scope="module", params=[None, copying()], ids=["plain", "drafting"])
def server(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    print(f"anthropic-python {anthropic.__version__}")
    pings = Settings(keepalive_seconds=0.05)  # before, between and after blocks
    with serving(SCRIPT, equip=request.param or plain, settings=pings) as found:
        yield found


@pytest.fixture
def client(server: Scripted) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)


def asks(word: str) -> Any:
    return {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": f"#{word}#"}]}


@pytest.mark.parametrize("word", ["hello", "think", "two", "texttool", "emoji"])
def test_a_stream_adds_up_to_the_whole(client: Any, word: str) -> None:
    whole = client.messages.create(**asks(word), tools=TOOLS)
    with client.messages.stream(**asks(word), tools=TOOLS) as stream:
        final = stream.get_final_message()

    def blocks(message: Any) -> list[dict[str, Any]]:
        return [{name: value for name, value in block.model_dump().items() if name != "id"} for block in message.content]

    assert blocks(final) == blocks(whole) and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_thinking_and_two_tools_in_order(client: Any) -> None:
    with client.messages.stream(**asks("two"), tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "tool_use", "tool_use"]
    assert final.content[1].input == {"city": "Rome", "note": 'caf\u00e9 "x"'} and final.content[2].input == {"a": 2, "b": 3}
    assert final.stop_reason == "tool_use"


def test_a_call_that_cannot_be_read_breaks_no_client(client: Any) -> None:
    """The client parses arguments as they come, and raises on the first character that cannot stand there."""
    with client.messages.stream(**asks("broken"), tools=TOOLS) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use", "text"] and final.stop_reason == "end_turn"
    assert "add could not be read" in final.content[2].text and final.content[1].input == {"a": 2}
    whole = client.messages.create(**asks("broken"), tools=TOOLS)
    assert whole.content[1].input == {"_invalid_arguments": '{"a": 2, "b": }'}


def test_a_turn_with_tools_goes_on(client: Any) -> None:
    first = client.messages.create(**asks("two"), tools=TOOLS)
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "ok"} for block in first.content[1:]]
    body = asks("two")
    content = [block.model_dump(exclude_none=True) for block in first.content]
    body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    second = client.messages.create(**body, tools=TOOLS)
    assert second.content[0].text == "It is sunny and five."
    assert second.usage.cache_read_input_tokens > 5 * second.usage.input_tokens


def test_counting_is_what_is_used(client: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "#hello# never seen"}], "system": "Counts"}
    counted = client.messages.count_tokens(**body, tools=TOOLS).input_tokens
    usage = client.messages.create(**body, max_tokens=9, tools=TOOLS).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_stop_sequences_and_limits(client: Any) -> None:
    stopped = client.messages.create(**asks("hello"), stop_sequences=["zz", "wor"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("Hello, ", "stop_sequence", "wor")
    cut = client.messages.create(**{**asks("length"), "max_tokens": 5})
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 5


def test_a_call_can_be_required(client: Any) -> None:
    forced = client.messages.create(**asks("hello"), tools=TOOLS, tool_choice={"type": "tool", "name": "add"})
    assert forced.content[0].type == "tool_use" and forced.content[0].name == "add"


def test_errors_and_models(client: Any, server: Scripted) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: [0-9]+ tokens > 20000 maximum"):
        client.messages.create(**{**asks("x"), "messages": [{"role": "user", "content": "x" * 30_000}]})
    assert [model.id for model in client.models.list()] == ["scripted"]
    with serving(SCRIPT, settings=Settings(Access(keys=("right",)))) as closed:
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=closed.url, api_key="wrong", max_retries=0).messages.create(**asks("hello"))
        right = anthropic.Anthropic(base_url=closed.url, api_key="right", max_retries=0)
        assert right.messages.create(**asks("hello")).content[0].text == "Hello, world!"


def test_a_stream_that_is_left_is_cancelled(client: Any, server: Scripted) -> None:
    with client.messages.stream(**asks("slow")) as stream:
        for _, _ in zip(range(4), stream.text_stream, strict=False):
            pass
    server.until(lambda: server.running == 0)
