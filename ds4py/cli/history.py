"""The REPL's history: the last 512 inputs, on disk, shared by sessions that run at the same time.

One JSON string per line, so that an input of several lines stays one entry. Every new entry reads the file again, appends and
replaces it whole, so two sessions lose nothing to each other but order. A home that cannot be written costs the history, never
the chat. The file is readable by its owner only: it holds what people asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

N_LINES = 512


def history_path() -> Path:
    """XDG_STATE_HOME/ds4/history, or ~/.local/state/ds4/history."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return base / "ds4" / "history"


class DiskHistory(History):
    """prompt_toolkit's interface over that file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        return reversed(self._read())

    def store_string(self, string: str) -> None:
        if not string.strip():
            return
        lines = [*self._read(), string][-N_LINES:]
        with contextlib.suppress(OSError):
            self._replace("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def _read(self) -> list[str]:
        """Entries, oldest first; lines that are not ours are skipped."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        entries: list[str] = []
        for line in text.split("\n"):
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, str):
                    entries.append(entry)
        return entries[-N_LINES:]

    def _replace(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(prefix=".history.", dir=self.path.parent)  # mode 0600
        try:
            with open(handle, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
