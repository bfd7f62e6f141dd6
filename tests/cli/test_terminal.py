"""What goes to a terminal and what to a pipe."""

from __future__ import annotations

import io

import pytest

from ds4py.cli.terminal import open_terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "stream, term, no_color, when, live, colour",
    [
        (Screen, "xterm", "", "auto", True, True),
        (Screen, "xterm", "1", "auto", True, False),
        (Screen, "xterm", "1", "on", True, True),
        (Screen, "xterm", "", "off", True, False),
        (Screen, "dumb", "", "auto", False, False),
        (Screen, None, "", "auto", False, False),
        (io.StringIO, "xterm", "", "auto", False, False),
        (io.StringIO, "xterm", "", "on", False, True),
    ],
)
def test_when(
    monkeypatch: pytest.MonkeyPatch,
    stream: type[io.StringIO],
    term: str | None,
    no_color: str,
    when: str,
    live: bool,
    colour: bool,
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    terminal = open_terminal(stream(), when)
    assert (terminal.live, terminal.colour) == (live, colour)
    assert (terminal.dim("x") != "x") == colour


def test_a_line_in_place_is_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    pipe, screen = io.StringIO(), Screen()
    open_terminal(pipe).rewrite("50 %")
    open_terminal(screen).rewrite("50 %" + "x" * 1000)
    assert pipe.getvalue() == ""
    assert screen.getvalue().startswith("\r\x1b[K50 %") and "\n" not in screen.getvalue() and len(screen.getvalue()) < 500
