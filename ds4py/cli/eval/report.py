"""What `ds4-eval --spec` prints and writes: a table that reads as plain text and as Markdown, CSV, JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ds4py.cli.eval.cells import Cell

CSV_HEADER = (
    "category,temperature,drafter,rounds,looping,tokens,tokens_per_pass,drafted,accepted,acceptance,plain_tps,tps,ratio,"
    "ratio_min,ratio_max"
)
_COLUMNS = (
    "prompts", "T", "drafter", "rounds", "tokens/pass", "acceptance", "by position", "plain t/s", "t/s", "ratio", "spread"
)  # fmt: skip
_SHOWN = 4  # positions


def csv(cell: Cell) -> str:
    words = [cell.category, f"{cell.temperature:g}", cell.drafter, str(cell.rounds), str(cell.looping), str(cell.tokens)]
    words += [f"{cell.tokens_per_pass:.3f}", str(cell.drafted), str(cell.accepted)]
    numbers = (cell.acceptance, cell.plain_tps, cell.tps, cell.ratio, cell.ratio_min, cell.ratio_max)
    return ",".join([*words, *(f"{number:.3f}" for number in numbers)])


def row(cell: Cell) -> list[str]:
    start = [cell.category, f"{cell.temperature:g}", cell.drafter, str(cell.rounds)]
    if not cell.rounds:
        return [*start, *["-"] * (len(_COLUMNS) - len(start))]
    none = "not told" if cell.drafted else "no drafts"
    shares = ", ".join(f"{share:.2f}" for share in cell.accepted_by_position[:_SHOWN]) or none
    speeds = [f"{cell.plain_tps:.1f}", f"{cell.tps:.1f}", f"{cell.ratio:.2f}", f"{cell.ratio_min:.2f}-{cell.ratio_max:.2f}"]
    return [*start, f"{cell.tokens_per_pass:.2f}", f"{cell.acceptance:.2f}", shares, *speeds]


def table(cells: Sequence[Cell]) -> list[str]:
    return aligned([list(_COLUMNS), *map(row, cells)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows, the first of them the head, as a Markdown table whose columns line up."""
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    shown = ["| " + " | ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)) + " |" for cells in rows]
    return [shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]]
