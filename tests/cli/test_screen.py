"""A reply on standard output: reasoning dim on a terminal, between its tags in a pipe; a newline only on a terminal."""

from __future__ import annotations

import io

import pytest

from ds4py.chat import Event, Reasoning, ReplyStream, Stop, Text, ThinkTags
from ds4py.cli.screen import Screen
from ds4py.cli.terminal import Terminal

TAGS = ThinkTags("<think>", "</think>")


class Script(ReplyStream):
    """Hands out given events, a list per token."""

    def __init__(self, *events: list[Event]) -> None:
        self._script = list(events)

    @property
    def done(self) -> bool:
        return not self._script

    def push(self, token: int) -> list[Event]:
        return self._script.pop(0)

    def finish(self, reason: str) -> list[Event]:
        return [Stop(reason, None, 0)]


def show(events: list[list[Event]], live: bool, colour: bool, tags: ThinkTags | None = TAGS) -> tuple[str, Screen]:
    stream = io.StringIO()
    screen = Screen(Terminal(stream, live, colour), Script(*events), tags)
    ends = [screen.push(i) for i in range(len(events))]
    screen.close("length")
    assert ends == [False] * (len(events) - 1) + [True]
    return stream.getvalue(), screen


THOUGHT: list[list[Event]] = [[Reasoning("let me")], [Reasoning(" see"), Text("It is")], [], [Text(" 4")]]


def test_a_terminal_dims_reasoning() -> None:
    shown, screen = show(THOUGHT, live=True, colour=True)
    assert shown == "\x1b[2mlet me\x1b[0m\x1b[2m see\x1b[0m\n\nIt is 4\n"
    assert (screen.text, screen.reasoning, screen.stop) == ("It is 4", "let me see", Stop("length", None, 0))


def test_a_pipe_keeps_the_tags() -> None:
    assert show(THOUGHT, live=False, colour=False)[0] == "<think>\nlet me see\n</think>\n\nIt is 4"


def test_reasoning_that_never_ended_is_closed() -> None:
    assert show([[Reasoning("hm")]], live=False, colour=False)[0] == "<think>\nhm\n</think>\n\n"


def test_a_model_cannot_command_the_terminal() -> None:
    evil: list[list[Event]] = [[Reasoning("\x1b[2J"), Text("a\x1b]0;title\x07\tb\n\x9b")]]
    shown, screen = show(evil, live=True, colour=False, tags=None)
    assert shown == "␛[2J\n\na␛]0;title␇\tb\n\ufffd\n" and screen.text == "a\x1b]0;title\x07\tb\n\x9b"
    assert show(evil, live=False, colour=False, tags=None)[0].endswith("a\x1b]0;title\x07\tb\n\x9b")


@pytest.mark.parametrize("text, live, shown", [("a", True, "a\n"), ("a\n", True, "a\n"), ("a", False, "a"), ("", True, "")])
def test_the_last_newline(text: str, live: bool, shown: str) -> None:
    assert show([[Text(text)] if text else []], live, False, None)[0] == shown
