"""Stop strings in a stream of text.

The invariant: what comes out is a function of the text alone, not of how it was cut into pieces; nothing of a stop string ever
comes out, and nothing else is ever lost. The match that is complete first wins, and of two complete at the same character the
longer one, so a decision never waits for text that may not come. Text that could be the beginning of a stop string is held back
until the next piece decides. Empty stop strings are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopStrings:
    """Incremental search for several strings; `state` is all it remembers."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=1)
        self.state = ""  # text held back: the beginning of a stop string

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text to show, stop string that was met). After a match nothing is held, and the rest of `text` is dropped."""
        text = self.state + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self.state = ""
            return text[:at], stop
        keep = len(text) - self._held_len(text)
        self.state = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """The text held back; the stream has ended, so it belongs to the answer."""
        held, self.state = self.state, ""
        return held

    def _held_len(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
