"""Clients in small: what a program that obeys an API makes of its stream. They fail where a strict client would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ds4py.server.results import Wire


def chat(wires: Sequence[Wire]) -> dict[str, Any]:
    """A Chat Completions stream as one message, with finish reason and usage."""
    out: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None, "usage": None}
    assert wires[0].data["choices"][0]["delta"]["role"] == "assistant" and wires[-1].data == "[DONE]"
    assert len({wire.data["id"] for wire in wires[:-1]}) == 1 and all(wire.event is None for wire in wires)
    for wire in wires[:-1]:
        assert wire.data["object"] == "chat.completion.chunk" and isinstance(wire.data["created"], int)
        if not wire.data["choices"]:
            assert out["finish"] and not out["usage"]
            out["usage"] = wire.data["usage"]
            continue
        (choice,) = wire.data["choices"]
        delta = choice["delta"]
        assert out["finish"] is None and choice["index"] == 0
        out["finish"] = choice["finish_reason"]
        assert not (out["finish"] and delta)
        out["content"] += delta.get("content") or ""
        out["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            kind, field = ("custom", "input") if "custom" in call else ("function", "arguments")
            if "id" in call:
                assert call["index"] == len(out["calls"]) and call["type"] == kind and call[kind]["name"]
                out["calls"].append({"id": call["id"], "name": call[kind]["name"], field: ""})
            assert call["index"] == len(out["calls"]) - 1 and isinstance(call[kind][field], str)
            out["calls"][-1][field] += call[kind][field]
    assert out["finish"] in ("stop", "length", "tool_calls")
    return out


def completions(wires: Sequence[Wire]) -> dict[str, Any]:
    """A Completions stream as the answer that does not stream."""
    assert wires[-1].data == "[DONE]" and all(wire.event is None for wire in wires)
    text, finish, last = "", None, wires[0].data
    for wire in wires[:-1]:
        last = wire.data
        for choice in wire.data["choices"]:
            assert finish is None and choice["index"] == 0
            text, finish = text + choice["text"], choice["finish_reason"]
    assert finish in ("stop", "length")
    return {"text": text, "finish": finish, "usage": last.get("usage"), "id": last["id"]}


def messages(wires: Sequence[Wire]) -> dict[str, Any]:
    """A Messages stream as one message."""
    assert all(wire.event == wire.data["type"] for wire in wires)
    wires = [wire for wire in wires if wire.event != "ping"]
    kinds = [wire.event for wire in wires]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    message = dict(wires[0].data["message"])
    assert message["content"] == [] and message["usage"]["input_tokens"] >= 0
    content: list[dict[str, Any]] = []
    json_text, is_open = "", False
    for wire in wires[1:-2]:
        data = wire.data
        assert data["index"] == len(content) - (data["type"] != "content_block_start")
        if data["type"] == "content_block_start":
            assert not is_open
            content.append(dict(data["content_block"]))
            json_text, is_open = "", True
        elif data["type"] == "content_block_delta":
            delta, block = data["delta"], content[-1]
            assert is_open
            field, kind = {
                "text_delta": ("text", "text"),
                "thinking_delta": ("thinking", "thinking"),
                "signature_delta": ("signature", "thinking"),
                "input_json_delta": ("partial_json", "tool_use"),
            }[delta["type"]]
            assert block["type"] == kind
            if field == "partial_json":
                json_text += delta[field]
            else:
                block[field] += delta[field]
        else:
            assert data["type"] == "content_block_stop" and is_open
            is_open = False
            if content[-1]["type"] == "tool_use":
                try:
                    value = json.loads(json_text or "{}")
                except ValueError:
                    value = None
                content[-1]["input"] = value if isinstance(value, dict) else {"_invalid_arguments": json_text}
    assert not is_open
    last = wires[-2].data
    return {**message, "content": content, **last["delta"], "usage": message["usage"] | last["usage"]}


def responses(wires: Sequence[Wire]) -> dict[str, Any]:
    """A Responses stream: its final response, checked against what the events built up."""
    assert [wire.data["sequence_number"] for wire in wires] == list(range(len(wires)))
    assert all(wire.event == wire.data["type"] for wire in wires)
    assert [wire.event for wire in wires[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    text, part_open = "", False
    for wire in wires[2:-1]:
        data, kind = wire.data, wire.data["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert data["output_index"] == len(items) and not part_open
            items.append(dict(data["item"]))
            text = ""
            continue
        assert data["output_index"] == len(items) - 1
        if kind == "output_item.done":
            assert data["item"]["id"] == items[-1]["id"] and not part_open
            items[-1] = data["item"]
            continue
        assert data["item_id"] == items[-1]["id"]
        if kind in ("content_part.added", "reasoning_summary_part.added"):
            part_open = True
        elif kind in ("content_part.done", "reasoning_summary_part.done"):
            assert data["part"]["text"] == text
            part_open = False
        elif kind.endswith(".delta"):
            assert part_open or items[-1]["type"] == kind.removesuffix("_arguments.delta").removesuffix("_input.delta")
            text += data["delta"]
        else:
            assert kind.endswith(".done") and data.get("text", data.get("arguments", data.get("input"))) == text
    final: dict[str, Any] = wires[-1].data["response"]
    assert wires[-1].event == f"response.{final['status']}" and final["output"] == items
    return final
