"""What a stream can show: colours, dim text, a line rewritten in place.

The idea: one value per stream, made once from facts (is it a terminal, NO_COLOR, TERM, --color), and plain methods on it; the
code that prints never asks about terminals again. The invariant: a pipe or a file gets neither escape sequences nor a line
twice. Rejected: rich, which costs more start-up time than the whole of `--help` may take.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO

from ds4py.errors import ResourceError

_DIM, _BOLD, _CYAN, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[36m", "\x1b[0m"
_ERASE_LINE = "\r\x1b[K"
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | dict.fromkeys([*range(0x7F, 0xA0)], 0xFFFD)


@dataclass(frozen=True)
class Terminal:
    """One output stream. `live`: a terminal that understands escape sequences; `colour`: styles may be used on it."""

    stream: TextIO
    live: bool
    colour: bool

    def write(self, text: str) -> None:
        """ResourceError if the file behind the stream cannot take it; BrokenPipeError if its reader is gone."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(self.stream)
            raise ResourceError(f"cannot write the output: {error.strerror or error}") from error

    def say(self, line: str = "") -> None:
        self.write(line + "\n")

    def foreign(self, text: str) -> str:
        """Text of a model or a file: on a terminal its control characters become visible signs, so that they control nothing."""
        return text.translate(_VISIBLE) if self.live else text

    def dim(self, text: str) -> str:
        return self._style(_DIM, text)

    def bold(self, text: str) -> str:
        return self._style(_BOLD, text)

    def accent(self, text: str) -> str:
        return self._style(_CYAN, text)

    def rewrite(self, line: str) -> None:
        """Show `line` in place of the last such line; nothing in a pipe. `rewrite("")` removes it."""
        if self.live:
            width = shutil.get_terminal_size().columns
            self.write(_ERASE_LINE + line[: max(1, width - 1)])

    def _style(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.colour and text else text


def open_terminal(stream: TextIO, when: str = "auto") -> Terminal:
    """`when` is the value of --color. NO_COLOR (any non-empty text) and TERM=dumb turn styles off unless `when` is "on"."""
    live = stream.isatty() and os.environ.get("TERM") not in ("dumb", None, "")
    colour = when == "on" or (when == "auto" and live and not os.environ.get("NO_COLOR"))
    return Terminal(stream, live, colour)


def discard(stream: TextIO) -> None:
    """Let what is still buffered for a stream that fails go nowhere, or Python would fail again when it closes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def safe_streams() -> None:
    """Let the standard streams replace what their encoding cannot show, instead of failing in the middle of an answer."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
