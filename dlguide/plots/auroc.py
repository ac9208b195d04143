"""ROC curves, and the areas under them with their intervals, finding by finding."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, figure, legend_above, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

# Name, value, and the two ends of its interval.
Row = tuple[str, float, float, float]
_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))


def areas_under_curves(
    areas: Mapping[str, Sequence[Row]],
    published: Mapping[str, float] | None = None,
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw the AUROC of each finding with its interval, for one net or for some side by side.

    Args:
        areas: name of a net -> rows of (finding, value, low, high); at most three nets of the
            same findings. A row called "mean" is set apart.
        published: finding -> value of somebody else's net; None for none.
        path: file to write; None for none.

    Returns:
        Figure: findings from top to bottom in the order of the first net's areas.

    Raises:
        ValueError: when there are no nets or too many, or their findings differ.
    """
    names = _names(areas)
    first = {name: value for name, value, *_ in next(iter(areas.values()))}
    names.sort(key=lambda name: (name == "mean", -first[name]))
    best, worst = names[0], [name for name in names if name != "mean"][-1]
    said = ", ".join(
        f"{net} {dict((row[0], row[1]) for row in rows).get('mean', rows[-1][1]):.3f}"
        for net, rows in areas.items()
    )
    alt = (
        f"Area under the ROC curve of {len(first) - ('mean' in first)} findings with intervals. "
        f"Means: {said}. Highest for {best} ({first[best]:.2f}), lowest for {worst} "
        f"({first[worst]:.2f})."
    )
    drawn, (axes,) = figure(1, 1, 7.2, 0.9 + 0.31 * len(names), alt)
    _rows(axes, areas, names)
    if published:
        there = [name for name in names if name in published]
        places = [names.index(name) for name in there]
        values = [published[name] for name in there]
        axes.plot(values, places, "D", color=GREY, markersize=4, label="published CheXNet")
    axes.axvline(0.5, color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="AUROC (0.5 is guessing), with 95 % intervals", xlim=(None, 1.01))
    legend_above(axes)
    axes.set_title("Area under the ROC curve", loc="left", fontsize=10)
    return written(drawn, path)


def area_gains(gains: Mapping[str, Sequence[Row]], path: str | os.PathLike | None = None) -> Figure:
    """Draw by how much the AUROC of each finding differs between two nets.

    Args:
        gains: what is compared -> rows of (finding, difference, low, high); at most three.
        path: file to write; None for none.

    Returns:
        Figure: findings from top to bottom; 0 is no difference.

    Raises:
        ValueError: when there are none or too many, or their findings differ.
    """
    names = _names(gains)
    first = {row[0]: row for row in next(iter(gains.values()))}
    names.sort(key=lambda name: (name == "mean", -first[name][1]))
    told = sum(row[2] > 0 or row[3] < 0 for row in first.values() if row[0] != "mean")
    better = sum(row[1] > 0 for row in first.values() if row[0] != "mean")
    count = len(first) - ("mean" in first)
    alt = (
        f"Differences of AUROC for {count} findings with intervals: above 0 in {better}, and with "
        f"an interval on one side of 0 in {told}."
    )
    drawn, (axes,) = figure(1, 1, 7.2, 0.9 + 0.31 * len(names), alt)
    _rows(axes, gains, names)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(xlabel="difference of AUROC, with 95 % intervals")
    legend_above(axes)
    axes.set_title("Difference by finding", loc="left", fontsize=10)
    return written(drawn, path)


def roc_curves(
    judged: Mapping[str, tuple[ArrayLike, ArrayLike]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw ROC curves: what is found against what is wrongly alarmed, over all thresholds.

    Args:
        judged: name -> zeros and ones, and scores, each of shape (samples,); at most three.
        path: file to write; None for none.

    Returns:
        Figure: from (0, 0), where nothing is called positive, to (1, 1); guessing is the
            diagonal. The area under the first one is shaded.

    Raises:
        ValueError: when there are none or too many, or one has no 0 or no 1.
    """
    require(0 < len(judged) <= len(_MARKS), "judged", "hold 1 to 3 curves", len(judged))
    areas = {name: _curve(name, *each) for name, each in judged.items()}
    said = ", ".join(f"{name} with an area of {each[2]:.3f}" for name, each in areas.items())
    alt = f"Found against false alarms, for {said}; guessing is the diagonal."
    drawn, (axes,) = figure(1, 1, 4.6, 4.2, alt)
    for number, ((name, (alarms, hits, area)), (colour, _)) in enumerate(
        zip(areas.items(), _MARKS, strict=False)
    ):
        axes.plot(alarms, hits, color=colour, linewidth=1.8, label=f"{name}: area {area:.3f}")
        if number == 0:
            axes.fill_between(alarms, hits, color=colour, alpha=0.12, linewidth=0)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.set(
        xlabel="false alarms (part of those without the finding)",
        ylabel="found (part of those with the finding)",
    )
    axes.set_title("ROC curve", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return written(drawn, path)


def _curve(name: str, labels: ArrayLike, scores: ArrayLike) -> tuple[np.ndarray, np.ndarray, float]:
    labels, scores = np.asarray(labels, bool), np.asarray(scores, float)
    both = labels.any() and not labels.all()
    require(both, "judged", "hold both a 0 and a 1", f"{name}: {labels.sum()} ones")
    # the lowest score that is still called positive; with infinity nothing is
    thresholds = np.r_[np.inf, np.unique(scores)[::-1]][:, None]
    hits, alarms = ((scores[kind] >= thresholds).mean(1) for kind in (labels, ~labels))
    return alarms, hits, float(np.trapezoid(hits, alarms))


def _names(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    require(0 < len(tables) <= len(_MARKS), "areas", "hold 1 to 3 nets", len(tables))
    lists = [[row[0] for row in rows] for rows in tables.values()]
    require(all(set(one) == set(lists[0]) for one in lists), "areas", "be of equal findings", lists)
    return lists[0]


def _rows(axes: Axes, tables: Mapping[str, Sequence[Row]], names: list[str]) -> None:
    for number, ((net, rows), (colour, mark)) in enumerate(
        zip(tables.items(), _MARKS, strict=False)
    ):
        by_name = {row[0]: row[1:] for row in rows}
        values, low, high = np.array([by_name[name] for name in names], float).T
        places = np.arange(len(names)) + 0.22 * (number - (len(tables) - 1) / 2)
        ends = np.stack([values - low, high - values]).clip(0)
        axes.errorbar(
            values, places, xerr=ends, fmt=mark, color=colour, markersize=4.5, elinewidth=1.2,
            label=net,
        )  # fmt: skip
    if "mean" in names:
        axes.axhline(names.index("mean") - 0.5, color=GREY, linewidth=0.6)
    labels = [name.replace("_", " ") for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
