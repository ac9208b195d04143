"""Allreduces compared: time and speed against the size of the array."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = tuple(
    (colour, marker, line)
    for line in ("-", ":")
    for colour, marker in (
        *((BLUE, "o"), (ORANGE, "s"), (GREEN, "^")),
        *((PURPLE, "D"), (SKY, "v"), ("black", "P")),
    )
)


def allreduce(
    seconds: Mapping[int, Mapping[str, float]],
    ranks: int,
    published: Sequence[tuple[int, float]] = (),
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw the time and the bus bandwidth 2 (p - 1)/p n / t of allreduces over sizes.

    Args:
        seconds: for each size (bytes) the time of each algorithm (s).
        ranks: number of ranks p (count).
        published: sizes (bytes) and times (s) of another machine, drawn beside as grey dashes.
        path: file to write; None for none.

    Returns:
        Figure: microseconds on the left, GB/s on the right, both axes logarithmic.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(seconds), "seconds", "hold at least one size", {})
    names = list(dict.fromkeys(name for times in seconds.values() for name in times))
    drawn, (left, right) = figure(columns=2, width=10.5, height=4.2)
    share = 2 * (ranks - 1) / ranks
    lines = {
        name: sorted((nbytes, times[name]) for nbytes, times in seconds.items() if name in times)
        for name in names
    }
    for number, (name, points) in enumerate(lines.items()):
        colour, marker, line = _STYLES[number % len(_STYLES)]
        sizes = [nbytes for nbytes, _ in points]
        look = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4}
        left.plot(sizes, [1e6 * each for _, each in points], label=name, **look)
        right.plot(sizes, [share * nbytes / each / 1e9 for nbytes, each in points], **look)
    if published:
        sizes, times = zip(*published, strict=True)
        left.plot(sizes, [1e6 * each for each in times], "--", color=GREY, label="published")
    _logarithmic(left, "microseconds", "Time of one allreduce")
    if ranks > 1:  # one rank sends nothing
        _logarithmic(right, "GB/s", "Bus bandwidth")
    left.legend(frameon=False, fontsize=7)
    return written(drawn, path)


def _logarithmic(axes: Axes, unit: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [1 << power for power in range(3, 30, 4)]
    low, high = axes.get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(shown, [_short(tick) for tick in shown])
    axes.set_xlabel("size of the array on every rank")
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=10)


def _short(nbytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"
