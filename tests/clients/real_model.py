"""openai-python and anthropic-python against ds4-server on a real model: no protocol error, streams closed as they should be.

    python tests/clients/run.py --model FILE [--options "--spec-type ngram-map-k ..."]

What a small model says is not judged, only how it is said: a stream adds up to what the same request gives unstreamed (at
temperature 0), ends with a reason that is known, counts the same tokens; calls that were asked for are made, with arguments that
their schema allows; a format that was asked for is kept; a stream that is left ends its request; the server is well afterwards.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY}}]
ASK = [{"role": "user", "content": "What is the weather in Rome? Use the tool if there is one."}]
REASONS = ("stop", "length", "tool_calls")


@contextlib.contextmanager
def serving(model: Path, options: Sequence[str]) -> Iterator[str]:
    """The address of a ds4-server on `model`."""
    command = [sys.executable, "-m", "ds4py.cli.server", "-m", str(model), "--port", "0", "--ctx", "4096", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        found = next(match for line in lines if (match := re.search(r"listening at (http://\S+)", line)))
        yield found.group(1)
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=30)
        assert process.returncode == 0 and "Traceback" not in rest, rest


def run(model: Path, options: Sequence[str]) -> int:
    """Every step once; how many failed."""
    import anthropic
    import openai

    failures = 0
    with serving(model, options) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=300)
        claude = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0, timeout=300)
        for step, given in ((chat, client), (required, client), (formatted, client), (responses, client), (left, client),
                            (too_long, client), (messages, claude)):  # fmt: skip
            failures += _failed(step, given)
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        failed = sum(float(line.split()[-1]) for line in text.splitlines() if 'outcome="failed"' in line)
        print(f"requests that failed: {failed:.0f}")
    return failures + int(failed)


def _failed(step: Callable[[Any], None], client: Any) -> int:
    began = time.monotonic()
    try:
        step(client)
    except Exception as error:  # whatever a client raises
        print(f"{step.__name__}: FAILED, {type(error).__name__}: {error}", flush=True)
        return 1
    print(f"{step.__name__}: passed in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def chat(client: Any) -> None:
    strict: Any = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    for tools in ((), TOOLS, strict):
        asked: dict[str, Any] = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 60}
        asked |= {"tools": tools} if tools else {}
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        choices = [choice for chunk in chunks for choice in chunk.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
        said = whole.choices[0]
        assert text == (said.message.content or ""), (text, said)
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == [said.finish_reason]
        assert said.finish_reason in REASONS and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        streamed = "".join(call.function.arguments or "" for call in calls)
        assert streamed == "".join(call.function.arguments for call in said.message.tool_calls or ())


def required(client: Any) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        asked = {"model": "m", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "temperature": 0.7, "seed": 3}
        with client.chat.completions.stream(**asked, parallel_tool_calls=False, max_tokens=80) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
        (call,) = final.message.tool_calls
        assert final.finish_reason == "tool_calls" and call.function.name == "get_weather"
        assert isinstance(json.loads(call.function.arguments)["city"], str)
    history = [*ASK, final.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    answer = client.chat.completions.create(model="m", messages=history, tools=TOOLS, max_tokens=40, temperature=0)
    assert answer.usage.prompt_tokens_details.cached_tokens > 20 and answer.choices[0].finish_reason in REASONS


def formatted(client: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(model="m", messages=ASK, response_format=form, max_tokens=80, temperature=0.7, seed=1)
    assert list(json.loads(answer.choices[0].message.content)) == ["city"]


def responses(client: Any) -> None:
    patch = {"type": "custom", "name": "note", "description": "Writes a note."}
    asked: dict[str, Any] = {"model": "m", "input": "Say hello.", "max_output_tokens": 40, "temperature": 0}
    kinds = [event.type for event in client.responses.create(**asked, stream=True)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete") and "response.output_text.delta" in kinds
    asked |= {"max_output_tokens": 200, "tools": [patch], "tool_choice": {"type": "custom", "name": "note"}}
    called = client.responses.create(**asked)
    assert called.output[0].type == "custom_tool_call" and isinstance(called.output[0].input, str)


def left(client: Any) -> None:
    stream = client.chat.completions.create(model="m", messages=ASK, stream=True, max_tokens=2000, temperature=1)
    for _, _ in zip(range(3), stream, strict=False):
        pass
    stream.close()
    began = time.monotonic()
    client.chat.completions.create(model="m", messages=ASK, max_tokens=1)
    assert time.monotonic() - began < 20  # not the 2,000 tokens that nobody waits for


def too_long(client: Any) -> None:
    import openai

    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 6000}], stream=True)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded"
    else:
        raise AssertionError("a prompt that does not fit was taken")


def messages(claude: Any) -> None:
    tools: Any = [{"name": "get_weather", "description": "Weather of a city.", "input_schema": CITY}]
    asked: dict[str, Any] = {"model": "m", "messages": ASK, "max_tokens": 60, "tools": tools, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason and final.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model="m", messages=ASK, tools=tools).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    forced = claude.messages.create(**asked, tool_choice={"type": "tool", "name": "get_weather"})
    assert forced.stop_reason == "tool_use" and set(forced.content[-1].input) == {"city"}
