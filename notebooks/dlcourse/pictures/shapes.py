"""What pictures have in common: the check of their data; empty panels, boxes with words, arrows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "#f2f2f2"

P = ParamSpec("P")
R = TypeVar("R")


def not_empty(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse a call whose first argument has no entry, by the name of that argument."""
    signature = inspect.signature(function)
    name = next(iter(signature.parameters))

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        call = signature.bind(*args, **kwargs)
        if not isinstance(call.arguments[name], Sized):
            call.arguments[name] = list(call.arguments[name])
        entries = call.arguments[name]
        require(len(entries) > 0, name, "hold at least one entry", entries)
        return function(*call.args, **call.kwargs)

    return checked


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
