"""Pictures of oneDNN: addresses of layouts, time by primitive, on against off, streams."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)


def addresses(places: Mapping[str, np.ndarray], path: str | os.PathLike | None = None) -> Figure:
    """Draw where the numbers of one image lie in memory, for several layouts.

    One row for each channel, one column for each pixel; the colour and the number are the place.

    Args:
        places: for each name of a layout the places of one image's numbers, of shape
            (channels, height, width).
        path: file to write the figure to; None for none.

    Returns:
        Figure: a panel for each layout.

    Raises:
        ValueError: when there is no layout.
    """
    require(bool(places), "places", "hold at least one layout", {})
    alt = "Places in memory. " + " ".join(
        f"{name}: from channel to channel {_step(each, 0)}, from pixel to pixel {_step(each, 2)}."
        for name, each in places.items()
    )
    channels, height, width = next(iter(places.values())).shape
    size = {"width": 3.0 * len(places), "height": max(2.0, 0.2 * channels)}
    drawn, panels = figure(columns=len(places), alt=alt, **size)
    for axes, (name, each) in zip(panels, places.items(), strict=True):
        cells = each.reshape(channels, height * width)
        axes.imshow(cells, cmap="cividis", aspect="auto")
        axes.grid(False)
        for channel in range(channels):
            for pixel in range(height * width):
                dark = cells[channel, pixel] < cells.max() / 2
                axes.text(
                    pixel,
                    channel,
                    str(cells[channel, pixel]),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
        axes.set_title(name)
        axes.set_xticks(
            range(height * width),
            [f"{row},{column}" for row in range(height) for column in range(width)],
        )
        axes.set_xlabel("pixel (row, column)")
    panels[0].set_ylabel("channel")
    return written(drawn, path)


def primitives(
    tables: Mapping[str, Sequence[Any]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw the time of each kind of primitive, one bar for each table.

    Args:
        tables: rows of `machine.onednn.table` by name.
        path: file to write the figure to; None for none.

    Returns:
        Figure: one bar for each table, its parts the kinds, with their counts.

    Raises:
        ValueError: when there is no table.
    """
    require(bool(tables), "tables", "hold at least one table", {})
    totals: dict[str, dict[str, tuple[float, int]]] = {name: {} for name in tables}
    for name, rows in tables.items():
        for row in rows:
            seconds, count = totals[name].get(row.kind, (0.0, 0))
            totals[name][row.kind] = seconds + row.seconds, count + row.count
    kinds = dict.fromkeys(row.kind for rows in tables.values() for row in rows)
    kinds = sorted(kinds, key=lambda kind: -max(t.get(kind, (0.0, 0))[0] for t in totals.values()))
    alt = "Time by primitive. " + " ".join(
        f"{name}: "
        + ", ".join(f"{kind} {1e3 * t[kind][0]:.3g} ms ({t[kind][1]})" for kind in t)
        + "."
        for name, t in totals.items()
    )
    drawn, (axes,) = figure(width=8, height=1.2 + 0.5 * len(tables), alt=alt)
    left = dict.fromkeys(tables, 0.0)
    for number, kind in enumerate(kinds):
        colour = _COLOURS[number] if number < len(_COLOURS) else GREY
        widths = [1e3 * totals[name].get(kind, (0.0, 0))[0] for name in tables]
        look = {"color": colour, "hatch": ("", "//", "..", "xx")[number % 4], "label": kind}
        axes.barh(list(tables), widths, 0.6, left=list(left.values()), **look)
        for name, width in zip(tables, widths, strict=True):
            left[name] += width
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("time in oneDNN (ms)")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return written(drawn, path)


def onednn_speeds(speeds: Sequence[Any], path: str | os.PathLike | None = None) -> Figure:
    """Draw the images per second with oneDNN on and off.

    Args:
        speeds: sides and modes as `bench.onednn.compare` has them, with `mode`, `onednn`,
            `batch` and `timing`.
        path: file to write the figure to; None for none.

    Returns:
        Figure: a panel for each mode, bars with the quartiles as lines.

    Raises:
        ValueError: when there is no speed.
    """
    require(len(speeds) > 0, "speeds", "hold at least one", [])
    modes = list(dict.fromkeys(each.mode for each in speeds))
    alt = "Images per second, higher is better. " + " ".join(
        f"{each.mode}, oneDNN {('off', 'on')[each.onednn]}: {each.images_per_s:.3g}."
        for each in speeds
    )
    drawn, panels = figure(columns=len(modes), width=3.2 * len(modes), height=2.6, alt=alt)
    for axes, mode in zip(panels, modes, strict=True):
        for each in speeds:
            if each.mode != mode:
                continue
            middle = each.images_per_s
            low, high = each.batch / each.timing.high, each.batch / each.timing.low
            axes.bar(
                ("off", "on")[each.onednn],
                middle,
                0.6,
                yerr=[[middle - low], [high - middle]],
                capsize=4,
                color=(ORANGE, BLUE)[each.onednn],
            )
        axes.set_title(mode)
        axes.set_xlabel("oneDNN")
    panels[0].set_ylabel("images/s")
    return written(drawn, path)


def streams(splits: Sequence[Any], path: str | os.PathLike | None = None) -> Figure:
    """Draw throughput and latency of inference against the number of streams.

    Args:
        splits: what `bench.streams.compare` returned.
        path: file to write the figure to; None for none.

    Returns:
        Figure: images/s of all streams on the left, latency on the right.

    Raises:
        ValueError: when there is no split.
    """
    require(len(splits) > 0, "splits", "hold at least one", [])
    names = [f"{each.streams} x {each.threads}" for each in splits]
    alt = "Streams x threads. " + " ".join(
        f"{name}: {each.median_images_per_s:.3g} images/s, latency {1e3 * each.latency.median:.3g} "
        f"ms, 95 of 100 within {1e3 * each.late_s:.3g} ms."
        for name, each in zip(names, splits, strict=True)
    )
    drawn, (left, right) = figure(columns=2, height=2.8, alt=alt)
    left.bar(names, [each.median_images_per_s for each in splits], 0.6, color=BLUE)
    left.set(title="all streams together", ylabel="images/s", xlabel="streams x threads")
    right.bar(
        names, [1e3 * each.late_s for each in splits], 0.6, color=SKY, label="95 of 100 within"
    )
    middle = [1e3 * each.latency.median for each in splits]
    right.plot(names, middle, "o", color=ORANGE, label="median")
    right.set(title="one answer", ylabel="latency (ms)", xlabel="streams x threads")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return written(drawn, path)


def _step(places: np.ndarray, axis: int) -> int:
    """Give the distance in memory of the first two neighbours along an axis; 0 without any."""
    first = places.swapaxes(0, axis)[:, 0, 0]
    return int(first[1] - first[0]) if len(first) > 1 else 0
