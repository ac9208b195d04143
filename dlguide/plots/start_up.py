"""Mean throughput over the first batches: how long a slow start is felt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require
from dlguide.measure.start_up import StartUp
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = ((ORANGE, "-"), (BLUE, "--"), (GREEN, "-."), (PURPLE, ":"))


def start_up(
    starts: Mapping[str, StartUp],
    marks: Mapping[str, int] | None = None,
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw the mean throughput against the number of batches it is over.

    Args:
        starts: for each name its first batch and its others, `measure.start_up`.
        marks: numbers of batches to mark, by what they are; None for none.
        path: file to write; None for none.

    Returns:
        Figure: a line for each name over a logarithmic axis; thin dotted lines without the first
            batch. Of two names a panel below has the ratio, the second over the first.

    Raises:
        ValueError: when there is nothing to draw, or more than four.
    """
    few = 0 < len(starts) <= len(_LOOKS)
    require(few, "starts", f"hold 1 to {len(_LOOKS)} names", len(starts))
    most = 5 * max(
        [*(one.batches for one in starts.values()), *(n for n in (marks or {}).values())]
    )
    counts = np.unique(np.geomspace(1, most, 200).astype(int))
    told = "; ".join(
        f"{name}: {one.images_per_s_with_first:.0f} images/s over {one.batches} batches, "
        f"{one.images_per_s:.0f} without the first"
        for name, one in starts.items()
    )
    alt = f"Mean images/s over the first batches rises to that of the others. {told}."
    pair = len(starts) == 2
    drawn, panels = figure(rows=1 + pair, width=7.0, height=2.5 if pair else 3.4, alt=alt)
    axes = panels[0]
    for (name, one), (colour, dashes) in zip(starts.items(), _LOOKS, strict=False):
        means = [one.after(int(count)) for count in counts]
        axes.plot(counts, means, dashes, color=colour, label=name)
        axes.axhline(one.images_per_s, color=colour, linestyle=":", linewidth=0.9)
    axes.set_ylim(0, 1.3 * max(one.images_per_s for one in starts.values()))
    axes.set(ylabel="images/s", title="Mean throughput; dotted: without the first batch")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    if pair:
        _ratio(panels[1], starts, counts)
    for panel in panels:
        for count in (marks or {}).values():
            panel.axvline(count, color=GREY, linewidth=0.9)
        panel.set(xscale="log", xlim=(1, most))
    for name, count in (marks or {}).items():
        panels[-1].annotate(
            name, (count, 0.96), (3, 0), xycoords=("data", "axes fraction"), fontsize=8,
            textcoords="offset points", color=GREY, rotation=90, ha="left", va="top",
        )  # fmt: skip
    panels[-1].set_xlabel("batches that the mean is over")
    return written(drawn, path)


def _ratio(axes: Axes, starts: Mapping[str, StartUp], counts: np.ndarray) -> None:
    (below, first), (above, second) = starts.items()
    ratio = np.array([second.after(int(n)) / first.after(int(n)) for n in counts])
    axes.plot(counts, ratio, color="black")
    axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    # the very first batches are far away from 1, and would hide where the order turns
    late = np.append(ratio[counts >= first.batches / 4], 1.0)
    room = 0.25 * (late.max() - late.min())
    axes.set_ylim(late.min() - room, late.max() + room)
    axes.set(ylabel=f"{above}\nover {below}")
