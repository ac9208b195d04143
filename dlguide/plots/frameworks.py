"""Published speeds of frameworks: times of batches, efficiencies, pairs of speeds, releases."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
_MARKERS = ("o", "s", "^", "D", "v", "P")


def batch_seconds(
    rows: Sequence[Mapping[str, Any]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw the seconds per batch of frameworks on 1, 2 and 4 devices.

    Both axes are logarithmic, so a line as steep as the dashed one scales without loss, and a
    line below another is faster.

    Args:
        rows: as in `batch_seconds_gk210`: `network`, `framework`, `gpus_1_s`, `gpus_2_s`,
            `gpus_4_s`.
        path: file to write the figure to; None for none.

    Returns:
        Figure: one panel for each network.

    Raises:
        ValueError: when there is no row.
    """
    require(len(rows) > 0, "rows", "hold at least one row", [])
    networks = list(dict.fromkeys(row["network"] for row in rows))
    frameworks = list(dict.fromkeys(row["framework"] for row in rows))
    counts = (1, 2, 4)
    told = [
        f"{row['network']} {row['framework']} "
        + ", ".join(f"{row[f'gpus_{count}_s']:g}" for count in counts)
        for row in rows
    ]
    alt = f"Seconds per batch on 1, 2 and 4 GPUs, lower is better. {'; '.join(told)}."
    drawn, panels = figure(columns=len(networks), width=3.6 * len(networks), height=3.8, alt=alt)
    for axes, network in zip(panels, networks, strict=True):
        for row in rows:
            if row["network"] == network:
                place = frameworks.index(row["framework"])
                seconds = [row[f"gpus_{count}_s"] for count in counts]
                _line(axes, counts, seconds, row["framework"], place)
        top = max(row["gpus_1_s"] for row in rows if row["network"] == network)
        ideal = [1.25 * top / count for count in counts]
        axes.plot(counts, ideal, "--", color=GREY, linewidth=1, label="no loss")
        _doubling(axes, counts)
        axes.set_yscale("log")
        axes.set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
        lowest = min(row["gpus_4_s"] for row in rows)
        axes.set_ylim(0.8 * lowest, 1.4 * max(row["gpus_1_s"] for row in rows))
        axes.minorticks_off()
        axes.set_title(network, fontsize=10)
        axes.set_xlabel("GPUs (GK210)")
    panels[0].set_ylabel("seconds per batch")
    _shared_legend(drawn, panels[0])
    return written(drawn, path)


def efficiencies(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    devices: str = "GPUs",
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw how much of the ideal speed-up is left as devices are added.

    With a speed-up S(p) on p devices and the series' first point p0, which is its baseline:

        efficiency = (S(p) / S(p0)) / (p / p0)

    Args:
        panels: for each title its series, each from devices (count) to times as fast as the
            series' baseline, the baseline first.
        devices: what is counted.
        path: file to write the figure to; None for none.

    Returns:
        Figure: one panel for each title; 1 is no loss.

    Raises:
        ValueError: when there is no panel.
    """
    require(bool(panels), "panels", "hold at least one series", {})
    told = [
        f"{title}, {label}: "
        + ", ".join(f"{value:.3g} on {count}" for count, value in line.items())
        for title, series in panels.items()
        for label, line in series.items()
    ]
    alt = f"Efficiency against devices, from these speed-ups. {'; '.join(told)}."
    drawn, grid = figure(columns=len(panels), width=4.6 * len(panels), height=3.6, alt=alt)
    for axes, (title, series) in zip(grid, panels.items(), strict=True):
        for place, (label, line) in enumerate(series.items()):
            counts, values = list(line), list(line.values())
            shares = [
                (value / values[0]) / (count / counts[0])
                for count, value in zip(counts, values, strict=True)
            ]
            _line(axes, counts, shares, label, place)
        counts = {count for line in series.values() for count in line}
        _doubling(axes, sorted(count for count in counts if count & (count - 1) == 0))
        axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
        axes.set_ylim(0.0, 1.1)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(devices)
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    grid[0].set_ylabel("efficiency (1 = no loss)")
    return written(drawn, path)


def speed_pairs(
    panels: Mapping[str, Mapping[str, tuple[float, float]]],
    names: tuple[str, str],
    unit: str = "images/s",
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw two speeds for each of several cases, with their ratio above.

    Args:
        panels: for each title its cases, each with two speeds.
        names: what the first and the second speed are.
        unit: of the speeds.
        path: file to write the figure to; None for none.

    Returns:
        Figure: one panel for each title, with an axis of its own, from 0.

    Raises:
        ValueError: when there is no panel.
    """
    require(bool(panels), "panels", "hold at least one case", {})
    told = [
        f"{title}, {case}: {one:g} and {two:g}, ratio {two / one:.2f}"
        for title, cases in panels.items()
        for case, (one, two) in cases.items()
    ]
    alt = f"{unit}: {names[0]} and {names[1]}. {'; '.join(told)}."
    drawn, grid = figure(columns=len(panels), width=2.7 * len(panels) + 0.6, height=3.4, alt=alt)
    for axes, (title, cases) in zip(grid, panels.items(), strict=True):
        for place, (one, two) in enumerate(cases.values()):
            axes.bar(place - 0.2, one, 0.38, color=SKY, label=names[0])
            axes.bar(place + 0.2, two, 0.38, color=BLUE, hatch="//", label=names[1])
            ratio = f"x {two / one:.2f}"
            axes.annotate(
                ratio, (place, max(one, two)), (0, 3), textcoords="offset points", ha="center"
            )
        axes.set_xticks(range(len(cases)), cases, fontsize=8)
        axes.margins(y=0.15)
        axes.set_title(title, fontsize=10)
    grid[0].set_ylabel(unit)
    _shared_legend(drawn, grid[0])
    return written(drawn, path)


def last_releases(
    rows: Sequence[Mapping[str, Any]],
    mark: tuple[str, str] = ("2019-12-03", "the survey"),
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw when each framework was last released, as far as it is known.

    Args:
        rows: as in `frameworks_2026`: `framework`, `last_release`, `last_release_date` (ISO, or
            None), `date_is`.
        mark: a day (ISO) and its name, drawn as a line.
        path: file to write the figure to; None for none.

    Returns:
        Figure: full points for the days of releases, open ones for days on which the release was
        there already; frameworks without a day are left out.

    Raises:
        ValueError: when no row has a day.
    """
    dated = [row for row in rows if row["last_release_date"]]
    require(bool(dated), "rows", "have a day of release", rows)
    dated.sort(key=lambda row: row["last_release_date"])
    told = [f"{row['framework']} {row['last_release_date']}" for row in dated]
    alt = f"Newest release that was found, by day. {'; '.join(told)}."
    drawn, (axes,) = figure(width=8.4, height=0.27 * len(dated) + 1.0, alt=alt)
    for place, row in enumerate(dated):
        found = row["date_is"] == "release"
        day = _day(row["last_release_date"])
        axes.plot(day, place, "o", color=BLUE, fillstyle="full" if found else "none")
        axes.annotate(
            str(row["last_release"]), (day, place), (7, 0), textcoords="offset points",
            fontsize=8, va="center",
        )  # fmt: skip
    day, name = _day(mark[0]), mark[1]
    axes.axvline(day, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        name, (day, len(dated) - 0.4), (4, 0), textcoords="offset points", color=GREY, fontsize=8
    )
    axes.set_yticks(range(len(dated)), [row["framework"] for row in dated], fontsize=8)
    axes.set_xlim(right=max(_day(row["last_release_date"]) for row in dated) + 1.1)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_title("Newest release of each framework that was found", fontsize=10, pad=14)
    axes.set_xlabel("year (full: day of the release; open: seen on this day)")
    axes.xaxis.set_major_locator(_whole_years())
    return written(drawn, path)


def _whole_years() -> Any:
    from matplotlib.ticker import MultipleLocator

    return MultipleLocator(1)


def _day(text: str) -> float:
    parts = [int(part) for part in text.split("-")]
    day = datetime.date(*[*parts, 1, 1][:3])
    return day.year + (day.timetuple().tm_yday - 1) / 365.25


def _line(
    axes: Axes, counts: Sequence[int], values: Sequence[float], label: str, place: int
) -> None:
    colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
    axes.plot(counts, values, marker=marker, color=colour, label=label, linewidth=1.4)


def _doubling(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts], fontsize=8)
    axes.minorticks_off()


def _shared_legend(drawn: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    drawn.legend(
        once.values(), once.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8
    )
