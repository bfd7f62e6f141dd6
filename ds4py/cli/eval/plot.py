"""A picture of what drafting gains: net speed by kind of prompt, and acceptance by position in the draft."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ds4py.cli.eval.cells import EVERY, Cell
from ds4py.cli.files import result_file

_COLOURS = ("#20639b", "#b03a2e", "#3a7d44", "#8e6c1f", "#6a4c93", "#666666")
_STYLES = ("-", "--", ":", "-.")


def draw(cells: Sequence[Cell], path: Path, title: str) -> None:
    """Write the PNG under its final name only when it is whole. ResourceError if the folder or disk refuses."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell.drafter for cell in cells))
    groups = list(dict.fromkeys((cell.category, cell.temperature) for cell in cells))
    figure = Figure(figsize=(11, 4.2), dpi=140, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        own = [cell for cell in cells if cell.drafter == name and cell.rounds]
        at = [groups.index((cell.category, cell.temperature)) + (i - (len(names) - 1) / 2) * width for cell in own]
        ratios = [cell.ratio for cell in own]
        errors = ([cell.ratio - cell.ratio_min for cell in own], [cell.ratio_max - cell.ratio for cell in own])
        colour = _COLOURS[i % len(_COLOURS)]
        left.bar(at, ratios, width, yerr=errors, color=colour, label=name, capsize=2, error_kw={"linewidth": 0.8})
        _curves(right, own, colour)
    left.axhline(1.0, color="black", linewidth=0.8)
    left.set_xticks(range(len(groups)), [f"{category}\nT {temperature:g}" for category, temperature in groups], fontsize=7)
    left.set_ylabel("net speed / fastest plain speed")
    left.legend(fontsize=8, frameon=False)
    right.set_title("one line style for each temperature", fontsize=8)
    right.set_xlabel("position in the draft")
    right.set_ylabel("share of drafts accepted so far")
    right.set_ylim(0, 1.02)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.grid(alpha=0.3)
    figure.suptitle(title, fontsize=10)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    with result_file(str(path)) as out:
        out.buffer.write(picture.getbuffer())


def _curves(panel: object, cells: Sequence[Cell], colour: str) -> None:
    """Acceptance by position over all prompts, or over each kind where there is no total."""
    whole = [cell for cell in cells if cell.category == EVERY] or list(cells)
    temperatures = list(dict.fromkeys(cell.temperature for cell in whole))
    for cell in whole:
        if cell.accepted_by_position:
            style = _STYLES[temperatures.index(cell.temperature) % len(_STYLES)]
            places = range(1, len(cell.accepted_by_position) + 1)
            panel.plot(places, cell.accepted_by_position, style, marker="o", markersize=3, color=colour)  # type: ignore[attr-defined]
