"""Counts of the server's work, in the text form that Prometheus reads.

The engine's thread counts, any thread may read. Names end in what they count; times are seconds. Acceptance is told as two
counters, since a ratio of ratios means nothing: drafted and accepted tokens, from which any window's rate follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Final

from ds4py.protocols import SpecStats
from ds4py.server.results import Usage

_PER_POSITION: Final = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
_HELP: Mapping[str, str] = {
    "ds4_requests_total": "requests by API and how they ended",
    "ds4_prompt_tokens_total": "tokens of prompts",
    "ds4_prompt_tokens_cached_total": "tokens of prompts that were there already",
    "ds4_generated_tokens_total": "tokens generated",
    "ds4_prompt_seconds_total": "time spent on reading prompts",
    "ds4_generation_seconds_total": "time spent on generating",
    "ds4_passes_total": "forward calls that committed tokens",
    "ds4_rows_total": "rows evaluated while generating",
    "ds4_drafted_tokens_total": "tokens drafted and verified",
    "ds4_accepted_tokens_total": "drafted tokens that were committed",
    "ds4_draft_seconds_total": "time spent on drafting",
    "ds4_verify_seconds_total": "time spent on verifying",
    "llamacpp:spec_decode_num_draft_tokens_total": "tokens drafted and verified, by llama.cpp's name",
    "llamacpp:spec_decode_num_accepted_tokens_total": "drafted tokens that were committed, by llama.cpp's name",
    "llamacpp:spec_decode_num_drafts_total": "drafts verified",
    _PER_POSITION: "drafts whose token at a position was committed",
}


class Metrics:
    """Counters; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def ended(self, api: str, outcome: str) -> None:
        """outcome: stop, length, context, cancelled, refused, failed."""
        with self._lock:
            self._counts[f'ds4_requests_total{{api="{api}",outcome="{outcome}"}}'] += 1

    def answered(self, cost: Usage, stats: SpecStats, prompt_seconds: float, seconds: float) -> None:
        """What an answer cost, finished or not."""
        with self._lock:
            counts = self._counts
            counts["ds4_prompt_tokens_total"] += cost.prompt
            counts["ds4_prompt_tokens_cached_total"] += cost.cached
            counts["ds4_generated_tokens_total"] += cost.generated
            counts["ds4_passes_total"] += stats.passes
            counts["ds4_rows_total"] += stats.rows
            counts["ds4_drafted_tokens_total"] += stats.drafted
            counts["ds4_accepted_tokens_total"] += stats.accepted
            counts["llamacpp:spec_decode_num_draft_tokens_total"] += stats.drafted
            counts["llamacpp:spec_decode_num_accepted_tokens_total"] += stats.accepted
            counts["llamacpp:spec_decode_num_drafts_total"] += stats.drafts
            for source in stats.sources.values():
                for i, n in enumerate(source.accepted_at):
                    counts[f'{_PER_POSITION}{{position="{i}"}}'] += n
            for name, value in (
                ("ds4_prompt_seconds_total", prompt_seconds),
                ("ds4_generation_seconds_total", seconds),
                ("ds4_draft_seconds_total", stats.draft_seconds),
                ("ds4_verify_seconds_total", stats.verify_seconds),
            ):
                counts[name] += value  # type: ignore[assignment]  # a Counter of floats counts as well

    def text(self, gauges: Mapping[str, float], info: Mapping[str, str]) -> str:
        """gauges: present values by name; info: facts, as labels of a gauge that is always 1."""
        return "\n".join(self._lines(gauges, info)) + "\n"

    def _lines(self, gauges: Mapping[str, float], info: Mapping[str, str]) -> Iterator[str]:
        with self._lock:
            counts = dict(self._counts)
        for name, text in _HELP.items():
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} counter"
            found = {key: value for key, value in counts.items() if key.partition("{")[0] == name}
            if name != _PER_POSITION:
                found = found or {name: 0}
            for key, value in sorted(found.items(), key=lambda item: (len(item[0]), item[0])):
                yield f"{key} {_number(value)}"
        for name, number in gauges.items():
            yield f"# TYPE {name} gauge"
            yield f"{name} {_number(number)}"
        labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in info.items())
        yield "# TYPE ds4_info gauge"
        yield f"ds4_info{{{labels}}} 1"


def _number(value: float) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
