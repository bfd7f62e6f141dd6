"""Four APIs from one list of events: exact events, any cut, streaming and not the same (FC-31, FC-32, FC-34, FC-37)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import api_accumulate
import pytest

from ds4py.chat import CallArguments, CallEnd, CallStart, Event, Reasoning, Stop, Text, joined
from ds4py.server import chat_completions, completions, messages, responses
from ds4py.server.asked import Refusal, Shown
from ds4py.server.results import Ended, Meta, Usage, Wire
from ds4py.server.sse import encode, to_json

META = Meta(
    "0" * 32,
    1700000000,
    "m",
    include_usage=True,
    shown={
        "patch": Shown("patch", custom=True),
        "ns__k": Shown("k", "ns"),
        "ns__raw": Shown("raw", "ns", True),
        "tool_search": Shown("tool_search", searches=True),
    },
)
COST = Usage(prompt=30, cached=20, generated=9, reasoning=2)
ENDED = Ended(Stop("stop", None, 8), COST, {"predicted_n": 9})
CALLS: list[Event] = [
    CallStart(0, "f", "call_a"),
    CallArguments(0, '{"a": "😀",'),
    CallArguments(0, ' "b": [1]}'),
    CallEnd(0, True, 9),
    CallStart(1, "g", "call_b"),
    CallArguments(1, "{}"),
    CallEnd(1, True, 9),
]


def call(index: int, name: str, arguments: str, complete: bool = True) -> list[Event]:
    return [CallStart(index, name, f"call_{index}"), CallArguments(index, arguments), CallEnd(index, complete, 9)]


REPLIES: dict[str, list[Event]] = {
    "text": [Text("Hel"), Text("lo")],
    "nothing": [],
    "thinking": [Reasoning("so"), Reasoning(" it is"), Text("yes")],
    "thinking only": [Reasoning("so")],
    "calls": [Reasoning("hm"), Text("Look:"), *CALLS],
    "text after calls": [*CALLS, Text("and"), Text(" so")],
    "cut call": call(0, "f", '{"a": "b', False),
    "unreadable": call(0, "f", '{"a": b}'),
    "escapes": call(0, "f", r'{"p": "C:\\u002f x", "q": "a:b", "r": "\u00e9\u002f \ud83d\ude00 \ud83d \u0000"}'),
    "raw text": [
        *call(0, "patch", r'{"input": "*** Begin\n\t\"a\" \\n \u00e9\ud83d\ude00 \ud83dx\ud83d"}'),
        *call(1, "ns__k", '{"a": 1}'),
        *call(2, "ns__raw", '{ "x": {"input": 1}, "input" : "b" }'),
    ],
    "search": [Text("so"), *call(0, "tool_search", '{"query": "x"}'), *call(1, "tool_search", "{")],
    "raw text cut": call(0, "patch", r'{"input": "a\u00', False),
    "raw text of another form": call(0, "patch", '["input"]'),
}
APIS: dict[str, Any] = {"chat": chat_completions, "messages": messages, "responses": responses, "completions": completions}
ENDS = [Stop("stop", None, 8), Stop("length", None, 8), Stop("context", None, 8), Stop("stop", "END", 8)]


def wires_of(api: Any, events: Sequence[Event], ended: Ended = ENDED) -> list[Wire]:
    stream = api.Stream(META)
    wires = [*stream.begin(), *stream.started(COST)]
    for event in events:
        wires += stream.feed(event)
    return [*wires, *stream.end(ended)]


def made_of(name: str, wires: Sequence[Wire]) -> Any:
    return getattr(api_accumulate, name)(wires)


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("stop", ENDS)
def test_a_stream_adds_up_to_the_whole_answer(name: str, reply: str, stop: Stop) -> None:
    api, events = APIS[name], REPLIES[reply]
    ended = Ended(stop, COST, {"predicted_n": 9})
    got = made_of(name, wires_of(api, events, ended))
    whole = json.loads(to_json(api.whole(META, events, ended)))
    if name in ("messages", "responses"):
        if name == "messages" and reply == "unreadable":  # a stream gives only what strict parsers take
            block, (in_whole,) = got["content"][0], whole["content"]
            assert in_whole.pop("input") == {"_invalid_arguments": '{"a": b}'}
            assert block.pop("input") == {"_invalid_arguments": '{"a": '}
        assert json.loads(to_json(got)) == whole
        return
    choice = whole["choices"][0]
    assert got["usage"] == whole["usage"] and got["finish"] == choice["finish_reason"]
    if name == "completions":
        assert got["text"] == choice["text"] and got["id"] == whole["id"]
        return
    message = choice["message"]
    assert (got["content"] or None) == (message["content"] or None)
    assert got["reasoning"] == message.get("reasoning_content", "")
    assert got["calls"] == [{"id": call["id"], **call[call["type"]]} for call in message.get("tool_calls", [])]


def with_text(event: Event, text: str) -> Event:
    return replace(event, text=text)  # type: ignore[call-arg]  # only events with text are asked


def all_cuts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The list with one of its texts cut in two, at every place of every text; and with all of them in single characters."""
    for i, event in enumerate(events):
        text = getattr(event, "text", "")
        for at in range(1, len(text)):
            yield [*events[:i], with_text(event, text[:at]), with_text(event, text[at:]), *events[i + 1 :]]
    yield [
        piece
        for event in events
        for piece in ([with_text(event, char) for char in event.text] if hasattr(event, "text") else [event])
    ]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", APIS)
def test_where_a_text_is_cut_never_shows(name: str, reply: str) -> None:
    """Every API, the same lists, every cut of every text; what differs between two lists is only where deltas end."""
    api, events = APIS[name], REPLIES[reply]
    want, whole = made_of(name, wires_of(api, events)), api.whole(META, events, ENDED)
    n_cuts = 0
    for cut in all_cuts(events):
        n_cuts += 1
        wires = wires_of(api, cut)
        assert made_of(name, wires) == want and api.whole(META, cut, ENDED) == whole and joined(cut) == joined(events)
        assert [read_back(wire) for wire in wires] == [json.loads(json.dumps([w.event, w.data])) for w in wires]
    assert n_cuts == 1 + sum(max(len(getattr(event, "text", "")) - 1, 0) for event in events)


def read_back(wire: Wire) -> list[Any]:
    """What a client reads of the bytes: exactly one event."""
    lines = encode(wire).decode().split("\n")
    assert lines[-2:] == ["", ""] and len(lines) == (4 if wire.event else 3)
    data = lines[-3].removeprefix("data: ")
    return [wire.event and lines[0].removeprefix("event: "), data if data == "[DONE]" else json.loads(data)]


def test_raw_text_in_each_form() -> None:
    text = '*** Begin\n\t"a" \\n \u00e9\U0001f600 \ufffdx\ufffd'
    made = responses.whole(META, REPLIES["raw text"], ENDED)["output"]
    assert [(item["type"], item["name"], item.get("namespace")) for item in made] == [
        ("custom_tool_call", "patch", None),
        ("function_call", "k", "ns"),
        ("custom_tool_call", "raw", "ns"),
    ]
    assert made[0]["input"] == text and made[1]["arguments"] == '{"a": 1}' and made[2]["input"] == "b"
    in_chat = chat_completions.whole(META, REPLIES["raw text"], ENDED)["choices"][0]["message"]["tool_calls"]
    assert in_chat[0] == {"id": "call_0", "type": "custom", "custom": {"name": "patch", "input": text}}
    assert responses.whole(META, REPLIES["raw text cut"], ENDED)["output"][0]["input"] == "a\\u00"
    assert responses.whole(META, REPLIES["raw text of another form"], ENDED)["output"][0]["input"] == '["input"]'
    names = [wire.event for wire in wires_of(responses, call(0, "patch", '{"input": "x"}'))][2:-1]
    assert names == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]


def test_chat_chunks_in_order() -> None:
    wires = wires_of(chat_completions, [Reasoning("r"), Text("t"), *CALLS[:3], CALLS[3]])
    deltas = [wire.data["choices"][0]["delta"] for wire in wires[:-3]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "r"},
        {"content": "t"},
        {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": "😀",'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "b": [1]}'}}]},
    ]
    last, cost, done = (wire.data for wire in wires[-3:])
    assert last["choices"][0]["finish_reason"] == "tool_calls" and last["timings"] == {"predicted_n": 9}
    assert cost["choices"] == [] and done == "[DONE]"
    assert cost["usage"]["prompt_tokens_details"]["cached_tokens"] == 20 and cost["usage"]["total_tokens"] == 39
    quiet = chat_completions.Stream(Meta("0", 1, "m"))
    assert len(quiet.end(ENDED)) == 2  # no usage unless it was asked for


def test_messages_events_in_order() -> None:
    wires = wires_of(messages, [Reasoning("r"), Text("t"), *CALLS[:2], CALLS[3]])
    assert [wire.event for wire in wires] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],  # thinking, signature
        *["content_block_start", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_stop"],
        *["message_delta", "message_stop"],
    ]
    assert wires[0].data["message"]["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 20,
        "output_tokens": 9,
    }
    stopped = messages.Stream(META).end(Ended(Stop("stop", "END", 3), COST))
    assert stopped[0].data["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_responses_events_in_order() -> None:
    wires = wires_of(responses, [Text("t"), *CALLS[:2], CALLS[3]])
    assert [wire.event.removeprefix("response.") for wire in wires if wire.event] == [
        *["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"],
        *["content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta"],
        *["function_call_arguments.done", "output_item.done", "completed"],
    ]
    cut = wires_of(responses, [Text("t")], Ended(Stop("length", None, 1), COST))[-1]
    assert cut.event == "response.incomplete" and cut.data["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_completions() -> None:
    wires = wires_of(completions, [Text("a"), Text("b")])
    assert [wire.data["choices"][0]["text"] for wire in wires[:2]] == ["a", "b"] and wires[-1].data == "[DONE]"
    whole = completions.whole(META, [Text("a"), Text("b")], ENDED)
    assert whole["choices"][0]["text"] == "ab" and whole["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", APIS)
def test_failures_in_a_stream(name: str) -> None:
    stream = APIS[name].Stream(META)
    stream.begin()
    (wire,) = stream.fail(Refusal(500, "broken", code="x"))
    text = json.dumps(wire.data)
    assert (
        "broken" in text
        and wire.event == {"chat": None, "completions": None, "messages": "error", "responses": "response.failed"}[name]
    )


def test_too_long_in_each_form() -> None:
    refusal = Refusal(400, "s", code="context_length_exceeded", numbers={"n_prompt_tokens": 12, "n_ctx": 10})
    openai = chat_completions.error(refusal)["error"]
    assert openai["code"] == "context_length_exceeded" and (openai["n_prompt_tokens"], openai["n_ctx"]) == (12, 10)
    anthropic = messages.error(refusal)["error"]
    assert anthropic == {"type": "invalid_request_error", "message": "prompt is too long: 12 tokens > 10 maximum"}
