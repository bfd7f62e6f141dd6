"""The reply on standard output: answer plain, reasoning dimmed; nothing but generated text.

On a coloured terminal reasoning is dim and set apart by a blank line. Elsewhere it keeps its tags, so that a program
that reads a pipe can tell the two apart. Every piece is flushed: a reader sees a token when it exists.
"""

from __future__ import annotations

from ds4py.chat import Event, Reasoning, ReplyStream, Stop, Text, ThinkTags
from ds4py.cli.terminal import Terminal


class Screen:
    """Shows one reply and remembers it. A `Sink`."""

    def __init__(self, out: Terminal, stream: ReplyStream, tags: ThinkTags | None) -> None:
        self.text = ""
        self.reasoning = ""
        self.stop: Stop | None = None
        self._out = out
        self._stream = stream
        self._tags = tags
        self._last = ""  # the last text written

    def push(self, token: int) -> bool:
        self._show(self._stream.push(token))
        return self._stream.done

    def close(self, reason: str) -> None:
        self._show(self._stream.finish(reason))
        if self.reasoning and not self.text:
            self._write(self._after_reasoning())
        if self._out.live and self._last and not self._last.endswith("\n"):
            self._write("\n")

    def _show(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Reasoning(text):
                    self._write(("" if self.reasoning else self._before_reasoning()) + self._out.dim(self._out.foreign(text)))
                    self.reasoning += text
                case Text(text):
                    self._write(self._after_reasoning() if self.reasoning and not self.text else "")
                    self._write(self._out.foreign(text))
                    self.text += text
                case Stop():
                    self.stop = event

    def _before_reasoning(self) -> str:
        return "" if self._out.colour or self._tags is None else f"{self._tags.open}\n"

    def _after_reasoning(self) -> str:
        return "\n\n" if self._out.colour or self._tags is None else f"\n{self._tags.close}\n\n"

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._last = text
