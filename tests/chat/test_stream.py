"""Events of scripted replies: stop strings over tokens (FC-25), held text at the end (FC-26), reasoning, rewinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4py.chat import Event, Reasoning, ReplyStream, Stop, Text, ThinkTags, collect
from ds4py.protocols import Timeline
from ds4py.tokenizer import Tokenizer

Scripted = Callable[[Sequence[str]], tuple[Tokenizer, list[int]]]
TAGS = ThinkTags("<think>", "</think>")


def run(
    scripted: Scripted, pieces: Sequence[str], stops: Sequence[str] = (), end: str | None = "length", **more: Any
) -> list[Event]:
    tokenizer, ids = scripted(pieces)
    stream = ReplyStream(tokenizer, stop_strings=stops, **more)
    events = [event for token in ids for event in stream.push(token)]
    return events + (stream.finish(end) if end else [])


CASES = [  # pieces, stops, text, reason, stop string, ids kept
    (["a", "ST", "OP", "b"], ["STOP"], "a", "stop", "STOP", 1),
    (["S", "TOXIC"], ["STOP"], "STOXIC", "length", None, 2),
    (["x", "a", "b", "c"], ["ab", "abc"], "x", "stop", "ab", 1),
    (["a", "b"], ["b"], "a", "stop", "b", 1),
    (["a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "b"], ["\U0001f600"], "a", "stop", "\U0001f600", 1),
    (["a", "\n", "\n"], ["\n\n"], "a", "stop", "\n\n", 1),
    (["a", "b", "c"], ["zz", "q", "c", "x"], "ab", "stop", "c", 2),
    (["a", "b"], [""], "ab", "length", None, 2),
    (["x", "EN", "<eos>"], ["END"], "xEN", "stop", None, 2),
    (["x", "END more"], ["END"], "x", "stop", "END", 1),
    (["x", "EN"], ["END"], "xEN", "length", None, 2),
    (["xyEND"], ["END"], "xy", "stop", "END", 0),
    (["ab", "cEND"], ["END"], "abc", "stop", "END", 1),
    (["a", "<0xF0>", "<0x9F>"], [], "a\ufffd", "length", None, 3),
    (["a", "<0xF0>", "<eos>"], ["\ufffd"], "a", "stop", "\ufffd", 1),
    (["a", "<|im_start|>", "b"], ["ab"], "", "stop", "ab", 0),
    ([], ["x"], "", "length", None, 0),
]


@pytest.mark.parametrize(("pieces", "stops", "text", "reason", "stop", "kept"), CASES)
def test_stop_cases(
    scripted: Scripted, pieces: list[str], stops: list[str], text: str, reason: str, stop: str | None, kept: int
) -> None:
    events = run(scripted, pieces, stops)
    assert collect(events).text == text
    assert [event for event in events if isinstance(event, Stop)] == [Stop(reason, stop, kept)] and isinstance(events[-1], Stop)
    assert all(event.text for event in events if not isinstance(event, Stop))


def test_text_streams_as_soon_as_it_is_decided(scripted: Scripted) -> None:
    tokenizer, ids = scripted(["a", "ST", "x", "STOP"])
    stream = ReplyStream(tokenizer, stop_strings=["STOP"])
    assert [stream.push(token) for token in ids] == [[Text("a")], [], [Text("STx")], [Stop("stop", "STOP", 3)]]
    assert stream.push(ids[0]) == stream.finish("length") == [] and stream.pos == 4


def test_reasoning_and_answer(scripted: Scripted) -> None:
    pieces = ["<think>", "\n", "pl", "an", "\n", "</think>", "\n\n", "an", "swer"]
    reply = collect(run(scripted, pieces, think_tags=TAGS))
    assert (reply.reasoning, reply.text) == ("plan", "answer")
    opened = collect(run(scripted, pieces[2:], think_tags=TAGS, inside_thinking=True))
    assert (opened.reasoning, opened.text) == ("plan", "answer")
    assert Reasoning("pl") in run(scripted, pieces, think_tags=TAGS)


def test_stop_strings_wait_for_the_answer(scripted: Scripted) -> None:
    events = run(scripted, ["<think>", "aENDb", "</think>", "\n", "cEN", "Dd"], ["END"], think_tags=TAGS)
    reply = collect(events)
    assert (reply.reasoning, reply.text) == ("aENDb", "c")
    assert reply.stop == Stop("stop", "END", 4)


def test_tags_that_are_control_tokens_are_seen(scripted: Scripted) -> None:
    tokenizer, ids = scripted(["<|im_start|>", "a", "<|im_end|>", "b"])
    stream = ReplyStream(tokenizer, stop_ids=frozenset(), think_tags=ThinkTags("<|im_start|>", "<|im_end|>"))
    reply = collect([event for token in ids for event in stream.push(token)] + stream.finish("length"))
    assert (reply.reasoning, reply.text) == ("a", "b")


PIECES = ["a", "b", "ab", "<think>", "</think>", "</", "\n", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<|im_start|>", "EN", "D"]
SETUPS: list[dict[str, Any]] = [{}, {"stop_strings": ["END", "ba", "\U0001f600"]}, {"think_tags": TAGS}]
SETUPS.append({"stop_strings": ["END", "\nb"], "think_tags": TAGS, "inside_thinking": True})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(SETUPS), st.data())
def test_rewound_stream_goes_on_as_if_nothing_had_been(
    scripted: Scripted, pieces: list[str], setup: dict[str, Any], data: st.DataObject
) -> None:
    tokenizer, ids = scripted(pieces)
    straight, rewound = ReplyStream(tokenizer, **setup), ReplyStream(tokenizer, **setup)
    assert isinstance(rewound, Timeline)
    want = [straight.push(token) for token in ids]
    for token in ids[: data.draw(st.integers(0, len(ids)))]:
        rewound.push(token)
    if data.draw(st.booleans()):
        rewound.finish("length")
    back = data.draw(st.integers(0, rewound.pos))
    rewound.truncate(back)
    assert rewound.pos == back
    assert [rewound.push(token) for token in ids[back:]] == want[back:]
    assert rewound.shown == straight.shown
    assert rewound.finish("length") == straight.finish("length")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(SETUPS))
def test_text_is_that_of_the_whole_and_counts_agree(scripted: Scripted, pieces: list[str], setup: dict[str, Any]) -> None:
    """Cut into these pieces or into single bytes: the same reply."""
    tokenizer, ids = scripted(pieces)
    single = [piece for token in ids for piece in split_up(tokenizer, token)]
    whole, cut = (
        collect(run(scripted, list(some), setup.get("stop_strings", ()), **without_stops(setup))) for some in (pieces, single)
    )
    assert (whole.text, whole.reasoning) == (cut.text, cut.reasoning)
    assert whole.stop and cut.stop and (whole.stop.reason, whole.stop.stop_string) == (cut.stop.reason, cut.stop.stop_string)


def without_stops(setup: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in setup.items() if key != "stop_strings"}


def split_up(tokenizer: Tokenizer, token: int) -> list[str]:
    if tokenizer.is_control(token):
        return [tokenizer.token_text(token)]
    return [f"<0x{byte:02X}>" for byte in tokenizer.token_bytes(token)]


def test_kept_ids_spell_the_kept_text(scripted: Scripted) -> None:
    """Rewinding to `kept` leaves ids whose text is a beginning of what was shown."""
    for pieces, stops, text, *_ in CASES:
        tokenizer, ids = scripted(pieces)
        stop = collect(run(scripted, pieces, stops)).stop
        assert stop is not None
        assert text.startswith(tokenizer.decode(ids[: stop.kept])) or stop.stop_string is None
