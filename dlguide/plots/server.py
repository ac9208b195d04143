"""Workers and parameter servers over time: who computes, who waits, how stale gradients are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)


def worker_timeline(
    panels: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw when each worker computed and, between two steps, when it waited for the server.

    All panels have one axis of time, so that their lengths can be compared. The time between two
    steps holds the messages as well.

    Args:
        panels: for each title one row per worker; a row is the begin and end of each of its
            steps, in their order (s).
        path: file to write; None for none.

    Returns:
        Figure: panels below each other; computing in blue, waiting in light grey.

    Raises:
        ValueError: when there is nothing to draw or a worker has no step.
    """
    require(bool(panels), "panels", "hold at least one training", {})
    for title, rows in panels.items():
        filled = bool(rows) and all(len(row) > 0 for row in rows)
        require(filled, "panels", f"have a step of every worker in {title!r}", rows)
    most = max(len(rows) for rows in panels.values())
    size = {"width": 9.0, "height": 0.45 + 0.32 * most}
    drawn, grid = figure(rows=len(panels), alt=_words(panels), **size)
    for axes, (title, rows) in zip(grid, panels.items(), strict=True):
        start = min(row[0][0] for row in rows)
        for worker, row in enumerate(rows):
            begins, ends = (1e3 * (np.array(each) - start) for each in zip(*row, strict=True))
            computing = list(zip(begins, ends - begins, strict=True))
            waiting = list(zip(ends[:-1], begins[1:] - ends[:-1], strict=True))
            axes.broken_barh(waiting, (worker - 0.35, 0.7), color="#dddddd")
            axes.broken_barh(
                computing, (worker - 0.35, 0.7), facecolor=BLUE, edgecolor="white", linewidth=0.6
            )
        axes.set_yticks(range(len(rows)), [f"worker {worker}" for worker in range(len(rows))])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.set_title(title, fontsize=9, loc="left")
        axes.sharex(grid[0])
    grid[-1].set_xlabel("milliseconds (blue: computes, grey: waits)")
    return written(drawn, path)


def staleness(values: Mapping[str, Sequence[int]], path: str | os.PathLike | None = None) -> Figure:
    """Draw how many gradients were how stale.

    Args:
        values: for each name the staleness of every gradient used: the updates that others made
            since its weights were read (count).
        path: file to write; None for none.

    Returns:
        Figure: bars side by side, percent of the gradients against their staleness.

    Raises:
        ValueError: when there is nothing to draw.
    """
    filled = bool(values) and all(len(each) > 0 for each in values.values())
    require(filled, "values", "hold a gradient under every name", dict(values))
    means = "; ".join(f"{name}: mean {np.mean(each):.1f}" for name, each in values.items())
    drawn, (axes,) = figure(width=7.0, height=3.0, alt=f"Staleness of gradients. {means}.")
    wide = 0.8 / len(values)
    for number, (name, each) in enumerate(values.items()):
        counts = np.bincount(np.asarray(each, int))
        places = np.arange(len(counts)) + wide * (number - (len(values) - 1) / 2)
        colour = _COLOURS[number % len(_COLOURS)]
        hatch = ("", "//", "..")[number % 3]  # bars that can be told apart without colours
        axes.bar(places, 100 * counts / len(each), wide, color=colour, hatch=hatch, label=name)
    axes.set_title("How stale the gradients were", loc="left", fontsize=10)
    axes.set_xlabel("staleness (updates)")
    axes.set_ylabel("percent of the gradients")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)
    return written(drawn, path)


def _words(panels: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> str:
    said = []
    for title, rows in panels.items():
        length = max(row[-1][1] for row in rows) - min(row[0][0] for row in rows)
        shares = []
        for row in rows:
            busy = sum(end - begin for begin, end in row)
            shares.append(f"{100 * busy / (row[-1][1] - row[0][0]):.0f} percent")
        said.append(f"{title}: {1e3 * length:.0f} ms, workers compute {', '.join(shares)}")
    return f"When workers compute. {'; '.join(said)}."
