"""Pictures of sequences: forecasts beside what came, and where attention looks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"))


def forecasts(
    times: ArrayLike,
    values: ArrayLike,
    predicted: Mapping[str, ArrayLike],
    quantity: str,
    unit_of_time: str = "year",
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw a series, what was forecast for it, and how far each forecast was off.

    Args:
        times: one for each value.
        values: what came.
        predicted: name -> forecast for each time; NaN where there is none. At most four.
        quantity: what the values are, with their unit.
        unit_of_time: of `times`.
        path: file to write; None for none.

    Returns:
        Figure: the series above, forecast - value below; the root of the mean square of that is
            in the legend.

    Raises:
        ValueError: when there are no forecasts or too many, or their lengths differ.
    """
    times, values = np.asarray(times, float), np.asarray(values, float)
    then = f"Draw {len(_LINES)} of them, and the others in a table."
    require(0 < len(predicted) <= len(_LINES), "predicted", "hold 1 to 4", len(predicted), then)
    errors = {}
    for name, each in {"values": values, **predicted}.items():
        require(np.shape(each) == times.shape, name, "have a value for each time", np.shape(each))
        errors[name] = np.asarray(each, float) - values
    del errors["values"]
    sizes = {name: float(np.sqrt(np.nanmean(error**2))) for name, error in errors.items()}
    said = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items())
    alt = (
        f"{quantity} from {unit_of_time} {times[0]:g} to {times[-1]:g}, between "
        f"{np.nanmin(values):.3g} and {np.nanmax(values):.3g}, with forecasts. Root mean square "
        f"errors: {said}."
    )
    drawn, (above, below) = figure(2, 1, 9.0, 2.5, alt)
    above.plot(times, values, color=GREY, linewidth=5, alpha=0.45, label="what came")
    for (colour, line), (name, error) in zip(_LINES, errors.items(), strict=False):
        above.plot(times, error + values, line, color=colour, linewidth=1.6, label=name)
        label = f"{name}: {sizes[name]:.3g}"
        below.plot(times, error, line, color=colour, linewidth=1.6, label=label)
    above.set(ylabel=quantity)
    above.set_title("Forecasts", loc="left", fontsize=10)
    below.axhline(0, color="black", linewidth=0.8)
    below.set(xlabel=unit_of_time, ylabel="forecast - value")
    below.set_title("Errors, and the root of their mean square", loc="left", fontsize=10)
    for axes in (above, below):
        axes.legend(frameon=False, ncols=5, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.98))
    return written(drawn, path)


def attention_map(
    panels: Mapping[str, ArrayLike],
    labels: Sequence[str],
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw where each step looks: a row for each step that asks, dark where its weight is.

    Args:
        panels: title -> weights (steps, steps), each row with the sum 1.
        labels: one for each step; a blank and a line's end get a sign that can be seen.
        path: file to write; None for none.

    Returns:
        Figure: one square for each panel and one scale of weights for all.

    Raises:
        ValueError: when there is no panel, one is no square of the labels' length, or a row's
            sum is not 1.
    """
    require(bool(panels), "panels", "hold at least one map", {})
    arrays = {title: np.asarray(weights, float) for title, weights in panels.items()}
    for title, weights in arrays.items():
        shape = (len(labels), len(labels))
        require(weights.shape == shape, title, f"have the shape {shape}", weights.shape)
        sums = bool(np.allclose(weights.sum(axis=1), 1, atol=1e-3))
        require(sums, title, "have rows with the sum 1", weights.sum(axis=1).round(3).tolist())
    shown = [{" ": "\u2423", "\n": "\u21b5"}.get(label, label) for label in labels]
    said = []
    for title, weights in arrays.items():
        places = zip(shown, weights.argmax(axis=1), weights.max(axis=1), strict=True)
        most = ", ".join(f"{one} at {shown[to]} ({share:.2f})" for one, to, share in places)
        said.append(f"{title}: {most}")
    side = min(5.2, 1.6 + 0.19 * len(labels))
    drawn, grid = figure(
        columns=len(panels), width=side * len(panels) + 1.0, height=side,
        alt=f"Attention, for each step where it looks most. {'; '.join(said)}.",
    )  # fmt: skip
    for axes, (title, weights) in zip(grid, arrays.items(), strict=True):
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal")
        axes.set_xticks(range(len(labels)), shown, fontsize=8)
        axes.set_yticks(range(len(labels)), shown, fontsize=8)
        axes.set(xlabel="step that is looked at", ylabel="step that looks")
        axes.set_title(title, fontsize=10)
        axes.grid(visible=False)
        axes.tick_params(length=0)
    drawn.colorbar(image, ax=list(grid), shrink=0.7, label="weight")
    return written(drawn, path)
