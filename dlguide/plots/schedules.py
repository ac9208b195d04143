"""Learning rates over the epochs, several trainings in one picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY, "black")
# of another number than the colours, so that 28 looks differ
_DASHES = ("-", "--", "-.", ":")
_POINTS = 4000


def schedules(
    schedules: Mapping[str, Any], path: str | os.PathLike | None = None, log: bool = False
) -> Figure:
    """Draw the learning rate of each training over its epochs.

    Trainings with other batches have other steps an epoch and still share the axis. A schedule of
    more than 4000 steps is drawn at so many of them.

    Args:
        schedules: for each name a `schedules.Schedule`, with `rate`, `steps` and
            `steps_per_epoch`.
        path: file to write; None for none.
        log: draw the rates by their powers of ten, where a rate of 0 has no place.

    Returns:
        Figure: the rate of each update as a stair, one line a name.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(schedules), "schedules", "hold at least one schedule", dict(schedules))
    told = "; ".join(f"{name}: {_words(each)}" for name, each in schedules.items())
    alt = f"Learning rate against epochs. {told}."
    drawn, (axes,) = figure(width=7.0, height=3.2, alt=alt)
    for number, (name, each) in enumerate(schedules.items()):
        steps, rates = _points(each)
        axes.plot(
            np.append(steps, each.steps) / each.steps_per_epoch,
            np.append(rates, rates[-1]),
            drawstyle="steps-post",
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_DASHES[number % len(_DASHES)],
            label=name,
        )
    axes.set_title("learning rate over the epochs", fontsize=10)
    axes.set_xlabel("epochs")
    axes.set_ylabel("learning rate")
    axes.set_xlim(left=0)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return written(drawn, path)


def _points(schedule: Any) -> tuple[np.ndarray, np.ndarray]:
    places = np.linspace(0, schedule.steps - 1, min(schedule.steps, _POINTS))
    steps = np.unique(places.round().astype(int))
    return steps, schedule.rate(steps)


def _words(schedule: Any) -> str:
    steps, rates = _points(schedule)
    top = int(rates.argmax())
    epoch = steps[top] / schedule.steps_per_epoch
    first, last = rates[0], rates[-1]
    return f"begins at {first:.3g}, is highest at epoch {epoch:.3g} with {rates[top]:.3g}, " + (
        f"ends at {last:.3g}"
    )
