"""Hyper-parameter search: where the good trials lie, what the budget bought, who did what when."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.pictures.shapes import PLAIN, listed, middle, named_rows, series
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def search_scores(trials: Sequence[Any], best: Any, label: str) -> Figure:
    """Draw the score of each trial over each of its parameters."""
    good = [trial for trial in trials if not trial.failed]
    failed = [trial for trial in trials if trial.failed]
    names = list(good[0].parameters)
    lengths = {n: [t for t in good if t.epochs == n] for n in sorted({t.epochs for t in good})}
    alt = f"{label} of {len(good)} trials over {', '.join(names)}; best {best.score:.3g}."
    drawn, panels = figure(1, len(names), width=max(5.0, 3.2 * len(names)), alt=alt)
    for axes, name in zip(panels, names, strict=True):
        for epochs, here, look, marker in series(lengths):
            points = [t.parameters[name] for t in here], [t.score for t in here]
            words = f"{epochs} epoch{'s'[: epochs != 1]}"
            look = {"color": look["color"], "markersize": 5, "alpha": 0.75, "label": words}
            axes.plot(*points, marker, **look)
        if failed:
            places, edge = [trial.parameters[name] for trial in failed], axes.get_xaxis_transform()
            look = {"color": GREY, "transform": edge, "label": "failed", "clip_on": False}
            axes.plot(places, [0.985] * len(places), "x", **look)
        look = {"color": "black", "fillstyle": "none", "markersize": 13, "label": "best"}
        axes.plot([best.parameters[name]], [best.score], "o", **look)
        _scale(axes, [trial.parameters[name] for trial in trials])
        axes.set_xlabel(name)
        axes.set_title(f"{label} over {name}", fontsize=9)
    panels[0].set_ylabel(label)
    place = {"loc": "outside upper center", "ncols": len(lengths) + 2}
    drawn.legend(*panels[0].get_legend_handles_labels(), **PLAIN, **place)
    return drawn


def _scale(axes: Axes, values: Sequence[Any]) -> None:
    numbers = all(isinstance(value, int | float) for value in values)
    if numbers and min(values) > 0 and max(values) >= 30 * min(values):
        axes.set_xscale("log")
    elif numbers and len(set(values)) < 8 and all(math.log2(value) % 1 == 0 for value in values):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(set(values)), [str(value) for value in sorted(set(values))])
        axes.minorticks_off()
    elif all(isinstance(value, int) for value in values):
        axes.xaxis.get_major_locator().set_params(integer=True)


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
    begins = {title: min(bar.start_s for bar in bars) for title, bars in panels.items()}
    lengths = {t: max(bar.end_s for bar in bars) - begins[t] for t, bars in panels.items()}
    alt = f"Tasks of ranks. {listed(lengths, '{:.2f} s'.format)}."
    drawn, grid = figure(len(panels), width=9.0, height=0.75 + 0.34 * most, alt=alt)
    for axes, (title, bars) in zip(grid, panels.items(), strict=True):
        ranks = sorted({bar.rank for bar in bars})
        rungs = any(getattr(bar, "rung", 0) for bar in bars)
        for row, rank in enumerate(ranks):
            mine = sorted((bar for bar in bars if bar.rank == rank), key=lambda bar: bar.start_s)
            spans = [(bar.start_s - begins[title], bar.end_s - bar.start_s) for bar in mine]
            colours = [
                (SKY, BLUE, ORANGE, GREEN)[bar.rung] if rungs else (BLUE, SKY)[place % 2]
                for place, bar in enumerate(mine)
            ]
            look = {"facecolor": colours, "edgecolor": "white", "linewidth": 0.5}
            axes.broken_barh(spans, (row - 0.38, 0.76), **look)
            for bar, (start, length) in zip(mine, spans, strict=True):
                if not rungs and length > 0.025 * max(lengths.values()):
                    middle(axes, str(bar.number), start + length / 2, row, 7)
        if title in predicted:
            axes.axvline(predicted[title], color=ORANGE, linestyle="--", label="predicted end")
            axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 0.98))
        named_rows(axes, [f"rank {rank}" for rank in ranks])
        axes.set_xlim(0, 1.03 * max(*lengths.values(), *predicted.values(), 0.0))
        axes.set_title(f"{title}: {lengths[title]:.2f} s", fontsize=9, loc="left")
    grid[-1].set_xlabel(label)
    return drawn


def projections(
    panels: Mapping[str, Sequence[tuple[float, float]]],
    important: Callable[[np.ndarray], np.ndarray],
) -> Figure:
    """Draw trials in two parameters, and above them the values tried of the one that matters."""
    counts = {title: len({round(x, 9) for x, _ in each}) for title, each in panels.items()}
    alt = f"Points tried. {listed(counts, '{} values of the first'.format)}."
    drawn, axes = figure(2, len(panels), height=2.4, alt=alt)
    curve = np.linspace(0, 1, 200)
    for column, (title, points) in enumerate(panels.items()):
        above, below = axes[column], axes[column + len(panels)]
        x, y = np.array(points, float).T
        above.plot(curve, important(curve), color=GREY, linewidth=1.2)
        above.plot(x, important(x), "o", color=ORANGE, markersize=6)
        lowest = float(np.min(important(x)))
        above.axhline(lowest, color=ORANGE, linestyle=":", linewidth=1.0)
        above.set_title(f"{title}: {counts[title]} values of it, best {lowest:.3f}", fontsize=9)
        above.set(ylabel="score", xlim=(0, 1))
        below.plot(x, y, "o", color=BLUE, markersize=6)
        below.vlines(x, y, 1.05, color=SKY, linewidth=0.7)
        below.set(xlim=(0, 1), xlabel="important parameter")
        below.set(ylim=(0, 1.05), ylabel="other parameter")
        below.grid(visible=False)
    return drawn
