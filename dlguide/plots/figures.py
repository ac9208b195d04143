"""An empty figure in the house's style, its colours and legends: what every plot begins with.

A Figure is made without pyplot: nothing global is touched, no window opens, a notebook shows the
Figure that a cell ends with.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every kind of colour vision, and in grey by markers.
BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#767676",
)

# For the series of a plot, in this order.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")


def legend(axes: Axes, **place: Any) -> None:
    """Draw a legend of one row without a frame, each label once."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(
        handles.values(), handles.keys(), frameon=False, ncols=4, columnspacing=1.0, **place
    )


def legend_below(axes: Axes) -> None:
    """Draw the legend under the panel."""
    legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=8)


def legend_above(axes: Axes) -> None:
    """Draw the legend over the panel."""
    legend(axes, loc="lower right", bbox_to_anchor=(1.0, 0.97), fontsize=8)


def figure(
    rows: int = 1, columns: int = 1, width: float = 0.0, height: float = 3.4, alt: str = ""
) -> tuple[Figure, Sequence[Axes]]:
    """Make an empty figure in the house's style that a notebook shows when a cell ends with it.

    Args:
        rows: panels below each other (count).
        columns: panels side by side (count).
        width: of the whole figure (inches); 0 for 4.2 a column.
        height: of one row (inches).
        alt: what the picture shows, in words, for those who cannot see it; "" reads titles and
            labels aloud.

    Returns:
        tuple: the Figure and its panels, row by row.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width or 4.2 * columns, height * rows), dpi=150, layout="constrained")
    # Only pyplot teaches notebooks to show a Figure, and its PNG has no words for the blind.
    figure._repr_html_ = partial(_html, figure, alt)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def _html(figure: Figure, alt: str) -> str:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    words = html.escape(alt or _words(figure), quote=True)
    width = round(100 * figure.get_figwidth())
    data = base64.b64encode(picture.getvalue()).decode()
    return f'<img alt="{words}" width="{width}" src="data:image/png;base64,{data}"/>'


def _words(figure: Figure) -> str:
    parts = [
        (axes.get_title() or axes.get_title("left"), axes.get_ylabel(), axes.get_xlabel())
        for axes in figure.axes
    ]
    said = [f"{title}: {y} against {x}" if y and x else title or y or x for title, y, x in parts]
    return "Plot. " + "; ".join(each.strip(": ") for each in said if each)
