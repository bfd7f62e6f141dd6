"""Statistics of speculation as other programs show them, and the trace of every pass.

All of it is read off one value, `protocols.SpecStats`, which the loop counts whether or not anybody asks; this module only knows
how llama.cpp's log, its `timings`, ds4's --mtp-timing and fllamer's telemetry spell it. Where spellings of a thing differ in
meaning, ours is the plain one: a token counts as drafted when it was verified, as accepted when it was committed.

A trace is an object that is handed each pass (SessionOptions.trace); without one the loop does one comparison with None.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TextIO

from ds4py.errors import ResourceError
from ds4py.protocols import Pass, SourceStats, SpecStats


def acceptance_rate(stats: SpecStats) -> float:
    """Accepted of drafted tokens; 0 without drafts."""
    return stats.accepted / stats.drafted if stats.drafted else 0.0


def mean_len(stats: SpecStats) -> float:
    """Tokens committed by a pass that verified a draft; 0 without drafts."""
    return 1 + stats.accepted / stats.drafts if stats.drafts else 0.0


def tokens_per_pass(stats: SpecStats) -> float:
    """Tokens committed by a target forward, passes without drafts included."""
    return 1 + stats.accepted / stats.passes if stats.passes else 0.0


def accepted_by_position(stats: SpecStats) -> list[float]:
    """Share of the drafts whose token 0, 1, ... was accepted, up to the deepest that ever was."""
    n_drafts = stats.drafts
    counts = [source.accepted_at for source in stats.sources.values()]
    depth = max(map(len, counts), default=0)
    return [sum(at[i] for at in counts if i < len(at)) / n_drafts for i in range(depth)]


def llama_lines(stats: SpecStats, details: bool = False, types: Sequence[str] = ()) -> Iterator[str]:
    """llama.cpp's lines at the end of a request, none without drafts; `details` adds acceptance by position and each type's.

    types: those that ran, in the order in which they were asked; () for those whose drafts were verified."""
    if not stats.drafted:
        return
    counts = f"({stats.accepted:5d} accepted / {stats.drafted:5d} generated)"
    yield f"draft acceptance = {acceptance_rate(stats):.5f} {counts}, mean len = {mean_len(stats):5.2f}"
    if details:
        yield f"acc per pos = ({_shares(accepted_by_position(stats))})"
        n_calls = stats.draft_calls
        for name in types or stats.sources:
            source = stats.sources.get(name, SourceStats())
            yield _type_line(name, source, n_calls, stats)
            n_calls -= source.drafts  # who comes later in a chain is asked when nobody before it had an answer


def _type_line(name: str, source: SourceStats, n_calls: int, stats: SpecStats) -> str:
    """Durations: of reading prompts (all types of a chain together), of proposals, and of taking note of what became of them."""
    rates = [at / source.drafts for at in source.accepted_at]
    mean = ""
    if source.drafts:
        mean = f"#mean acc len = {1 + source.accepted / source.drafts:.2f}, #acc rate/pos = ({_shares(rates)}), "
    seconds = (stats.begin_seconds, source.draft_seconds, source.accept_seconds)
    return (
        f"statistics {name}: #calls(b,g,a) = {stats.begins} {n_calls} {source.drafts}, "
        f"#gen drafts = {source.drafts}, #acc drafts = {source.hits}, "
        f"#gen tokens = {source.drafted}, #acc tokens = {source.accepted}, {mean}"
        f"dur(b,g,a) = {', '.join(f'{1e3 * value:.3f}' for value in seconds)} ms"
    )


def mtp_timing_lines(stats: SpecStats, name: str) -> Iterator[str]:
    """ds4's --mtp-timing counters for the drafter `name`: cycles and acceptance, where the time went, and what was measured: mean
    costs of passes by rows, and of a drafted token, from which the depth by cost follows."""
    cycles = stats.drafts
    yield f"{name}: {cycles} verify cycles, {stats.accepted} drafts accepted ({100 * acceptance_rate(stats):.1f}%)"
    drafted = f"drafted {stats.drafted}, committed {stats.accepted + stats.passes}, {tokens_per_pass(stats):.2f} tokens a pass"
    seconds = f"draft {1e3 * stats.draft_seconds:.1f} ms, verify {1e3 * stats.verify_seconds:.1f} ms"
    yield f"{name}: {drafted}, {seconds}, total {1e3 * (stats.draft_seconds + stats.verify_seconds):.1f} ms"
    rows = sorted(stats.passes_of_rows)
    costs = [f"{n} {1e3 * stats.seconds_of_rows[n] / stats.passes_of_rows[n]:.2f} ({stats.passes_of_rows[n]})" for n in rows]
    if stats.drafted:
        each = f"; a drafted token {1e3 * stats.draft_seconds / stats.drafted:.3f} ms"
        yield f"{name}: ms of a verify by rows (passes): {', '.join(costs)}{each}"


def telemetry(stats: SpecStats) -> dict[str, float]:
    """fllamer's fields, and net tokens per second of drafting and verifying together."""
    seconds = stats.draft_seconds + stats.verify_seconds
    return {
        "speculativeDraftTokens": stats.drafted,
        "speculativeAcceptedTokens": stats.accepted,
        "speculativeAcceptanceRate": acceptance_rate(stats),
        "speculativeDraftMs": 1e3 * stats.draft_seconds,
        "speculativeVerifyMs": 1e3 * stats.verify_seconds,
        "netTokensPerSecond": (stats.accepted + stats.passes) / seconds if seconds else 0.0,
    }


def timings(n_cached: int, n_prompt: int, prompt_seconds: float, stats: SpecStats, seconds: float) -> dict[str, float]:
    """llama.cpp's `timings` of a response; draft_n and draft_n_accepted only if something was drafted.

    n_cached positions were there already, n_prompt were evaluated; `seconds` is the time of all generated tokens."""
    n = stats.accepted + stats.passes
    out = {
        "cache_n": n_cached,
        "prompt_n": n_prompt,
        "prompt_ms": 1e3 * prompt_seconds,
        "prompt_per_token_ms": 1e3 * prompt_seconds / n_prompt if n_prompt else 0.0,
        "prompt_per_second": n_prompt / prompt_seconds if prompt_seconds else 0.0,
        "predicted_n": n,
        "predicted_ms": 1e3 * seconds,
        "predicted_per_token_ms": 1e3 * seconds / n if n else 0.0,
        "predicted_per_second": n / seconds if seconds else 0.0,
    }
    return {**out, "draft_n": stats.drafted, "draft_n_accepted": stats.accepted} if stats.drafted else out


class Trace:
    """An NDJSON file with two lines for each pass of a session: what was drafted, and how much of it was accepted.

    The fields are those of LLAMA_MTP_ACC_TRACE. Drafters of many kinds are traced alike, so `h_idx` (-1) and `h_l2` (0) tell of
    no hidden state. A pass that no draft was asked for is a "skip-streak" or, for any other reason, a "skip-nsteps"; its
    `attn_pos` is that of the session's last draft, -1 before there is one. Several sessions may share a trace."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = Lock()
        self._iter = 0
        self._drafted_at: dict[int, int] = {}  # session -> position of its last draft

    @classmethod
    def open(cls, where: str) -> Trace | None:
        """By LLAMA_MTP_ACC_TRACE's rule: "" or "0" is off, "1" is stderr, anything else a file that lines are added to.

        Raises ResourceError if it cannot be written."""
        if where in ("", "0"):
            return None
        if where == "1":
            return cls(sys.stderr)
        try:
            return cls(Path(where).open("a", encoding="utf-8"))
        except OSError as error:
            raise ResourceError(f"{where}: cannot write the speculation trace: {error.strerror}") from error

    def of(self, seq_id: int) -> Callable[[Pass], None]:
        """The `trace` of the session number `seq_id`."""
        return lambda done: self.write(done, seq_id)

    def write(self, done: Pass, seq_id: int = 0) -> None:
        """Add the lines of a pass; flushed at once."""
        with self._lock:
            if done.asked:
                self._drafted_at[seq_id] = done.pos
            drafted = {
                "evt": "mtp_draft",
                "iter": self._iter,
                "path": "sync" if done.asked else "skip-streak" if done.skipped else "skip-nsteps",
                "seq_id": seq_id,
                "id_last": done.last,
                "h_idx": -1,
                "attn_pos": self._drafted_at.get(seq_id, -1),
                "n_steps": done.asked,
                "h_l2": 0.0,
                "drafts": list(done.draft.tokens),
            }
            self._line(drafted)
            if done.drafted:
                self._line({"evt": "mtp_accept", "iter": self._iter, "n_accepted": done.accepted, "n_drafted_prev": done.drafted})
                self._iter += 1
            self._out.flush()

    def _line(self, fields: dict[str, object]) -> None:
        text = json.dumps(fields, separators=(",", ":"))
        self._out.write(text.replace('"h_l2":0.0,', '"h_l2":0.0000,') + "\n")

    def close(self) -> None:
        if self._out is not sys.stderr:
            self._out.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _shares(shares: list[float]) -> str:
    return ", ".join(f"{share:.3f}" for share in shares)
