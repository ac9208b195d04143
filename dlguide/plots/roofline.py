"""Draw the roof of a machine and what stands under it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, legend_below, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"float32": BLUE, "bfloat16": ORANGE, "int8": GREEN}
_MARKERS = {"float32": "o", "bfloat16": "s", "int8": "^"}
_LINES = {"float32": "-", "bfloat16": "--", "int8": "-."}


def roofline(
    roof: Any, placed: Sequence[Any] = (), path: str | os.PathLike | None = None
) -> Figure:
    """Draw a roof, both axes logarithmic, with computations under it.

    A filled marker is what was measured, an empty one what the roof allows where nobody
    measured.

    Args:
        roof: a `Roof` of `machine.roofline.measure`.
        placed: what `machine.roofline.place` gave.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: attainable operations per second against operations per byte.

    Raises:
        ValueError: when the roof has no peak at all.
    """
    require(bool(roof.flops_per_s), "roof", "have at least one peak", roof.flops_per_s)
    drawing, (axes,) = figure(width=7.4, height=4.4, alt=_said(roof, placed))
    ridges = [peak / roof.bytes_per_s for peak in roof.flops_per_s.values()]
    left = 0.5 * min([1.0, *(each.intensity for each in placed), *ridges])
    right = 4.0 * max([*(each.intensity for each in placed), *ridges])
    grid = np.geomspace(left, right, 200)
    for dtype, peak in roof.flops_per_s.items():
        colour = _COLOURS.get(dtype, PURPLE)
        line = {"color": colour, "linestyle": _LINES.get(dtype, ":")}
        axes.plot(grid, np.minimum(peak, grid * roof.bytes_per_s), **line, label=dtype)
        axes.annotate(
            f"{peak:.3g} flop/s",
            (right, peak),
            textcoords="offset points",
            xytext=(-2, 3),
            ha="right",
            fontsize=8,
            color=colour,
        )
    for number, each in enumerate(sorted(placed, key=lambda one: one.intensity)):
        _point(axes, each, number)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    top = 2.2 * max(roof.flops_per_s.values())
    reached = [each.measured_flops_per_s or each.attainable_flops_per_s for each in placed]
    axes.set_ylim(0.4 * min([left * roof.bytes_per_s, *reached]), top)
    axes.grid(which="major", axis="both", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("intensity (flop/byte)")
    axes.set_ylabel("flop/s")
    axes.set_title(f"The roof of {roof.processor}, {roof.threads} threads", fontsize=10)
    middle = np.sqrt(left * min(ridges))
    axes.annotate(
        f"memory: {roof.bytes_per_s:.3g} bytes/s",
        (middle, middle * roof.bytes_per_s),
        textcoords="offset points",
        xytext=(10, -8),
        fontsize=8,
        color=GREY,
    )
    legend_below(axes)
    return written(drawing, path)


def _point(axes: Axes, each: Any, number: int) -> None:
    colour = _COLOURS.get(each.dtype, PURPLE)
    measured = each.measured_flops_per_s
    height = each.attainable_flops_per_s if measured is None else measured
    face = "white" if measured is None else colour
    marker = {"marker": _MARKERS.get(each.dtype, "D"), "linestyle": "none", "color": colour}
    axes.plot([each.intensity], [height], **marker, markerfacecolor=face, zorder=3)
    # neighbours get their labels at two heights, so that they do not cover each other
    axes.annotate(
        each.name,
        (each.intensity, height),
        textcoords="offset points",
        xytext=(5, -12 - 11 * (number % 2)),
        fontsize=8,
    )


def _said(roof: Any, placed: Sequence[Any]) -> str:
    peaks = ", ".join(f"{dtype} {peak:.3g} flop/s" for dtype, peak in roof.flops_per_s.items())
    points = "; ".join(
        f"{each.name} at {each.intensity:.3g} flop/byte, limited by "
        f"{'memory' if each.bound == 'memory' else 'arithmetic'}"
        for each in placed
    )
    said = f"Roof: a slope of {roof.bytes_per_s:.3g} bytes/s up to flat peaks of {peaks}."
    return f"{said} Under it: {points}." if points else said
