"""Downloads as the user sees them: the sentences before the first byte, the line that moves, the hub that the options describe.

The idea: `ds4py.hub` tells what happens through callables; this module turns that into lines on standard error, the same for
`ds4-download` and `ds4 -hf`. A pipe gets whole sentences and no progress.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ds4py.cli.parsing import Values
from ds4py.cli.terminal import Terminal
from ds4py.hub.choosing import Reference, plans_of
from ds4py.hub.fetching import Listeners, Policy, fetch_files
from ds4py.hub.memory import SYSTEM_BYTES, Estimate, estimate, fits, gb, memory_bytes
from ds4py.hub.place import Hub, Patience, hub_from
from ds4py.hub.plan import Plan
from ds4py.hub.targets import Target

_REDRAW_SECONDS = 0.2
_SPEED_SECONDS = 10.0


@dataclass
class ProgressLine:
    """One line that is rewritten: file, bytes, percent, speed of the last seconds, time left."""

    log: Terminal
    marks: list[tuple[float, int]] = field(default_factory=list)
    drawn: float = 0.0

    def show(self, verb: str, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.marks and done < self.marks[-1][1]:
            self.marks.clear()  # another file, or the same from its start
        if not self.log.live or (now - self.drawn < _REDRAW_SECONDS and done < total):
            return
        self.drawn = now
        self.marks.append((now, done))
        while self.marks[0][0] < now - _SPEED_SECONDS:
            self.marks.pop(0)
        seconds, n_bytes = now - self.marks[0][0], done - self.marks[0][1]
        speed = n_bytes / seconds if seconds > 0 else 0.0
        left = f", {_clock((total - done) / speed)} left" if speed > 0 else ""
        pace = f", {speed / 1e6:.1f} MB/s{left}" if speed > 0 else ""
        self.log.rewrite(f"{verb} {name[:40]}: {gb(done)} of {gb(total)}, {100 * done / max(1, total):.0f} %{pace}")

    def clear(self) -> None:
        self.marks.clear()
        self.log.rewrite("")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def hub_of(values: Values, timeout: float | None = None) -> Hub:
    """The hub that the options and the environment describe."""
    token = values.text("token") if values.has("token") else None
    return hub_from(
        os.environ,
        token,
        "HF_TOKEN" if token is not None and token == os.environ.get("HF_TOKEN") else "--token",
        values.text("hf_endpoint") if values.has("hf_endpoint") else None,
        values.text("hf_cache") if values.has("hf_cache") else None,
        Patience(timeout=timeout) if timeout is not None else None,
    )


def listeners(log: Terminal, n_ctx: int, target: Target | None = None) -> Listeners:
    """What to tell on `log`. `target`: what is known about the model beside its size."""
    line = ProgressLine(log)

    def say(sentence: str) -> None:
        line.clear()
        log.say(sentence)

    def planned(plans: Sequence[Plan], need: int, free: int) -> None:
        line.clear()
        total = sum(plan.size for plan in plans)
        names = plans[0].name if len(plans) == 1 else f"{len(plans)} files, {plans[0].name} and on"
        log.say(f"{plans[0].repo}: {names}, {gb(total)}")
        log.say(f"disk: {gb(need)} still to come, {gb(free)} free")
        if target is None or target.model:
            needed = estimate(total, n_ctx, target.family if target else None, target.on_disk if target else 0)
            log.say(memory_line(needed, n_ctx))

    return Listeners(
        say,
        lambda name, done, total: line.show("downloading", name, done, total),
        lambda name, done, total: line.show("checking", name, done, total),
        planned,
    )


def memory_line(needed: Estimate, n_ctx: int) -> str:
    memory = memory_bytes()
    if memory == 0:
        return f"memory: about {needed.words(n_ctx)}"
    verdict = "fits" if fits(needed, memory) else "DOES NOT FIT here"
    return f"memory: {verdict}: this machine has {gb(memory)}, {gb(SYSTEM_BYTES)} of it for the rest; the model needs about " + (
        needed.words(n_ctx)
    )


def obtain(values: Values, asked: Reference, log: Terminal) -> Path:
    """The file of `ds4 -hf`: downloaded if it is not there, the first shard if it is split."""
    heard = listeners(log, values.integer("ctx"))
    folder = Path(values.text("gguf_dir"))
    wish = (asked.repo, partial(plans_of, asked))
    try:
        found = fetch_files(hub_of(values), (wish,), folder, heard, Policy(keep=True, offline=values.flag("offline")))
    except KeyboardInterrupt:
        log.rewrite("")
        log.say(f"ds4: interrupted; what came so far stays in {folder} as .part, and the same command goes on from there")
        raise
    log.rewrite("")
    for file in found:
        if not file.how.startswith("already here"):
            log.say(f"ds4: {file.path}: {file.how}")
    return found[0].path
