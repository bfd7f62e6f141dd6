"""Whatever is sent: an answer or a refusal, never a broken server and never a stuck engine."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import TOOLS, Scripted, calls_of, chat_body, events_of, reply, serving

from ds4py.server.app import APIS
from ds4py.server.asked import Refusal

SCRIPT = {"replies": [reply("<think>", "a", "</think>", "b", *calls_of(("f", '{"a": "x"}')), "c", sharp=6.0)]}
SCALARS: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "user", "tool", "text", "function", "none", "\ud83d", "<|im_end|>", "{", "high"]),
)
JSON: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **chat_body(max_tokens=6),
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "call_1", "content": "t"},
        ],
        "tools": TOOLS,
        "tool_choice": "auto",
        "temperature": 1,
        "top_p": 0.9,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "thinking": {"type": "enabled"},
    },
    "/v1/completions": {"prompt": "p", "max_tokens": 6, "stop": "x", "seed": 4},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "instructions": "i",
        "max_output_tokens": 6,
        "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "o"}]},
        ],
        "system": [{"type": "text", "text": "s"}],
        "max_tokens": 6,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with serving(SCRIPT, n_ctx=4000) as found:
        yield found


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += paths_in(item, (*at, key))
    return found


def mutated(data: st.DataObject, body: dict[str, Any]) -> dict[str, Any]:
    """`body` with a few places replaced, removed or added to."""
    made = copy.deepcopy(body)
    for _ in range(data.draw(st.integers(1, 3))):
        places = paths_in(made)
        if not places:
            break
        place = data.draw(st.sampled_from(places))
        inner: Any = made
        for key in place[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and data.draw(st.booleans()):
            del inner[place[-1]]
        else:
            inner[place[-1]] = data.draw(JSON)
    if data.draw(st.booleans()):
        made[data.draw(st.sampled_from(["n", "stop", "seed", "top_k", "logprobs", "wild", "effort"]))] = data.draw(JSON)
    return made


def test_the_bodies_are_good_as_they_are(server: Scripted) -> None:
    for path, body in BODIES.items():
        assert server.ask(path, body).status == 200


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_parsing_refuses_and_never_breaks(api: Any, data: st.DataObject) -> None:
    body = mutated(data, BODIES[api.path]) if data.draw(st.integers(0, 9)) else data.draw(JSON)
    try:
        api.parse(body, lambda word: None)
    except Refusal as refusal:
        assert 400 <= refusal.status < 500 and str(refusal)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_body_gets_an_answer(server: Scripted, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(BODIES)))
    body = mutated(data, BODIES[path])
    stream = data.draw(st.booleans())
    if isinstance(body, dict):
        body["stream"] = stream
    text = json.dumps(body, allow_nan=True)
    answer = server.ask(path, text.encode("utf-8", "surrogatepass"))
    assert answer.status < 500, (body, answer.body, server.lines[-3:])
    if answer.status == 200 and stream:
        events = events_of(answer.body)
        assert events and "error" not in str(events[-1][0])
    elif answer.status != 422:
        assert isinstance(answer.json, dict)


def test_the_engine_is_free_afterwards(server: Scripted) -> None:
    server.until(lambda: server.running == 0 and server.queued == 0)
    assert server.ask("/v1/completions", {"prompt": "p", "max_tokens": 2}).status == 200


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_arbitrary_bytes_as_a_body(server: Scripted, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
        assert 400 <= server.ask(path, body or b" ").status < 500
