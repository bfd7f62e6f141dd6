"""--trace FILE: every request as lines of JSON, for people who want to know what a model was really given.

One line when a request is accepted (the rendered prompt, its settings), one when it has ended (why, cost, the reply as events).
Lines are whole and flushed, so the file can be followed. It holds what users wrote: it is made with mode 0600.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from ds4py.chat import Event, collect
from ds4py.errors import ResourceError
from ds4py.server.prompting import Prompt
from ds4py.server.results import Ended


class RequestTrace:
    """Appends to one file; safe to use from several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = Lock()

    @classmethod
    def open(cls, path: str | Path) -> RequestTrace:
        """Raises ResourceError if the file cannot be written."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ResourceError(f"{path}: cannot write the trace: {error.strerror}") from error
        return cls(os.fdopen(descriptor, "a", encoding="utf-8", errors="replace"))

    def begun(self, number: int, api: str, prompt: Prompt) -> None:
        asked = prompt.asked
        self._line(
            {
                "evt": "request",
                "request": number,
                "api": api,
                "model": asked.model,
                "prompt": str(prompt.text) if prompt.text is not None else asked.prompt,
                "n_prompt": len(prompt.ids),
                "tools": [tool["function"]["name"] for tool in prompt.tools],
                "params": asdict(prompt.params),
                "seed": prompt.seed,
                "max_tokens": prompt.max_tokens,
                "stop": asked.stop,
                "stream": asked.stream,
                "ignored": asked.ignored,
            }
        )

    def replied(self, number: int, events: Sequence[Event]) -> None:
        """What went out."""
        reply = collect(events)
        calls = [asdict(call) for call in reply.calls]
        self._line({"evt": "reply", "request": number, "reasoning": reply.reasoning, "text": reply.text, "calls": calls})

    def ended(self, number: int, ended: Ended) -> None:
        cost = {"usage": asdict(ended.usage), "timings": ended.timings}
        self._line({"evt": "end", "request": number, "outcome": ended.stop.reason, **cost})

    def over(self, number: int, outcome: str, words: str) -> None:
        self._line({"evt": "end", "request": number, "outcome": outcome, "why": words})

    def _line(self, fields: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps({"time": round(time.time(), 3), **fields}, ensure_ascii=False, default=list) + "\n")
            self._out.flush()

    def close(self) -> None:
        with self._lock:
            self._out.close()
