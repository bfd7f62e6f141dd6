"""The REPL's input: prompt_toolkit with several lines, history and two kinds of leaving.

Enter sends. Alt-Enter, or Enter after a backslash at the end of the line, starts a new line; pasted text keeps its line breaks.
The prompt goes to the terminal even when the answers are redirected to a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from ds4py.cli.help import SLASH_COMMANDS
from ds4py.cli.history import DiskHistory, history_path

PROMPT = "ds4> "
_CONTINUED = "...> "


class LineEditor:
    """`read()` gives one input of the user, possibly several lines."""

    def __init__(self, history: History | None = None, path: Path | None = None) -> None:
        words = [name.split()[0] for names, _ in SLASH_COMMANDS for name in names.split(", ")]
        self._session: PromptSession[str] = PromptSession(
            history=history or DiskHistory(path or history_path()),
            multiline=True,
            key_bindings=_bindings(),
            prompt_continuation=lambda width, number, wrapped: _CONTINUED,
            completer=WordCompleter(words, sentence=True),
            complete_while_typing=False,
            reserve_space_for_menu=0,
            output=create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr),
        )

    def read(self) -> str:
        """Raises EOFError for Ctrl-D on an empty line, KeyboardInterrupt for Ctrl-C."""
        return self._session.prompt(PROMPT)


def _bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line.endswith("\\") and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
