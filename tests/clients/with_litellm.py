"""litellm: completion streamed and not, chunks put together by its own builder."""

from __future__ import annotations

import json
from typing import Any

from client_scenarios import NUMBERS, SCHEMA
from scripted_server import Scripted


def run(server: Scripted) -> None:
    import litellm

    litellm.telemetry = False
    tools = [
        {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
        for name, schema in (("get_weather", SCHEMA), ("add", NUMBERS))
    ]
    common: dict[str, Any] = {"model": "openai/m", "api_base": f"{server.url}/v1", "api_key": "x", "tools": tools}
    for word, n_calls in (("hello", 0), ("think", 0), ("two", 2)):
        messages = [{"role": "user", "content": f"#{word}#"}]
        whole = litellm.completion(messages=messages, **common).choices[0]
        chunks = list(litellm.completion(messages=messages, stream=True, **common))
        built = litellm.stream_chunk_builder(chunks, messages=messages).choices[0]
        assert (built.message.content or "") == (whole.message.content or ""), (built, whole)
        assert built.finish_reason == whole.finish_reason
        made = [[call.function for call in choice.message.tool_calls or []] for choice in (whole, built)]
        calls = [[(function.name, json.loads(function.arguments)) for function in functions] for functions in made]
        assert calls[0] == calls[1] and len(calls[0]) == n_calls, calls
    try:
        litellm.completion(messages=[{"role": "user", "content": "x" * 30_000}], **common)
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt that is too long was not told as such")
