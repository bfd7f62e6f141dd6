"""A picture of what drafting gains: net speed by kind of prompt, and acceptance by position in the draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4py.cli.eval.cells import EVERY, Cell
from ds4py.cli.spec_plot import COLOURS, finish, save

_STYLES = ("-", "--", ":", "-.")


def draw(cells: Sequence[Cell], path: Path, title: str) -> None:
    """Bars of net speed and curves of acceptance, as `save` writes them."""
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
        colour = COLOURS[i % len(COLOURS)]
        left.bar(at, ratios, width, yerr=errors, color=colour, label=name, capsize=2, error_kw={"linewidth": 0.8})
        _curves(right, own, colour)
    finish(left, right, groups, "net speed / fastest plain speed", "one line style for each temperature")
    save(figure, path, title)


def _curves(panel: object, cells: Sequence[Cell], colour: str) -> None:
    """Acceptance by position over all prompts, or over each kind where there is no total."""
    whole = [cell for cell in cells if cell.category == EVERY] or list(cells)
    temperatures = list(dict.fromkeys(cell.temperature for cell in whole))
    for cell in whole:
        if cell.accepted_by_position:
            style = _STYLES[temperatures.index(cell.temperature) % len(_STYLES)]
            places = range(1, len(cell.accepted_by_position) + 1)
            panel.plot(places, cell.accepted_by_position, style, marker="o", markersize=3, color=colour)  # type: ignore[attr-defined]
