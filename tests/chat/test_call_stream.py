"""Calls in a reply's stream: with reasoning and stop strings around them, inside unclosed thinking, and after rewinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4py.chat import Called, CallEnd, Event, ReplyStream, Stop, ThinkTags, collect
from ds4py.chat.formats.tagged import TaggedCalls
from ds4py.protocols import Timeline
from ds4py.tokenizer import Tokenizer

Scripted = Callable[[Sequence[str]], tuple[Tokenizer, list[int]]]
TAGS = ThinkTags("<think>", "</think>")
SYNTAX = TaggedCalls()
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = ["<tool_call>", "\n", '{"name": "f", "argu', 'ments": {"a": "x', 'END"}}', "\n</tool_", "call>"]


def stream_of(tokenizer: Tokenizer, stops: Sequence[str] = (), **more: Any) -> ReplyStream:
    return ReplyStream(
        tokenizer, stop_strings=stops, think_tags=TAGS, calls=SYNTAX.parser(TOOLS), syntax=SYNTAX, **more
    )


def test_reasoning_text_calls_and_stop_strings(scripted: Scripted) -> None:
    pieces = ["<think>", "plEND", "</think>", "\n\n", "Look", ": ", *CALL, "\n", *CALL, "thenEN", "Dx"]
    tokenizer, ids = scripted(pieces)
    stream = stream_of(tokenizer, ["END"])
    reply = collect([event for token in ids for event in stream.push(token)])
    assert (reply.reasoning, reply.text) == ("plEND", "Look:then")
    assert reply.calls == (Called("f", '{"a": "xEND"}', True),) * 2
    assert reply.stop == Stop("stop", "END", len(pieces) - 2)  # a stop string inside arguments is payload


def test_a_call_cut_by_the_budget(scripted: Scripted) -> None:
    tokenizer, ids = scripted(["ok", *CALL[:4]])
    stream = stream_of(tokenizer)
    events = [event for token in ids for event in stream.push(token)] + stream.finish("length")
    reply = collect(events)
    assert reply.calls == (Called("f", '{"a": "x', False),) and reply.stop == Stop("length", None, 5)


def test_a_call_inside_unclosed_thinking_is_reported_and_held_back(scripted: Scripted) -> None:
    pieces = ["<think>", "so I ", "call", " <tool_", 'call>{"', 'name": "f"']
    tokenizer, ids = scripted(pieces)
    stream = stream_of(tokenizer)
    events: list[Event] = []
    for n, token in enumerate(ids):
        events += stream.push(token)
        assert (stream.stray_call is not None) == (n >= 5)
    assert stream.stray_call == 3 and stream.thinking
    assert collect(events).reasoning == "so I call "
    stream.truncate(3)
    assert stream.stray_call is None and stream.pos == 3
    closed, more = scripted(["<think>", "so I ", "call", "</think>", *CALL])
    reply = collect([event for stream in [stream_of(closed)] for token in more for event in stream.push(token)])
    assert (reply.reasoning, len(reply.calls)) == ("so I call", 1)


def test_talk_about_markup_in_reasoning_is_reasoning(scripted: Scripted) -> None:
    pieces = ["<think>", "a <tool_call> tag", " is <tool_c", " fine", "</think>", "ok"]
    tokenizer, ids = scripted(pieces)
    stream = stream_of(tokenizer)
    reply = collect([event for token in ids for event in stream.push(token)] + stream.finish("stop"))
    assert (reply.reasoning, reply.text, stream.stray_call) == ("a <tool_call> tag is <tool_c fine", "ok", None)


def test_what_was_sampled_comes_back_whole(scripted: Scripted) -> None:
    pieces = ["<think>", "p", "</think>", "\n\nLo", "ok", *CALL, "\n"]
    tokenizer, ids = scripted(pieces)
    stream = stream_of(tokenizer)
    events = [event for token in ids for event in stream.push(token)] + stream.finish("stop")
    end = next(event.end for event in events if isinstance(event, CallEnd))
    assert stream.ids_of(end) == len(pieces) - 1
    segments = stream.sampled(end).segments
    assert "".join(text for text, _ in segments) == "Look" + "".join(CALL)
    assert [text for text, is_control in segments if is_control] == ["<tool_call>"]  # its closing tag was spelled


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_stream_is_a_timeline_with_calls(scripted: Scripted, data: st.DataObject) -> None:
    some = ["<think>", "</think>", *CALL, "x", "ENd", "\n", "END", "<0xF0>", "<0x9F>", "</tool_call>", "{"]
    pieces = data.draw(st.lists(st.sampled_from(some), max_size=14))
    tokenizer, ids = scripted([*pieces, "y"])
    whole = stream_of(tokenizer, ["END"])
    want = [whole.push(token) for token in ids[:-1]]
    final = whole.finish("length")
    stream: ReplyStream = stream_of(tokenizer, ["END"])
    assert isinstance(stream, Timeline)
    at = 0
    for _ in range(6):
        while at < len(pieces):
            assert stream.push(ids[at]) == want[at]
            at += 1
            if data.draw(st.integers(0, 4)) == 0:
                break
        back = data.draw(st.integers(0, min(at, stream.pos)))
        if data.draw(st.booleans()) or stream.pos == at:
            stream.truncate(back)
            at = back
    while at < len(pieces):
        assert stream.push(ids[at]) == want[at]
        at += 1
    assert stream.finish("length") == final and stream.shown == whole.shown
