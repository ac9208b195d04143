"""Pictures of experiments: recipes over epochs and seconds, errors, regions of the batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY, "black")
_MARKERS = ("o", "s", "^", "D", "v", "P")  # one less, so that 42 looks differ
_REGIONS = {"A": "#dddddd", "B": "#ffffff", "C": "#f3dcc9", "AC": "#dccbc0"}


def experiments(
    results: Sequence[Any], accuracy: float | None = None, path: str | os.PathLike | None = None
) -> Figure:
    """Draw the test accuracy of each recipe over epochs and over seconds, and where it ends.

    A line is the mean over the seeds that did not diverge, a band goes from the lowest to the
    highest of them. Seconds are those of training, median over seeds, without evaluation.

    Args:
        results: what `training.experiments.run` returned; results of one name make one line.
        accuracy: a test accuracy to mark (fraction); None for none.
        path: file to write; None for none.

    Returns:
        Figure: accuracy over epochs, over seconds of training, and at the end with the standard
            error of the mean, as tables have it.

    Raises:
        ValueError: when there is nothing to draw.
    """
    named = _named(results)
    drawn, (epochs, seconds, final) = figure(columns=3, width=12.0, height=3.6, alt=_words(named))
    for number, (name, each) in enumerate(named.items()):
        style = _style(number)
        there = [one for one in each if not one.diverged]
        label = name + f" ({len(each) - len(there)} diverged)" * (len(there) < len(each))
        if not there:
            epochs.plot([], [], **style, label=f"{name} (all diverged)")
            at = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "center"}
            final.annotate("diverged", (0.5, number), color=style["color"], **at)
            continue
        curves = 100 * np.array([one.runs[0].test_accuracy for one in there])
        count = np.arange(1, curves.shape[1] + 1)
        times = np.median([one.train_s for one in there], axis=0)
        for axes, along in ((epochs, count), (seconds, times)):
            axes.plot(along, curves.mean(axis=0), **style, label=label)
        low, high = curves.min(axis=0), curves.max(axis=0)
        epochs.fill_between(count, low, high, color=style["color"], alpha=0.15, linewidth=0)
        _final(final, number, 100 * np.array([one.accuracy for one in there]), style)
    if accuracy is not None:
        for axes in (epochs, seconds):
            axes.axhline(100 * accuracy, color=GREY, linestyle=":", linewidth=1)
        final.axvline(100 * accuracy, color=GREY, linestyle=":", linewidth=1)
    epochs.set(xlabel="epoch", ylabel="right answers (% of test set)", title="Over epochs")
    seconds.set(xlabel="seconds of training", title="Over seconds")
    seconds.set_xlim(left=0)
    final.set(xlabel="right answers (% of test set)", title="At the end, ± standard error")
    final.set_yticks(range(len(named)), list(named))
    final.set_ylim(len(named) - 0.5, -0.5)
    final.grid(axis="x", color="#dddddd", linewidth=0.6)
    epochs.xaxis.get_major_locator().set_params(integer=True)
    epochs.legend(frameon=False, fontsize=8)
    return written(drawn, path)


def errors(results: Sequence[Any], path: str | os.PathLike | None = None) -> Figure:
    """Draw training and test error of each recipe over its epochs, a panel for each.

    As the thesis draws them: a dashed line for training, a full one for the test set. Lines are
    means over seeds, thin ones the seeds themselves. Where the right answers of training were
    not counted, its loss stands on an axis of its own.

    Args:
        results: what `training.experiments.run` returned.
        path: file to write; None for none.

    Returns:
        Figure: up to three panels in a row, all on the same scale.

    Raises:
        ValueError: when there is nothing to draw.

    Source:
        The thesis, Figures 19 to 30.
    """
    named = _named(results)
    columns = min(3, len(named))
    rows = -(-len(named) // columns)
    counted = all(one.train_error for one in results if not one.diverged)
    of = "training error" if counted else "training loss"
    told = [f"{name}: {_last_error(each)}" for name, each in named.items()]
    alt = f"Test error and {of} over epochs. {'; '.join(told)}."
    drawn, panels = figure(rows=rows, columns=columns, height=2.9, alt=alt)
    others = [axes if counted else axes.twinx() for axes in panels[: len(named)]]
    for number, (name, each) in enumerate(named.items()):
        axes, other = panels[number], others[number]
        there = [one for one in each if not one.diverged]
        axes.set_title(name)
        axes.set_xlabel("epoch")
        if not there:
            axes.text(0.5, 0.5, "diverged", transform=axes.transAxes, ha="center", color=GREY)
            axes.set_xticks([])
            continue
        _curves(axes, [100 * np.array(one.test_error) for one in there], BLUE, "-", "test error")
        training = [100 * np.array(one.train_error) if counted else one.loss for one in there]
        _curves(other, training, ORANGE, "--", of)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in panels[len(named) :]:
        axes.set_axis_off()
    used = panels[: len(named)]
    _same_scale(used)
    if not counted:
        _same_scale(others)
        for number, other in enumerate(others):
            other.spines["top"].set_visible(False)
            if number % columns == columns - 1 or number == len(others) - 1:
                other.set_ylabel("training loss")
            else:
                other.set_yticklabels([])
    for axes in used[::columns]:
        axes.set_ylabel("wrong answers (%)" if counted else "wrong answers (% of test set)")
    lines = {line.get_label(): line for line in [*used[0].lines, *others[0].lines]}
    shown = [line for label, line in lines.items() if not label.startswith("_")]
    if shown:
        used[0].legend(handles=shown, frameon=False, fontsize=8)
    return written(drawn, path)


def batches(regions: Any, path: str | os.PathLike | None = None) -> Figure:
    """Draw throughput and accuracy against the batch per worker, with the regions A, B and C.

    Args:
        regions: what `training.experiments.best_batch` returned.
        path: file to write; None for none.

    Returns:
        Figure: throughput above, accuracy with its standard error below.

    Source:
        The thesis, Figure 10, after Ben-Nun and Hoefler, arXiv:1802.09941.
    """
    drawn, (speed, quality) = figure(rows=2, width=6.5, height=2.4, alt=str(regions))
    sizes, rows = np.array(regions.batches, float), regions.rows
    speeds = [row.images_per_s or 0.0 for row in rows]
    speed.plot(sizes, speeds, color=BLUE, marker="o")
    speed.axhline(regions.efficient * max(speeds), color=GREY, linestyle=":", linewidth=1)
    means = [np.nan if row.accuracy is None else 100 * row.accuracy for row in rows]
    bars = [100 * (row.standard_error or 0.0) for row in rows]
    quality.errorbar(sizes, means, bars, color=ORANGE, marker="s", capsize=3)
    steps = np.sqrt(sizes[1:] * sizes[:-1])
    edges = [sizes[0] ** 1.5 / steps[0] ** 0.5, *steps, sizes[-1] ** 1.5 / steps[-1] ** 0.5]
    for axes in (speed, quality):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes], minor=False)
        axes.set_xlim(edges[0], edges[-1])
        for region, left, right in zip(regions.regions, edges[:-1], edges[1:], strict=True):
            axes.axvspan(left, right, color=_REGIONS[region], zorder=0, linewidth=0)
    for region, size in zip(regions.regions, sizes, strict=True):
        speed.annotate(
            region, (size, 1.0), (0, -4), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="top", fontweight="bold",
        )  # fmt: skip
    speed.set_ylim(0, 1.25 * max(speeds))
    speed.set(ylabel="images/s", title="A: too slow, C: too inaccurate, B: neither")
    quality.set(xlabel="images per worker and step", ylabel="right answers\n(% of test set)")
    speed.label_outer()
    return written(drawn, path)


def _named(results: Sequence[Any]) -> dict[str, list[Any]]:
    require(bool(results), "results", "hold at least one Result", list(results))
    named: dict[str, list[Any]] = {}
    for one in results:
        named.setdefault(one.setting.name or one.setting.net, []).append(one)
    return named


def _style(number: int) -> dict[str, Any]:
    marker = _MARKERS[number % len(_MARKERS)]
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": marker, "markersize": 4}


def _final(axes: Axes, line: int, values: np.ndarray, style: dict[str, Any]) -> None:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    axes.plot(values, [line] * len(values), ".", color=style["color"], alpha=0.4)
    axes.errorbar(values.mean(), line, xerr=error, capsize=4, **style | {"markersize": 6})


def _curves(axes: Axes, each: list[Any], colour: str, dashes: str, label: str) -> None:
    count = np.arange(1, len(each[0]) + 1)
    for one in each if len(each) > 1 else ():
        axes.plot(count, one, dashes, color=colour, linewidth=0.6, alpha=0.4)
    axes.plot(count, np.mean(each, axis=0), dashes, color=colour, marker=".", label=label)


def _same_scale(panels: Sequence[Axes]) -> None:
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)


def _words(named: dict[str, list[Any]]) -> str:
    told = []
    for name, each in named.items():
        values = [one.accuracy for one in each if not one.diverged]
        ends = f"ends at {100 * np.mean(values):.1f} %" if values else "diverges"
        told.append(f"{name} {ends}")
    return f"Test accuracy over epochs, over seconds and at the end. {'; '.join(told)}."


def _last_error(each: list[Any]) -> str:
    values = [one.test_error[-1] for one in each if not one.diverged]
    return f"test error {100 * np.mean(values):.1f} % at the end" if values else "diverged"
