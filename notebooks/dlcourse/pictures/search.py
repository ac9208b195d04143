"""Hyper-parameter search: where the good trials lie, what the budget bought, who did what when."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.pictures.shapes import not_empty
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)
_MARKERS = ("o", "s", "^", "D", "v")
_LOG_FROM = 30  # values that span such a factor get a logarithmic axis


@not_empty
def search_scores(trials: Sequence[Any], best: Any = None, label: str = "score") -> Figure:
    """Draw the score of each trial over each of its parameters."""
    good = [trial for trial in trials if not trial.failed]
    names = list(good[0].parameters)
    lengths = sorted({trial.epochs for trial in good})
    words = f"{label} of {len(good)} trials over {', '.join(names)}"
    words += f"; best {best.score:.3g}" if best is not None else ""
    drawn, panels = figure(1, len(names), width=max(5.0, 3.2 * len(names)), alt=f"{words}.")
    for axes, name in zip(panels, names, strict=True):
        for number, epochs in enumerate(lengths):
            here = [trial for trial in good if trial.epochs == epochs]
            axes.plot(
                [trial.parameters[name] for trial in here],
                [trial.score for trial in here],
                _MARKERS[number % len(_MARKERS)],
                color=_COLOURS[number % len(_COLOURS)],
                markersize=5,
                alpha=0.75,
                label=f"{epochs} epoch{'s'[: epochs != 1]}",
            )
        _mark_failed(axes, [trial.parameters[name] for trial in trials if trial.failed])
        if best is not None:
            place = [best.parameters[name]], [best.score]
            axes.plot(*place, "o", color="black", fillstyle="none", markersize=13, label="best")
        _scale(axes, [trial.parameters[name] for trial in trials])
        axes.set_xlabel(name)
        axes.set_title(f"{label} over {name}", fontsize=9)
    panels[0].set_ylabel(label)
    drawn.legend(*panels[0].get_legend_handles_labels(), **_above(len(lengths) + 2))
    return drawn


@not_empty
def rank_bars(
    panels: Mapping[str, Sequence[Any]],
    predicted: Mapping[str, float] | None = None,
    label: str = "seconds (the numbers are those of the trials)",
) -> Figure:
    """Draw which rank did which task when; all panels have one axis of time.

    Tasks of several rungs have one colour per rung.
    """
    predicted = predicted or {}
    most = max(1 + max(bar.rank for bar in bars) for bars in panels.values())
    lengths = {title: _makespan(bars) for title, bars in panels.items()}
    listed = "; ".join(f"{title}: {length:.2f} s" for title, length in lengths.items())
    height = 0.75 + 0.34 * most
    drawn, grid = figure(len(panels), width=9.0, height=height, alt=f"Tasks of ranks. {listed}.")
    for axes, (title, bars) in zip(grid, panels.items(), strict=True):
        begin = min(bar.start_s for bar in bars)
        ranks = sorted({bar.rank for bar in bars})
        for row, rank in enumerate(ranks):
            mine = sorted((bar for bar in bars if bar.rank == rank), key=lambda bar: bar.start_s)
            spans = [(bar.start_s - begin, bar.end_s - bar.start_s) for bar in mine]
            rungs = any(getattr(bar, "rung", 0) for bar in bars)
            colours = [
                (SKY, BLUE, ORANGE, GREEN)[bar.rung] if rungs else (BLUE, SKY)[place % 2]
                for place, bar in enumerate(mine)
            ]
            axes.broken_barh(
                spans, (row - 0.38, 0.76), facecolor=colours, edgecolor="white", linewidth=0.5
            )
            for bar, (start, length) in zip(mine, spans, strict=True):
                if not rungs and length > 0.025 * max(lengths.values()):
                    middle = start + length / 2, row
                    text = {"ha": "center", "va": "center", "fontsize": 7}
                    axes.text(*middle, str(bar.number), color="black", **text)
        if title in predicted:
            axes.axvline(predicted[title], color=ORANGE, linestyle="--", label="predicted end")
            axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 0.98))
        axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
        axes.set_ylim(len(ranks) - 0.5, -0.5)
        axes.set_xlim(0, 1.03 * max(*lengths.values(), *predicted.values(), 0.0))
        axes.grid(visible=False)
        axes.set_title(f"{title}: {lengths[title]:.2f} s", fontsize=9, loc="left")
    grid[-1].set_xlabel(label)
    return drawn


@not_empty
def projections(
    panels: Mapping[str, Sequence[tuple[float, float]]],
    important: Callable[[np.ndarray], np.ndarray],
    names: tuple[str, str] = ("important parameter", "other parameter"),
) -> Figure:
    """Draw trials in two parameters, and above them the values tried of the one that matters."""
    counts = {title: len({round(x, 9) for x, _ in each}) for title, each in panels.items()}
    listed = "; ".join(f"{title}: {count} values of the first" for title, count in counts.items())
    drawn, axes = figure(2, len(panels), height=2.4, alt=f"Points tried. {listed}.")
    curve = np.linspace(0, 1, 200)
    for column, (title, points) in enumerate(panels.items()):
        above, below = axes[column], axes[column + len(panels)]
        x, y = np.array(points, float).T
        above.plot(curve, important(curve), color=GREY, linewidth=1.2)
        above.plot(x, important(x), "o", color=ORANGE, markersize=6)
        lowest = float(np.min(important(x)))
        above.axhline(lowest, color=ORANGE, linestyle=":", linewidth=1.0)
        above.set_title(f"{title}: {counts[title]} values of it, best {lowest:.3f}", fontsize=9)
        above.set_ylabel("score")
        below.plot(x, y, "o", color=BLUE, markersize=6)
        below.vlines(x, y, 1.05, color=SKY, linewidth=0.7)
        below.set(xlim=(0, 1), ylim=(0, 1.05), xlabel=names[0], ylabel=names[1])
        below.grid(visible=False)
        above.set_xlim(0, 1)
    return drawn


def _makespan(bars: Sequence[Any]) -> float:
    return max(bar.end_s for bar in bars) - min(bar.start_s for bar in bars)


def _above(columns: int) -> dict[str, Any]:
    return {"loc": "outside upper center", "ncols": columns, "frameon": False, "fontsize": 8}


def _mark_failed(axes: Axes, values: Sequence[Any]) -> None:
    if values:
        edge = axes.get_xaxis_transform()
        axes.plot(
            values, [0.985] * len(values), "x", color=GREY, transform=edge, label="failed",
            clip_on=False,
        )  # fmt: skip


def _scale(axes: Axes, values: Sequence[Any]) -> None:
    numbers = all(isinstance(value, int | float) for value in values)
    if numbers and min(values) > 0 and max(values) >= _LOG_FROM * min(values):
        axes.set_xscale("log")
    elif numbers and len(set(values)) < 8 and all(math.log2(value) % 1 == 0 for value in values):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(set(values)), [str(value) for value in sorted(set(values))])
        axes.minorticks_off()
    elif all(isinstance(value, int) for value in values):
        axes.xaxis.get_major_locator().set_params(integer=True)
