"""The schedule of a pipeline: which stage works on which microbatch when, and where it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide import plots
from dlguide.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"forward": plots.SKY, "backward": "#E69F00"}


def pipeline(
    panels: Mapping[str, Sequence[Any]], unit_s: float = 1.0, unit: str = "forward times"
) -> Figure:
    """Draw schedules below each other, on one scale of time.

    Each row is a stage, each box a microbatch with its number, forward (blue) or backward
    (orange, with a bar on its left side); what is empty is the bubble.

    Args:
        panels: for each title its cells, with `stage`, `microbatch`, `kind`, `start_s` and
            `end_s`, as `parallel.schedules.predict` and `Step.cells` have them.
        unit_s: what one unit of the axis lasts (s).
        unit: name of that unit.

    Returns:
        Figure: one panel for each title.

    Raises:
        ValueError: when there is no panel, or one without cells.
    """
    require(bool(panels), "panels", "hold at least one schedule", {})
    for title, cells in panels.items():
        require(bool(cells), "panels", "have cells in every schedule", title)
    most = max(1 + max(cell.stage for cell in cells) for cells in panels.values())
    figure, grid = plots.figure(len(panels), 1, 9.0, 0.42 * most + 0.95, _words(panels))
    end = max(cell.end_s for cells in panels.values() for cell in cells) / unit_s
    for axes, (title, cells) in zip(grid, panels.items(), strict=True):
        for cell in cells:
            _box(axes, cell, unit_s, end)
        rows = 1 + max(cell.stage for cell in cells)
        axes.set_yticks(range(rows), [f"stage {stage}" for stage in range(rows)])
        axes.set(xlim=(0, end), ylim=(rows - 0.45, -0.55))
        axes.set_title(title, fontsize=10)
        axes.grid(visible=False)
    grid[-1].set_xlabel(f"time ({unit})")
    _legend(grid[0])
    return figure


def _box(axes: Axes, cell: Any, unit_s: float, end: float) -> None:
    from matplotlib.patches import Rectangle

    start, width = cell.start_s / unit_s, (cell.end_s - cell.start_s) / unit_s
    corner = (start, cell.stage - 0.4)
    style = {"edgecolor": "white", "linewidth": 0.8}
    axes.add_patch(Rectangle(corner, width, 0.8, facecolor=_COLOURS[cell.kind], **style))
    if cell.kind == "backward":
        bar = Rectangle(corner, min(width, 0.004 * end), 0.8, facecolor="black")
        axes.add_patch(bar)
    if width > 0.018 * end:
        place = (start + width / 2, cell.stage)
        axes.text(*place, str(cell.microbatch), ha="center", va="center", fontsize=8)


def _legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=kind) for kind, colour in _COLOURS.items()]
    handles.append(Patch(facecolor="white", edgecolor=plots.GREY, label="waits"))
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98)}
    axes.legend(handles=handles, frameon=False, ncols=3, fontsize=8, **place)


def _words(panels: Mapping[str, Sequence[Any]]) -> str:
    said = []
    for title, cells in panels.items():
        rows: dict[int, list[Any]] = {}
        for cell in sorted(cells, key=lambda cell: cell.start_s):
            rows.setdefault(cell.stage, []).append(cell)
        orders = [
            f"stage {stage}: " + " ".join(f"{cell.kind[0]}{cell.microbatch}" for cell in row)
            for stage, row in sorted(rows.items())
        ]
        said.append(f"{title}: {'; '.join(orders)}.")
    return "Schedules, f forward and b backward with the microbatch. " + " ".join(said)
