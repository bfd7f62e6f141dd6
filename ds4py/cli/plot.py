"""A picture of a benchmark: two panels over context length, prefill and decode.

matplotlib is an extra and slow to import, so it is asked for only when a picture is wanted, and before the measuring starts: an
hour of work must not end in a missing library.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ds4py.cli.files import result_file
from ds4py.cli.frontier import Row
from ds4py.errors import UnsupportedError


def require_matplotlib() -> None:
    """UnsupportedError that says how to get it, if matplotlib is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib, which is not installed here: pip install 'ds4py[plot]'")


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write the PNG under its final name only when it is whole. ResourceError if the folder or disk refuses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=140, layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = [row.ctx_tokens for row in rows]
    left.plot(lengths, [row.prefill_tps for row in rows], marker="o", color="#20639b")
    left.set_title("prefill of the tokens since the last point", fontsize=9)
    right.plot(lengths, [row.gen_tps for row in rows], marker="o", color="#b03a2e", label="all tokens")
    steady = [row.steady_tps for row in rows]
    right.plot(lengths, steady, linestyle="--", color="#b03a2e", alpha=0.6, label="without the first pass")
    right.set_title("greedy decode", fontsize=9)
    right.legend(fontsize=8, frameon=False)
    for panel in (left, right):
        panel.set_xlabel("context, tokens")
        panel.set_ylabel("tokens per second")
        panel.set_ylim(0, 1.1 * panel.get_ylim()[1])
        panel.grid(alpha=0.3)
    figure.suptitle(title, fontsize=10)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    with result_file(str(path)) as out:
        out.buffer.write(picture.getbuffer())
