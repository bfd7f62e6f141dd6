"""One turn on a session: read the prompt, generate, keep the clock; the lines on standard error that go with it.

The idea: one-shot and chat do the same turn and differ in what they do afterwards. Tokens go to a `Sink`, which turns them into
text and says when to end (a stop string, a closed turn); a turn ends at a stop token, the budget, the context, the sink's word
or Ctrl-C, and in every case what was generated is in the session and on the screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ds4py.cli.interrupts import Interrupts, Stopped
from ds4py.cli.terminal import Terminal
from ds4py.engine import Session


class Sink(Protocol):
    """Where generated tokens go."""

    def push(self, token: int) -> bool:
        """Show `token`; True ends the turn."""
        ...

    def close(self, reason: str) -> None:
        """No more tokens come, for `reason`: show what is held back."""
        ...


@dataclass(frozen=True)
class Turn:
    """What a turn did. `end`: "stop" (a stop token or the sink), "length", "context", or "interrupted"."""

    fed: int
    generated: int
    prefill_seconds: float
    decode_seconds: float
    end: str

    def line(self) -> str:
        """ds4's closing line; a rate without work is 0."""
        prefill, generation = _rate(self.fed, self.prefill_seconds), _rate(self.generated, self.decode_seconds)
        return f"ds4: prefill: {prefill:.2f} t/s, generation: {generation:.2f} t/s"


def take_turn(session: Session, ids: Sequence[int], n_tokens: int | None, sink: Sink, log: Terminal) -> Turn:
    """Make `ids` the session's prompt and generate at most `n_tokens` (None = until the context is full) into `sink`.

    Ctrl-C ends the turn at the next safe point; a second one is a KeyboardInterrupt. Raises what the session raises."""
    with Interrupts() as interrupts:
        begun = time.perf_counter()
        shown = _Progress(len(ids), log, interrupts)
        try:
            fed = session.sync(ids, shown.update).fed
        except Stopped:
            return Turn(shown.done, 0, time.perf_counter() - begun, 0.0, "interrupted")
        finally:
            log.rewrite("")
        read = time.perf_counter()
        count = _Count()
        end = "error"
        try:
            end = _generate(session, n_tokens, sink, interrupts, count)
        finally:
            sink.close(end)
        return Turn(fed, count.n, read - begun, time.perf_counter() - read, end)


def _generate(session: Session, n_tokens: int | None, sink: Sink, interrupts: Interrupts, count: _Count) -> str:
    """Why it ended."""
    try:
        for step in session.generate(n_tokens):
            for token in step.tokens:
                count.n += 1
                if sink.push(token):
                    return "stop"
            if session.finish is None:
                interrupts.check()
    except Stopped:
        return "interrupted"
    return session.finish or "stop"


@dataclass
class _Count:
    """Tokens generated so far; it outlives the loop that an interrupt leaves."""

    n: int = 0


class _Progress:
    """The line that is rewritten while a prompt is read; nothing in a pipe."""

    def __init__(self, n_prompt: int, log: Terminal, interrupts: Interrupts) -> None:
        self.done = 0
        self._n_prompt = n_prompt
        self._log = log
        self._interrupts = interrupts

    def update(self, done: int, total: int) -> None:
        self.done = done
        percent = 100 * done // max(1, total)
        self._log.rewrite(f"processing {self._n_prompt} input tokens: {done}/{total} ({percent}%)")
        self._interrupts.check()


def progress(log: Terminal, what: str) -> Callable[[int, int], None]:
    """A progress callback for modes that are not turns."""

    def update(done: int, total: int) -> None:
        log.rewrite(f"{what}: {done}/{total} ({100 * done // max(1, total)}%)" if done < total else "")

    return update


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count and seconds > 0 else 0.0
