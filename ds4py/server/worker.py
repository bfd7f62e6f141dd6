"""The one thread that owns the engine: a queue of jobs, first come first served.

The idea: a model computes one thing at a time anyway, so one thread does all of it and nothing of the engine needs a lock. A job
that nobody waits for any more is taken out of the queue when that is known, so it never costs a prefill nor a place; one that is
running ends at its next safe point and leaves its session usable. Whatever a job raises ends that job alone: a session whose
state cannot be trusted afterwards is forgotten. Batches of sessions will be made here, and only here.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ds4py.engine import Engine, Session, SessionOptions
from ds4py.engine.depth import AtMost
from ds4py.engine.statistics import llama_lines
from ds4py.errors import ContextError, Ds4Error, NumericError, ResourceError, UsageError
from ds4py.protocols import SpecStats
from ds4py.server.answering import Answer
from ds4py.server.asked import Refusal
from ds4py.server.jobs import Cancelled, Events, Failed, Job
from ds4py.server.metrics import Metrics
from ds4py.server.prefixes import Kept, Prefixes
from ds4py.server.prompting import Prompt, Prompting
from ds4py.server.results import Ended, Usage
from ds4py.server.trace import RequestTrace

_RETRY_SECONDS = 5


@dataclass(frozen=True)
class Served:
    """A model and what is needed to answer with it.

    equip(options) adds a new drafter, if one runs; drafts_decide(options) tells whether drafts may decide the text, so that a
    drafter belongs to one answer; learn(session) is told when an answer is over; begin(state, prompt, n_prompt, check) when one
    begins (scripted models)."""

    engine: Engine
    prompting: Prompting
    name: str
    speculation: str = "speculation: off"
    equip: Callable[[SessionOptions], SessionOptions] = lambda options: options
    drafts_decide: Callable[[SessionOptions], bool] = lambda options: False
    learn: Callable[[Session], None] = lambda session: None
    begin: Callable[[Any, str, int, Callable[[], None]], None] | None = None
    closing: Callable[[SpecStats], Iterable[str]] = llama_lines  # what the log says of an answer's drafts


class Worker:
    """`start`, `submit` jobs, `close`."""

    def __init__(
        self,
        served: Served,
        cache_bytes: int,
        max_queue: int = 0,
        log: Callable[[str], None] = print,
        trace: RequestTrace | None = None,
    ) -> None:
        """max_queue: jobs that may wait; 0: any number."""
        self.served, self.metrics = served, Metrics()
        self._prefixes = Prefixes(served.engine, served.prompting.tokenizer, cache_bytes)
        self._max_queue, self._log, self._trace = max_queue, log, trace
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._running: Job | None = None
        self._closed = False
        self._n_jobs = 0
        self._thread = threading.Thread(target=self._work, name="ds4-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def submit(self, job: Job) -> None:
        """Queue a job. Raises Refusal if the queue is full or the server is leaving."""
        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is shutting down")
            self._reap()
            if self._max_queue and len(self._queue) >= self._max_queue:
                refusal = Refusal(429, f"{len(self._queue)} requests are waiting already; try again later", code="queue_full")
                refusal.retry_after = _RETRY_SECONDS
                raise refusal
            self._n_jobs += 1
            job.number, job.state = self._n_jobs, "queued"
            if self._trace is not None:
                self._trace.begun(job.number, job.api, job.prompt)
            self._queue.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Nobody waits for it any more."""
        job.cancel()
        with self._changed:
            self._reap()

    def give_way(self, job: Job) -> bool:
        """Cancel `job`, whose client does not read what it is told, if others wait for its place; whether it was."""
        with self._changed:
            self._reap()
            wanted = bool(self._queue) and job.state == "running"
        if wanted:
            self.cancel(job)
        return wanted

    def close(self, timeout: float = 10.0) -> None:
        """End what runs and what waits, and the thread."""
        with self._changed:
            self._closed = True
            for job in (*self._queue, *([self._running] if self._running else [])):
                job.cancel()
                job.tell(Failed(Refusal(503, "the server is shutting down")))
            self._queue.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def gauges(self) -> dict[str, float]:
        """Present values for /metrics."""
        held = self.served.engine.expert_counts()
        names = ("hits", "misses", "bytes_read", "seat_bytes") if held is not None else ()
        with self._changed:
            return {
                **{f"ds4_expert_{name}": getattr(held, name) for name in names},
                "ds4_queue_length": len(self._queue),
                "ds4_running": int(self._running is not None),
                "ds4_sessions": self._prefixes.n_sessions,
                "ds4_session_bytes": self._prefixes.n_bytes,
                "ds4_context_tokens": self.served.engine.n_ctx,
            }

    def _reap(self) -> None:
        """Take out jobs that nobody waits for; the lock is held."""
        for job in [job for job in self._queue if job.cancelled]:
            self._queue.remove(job)
            self._over(job, "cancelled", "in the queue")

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                job = self._queue.popleft()
                if job.cancelled:
                    self._over(job, "cancelled", "in the queue")
                    continue
                self._running, job.state = job, "running"
            try:
                self._answer(job)
            finally:
                with self._changed:
                    self._running = None

    def _answer(self, job: Job) -> None:
        begun = time.monotonic()
        try:
            answer, ended = self._try(job, job.prompt, None)
            second = answer.again()
            if second is not None:
                self._log(f"request {job.number} {job.api}: a call could not be read; the model is asked once more")
                answer, ended = self._try(job, second, answer.cost)
            elif not job.prompt.asked.stream:
                answer.excuse()
            if not job.prompt.asked.stream:
                job.tell(Events(answer.events))
        except Cancelled:
            self._over(job, "cancelled", f"after {time.monotonic() - begun:.1f} s")
        except Exception as error:  # whatever it is, it must not end the server
            self._fail(job, error)
        else:
            self._finish(job, ended)

    def _try(self, job: Job, prompt: Prompt, first: Usage | None) -> tuple[Answer, Ended]:
        """Answer `prompt` on the session that fits best; first: the cost of the first try, if this is the second."""
        taken = self._prefixes.take(prompt.ids, prompt.text)
        kept = taken.kept
        try:
            if self.served.begin is not None:
                text = str(prompt.text) if prompt.text is not None else str(prompt.asked.prompt)
                self.served.begin(kept.session.state, text, len(taken.ids), job.check)
            equip = partial(self._limited, kept, prompt.asked.sampling.max_draft)
            answer = Answer(job, prompt, taken, self.served.prompting, equip, first)
            try:
                return answer, answer.run()
            finally:
                self._count(job, answer, kept)
        except Exception as error:
            if not isinstance(error, Ds4Error | Cancelled):
                self._prefixes.drop(kept)
            raise
        finally:
            self.served.learn(kept.session)
            self._prefixes.give_back(kept)

    def _limited(self, kept: Kept, most: int | None, options: SessionOptions) -> SessionOptions:
        """What `_equipped` gives, with drafts of `most` tokens at most. The drafter follows the text all the same."""
        made = self._equipped(kept, options)
        if most is None or made.depth is None:
            return made
        return replace(made, depth=AtMost(made.depth, most))

    def _equipped(self, kept: Kept, options: SessionOptions) -> SessionOptions:
        """`options` with the session's own drafter, or with a new one where drafts decide the text: it may not depend on what
        was asked before."""
        decide = self.served.drafts_decide(options)
        made = self.served.equip(options)
        if made.drafter is None:
            kept.drafts_decide = decide  # a drafter that is left out of this answer comes back to a later one
            return made
        if not decide and kept.drafts_decide is False:
            depth = kept.session.depth
            made = replace(made, drafter=kept.session.drafter, depth=depth.inner if isinstance(depth, AtMost) else depth)
        kept.drafts_decide = decide
        return made

    def _finish(self, job: Job, ended: Ended) -> None:
        cost = ended.usage
        self._over(
            job,
            ended.stop.reason,
            f"prompt {cost.prompt} (cached {cost.cached}), generated {cost.generated}, "
            f"{ended.timings.get('predicted_per_second', 0.0):.1f} t/s",
        )
        if self._trace is not None:
            self._trace.ended(job.number, ended)
        job.state = "done"
        job.tell(ended)

    def _fail(self, job: Job, error: Exception) -> None:
        refusal = refusal_of(error)
        if not isinstance(error, Ds4Error | Refusal):
            self._log("".join(traceback.format_exception(error)).rstrip())
        self._over(job, "failed", str(refusal))
        job.tell(Failed(refusal))

    def _over(self, job: Job, outcome: str, words: str) -> None:
        job.state = "cancelled" if outcome == "cancelled" else "failed" if outcome == "failed" else "done"
        self.metrics.ended(job.api, outcome)
        self._log(f"request {job.number} {job.api}: {outcome}, {words}")
        if self._trace is not None and job.state != "done":
            self._trace.over(job.number, outcome, words)

    def _count(self, job: Job, answer: Answer, kept: Kept) -> None:
        if self._trace is not None:
            self._trace.replied(job.number, answer.events)
        stats = kept.session.stats
        self.metrics.answered(answer.own_cost, stats, answer.prompt_seconds, answer.seconds)
        for sentence in self.served.closing(stats):
            self._log(f"request {job.number} {job.api}: {sentence}")


def refusal_of(error: Exception) -> Refusal:
    """A failure as an answer: what the client must change is 400, what broke here is 500."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextError | UsageError):
        return Refusal(400, str(error))
    if isinstance(error, ResourceError | MemoryError):
        refusal = Refusal(503, str(error) or "the server is out of memory")
        refusal.retry_after = _RETRY_SECONDS
        return refusal
    if isinstance(error, NumericError | Ds4Error):
        return Refusal(500, str(error))
    return Refusal(500, "the server failed on this request; its log tells more")
