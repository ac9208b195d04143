"""Speeds of file formats: bars for each format, a panel for each access pattern and cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREY, figure, legend_below, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reading_speeds(speeds: Sequence[Any], path: str | os.PathLike | None = None) -> Figure:
    """Draw the MB/s of formats, read in several ways.

    Args:
        speeds: as `bench.io.compare` has them, with `kind`, `access`, `cold`, `checked`,
            `nbytes`, `bytes_per_s` and `timing`.
        path: file to write the figure to; None for none.

    Returns:
        Figure: a panel for each access pattern and state of the page cache; blue bars for
        samples that were checked and taken apart, grey ones for the bytes alone, with the
        quartiles as lines.

    Raises:
        ValueError: when there is no speed.
    """
    require(len(speeds) > 0, "speeds", "hold at least one", [])
    panels = list(dict.fromkeys((each.access, each.cold) for each in speeds))
    kinds = list(dict.fromkeys(each.kind for each in speeds))
    told = [
        f"{each.kind} {each.access} {_state(each)}, {'checked' if each.checked else 'raw'}: "
        f"{each.bytes_per_s / 1e6:.3g}"
        for each in speeds
    ]
    alt = "MB/s, higher is better. " + "; ".join(told) + "."
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn, axes_of = figure(rows, columns, width=4.6 * columns, height=3.0, alt=alt)
    for axes, panel in zip(axes_of, panels, strict=False):
        for each in speeds:
            if (each.access, each.cold) != panel:
                continue
            middle = each.bytes_per_s / 1e6
            low, high = (each.nbytes / t / 1e6 for t in (each.timing.high, each.timing.low))
            axes.bar(
                kinds.index(each.kind) + (-0.19 if each.checked else 0.19),
                middle,
                0.36,
                yerr=[[middle - low], [high - middle]],
                capsize=2,
                color=BLUE if each.checked else GREY,
                hatch="" if each.checked else "//",
                label="checked and taken apart" if each.checked else "bytes alone",
            )
        axes.set_xticks(range(len(kinds)), kinds, rotation=20, fontsize=8)
        axes.set_ylabel("MB/s of samples")
        axes.set_title(f"{panel[0]}, {'cold' if panel[1] else 'warm'}", fontsize=10)
    for axes in axes_of[len(panels) :]:
        axes.set_visible(False)
    legend_below(axes_of[len(panels) - 1])
    return written(drawn, path)


def _state(speed: Any) -> str:
    return "cold" if speed.cold else "warm"
