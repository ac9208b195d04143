"""Predicted throughput: for many workers with its interval, and beside measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Not ordered apart by colour alone: each part is hatched in its own way too.
_PARTS = {
    "start": (SKY, ""),
    "bandwidth": (BLUE, "//"),
    "rounds": (GREEN, ".."),
    "stragglers": (PURPLE, "xx"),
    "servers": (ORANGE, "\\\\"),
    "capacity": ("black", ""),
}


def prediction(
    points: Mapping[int, float] | Sequence[tuple[int, float]],
    predictions: Sequence[Any],
) -> Figure:
    """Draw measured and predicted throughput, and the parts of a step that make it longer.

    Args:
        points: throughput by number of workers, or pairs of both; empty for none.
        predictions: of `scaling.predict.ThroughputFit.predict`, for two numbers of workers or more.

    Returns:
        Figure: throughput with its interval of 90 % and the ideal line on the left, shares of the
        step's time on the right.

    Raises:
        ValueError: when there are fewer than two predictions.
    """
    ordered = sorted(predictions, key=lambda each: each.workers)
    require(len(ordered) > 1, "predictions", "be two or more", len(ordered))
    pairs = sorted(points.items() if isinstance(points, Mapping) else points)
    workers = [each.workers for each in ordered]
    first, last = ordered[0], ordered[-1]
    alt = (
        f"Throughput against workers with its interval: {first.images_per_s:.4g} images/s at "
        f"{first.workers}, {last.images_per_s:.4g} ({last.low:.4g} to {last.high:.4g}) at "
        f"{last.workers}, efficiency {100 * last.efficiency:.0f} %, limited by {last.limited_by}."
    )
    drawn, (left, right) = figure(columns=2, alt=alt)
    speed = ordered[0].images_per_s / ordered[0].efficiency / ordered[0].workers
    left.plot(workers, [speed * p for p in workers], color=GREY, linestyle="--", label="ideal")
    left.fill_between(
        workers, [each.low for each in ordered], [each.high for each in ordered],
        color=SKY, alpha=0.35, linewidth=0, label="nine of ten measurements",
    )  # fmt: skip
    left.plot(workers, [each.images_per_s for each in ordered], color=BLUE, label="predicted")
    if pairs:
        left.plot(*zip(*pairs, strict=True), "o", color="black", label="measured")
    left.set(xscale="log", yscale="log", xlabel="workers", ylabel="images/s", title="Throughput")
    _plain_counts(left, [p for p, _ in pairs] + workers)
    left.legend(loc="upper left", frameon=False)
    _shares(right, ordered)
    return drawn


def _shares(axes: Axes, steps: Sequence[Any]) -> None:
    """Stack the parts that are no computation, in per cent of the step's time."""
    workers = [each.workers for each in steps]
    base = [0.0] * len(steps)
    for name, (colour, hatch) in _PARTS.items():
        top = [low + 100 * each.parts.get(name, 0.0) for low, each in zip(base, steps, strict=True)]
        if max(high - low for low, high in zip(base, top, strict=True)) >= 0.05:
            axes.fill_between(
                workers, base, top, facecolor=colour, hatch=hatch, edgecolor="white",
                linewidth=0, label=name,
            )  # fmt: skip
        base = top
    axes.set(
        xscale="log", xlabel="workers", ylabel="share of the step's time in %",
        title="What is not computing",
    )  # fmt: skip
    axes.set_ylim(0, max(10.0, 1.1 * max(base)))
    _plain_counts(axes, workers)
    if axes.get_legend_handles_labels()[0]:
        legend_below(axes)


def _plain_counts(axes: Axes, workers: Sequence[int]) -> None:
    """Write counts as plain numbers on a logarithmic axis, at most eight of them."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    counts = sorted(set(workers))
    axes.xaxis.set_major_locator(FixedLocator(counts[:: 1 + (len(counts) - 1) // 7]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
