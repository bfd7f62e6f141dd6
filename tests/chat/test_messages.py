"""Messages, and arguments of tool calls in whatever state a history brings them (FC-35)."""

from __future__ import annotations

from typing import Any

import pytest

from ds4py.chat import Message, ToolCall
from ds4py.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ("", {}),
        ("  ", {}),
        ("null", {}),
        ('{"a": [1]}', {"a": [1]}),
        ('{"path": "a', '{"path": "a'),
        ("[]", "[]"),
        ("7", "7"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments(arguments: str, parsed: Any) -> None:
    assert ToolCall("f", arguments).parsed() == parsed


def test_roles_are_checked() -> None:
    with pytest.raises(UsageError, match="'robot'.*system, user, assistant, tool"):
        Message("robot", "x")
