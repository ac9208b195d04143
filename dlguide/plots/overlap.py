"""What computes and what is exchanged at which time, one panel for each schedule."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROWS = {"forward": 0, "update": 0, "backward": 0, "exchange": 1}
_COLOURS = {"backward": ORANGE, "forward": SKY, "update": GREEN, "exchange": BLUE}


def overlap(schedules: Mapping[str, Any], path: str | os.PathLike | None = None) -> Figure:
    """Draw schedules below each other: computing above, exchange below it.

    All panels have one axis of time and begin with the backward pass. Layers are numbered from
    the input on. Where the upper row is hatched nothing is computed: that time is exposed.

    Args:
        schedules: for each title a `Schedule` of `parallel.overlap_schedule`, predicted or
            measured: `intervals` with `kind`, `layer`, `start_s` and `end_s`, and the sums.
        path: file to write; None for none.

    Returns:
        Figure: one panel for each title.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(schedules), "schedules", "hold at least one schedule", {})
    for title, schedule in schedules.items():
        require(bool(schedule.intervals), "schedules", "have intervals in each schedule", title)
    drawn, grid = figure(len(schedules), 1, 9.0, 1.35, _words(schedules))
    longest_s = max(schedule.step_s for schedule in schedules.values())
    for axes, (title, schedule) in zip(grid, schedules.items(), strict=True):
        _panel(axes, schedule.intervals, longest_s)
        share = f", overlap {schedule.overlap:.2f}" if schedule.exchange_s > 0 else ""
        said = f"{title}: step {_ms(schedule.step_s)}, exposed {_ms(schedule.exposed_s)}{share}"
        axes.set_title(said, fontsize=9, loc="left")
    grid[-1].set_xlabel("time (ms)")
    _legend(grid[0], schedules)
    return written(drawn, path)


def _panel(axes: Axes, intervals: Sequence[Any], longest_s: float) -> None:
    begin = min(each.start_s for each in intervals)
    end = max(each.end_s for each in intervals)
    computing = sorted((e.start_s, e.end_s) for e in intervals if _ROWS[e.kind] == 0)
    now = begin
    for start, stop in [*computing, (end, end)]:
        if start - now > 0.002 * longest_s:
            style = {"facecolor": "white", "edgecolor": GREY, "hatch": "////", "linewidth": 0.5}
            axes.broken_barh([(1e3 * (now - begin), 1e3 * (start - now))], (-0.4, 0.8), **style)
        now = max(now, stop)
    for each in intervals:
        place = (1e3 * (each.start_s - begin), 1e3 * (each.end_s - each.start_s))
        row = _ROWS[each.kind]
        colour = _COLOURS[each.kind]
        # a white edge would cover what is hardly wider than the edge
        edge = "white" if each.end_s - each.start_s > 0.01 * longest_s else colour
        style = {"facecolor": colour, "edgecolor": edge, "linewidth": 0.5}
        axes.broken_barh([place], (row - 0.4, 0.8), **style)
        if each.end_s - each.start_s > 0.025 * longest_s and each.kind != "update":
            name = "all" if each.layer is None else str(each.layer)
            ink = "white" if each.kind == "exchange" else "black"
            middle = (place[0] + place[1] / 2, row)
            axes.text(*middle, name, color=ink, ha="center", va="center", fontsize=7)
    axes.set_yticks([0, 1], ["compute", "exchange"])
    axes.set(xlim=(0, 1e3 * longest_s), ylim=(1.5, -0.5))
    axes.grid(visible=False)


def _legend(axes: Axes, schedules: Mapping[str, Any]) -> None:
    from matplotlib.patches import Patch

    kinds = {each.kind for schedule in schedules.values() for each in schedule.intervals}
    handles = [Patch(facecolor=c, label=kind) for kind, c in _COLOURS.items() if kind in kinds]
    handles.append(Patch(facecolor="white", edgecolor=GREY, hatch="////", label="exposed"))
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.12)}
    axes.legend(handles=handles, frameon=False, ncols=5, fontsize=8, **place)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{1e3 * seconds:.0f} ms"


def _words(schedules: Mapping[str, Any]) -> str:
    said = [
        f"{title}: step {_ms(one.step_s)}, computing {_ms(one.computing_s)}, exchange "
        f"{_ms(one.exchange_s)} of which {_ms(one.exposed_s)} exposed"
        for title, one in schedules.items()
    ]
    return f"Computing and exchange over time. {'; '.join(said)}."
