"""Ask a real model through the server with and without drafts: the same bytes at temperature 0, and above it in exact mode.

    python tests/scripts/server_identity.py MODEL.gguf [--tokens 96]

For every API, streaming and not, with tools, a schema, a stop string and a required call. Counts what was drafted, accepted and
rejected, and fails if drafts were idle. Prints one line a case; exit 1 if any text differs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Collection
from typing import Any

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": SCHEMA}}
EDIT = "Repeat this list twice, then stop: alpha beta gamma delta epsilon alpha beta gamma delta epsilon alpha beta gamma"
RANDOM = re.compile(r'"(?:id|call_id|created|created_at|item_id|tool_call_id)": ?(?:"[^"]*"|\d+)|"timings": ?\{[^}]*\}')

SIZES = ("--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "6")
DRAFTS = ("--spec-type", "ngram-simple", *SIZES, "--spec-depth", "fixed", "--spec-exact")
PIECE = re.compile(r'"(content|text|delta|arguments|partial_json|reasoning_content)": ?"((?:[^"\\]|\\.)*)"')


def cases(n: int) -> dict[str, tuple[str, dict[str, Any]]]:
    def chat(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": n, "seed": 11, **fields}

    weather = "What is the weather in Rome? Use the tool."
    found = {
        "edit": chat(EDIT),
        "story": chat("Tell a short story about a fox."),
        "stop": chat(EDIT, stop=["delta"]),
        "tools": chat(weather, tools=[TOOL]),
        "required": chat(weather, tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
        "schema": chat("A city as JSON", response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
        "messages": ("/v1/messages", {"messages": [{"role": "user", "content": EDIT}], "max_tokens": n}),
        "responses": ("/v1/responses", {"input": EDIT, "max_output_tokens": n, "seed": 11}),
        "completions": ("/v1/completions", {"prompt": "one two three four one two three four one two", "max_tokens": n}),
    }
    return {name: (path, {"seed": 11, **body}) for name, (path, body) in found.items()}


def run(model: str, n: int, *options: str, only: Collection[str] = ()) -> tuple[dict[str, str], dict[str, float]]:
    """(case -> text of its answer, counters) of one server. only: names of cases; all of them if there are none."""
    command = [sys.executable, "-m", "ds4py.cli.server", "-m", model, "--port", "0", "-c", "2048", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = ""
        for line in process.stderr:
            if found := re.search(r"listening at (http://\S+)", line):
                url = found.group(1)
                break
        texts: dict[str, str] = {}
        for temperature in (0, 1):
            for name, (path, body) in cases(n).items():
                if only and name not in only:
                    continue
                for stream in (False, True):
                    raw = _ask(url + path, {**body, "temperature": temperature, "stream": stream})
                    label = f"{name} t={temperature}{' stream' if stream else ''}"
                    texts[label] = _joined(raw) if stream else RANDOM.sub("", raw)
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        lines = [line.split() for line in metrics.splitlines() if line.startswith("ds4_") and "{" not in line]
        return texts, {name: float(value) for name, value in lines}
    finally:
        process.terminate()
        process.wait()


def _ask(url: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        text: str = answer.read().decode()
    return re.sub(r'"(?:cached_tokens|cache_read_input_tokens|input_tokens)": ?\d+', "", text)


def _joined(raw: str) -> str:
    """All text of a stream: how it is cut into events depends on drafts, what it says does not."""
    kinds: dict[str, str] = {}
    for line in raw.splitlines():
        if line.startswith("data: {"):
            for key, text in PIECE.findall(line):
                kinds[key] = kinds.get(key, "") + text
    kinds.pop("text", None) if "delta" in kinds else None  # Responses tell everything again at the end
    return json.dumps(kinds, sort_keys=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=96)
    asked = parser.parse_args()
    plain, _ = run(asked.model, asked.tokens)
    drafted, counts = run(asked.model, asked.tokens, *DRAFTS)
    different = [name for name in plain if plain[name] != drafted[name]]
    for name in plain:
        print(f"{'DIFFERENT' if name in different else 'same'}: {name}, {len(plain[name])} characters")
    n_drafted, n_accepted = counts["ds4_drafted_tokens_total"], counts["ds4_accepted_tokens_total"]
    print(f"drafted {n_drafted:.0f}, accepted {n_accepted:.0f}, rejected {n_drafted - n_accepted:.0f}")
    idle = min(n_accepted, n_drafted - n_accepted) < 20
    if idle:
        print("drafts were idle: this run proves nothing")
    return 1 if different or idle else 0


if __name__ == "__main__":
    sys.exit(main())
