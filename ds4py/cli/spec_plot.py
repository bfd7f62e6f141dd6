"""A picture of a speculation benchmark: net speed over plain decoding, and acceptance by position."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4py.cli.files import result_file

if TYPE_CHECKING:
    from ds4py.cli.spec_bench import Cell

COLOURS = ("#20639b", "#b03a2e", "#3a7d44", "#8e6c1f", "#6a4c93", "#666666")


def draw(cells: Sequence[Cell], path: Path, title: str) -> None:
    """Bars of net speed and curves of acceptance, as `save` writes them."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell.drafter for cell in cells))
    groups = list(dict.fromkeys((cell.text, cell.temperature) for cell in cells))
    figure = Figure(figsize=(10, 4), dpi=140, layout="constrained")
    left, right = figure.subplots(1, 2)
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        own = [cell for cell in cells if cell.drafter == name]
        colour = COLOURS[i % len(COLOURS)]
        at = [groups.index((cell.text, cell.temperature)) + (i - (len(names) - 1) / 2) * width for cell in own]
        ratios = [cell.ratio for cell in own]
        errors = ([cell.ratio - cell.ratio_min for cell in own], [cell.ratio_max - cell.ratio for cell in own])
        left.bar(at, ratios, width, yerr=errors, color=colour, label=name, capsize=2, error_kw={"linewidth": 0.8})
        for cell in own:
            if cell.accepted_by_position:
                style = {"code edit": "-", "story": ":"}.get(cell.text, "--")
                mark = "o" if cell.temperature == 0 else "s"
                places = range(1, len(cell.accepted_by_position) + 1)
                right.plot(places, cell.accepted_by_position, style, marker=mark, markersize=3, color=colour)
    finish(left, right, groups, "net speed / plain speed", "solid: code edit, dotted: story; circles: T 0, squares: T 1")
    save(figure, path, title)


def finish(left: Any, right: Any, groups: Sequence[tuple[str, float]], speed: str, legend: str) -> None:
    """Axes and labels of the two panels. groups: (kind of text, temperature) of each cluster of bars."""
    left.axhline(1.0, color="black", linewidth=0.8)
    left.set_xticks(range(len(groups)), [f"{kind}\nT {temperature:g}" for kind, temperature in groups], fontsize=7)
    left.set_ylabel(speed)
    left.legend(fontsize=8, frameon=False)
    right.set_title(legend, fontsize=8)
    right.set_xlabel("position in the draft")
    right.set_ylabel("share of drafts accepted so far")
    right.set_ylim(0, 1.02)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.grid(alpha=0.3)


def save(figure: Any, path: Path, title: str) -> None:
    """Write the PNG under its final name only when it is whole. ResourceError if the folder or disk refuses."""
    figure.suptitle(title, fontsize=10)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    with result_file(str(path)) as out:
        out.buffer.write(picture.getbuffer())
