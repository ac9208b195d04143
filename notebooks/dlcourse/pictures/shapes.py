"""What pictures have in common: the check of their data; labels, named rows, boxes, arrows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, YELLOW, AMBER = "#f2f2f2", "#F0E442", "#E69F00"
HATCHES = ("", "//", "..", "xx", "\\\\", "oo")
BESIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False, "fontsize": 8}

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


def listed(entries: Mapping[str, Any], words: Callable[[Any], str]) -> str:
    """Say each entry of a mapping in words: for alternative texts."""
    return "; ".join(f"{name}: {words(entry)}" for name, entry in entries.items())


def named_rows(axes: Axes, names: Iterable[str], room: float = 0.5) -> None:
    """Name the rows of a panel from top to bottom, without a grid."""
    names = list(names)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 1 + room, -room)
    axes.grid(visible=False)


def note(axes: Axes, text: str, point: tuple[float, float], x: float, y: float, **look: Any) -> Any:
    """Write a label beside a point, x and y typographic points away."""
    return axes.annotate(text, point, (x, y), textcoords="offset points", **{"fontsize": 8} | look)


def patches(axes: Axes, looks: Mapping[str, Mapping[str, Any]], **place: Any) -> None:
    """Draw a legend of coloured areas."""
    from matplotlib.patches import Patch

    handles = [Patch(**look, label=name) for name, look in looks.items()]
    axes.legend(handles=handles, **{"frameon": False, "fontsize": 8} | place)


def bare(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Make a panel without axes."""
    axes.set_axis_off()
    axes.set_xlim(*x)
    axes.set_ylim(*y)


def area(
    axes: Axes, x: float, y: float, width: float, height: float, colour: Any, **look: Any
) -> None:
    """Draw a rectangle from its lower left corner."""
    from matplotlib.patches import Rectangle

    look = {"facecolor": colour, "edgecolor": GREY, "linewidth": 0.8} | look
    axes.add_patch(Rectangle((x, y), width, height, **look))


def middle(axes: Axes, text: str, x: float, y: float, size: float = 8, **look: Any) -> None:
    """Write words around a point."""
    axes.text(x, y, text, ha="center", va="center", fontsize=size, **look)


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
    line = {"linestyle": "--" if dashed else "-", "linewidth": 1.0}
    area(axes, x - width / 2, y - height / 2, width, height, colour, **line)
    middle(axes, text, x, y, color=GREY if dashed else "black")


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    both: bool = False,
    **look: Any,
) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "<->" if both else "->", "color": BLUE, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style | {"linewidth": 1.1} | look)
