"""From the figures of two engines to a table of ratios that can be trusted, and what a reader must know beside it.

The invariant: a ratio above 1 means that ds4py is better, whatever the figure (speeds are divided ours / theirs, times and memory
theirs / ours; what several rows cost is also given as a multiple of one row, and that is compared too). A ratio is formed inside
a round, where both engines met the same machine; its median is shown with the smallest and the largest, since a ratio without
its spread says nothing on a shared machine.

llama.cpp compiled without AMX, on a processor that has it, is not the fastest that llama.cpp can be there. Where the gap between
the two builds was measured it is divided out, and the table says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.cli.peers import Figures, Job

Gains = tuple[float, float]  # (decode, prefill): what a ratio of speeds is divided by

# How much faster llama.cpp's AMX build was than its build without AMX, on one processor that has AMX: (decode, prefill), by the
# size in bytes of the file it was measured on (SmolLM2-135M Q4_1, gemma-3-270m Q4_K_M, Qwen2.5-Coder-0.5B Q4_K_M).
AMX_GAIN = {98_362_432: (2.1, 4.2), 253_113_024: (1.4, 1.1), 491_400_064: (1.1, 1.0)}
AMX_IN_INFO = "AMX_INT8 = 1"
BUSY = 0.1  # share of the processors above which a comparison is no good


@dataclass(frozen=True)
class Line:
    """One figure over all rounds. `gain` is the factor the ratios were divided by."""

    name: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    gain: float = 1.0

    def csv(self) -> str:
        numbers = (self.ours, self.theirs, self.ratio, self.low, self.high)
        return ",".join([self.name, self.unit, *(f"{number:.3f}" for number in numbers), f"{self.gain:g}"])


CSV_HEADER = "figure,unit,ds4py,llama_cpp,ratio,ratio_min,ratio_max,divided_by"


def lacks_amx(info: str, flags: frozenset[str]) -> bool:
    """Whether llama.cpp leaves units unused: `info` is its own list of features, `flags` the processor's."""
    return "amx_tile" in flags and AMX_IN_INFO not in info


def amx_gains(n_bytes: int, info: str, flags: frozenset[str]) -> Gains | None:
    """Factors to divide ratios by, where a build lacks AMX and the factors of this file are known."""
    return AMX_GAIN.get(n_bytes) if lacks_amx(info, flags) else None


def summarise(ours: Sequence[Figures], theirs: Sequence[Figures], job: Job, gains: Gains) -> list[Line]:
    """Medians and ratios of rounds (`ours[i]` and `theirs[i]` ran in the same one); speeds are divided by the gains."""
    decode, prefill = gains
    lines = [
        _speed(f"pp{n}", [f.prefill_tps[i] for f in ours], [f.prefill_tps[i] for f in theirs], prefill)
        for i, n in enumerate(job.prefill)
    ]
    for i, where in enumerate(["", *(f" at {depth}" for depth in job.depths)]):
        lines.append(
            _speed(f"tg{job.decode}{where}", [f.decode_tps[i] for f in ours], [f.decode_tps[i] for f in theirs], decode)
        )
    lines.append(_cost("load", "s", [f.load_s for f in ours], [f.load_s for f in theirs]))
    lines.append(_cost("first token", "ms", [f.first_token_ms for f in ours], [f.first_token_ms for f in theirs]))
    lines.append(_cost("peak memory", "MB", [f.peak_mb for f in ours], [f.peak_mb for f in theirs]))
    return lines + verify_lines(ours, theirs, job.verify)


def verify_lines(ours: Sequence[Figures], theirs: Sequence[Figures], rows: Sequence[int]) -> list[Line]:
    """What a forward over several rows takes: in ms, and as a multiple of the first number of rows (one), which says what a
    draft costs."""
    lines = []
    for i, n in enumerate(rows):
        lines.append(_cost(f"verify {n}", "ms", [f.verify_ms[i] for f in ours], [f.verify_ms[i] for f in theirs]))
    for i, n in enumerate(rows[1:], 1):
        times = [[f.verify_ms[i] / f.verify_ms[0] for f in figures] for figures in (ours, theirs)]
        lines.append(_cost(f"verify {n}", f"x {rows[0]} row", *times))
    return lines


def _speed(name: str, ours: list[float], theirs: list[float], gain: float) -> Line:
    return _line(name, "t/s", ours, theirs, [a / b / gain for a, b in zip(ours, theirs, strict=True)], gain)


def _cost(name: str, unit: str, ours: list[float], theirs: list[float]) -> Line:
    return _line(name, unit, ours, theirs, [b / a for a, b in zip(ours, theirs, strict=True)])


def _line(name: str, unit: str, ours: list[float], theirs: list[float], ratios: list[float], gain: float = 1.0) -> Line:
    median = statistics.median
    return Line(name, unit, median(ours), median(theirs), median(ratios), min(ratios), max(ratios), gain)


def table(lines: Sequence[Line]) -> list[str]:
    """A Markdown table, aligned so that it also reads as plain text."""
    rows = [["", "ds4py", "llama.cpp", "ratio", "spread"]]
    for line in lines:
        figures = [f"{line.name}, {line.unit}", _figure(line.ours), _figure(line.theirs)]
        rows.append([*figures, f"{line.ratio:.2f}", f"{line.low:.2f}-{line.high:.2f}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = "|" + "|".join("-" * (width + 1) + (":" if column else "-") for column, width in enumerate(widths)) + "|"
    shown = [_row(row, widths) for row in rows]
    return [shown[0], rule, *shown[1:]]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cells[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "| " + " | ".join(padded) + " |"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def remarks(info: str, gains: Gains | None, flags: frozenset[str], busy: float = 0.0) -> list[str]:
    """The sentences under the table. `busy`: share of the processors that others used before the first round."""
    lines = ["Ratio above 1: ds4py is better. Spread: smallest and largest ratio of a round."]
    if busy > BUSY:
        lines.append(
            f"Other programs used {busy:.0%} of the processors before the first round: these figures are not worth keeping; "
            "threads that wait for each other lose far more than that share."
        )
    if gains is not None:
        lines.append(
            f"This llama.cpp was built without AMX and the processor has it: ratios were divided by {gains[0]} (decode) and "
            f"{gains[1]} (prefill), the measured lead of an AMX build on this file."
        )
    elif lacks_amx(info, flags):
        lines.append("This llama.cpp was built without AMX and the processor has it: one with it is faster by an unknown factor.")
    return lines
