"""The speed of each stage of an input pipeline, and what the training step waits for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, SKY, figure, legend_above, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEPS_SHOWN = 20


def bottleneck(found: Any, path: str | os.PathLike | None = None) -> Figure:
    """Draw the samples/s of each stage alone and of all together, and the steps over time.

    The axis of speeds is logarithmic: stages differ by powers of ten. The slowest stage is
    orange and hatched. Below, each step is a piece of a strip: waiting for data orange and
    hatched, computing blue.

    Args:
        found: what `training.bottleneck` returned.
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: the bars, and below them the strip of the last steps.

    Raises:
        ValueError: when nothing was measured.
    """
    require(bool(found.stages and found.wait_s), "found", "hold stages and steps", found)
    rows = len(found.stages) + 2
    height = 0.36 * rows + 2.0
    drawn, (bars, strip) = figure(2, 1, 8.5, height / 2, _words(found))
    bars.get_gridspec().set_height_ratios([height - 1.2, 0.5])
    _bars(bars, found)
    _strip(strip, found)
    return written(drawn, path)


def _bars(axes: Axes, found: Any) -> None:
    alone = [(stage.name, stage.samples_per_s) for stage in found.stages]
    together = [
        ("all, predicted", found.predicted_samples_per_s),
        ("all, measured", found.measured_samples_per_s),
    ]
    names, speeds = zip(*alone, *together, strict=True)
    for row, (name, speed) in enumerate(zip(names, speeds, strict=True)):
        slowest = name == found.slowest.name
        style = {"color": ORANGE, "hatch": "///", "edgecolor": "white"} if slowest else {}
        if row >= len(alone):
            style = {"color": GREEN if row == len(names) - 1 else GREY}
        axes.barh(row, speed, height=0.7, **{"color": SKY, **style})
        said = f" {speed:,.0f}" if speed >= 10 else f" {speed:.2g}"
        axes.text(speed, row, said + "  holds the others back" * slowest, va="center", fontsize=9)
    axes.axhline(len(alone) - 0.5, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlabel="samples/s, each stage alone on ready inputs")
    axes.set(xlim=(min(speeds) / 4, 12 * max(speeds)), ylim=(len(names) - 0.5, -0.5))
    axes.grid(visible=False)


def _strip(axes: Axes, found: Any) -> None:
    steps = list(zip(found.wait_s, found.compute_s, strict=True))[-_STEPS_SHOWN:]
    now = 0.0
    for wait_s, compute_s in steps:
        style = {"height": 0.8, "edgecolor": "white", "linewidth": 0.5}
        axes.barh(0, 1e3 * wait_s, left=now, color=ORANGE, hatch="////", label="waits", **style)
        now += 1e3 * wait_s
        axes.barh(0, 1e3 * compute_s, left=now, color=BLUE, label="computes", **style)
        now += 1e3 * compute_s
    axes.set(xlim=(0, now), ylim=(-0.5, 0.5), xlabel=f"time of the last {len(steps)} steps (ms)")
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.set_title(f"steps wait {found.wait_share:.0%} of the time", fontsize=9, loc="left")
    legend_above(axes)


def _words(found: Any) -> str:
    stages = ", ".join(f"{stage.name} {stage.samples_per_s:.3g}" for stage in found.stages)
    return (
        f"Bars of samples per second, each stage alone: {stages}. All together "
        f"{found.predicted_samples_per_s:.3g} predicted, {found.measured_samples_per_s:.3g} "
        f"measured. Slowest: {found.slowest.name}. Below, a strip of the last steps: the training "
        f"waits for data {found.wait_share:.0%} of the time."
    )
