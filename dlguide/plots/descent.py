"""Optimizers on their way down: paths over contours, and losses against what they cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":")
_GRID = 160  # points in each direction from which the contours are drawn


def descent(
    panels: Mapping[str, tuple[Any, Mapping[str, Any]]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw the paths of optimizers over the contours of the loss, seen from above.

    Contours are close to each other where it is steep, and darker where the loss is lower. What
    leaves the view is cut off.

    Args:
        panels: for each title the landscape, with `loss`, `view` and `minimum`, and for each name
            a path of shape (points, 2), the first point being the start.
        path: file to write; None for none.

    Returns:
        Figure: panels side by side; a ring at each start, a star at the minimum.

    Raises:
        ValueError: when there is nothing to draw, or a path is not one of points (x, y).
    """
    filled = bool(panels) and all(paths for _, paths in panels.values())
    require(filled, "panels", "have a path under every title", dict(panels))
    for title, (_, paths) in panels.items():
        for name, points in paths.items():
            shape = np.shape(points)
            flat = len(shape) == 2 and shape[1] == 2 and shape[0] > 0
            require(flat, "panels", f"hold points (x, y) in {title!r}, {name!r}", shape)
    wide = max(3.2, 9.5 / len(panels))
    drawn, grid = figure(
        columns=len(panels), width=wide * len(panels), height=min(3.8, wide), alt=_words(panels)
    )
    for axes, (title, (landscape, paths)) in zip(grid, panels.items(), strict=True):
        _contours(axes, landscape)
        for number, (name, points) in enumerate(paths.items()):
            points = np.asarray(points, float)
            axes.plot(
                *points.T,
                color=_COLOURS[number % len(_COLOURS)],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=3,
                markevery=max(1, len(points) // 40),
                linewidth=1.2,
                zorder=2.9 - 0.05 * number,  # a short first path is not hidden by the others
                label=name,
            )
        for start in dict.fromkeys(tuple(points[0]) for points in paths.values()):
            axes.plot(*start, "o", color="black", markersize=9, fillstyle="none", zorder=3)
        axes.plot(*landscape.minimum, "*", color="black", markersize=9, zorder=3)
        axes.set(title=title, xlabel="weight x", ylabel="weight y")
        axes.legend(frameon=True, framealpha=0.85, fontsize=7, loc="lower left")
    return written(drawn, path)


def _contours(axes: Axes, landscape: Any) -> None:
    left, right, low, high = landscape.view
    x, y = np.meshgrid(np.linspace(left, right, _GRID), np.linspace(low, high, _GRID))
    loss = landscape.loss(x, y)
    # As much area between any two contours: the bottom of a valley has its own.
    levels = np.unique(np.quantile(loss, np.linspace(0, 1, 14)))
    axes.contourf(x, y, loss, levels, cmap="Greys_r", alpha=0.35)
    axes.contour(x, y, loss, levels, colors="#888888", linewidths=0.5)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.grid(visible=False)


def _words(panels: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> str:
    said = []
    for title, (landscape, paths) in panels.items():
        ends = []
        for name, points in paths.items():
            x, y = np.asarray(points, float)[-1]
            ends.append(
                f"{name} ends after {len(points) - 1} steps at ({x:.2g}, {y:.2g}), "
                f"loss {landscape.loss(x, y):.2g}"
            )
        said.append(f"{title}: {', '.join(ends)}")
    return f"Paths over the contours of a loss. {'; '.join(said)}."


def loss_curves(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    y: str = "loss",
    log: str = "",
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw the same trainings against several measures of what they cost.

    A curve has its colour and dashes in all panels. A loss that is not finite ends its line.

    Args:
        panels: for each label of the x axis, such as "updates" or "time (s)", the trainings by
            name: their x and their y.
        y: label of the y axis, which the panels share.
        log: the axes drawn by powers of ten: "", "x", "y" or "xy". A 0 has no place there.
        path: file to write; None for none.

    Returns:
        Figure: panels side by side, each titled by what it shows.

    Raises:
        ValueError: when there is nothing to draw, or x and y differ in length.
    """
    filled = bool(panels) and all(panels.values())
    require(filled, "panels", "have a training under every label", dict(panels))
    require(log in ("", "x", "y", "xy"), "log", 'be "", "x", "y" or "xy"', log)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    drawn, grid = figure(
        columns=len(panels), width=max(6.5, 4.7 * len(panels)), alt=_curve_words(panels, y)
    )
    for axes, (label, curves) in zip(grid, panels.items(), strict=True):
        for name, (xs, ys) in curves.items():
            same = len(xs) == len(ys)
            require(same, "panels", f"have one y for each x in {name!r}", (len(xs), len(ys)))
            number = names.index(name)
            axes.plot(
                xs,
                ys,
                color=_COLOURS[number % len(_COLOURS)],
                linestyle=_DASHES[number % len(_DASHES)],
                linewidth=1.4,
                label=name,
            )
        axes.set(xlabel=label, ylabel=y)
        title = " against ".join(text.partition(" (")[0] for text in (y, label))
        axes.set_title(title[0].upper() + title[1:], loc="left", fontsize=10)
        axes.sharey(grid[0])
        if "x" in log:
            axes.set_xscale("log")
        if "y" in log:
            axes.set_yscale("log")
    for axes, curves in zip(grid, panels.values(), strict=True):
        # One legend is enough where the panels hold the same trainings.
        if axes is grid[-1] or list(curves) != list(list(panels.values())[-1]):
            axes.legend(frameon=False, fontsize=8)
    return written(drawn, path)


def _curve_words(panels: Mapping[str, Mapping[str, Any]], y: str) -> str:
    said = []
    for label, curves in panels.items():
        ends = [f"{name} {ys[-1]:.3g} at {xs[-1]:.3g}" for name, (xs, ys) in curves.items()]
        said.append(f"against {label}, at the end: {', '.join(ends)}")
    return f"{y}, {'; '.join(said)}."
