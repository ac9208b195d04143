"""What diagrams are made of: an empty panel, boxes with words, arrows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlguide.plots.figures import BLUE, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "#f2f2f2"


def bare(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Make a panel without axes."""
    axes.set_axis_off()
    axes.set_xlim(*x)
    axes.set_ylim(*y)


def box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    colour: str,
    width: float,
    height: float,
    dashed: bool = False,
) -> None:
    """Draw a box with words in it."""
    from matplotlib.patches import Rectangle

    style = {"edgecolor": GREY, "linestyle": "--" if dashed else "-"}
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(Rectangle(corner, width, height, facecolor=colour, **style))
    ink = GREY if dashed else "black"
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], both: bool = False
) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "<->" if both else "->", "color": BLUE, "shrinkA": 0}
    axes.annotate("", end, start, arrowprops={**style, "shrinkB": 0, "linewidth": 1.1})
