"""Three APIs from one list of events: exact events, any cut, streaming and not the same (FC-31, FC-34)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import api_accumulate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4py.chat import CallArguments, CallEnd, CallStart, Event, Reasoning, Stop, Text, joined
from ds4py.server import chat_completions, completions, messages, responses
from ds4py.server.asked import Refusal
from ds4py.server.results import Ended, Meta, Usage, Wire

META = Meta("0" * 32, 1700000000, "m", include_usage=True)
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
REPLIES: dict[str, list[Event]] = {
    "text": [Text("Hel"), Text("lo")],
    "nothing": [],
    "thinking": [Reasoning("so"), Reasoning(" it is"), Text("yes")],
    "thinking only": [Reasoning("so")],
    "calls": [Reasoning("hm"), Text("Look:"), *CALLS],
    "text after calls": [*CALLS, Text("and"), Text(" so")],
    "cut call": [CallStart(0, "f", "call_a"), CallArguments(0, '{"a": "b'), CallEnd(0, False, 3)],
}
APIS: dict[str, Any] = {"chat": chat_completions, "messages": messages, "responses": responses}


def wires_of(api: Any, events: Sequence[Event], ended: Ended = ENDED) -> list[Wire]:
    stream = api.Stream(META)
    wires = [*stream.begin(), *stream.started(COST)]
    for event in events:
        wires += stream.feed(event)
    return [*wires, *stream.end(ended)]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("reason", ["stop", "length", "context"])
def test_a_stream_adds_up_to_the_whole_answer(name: str, reply: str, reason: str) -> None:
    api, events = APIS[name], REPLIES[reply]
    ended = Ended(Stop(reason, None, 8), COST, {"predicted_n": 9})
    got = getattr(api_accumulate, name)(wires_of(api, events, ended))
    whole = api.whole(META, events, ended)
    json.dumps(whole)
    if name != "chat":
        assert got == whole
        return
    message = whole["choices"][0]["message"]
    assert (got["content"] or None) == (message["content"] or None)
    assert got["reasoning"] == message.get("reasoning_content", "") and got["usage"] == whole["usage"]
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
    assert got["calls"] == calls and got["finish"] == whole["choices"][0]["finish_reason"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_how_text_is_cut_never_shows(data: st.DataObject) -> None:
    events = REPLIES[data.draw(st.sampled_from(sorted(REPLIES)))]
    cut: list[Event] = []
    for event in events:
        text = getattr(event, "text", "")
        at = data.draw(st.integers(0, len(text)))
        halves = [half for half in (text[:at], text[at:]) if half]
        match event:
            case Text():
                cut += [Text(half) for half in halves]
            case Reasoning():
                cut += [Reasoning(half) for half in halves]
            case CallArguments():
                cut += [CallArguments(event.index, half) for half in halves]
            case _:
                cut.append(event)
    for name, api in APIS.items():
        once, again = (getattr(api_accumulate, name)(wires_of(api, part)) for part in (events, cut))
        assert once == again and api.whole(META, events, ENDED) == api.whole(META, cut, ENDED)
        assert joined(cut) == joined(events)


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
    assert "broken" in text and wire.event == {"chat": None, "messages": "error", "responses": "response.failed"}[name]


def test_too_long_in_each_form() -> None:
    refusal = Refusal(400, "s", code="context_length_exceeded", numbers={"n_prompt_tokens": 12, "n_ctx": 10})
    openai = chat_completions.error(refusal)["error"]
    assert openai["code"] == "context_length_exceeded" and (openai["n_prompt_tokens"], openai["n_ctx"]) == (12, 10)
    anthropic = messages.error(refusal)["error"]
    assert anthropic == {"type": "invalid_request_error", "message": "prompt is too long: 12 tokens > 10 maximum"}
