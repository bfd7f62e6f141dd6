"""The replies that clients are tested with, each chosen by a word in the prompt. One list for all clients."""

from __future__ import annotations

from typing import Any

from scripted_server import calls_of, reply

THINK = ["<think>", "\n", "let me", " see", "\n", "</think>", "\n\n"]
WEATHER = ("get_weather", '{"city": "Rome", "note": "caf\u00e9 \\"x\\""}')
ADD = ("add", '{"a": 2, "b": 3}')

REPLIES: list[dict[str, Any]] = [
    reply("It is sunny", " and five.", when="tool_response"),
    reply("Hel", "lo, ", "wor", "ld", "!", when="#hello#"),
    reply(*THINK, "The ", "answer", when="#think#"),
    reply(*calls_of(WEATHER), when="#one#"),
    reply(*THINK, *calls_of(WEATHER), "\n", *calls_of(ADD), when="#two#"),
    reply("Let me", " look.\n", *calls_of(WEATHER), when="#texttool#"),
    reply("smile ", {"hex": "f09f"}, {"hex": "9880"}, " done", when="#emoji#"),
    reply("on ", "and ", endless=True, when="#length#"),
    reply("tick ", endless=True, delay=0.02, when="#slow#"),
    reply('{"city": ', '"Rome", ', '"degrees": ', "21}", when="#json#"),
    reply(*calls_of(("note", '{"input": "a \\"b\\"\\n\\u00e9"}'), ("mcp__cal__create", '{"a": 2}')), when="#kinds#"),
    reply("Look.", *calls_of(("add", '{"a": 2, "b": }')), when="#broken#"),
    reply("fine", when=""),
]
SCRIPT = {"replies": REPLIES}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
