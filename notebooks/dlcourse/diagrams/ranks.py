"""Diagrams of ranks: which processes there are, who has what, who waits for whom."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlcourse.diagrams.shapes import PAPER, arrow, bare, box
from dlguide import plots
from dlguide.errors import require, require_known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STATES = {"done": plots.SKY, "waits": plots.ORANGE, "never": "white"}


def processes(engines: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the notebook's kernel and the ranks as what they are: processes with own memories.

    Args:
        engines: for each rank its `rank`, `pid` and `cpus`, as `cluster.engines` has them.

    Returns:
        Figure: the kernel above, the ranks below, functions and messages between them.

    Raises:
        ValueError: when there is no rank.
    """
    require(bool(engines), "engines", "hold at least one rank", [], "Start the cluster.")
    ranks = len(engines)
    alt = (
        f"The notebook's kernel sends functions to {ranks} ranks and gets results back. Each rank "
        "is a process with its own memory and its own cores. Ranks send messages to each other."
    )
    figure, (axes,) = plots.figure(width=max(6.0, 2.6 * ranks), height=3.4, alt=alt)
    bare(axes, (-0.6, ranks - 0.4), (-0.75, 2.5))
    middle = (ranks - 1) / 2
    kernel = "this notebook's kernel\na process with the variables of your cells"
    box(axes, middle, 2.0, kernel, PAPER, width=1.3, height=0.6)
    for place, engine in enumerate(engines):
        cpus = ", ".join(str(cpu) for cpu in engine["cpus"])
        text = f"rank {engine['rank']}\nprocess {engine['pid']}\nCPU {cpus}\nits own memory"
        box(axes, place, 0.35, text, plots.SKY, width=0.7, height=0.95)
        arrow(axes, (middle + (place - middle) / ranks, 1.68), (place, 0.85), both=True)
    for place in range(ranks - 1):
        arrow(axes, (place + 0.36, 0.35), (place + 0.64, 0.35), both=True)
        axes.text(place + 0.5, 0.42, "messages", ha="center", va="bottom", fontsize=8)
    axes.text(middle, 1.28, "functions down, results up", ha="center", fontsize=8, color="black")
    axes.text(middle, -0.6, f"ranks: {ranks}", ha="center", fontsize=9)
    return figure


def exchange(
    panels: Mapping[str, tuple[Sequence[Any], Sequence[Any], Sequence[tuple[int, int]]]],
    columns: int = 3,
) -> Figure:
    """Draw who has what before and after a communication.

    Args:
        panels: for each title what every rank has before, what it has after (texts or values,
            None for nothing, a list for several), and the arrows as pairs (from rank, to rank).
        columns: panels side by side (count).

    Returns:
        Figure: for each title the ranks twice, before above after, with arrows between them.

    Raises:
        ValueError: when before and after are not of equally many ranks.
    """
    require(bool(panels), "panels", "hold at least one communication", {})
    alt = "Who has what. " + " ".join(
        f"{title}: before {_said(before)}; after {_said(after)}."
        for title, (before, after, _) in panels.items()
    )
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    widest = max(len(before) for before, _, _ in panels.values())
    figure, grid = plots.figure(rows, columns, max(1.0 * widest, 3.0) * columns, 2.3, alt)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, (before, after, arrows)) in zip(grid, panels.items(), strict=False):
        ranks = len(before)
        require(len(after) == ranks, "panels", f"have {ranks} ranks after {title}", len(after))
        bare(axes, (-1.05, ranks - 0.45), (-0.45, 1.85))
        axes.set_title(title, fontsize=10)
        for height, name, values in ((1.1, "before", before), (0.0, "after", after)):
            axes.text(-0.55, height, name, ha="right", va="center", fontsize=8)
            for rank, value in enumerate(values):
                empty = value is None
                colour = PAPER if empty else plots.SKY
                box(axes, rank, height, _short(value), colour, 0.86, 0.4)
        for rank in range(ranks):
            axes.text(rank, 1.42, f"rank {rank}", ha="center", va="bottom", fontsize=8)
        for start, end in arrows:
            arrow(axes, (start, 0.88), (end, 0.22))
    return figure


def timelines(
    panels: Mapping[str, Sequence[Sequence[tuple[str, str]]]], columns: int = 2
) -> Figure:
    """Draw what each rank does one after the other, and where it waits for ever.

    Args:
        panels: for each title one row per rank; a row is pairs of a text and its state: "done",
            "waits" (for ever) or "never" (never reached).
        columns: panels side by side (count).

    Returns:
        Figure: time runs to the right.

    Raises:
        ValueError: when a state is unknown.
    """
    require(bool(panels), "panels", "hold at least one course of events", {})
    alt = "What each rank does. " + " ".join(
        f"{title}: " + "; ".join(f"rank {rank} {_told(row)}" for rank, row in enumerate(rows)) + "."
        for title, rows in panels.items()
    )
    columns = min(columns, len(panels))
    longest = max(len(row) for rows in panels.values() for row in rows)
    tallest = max(len(rows) for rows in panels.values())
    size = (1.35 * longest * columns + 1.0, 0.62 * tallest + 0.5)
    figure, grid = plots.figure(-(-len(panels) // columns), columns, *size, alt)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, rows) in zip(grid, panels.items(), strict=False):
        bare(axes, (-0.95, longest - 0.45), (0.45 - tallest, 0.5))
        axes.set_title(title, fontsize=10)
        for rank, row in enumerate(rows):
            axes.text(-0.55, -rank, f"rank {rank}", ha="right", va="center", fontsize=8)
            for place, (text, state) in enumerate(row):
                colour = _STATES[require_known(state, _STATES, "state")]
                box(axes, place, -rank, text, colour, 0.92, 0.6, dashed=state == "never")
    return figure


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return textwrap.fill(text, 8)


def _told(row: Sequence[tuple[str, str]]) -> str:
    words = {"done": "", "waits": " (waits for ever)", "never": " (never reached)"}
    return ", then ".join(text.replace("\n", " ") + words.get(state, "") for text, state in row)


def _said(values: Sequence[Any]) -> str:
    said = [f"rank {rank} {'nothing' if v is None else v}" for rank, v in enumerate(values)]
    return ", ".join(said).replace("\n", " ")
