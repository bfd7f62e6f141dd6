"""How much of an agent's second request is read anew: tools and instructions of 30,000 characters, and noise in between.

    python tests/scripts/server_second_turn.py MODEL.gguf [--limit 5]

The shapes are those of programs: Messages with a billing line and a date at the head of the system text that change every time,
Chat Completions with a title request in front, Responses with a developer's instructions. For each API: the first request, a
short request for a title, then the second turn of the same conversation (a tool's result has come back), then the first turn
of another conversation. Counts tokens as the server's usage tells them. Exit 1 if one of the last two reads over --limit percent
of what the first one read.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

RULES = "".join(f"Rule {i}: read file {i} before you change it, and say in a sentence why it must change.\n" for i in range(240))
PATH = {"type": "string", "description": "An absolute path. " * 12}
SCHEMA = {"type": "object", "properties": {"path": PATH}, "required": ["path"]}
TOOLS = [(f"Tool{i}", f"Does the work of tool {i} on one file. " * 14, SCHEMA) for i in range(12)]
TITLE = "Write a title of three words for this conversation."


@dataclass(frozen=True)
class Read:
    """What one request cost: tokens of the prompt, and those of them that were read anew."""

    api: str
    what: str
    n_prompt: int
    n_read: int


Post = Callable[[str, dict[str, Any]], dict[str, Any]]


def measure(post: Post, max_tokens: int = 8) -> Iterator[Read]:
    """Run the conversations of all APIs; `post` asks a server and gives its answer."""
    for api, run in (("messages", _messages), ("chat", _chat), ("responses", _responses)):
        for what, (n_prompt, n_read) in run(post, max_tokens):
            yield Read(api, what, n_prompt, n_read)


def shares(reads: list[Read]) -> dict[str, float]:
    """Of each request but the first of its API: what it read, as a share of what the first one did."""
    first = {read.api: read.n_read for read in reads if read.what == "first"}
    later = [read for read in reads if read.what in ("second turn", "another conversation")]
    return {f"{read.api}, {read.what}": read.n_read / first[read.api] for read in later}


def _messages(post: Post, n: int) -> Iterator[tuple[str, tuple[int, int]]]:
    tools = [{"name": name, "description": text, "input_schema": schema} for name, text, schema in TOOLS]
    call = {"type": "tool_use", "id": "toolu_1", "name": "Tool1", "input": {"path": "/a"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It says hello."}
    count = 0

    def ask(messages: list[Any], **fields: Any) -> tuple[int, int]:
        nonlocal count
        count += 1
        head = f"x-anthropic-billing-header: cc_version=2.1; cch={count:05x};"
        instructions = f"Today's date: 2026-11-{count:02d}\nYou are an agent for code. (messages)\n{RULES}"
        system = [{"type": "text", "text": text} for text in (head, "You are a program.", instructions)]
        body = {"model": "m", "max_tokens": n, "temperature": 0, "messages": messages, **fields}
        usage = post("/v1/messages", {"system": system, "tools": tools} | body)["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["input_tokens"]

    def user(*blocks: Any) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": x} if isinstance(x, str) else x for x in blocks]}

    first = user("<reminder>be brief</reminder>", "Fix the bug in /a.")
    yield "first", ask([first])
    yield "title", ask([user(TITLE)], system="You write titles.", tools=[])
    yield "second turn", ask([first, {"role": "assistant", "content": [call]}, user(result)])
    yield "another conversation", ask([user("<reminder>be brief</reminder>", "Write a test for /b.")])


def _chat(post: Post, n: int) -> Iterator[tuple[str, tuple[int, int]]]:
    tools = [{"type": "function", "function": {"name": name, "description": text, "parameters": s}} for name, text, s in TOOLS]
    call = {"id": "call_1", "type": "function", "function": {"name": "Tool1", "arguments": '{"path": "/a"}'}}

    def ask(*messages: dict[str, Any], **fields: Any) -> tuple[int, int]:
        body = {"model": "m", "max_tokens": n, "temperature": 0, "messages": list(messages), **fields}
        usage = post("/v1/chat/completions", body)["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]

    system = {"role": "system", "content": f"You are an agent for code. (chat)\n{RULES}"}
    first = [system, {"role": "user", "content": "Fix the bug in /a."}]
    title = [{"role": "system", "content": "You write titles."}, {"role": "user", "content": TITLE}]
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    again = [called, {"role": "tool", "tool_call_id": "call_1", "content": "It says hello."}]
    yield "title", ask(*title)
    yield "first", ask(*first, tools=tools)
    yield "title", ask(*title)
    yield "second turn", ask(*first, *again, tools=tools)
    yield "another conversation", ask(system, {"role": "user", "content": "Write a test for /b."}, tools=tools)


def _responses(post: Post, n: int) -> Iterator[tuple[str, tuple[int, int]]]:
    tools = [{"type": "function", "name": name, "description": text, "parameters": schema} for name, text, schema in TOOLS]

    def ask(*items: dict[str, Any], **fields: Any) -> tuple[int, int]:
        rest = {"instructions": f"You are an agent for code. (responses)\n{RULES}", "tools": tools} | fields
        body = {"model": "m", "max_output_tokens": n, "temperature": 0, "input": list(items), **rest}
        usage = post("/v1/responses", body)["usage"]
        return usage["input_tokens"], usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]

    def user(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    environment = user("<environment_context><cwd>/ws</cwd></environment_context>")
    first = [environment, user("Fix the bug in /a.")]
    call = {"type": "function_call", "call_id": "c1", "name": "Tool1", "arguments": '{"path": "/a"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "It says hello."}
    yield "first", ask(*first)
    yield "title", ask(user(TITLE), instructions="You write titles.", tools=[])
    yield "second turn", ask(*first, call, output)
    yield "another conversation", ask(environment, user("Write a test for /b."))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--limit", type=float, default=5.0, help="percent")
    parser.add_argument("--ctx", default="16384")
    asked = parser.parse_args()
    command = [sys.executable, "-m", "ds4py.cli.server", "-m", asked.model, "--port", "0", "-c", asked.ctx]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        found = next((found for line in server.stderr if (found := re.search(r"listening at (http://\S+)", line))), None)
        if found is None:
            return 1
        url = found.group(1)

        def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=1800) as answer:
                told: dict[str, Any] = json.load(answer)
            return told

        reads = []
        for read in measure(post):
            reads.append(read)
            print(f"{read.api}, {read.what}: {read.n_prompt} tokens, {read.n_read} of them read", flush=True)
    finally:
        server.terminate()
        server.wait()
    worst = max(shares(reads).values())
    print(", ".join(f"{name}: {100 * share:.2f} %" for name, share in shares(reads).items()))
    return 1 if 100 * worst > asked.limit else 0


if __name__ == "__main__":
    sys.exit(main())
