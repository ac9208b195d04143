"""The time of an epoch against nodes, stripes or files, what limits it, and how that feels."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = {
    "metadata": (ORANGE, "-"),
    "requests": (PURPLE, "--"),
    "bandwidth": (BLUE, "-."),
    "client link": (GREEN, ":"),
    "latency": (SKY, (0, (5, 1, 1, 1, 1, 1))),
    "network": (GREY, (0, (1, 3))),
}
Points = Sequence[tuple[float, Mapping[str, float]]]


def epoch_times(
    panels: Mapping[str, Points],
    x: str = "nodes",
    wanted_s: float = 0.0,
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw how long each part of a storage works for an epoch, and mark the one that limits.

    A part that would lie under the axis, or takes no time, is not drawn. The thick line is the
    slowest part, in its colour and with its name; the grey band reaches up to the sum of all,
    where each part waits for the one before.

    Args:
        panels: for each title its points: what stands on the x axis, and the seconds by part, as
            `dict(scaling.storage.epoch(...).parts)`.
        x: what stands on the x axis.
        wanted_s: the time that an epoch may take (s), a line; 0 for none.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: panels side by side, both axes logarithmic, one scale of time.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(panels), "panels", "hold at least one course", {})
    for title, points in panels.items():
        require(len(points) > 1, "panels", f"have at least two points in {title!r}", len(points))
    told = "; ".join(f"{title}: {_told(points, x)}" for title, points in panels.items())
    alt = f"Time of an epoch against {x}. {told}."
    shown = [parts for points in panels.values() for _, parts in points]
    slowest = [max(parts.values()) for parts in shown]
    least = min([*slowest, wanted_s or slowest[0]]) / 8
    drawing, grid = figure(columns=len(panels), width=min(10.5, 2.2 + 4.0 * len(panels)), alt=alt)
    for axes, (title, points) in zip(grid, panels.items(), strict=True):
        _draw(axes, points, least)
        if wanted_s > 0:
            line = {"color": "black", "linewidth": 0.9, "linestyle": (0, (6, 3))}
            axes.axhline(wanted_s, label="wanted", **line)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(x)
        axes.sharey(grid[0])
    grid[0].set_ylabel("seconds an epoch")
    grid[0].set_ylim(least, 2.5 * max(sum(each.values()) for each in shown))
    labelled = (axes.get_legend_handles_labels() for axes in grid)
    lines = {name: line for pair in labelled for line, name in zip(*pair, strict=True)}
    place = {"loc": "outside lower center", "ncols": 6, "frameon": False, "fontsize": 8}
    drawing.legend(lines.values(), lines.keys(), **place)
    return written(drawing, path)


def felt_times(
    measured: Mapping[str, Any],
    predicted_s: Mapping[str, float],
    own_s: float,
    x: str = "",
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw how long reading took from each storage, beside what was predicted.

    Args:
        measured: a `measure.Timing` by the name of the storage.
        predicted_s: the prediction by the same names (s).
        own_s: time of the same reading without any waiting (s), a line.
        x: what was done, behind "seconds" under the axis.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: a point at the median with its quartiles, a diamond at the prediction; the axis of
        time is logarithmic.

    Raises:
        ValueError: when the names differ or there are none.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    names = list(measured)
    require(bool(names), "measured", "hold at least one storage", {})
    require(names == list(predicted_s), "predicted_s", f"have {names}", list(predicted_s))
    said = "; ".join(
        f"{name} {each.median:.3g} s, predicted {predicted_s[name]:.3g} s"
        for name, each in measured.items()
    )
    alt = f"Seconds {x}: {said}; without waiting {own_s:.3g} s."
    drawing, (axes,) = figure(width=7.4, height=0.8 + 0.42 * len(names), alt=alt)
    medians = [each.median for each in measured.values()]
    around = [
        [each.median - each.low for each in measured.values()],
        [each.high - each.median for each in measured.values()],
    ]
    rows = range(len(names))
    point = {"fmt": "o", "color": BLUE, "markersize": 9, "capsize": 4}
    axes.errorbar(medians, rows, xerr=around, label="measured", **point)
    axes.plot(list(predicted_s.values()), rows, "wD", mec="black", ms=5, label="predicted")
    axes.axvline(own_s, color=GREY, linestyle=":", label="without waiting")
    axes.set_yticks(rows, names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set(xscale="log", xlabel=f"seconds {x}".strip())
    # a span of a decade or less would have one label, or labels on top of each other
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return written(drawing, path)


def limits(points: Points) -> list[tuple[str, float, float]]:
    """List which part limits from where to where."""
    slowest = [(max(parts, key=parts.__getitem__), place) for place, parts in points]
    runs = [list(run) for _, run in itertools.groupby(slowest, key=lambda each: each[0])]
    return [(run[0][0], run[0][1], run[-1][1]) for run in runs]


def _told(points: Points, x: str) -> str:
    ends = [max(parts.values()) for _, parts in (points[0], points[-1])]
    runs = ", ".join(
        f"{part} from {first:g} to {last:g} {x}" for part, first, last in limits(points)
    )
    course = f"{ends[0]:.3g} s at {points[0][0]:g}, {ends[1]:.3g} s at {points[-1][0]:g}"
    return f"{course}; limited by {runs}"


def _draw(axes: Axes, points: Points, least_s: float) -> None:
    places = [place for place, _ in points]
    slowest = [max(parts.values()) for _, parts in points]
    axes.set(xscale="log", yscale="log")
    axes.fill_between(places, slowest, [sum(p.values()) for _, p in points], color="#e4e4e4")
    for name in points[0][1]:
        course = [parts[name] for _, parts in points]
        colour, line = _LINES.get(name, (GREY, "-"))
        if max(course) > least_s:
            axes.plot(places, course, color=colour, linestyle=line, linewidth=1.1, label=name)
    for (part, begin, end), after in itertools.zip_longest(limits(points), limits(points)[1:]):
        # up to the first point of the next part, so that the thick line has no gaps
        last = after[1] if after else end
        run = [(x, y) for x, y in zip(places, slowest, strict=True) if begin <= x <= last]
        colour = _LINES.get(part, (GREY, "-"))[0]
        axes.plot(*zip(*run, strict=True), color=colour, linewidth=3.4, solid_capstyle="butt")
        middle = run[len(run) // 2]
        falls = run[0][1] > 1.5 * run[-1][1]
        place = {"xytext": (5, 3) if falls else (0, 5), "ha": "left" if falls else "center"}
        axes.annotate(part, middle, textcoords="offset points", fontsize=8, **place)
