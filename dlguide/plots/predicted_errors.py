"""Predictions over measurements: one row for each series, with the intervals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"), (PURPLE, "D"), ("black", "v"))


def predicted_errors(
    rows: Mapping[str, Sequence[Any]],
    title: str = "Predicted throughput over measured throughput",
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw how far predictions lie from what was measured.

    A mark is predicted / measured, its line the interval over the same measurement: where it
    crosses 1, the interval holds the truth.

    Args:
        rows: for each series what `scaling.predict.held_out` gave; a series without any is left
            out.
        title: of the panel.
        path: file to write; None for none.

    Returns:
        Figure: a row for each series, the first on top.

    Raises:
        ValueError: when there is nothing to draw.
    """
    told = {name: list(held) for name, held in rows.items() if held}
    require(bool(told), "rows", "hold at least one prediction", 0)
    counts = sorted({each.workers for held in told.values() for each in held})
    styles = {count: _STYLES[place % len(_STYLES)] for place, count in enumerate(counts)}
    alt = "Predicted over measured throughput. " + " ".join(
        f"{name}: " + ", ".join(f"{1 + each.error:.2f} at {each.workers}" for each in held) + "."
        for name, held in told.items()
    )
    drawn, (axes,) = figure(width=8.4, height=1.1 + 0.42 * len(told), alt=alt)
    for row, held in enumerate(told.values()):
        for place, each in enumerate(held):
            colour, marker = styles[each.workers]
            y = row + 0.24 * (place - (len(held) - 1) / 2)
            ends = each.low / each.measured, each.high / each.measured
            axes.plot(ends, (y, y), color=colour, linewidth=1.4, alpha=0.55)
            label = f"{each.workers} workers"
            axes.plot(1 + each.error, y, marker, color=colour, markersize=5, label=label)
    axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(told)), list(told), fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("predicted / measured; line: 90 % interval")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = [f"{count} workers" for count in counts]
    drawn.legend(
        [handles[label] for label in order], order, loc="outside lower center",
        ncols=len(order), frameon=False, fontsize=8,
    )  # fmt: skip
    return written(drawn, path)
