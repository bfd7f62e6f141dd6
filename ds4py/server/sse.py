"""Server-sent events as bytes."""

from __future__ import annotations

import msgspec

from ds4py.server.results import Wire


def encode(wire: Wire) -> bytes:
    """One event. JSON has no line breaks in it, so one data line is enough."""
    name = f"event: {wire.event}\n".encode() if wire.event else b""
    data = wire.data.encode() if isinstance(wire.data, str) else to_json(wire.data)
    return name + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that every client skips; it keeps connections alive."""
    return f": {text}\n\n".encode()


def to_json(value: object) -> bytes:
    """JSON in UTF-8. Half surrogates, which no UTF-8 can hold, become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_valid(value))


def _valid(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_valid(name): _valid(item) for name, item in value.items()}
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value
