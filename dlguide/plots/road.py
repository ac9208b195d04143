"""A training's whole road: rate, weight decay and accuracy over the epochs, and its last part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREY, ORANGE, figure, legend, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = ((BLUE, "-", "o"), (ORANGE, "--", "s"))
_LABELS = ("learning rate", "weight decay (1e-4)", "test accuracy (%)")


def road(
    rates: Mapping[str, Sequence[float]],
    decays: Mapping[str, Sequence[float]],
    accuracies: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    steps_per_epoch: int,
    leaves_at: float,
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw two trainings that have their beginning in common, and their ends enlarged.

    Args:
        rates: learning rate of each step, by the name of the training; one or two of them.
        decays: weight decay of each step, by the same names.
        accuracies: for each name the epochs after which it was tested and the fractions right.
        steps_per_epoch: updates of an epoch (count).
        leaves_at: where the trainings part (epochs); grey from there on.
        path: file to write; None for none.

    Returns:
        Figure: rows for rate, decay and accuracy; on the left all epochs, on the right the last.

    Raises:
        ValueError: when there are no trainings, or more than two, or their names differ.
    """
    names = list(rates)
    require(1 <= len(names) <= len(_LOOKS), "rates", "hold one or two trainings", names)
    for what, given in (("decays", decays), ("accuracies", accuracies)):
        require(set(given) == set(names), what, f"have the names {', '.join(names)}", list(given))
    end = max(len(each) for each in rates.values()) / steps_per_epoch
    drawn, panels = figure(3, 2, 8.4, 1.75, _alt(rates, accuracies, leaves_at, end))
    begin = max(0.0, leaves_at - 1.5 * (end - leaves_at) - 1)
    for name, (colour, dashes, marker) in zip(names, _LOOKS, strict=False):
        steps = np.arange(len(rates[name]) + 1) / steps_per_epoch
        for side in (0, 1):
            for row, values in ((0, rates[name]), (1, 1e4 * np.asarray(decays[name]))):
                stairs = np.append(values, values[-1])
                panels[2 * row + side].plot(
                    steps, stairs, dashes, color=colour, drawstyle="steps-post", label=name
                )
            epochs, right = (np.asarray(one, float) for one in accuracies[name])
            panels[4 + side].plot(
                epochs, 100 * right, dashes, color=colour, marker=marker, markersize=4, label=name
            )
    for place, axes in enumerate(panels):
        _finish(axes, place // 2, place % 2 == 1, leaves_at, (begin if place % 2 else 0, end))
    _rates_up_to(panels[1], rates, begin * steps_per_epoch)
    _accuracies_from(panels[5], accuracies, begin)
    panels[0].set_title("The whole road")
    panels[1].set_title("Its end, enlarged (grey: the last part)")
    legend(panels[4], loc="lower right", fontsize=8)
    return written(drawn, path)


def _finish(
    axes: Axes, row: int, enlarged: bool, leaves_at: float, limits: tuple[float, float]
) -> None:
    margin = 0.02 * (limits[1] - limits[0])
    axes.axvspan(leaves_at, limits[1] + margin, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xlim(limits[0], limits[1] + margin)
    if row < 2:
        axes.set_ylim(bottom=0)
    if not enlarged:
        axes.set_ylabel(_LABELS[row])
    if row == 2:
        axes.set_xlabel("epochs")


def _rates_up_to(axes: Axes, rates: Mapping[str, Sequence[float]], first: float) -> None:
    highest = max(np.max(np.asarray(each)[int(first) :]) for each in rates.values())
    axes.set_ylim(0, 1.08 * highest)


def _accuracies_from(
    axes: Axes, accuracies: Mapping[str, tuple[Sequence[float], Sequence[float]]], begin: float
) -> None:
    shown = [
        100 * right
        for epochs, values in accuracies.values()
        for epoch, right in zip(epochs, values, strict=True)
        if epoch >= begin
    ]
    if shown:
        room = 0.15 * (max(shown) - min(shown)) + 0.5
        axes.set_ylim(min(shown) - room, max(shown) + room)


def _alt(
    rates: Mapping[str, Sequence[float]],
    accuracies: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    leaves_at: float,
    end: float,
) -> str:
    told = "; ".join(
        f"{name}: rate at most {max(rates[name]):.3g}"
        + (f", test accuracy {100 * right[-1]:.1f} % at the end" if len(right) else "")
        for name, (_, right) in accuracies.items()
    )
    return (
        f"Learning rate, weight decay and test accuracy over {end:g} epochs, on the right from "
        f"epoch {leaves_at:g} on enlarged. {told}."
    )
