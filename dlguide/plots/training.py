"""Trainings: scaling, loss and accuracy, schedules, busy cores, and what a step waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.measure import TrainingResult, Utilisation
from dlguide.plots.figures import (
    BLUE,
    COLOURS,
    DASHES,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    figure,
    legend_above,
    legend_below,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- training ---

_PHASE_COLOURS = {"setup": GREY, "train": BLUE, "evaluate": ORANGE, "checkpoint": PURPLE}


def scaling(runs: Iterable[TrainingResult | Mapping[str, Any]]) -> Figure:
    """Draw throughput against ranks beside the ideal line, and the parallel efficiency.

    With the fewest ranks p0 as the reference,

        ideal(p) = images_per_s(p0) p / p0,  efficiency(p) = images_per_s(p) / ideal(p).

    Of several runs with equally many ranks, as each rank returns one, the slowest counts.

    Args:
        runs: TrainingResults, or mappings with `ranks` (count) and `images_per_s` (over all ranks).

    Returns:
        Figure: images/s on the left, efficiency on the right.

    Raises:
        ValueError: when there is nothing to draw.
    """
    slowest: dict[int, float] = {}
    for run in runs:
        row = run.as_dict() if isinstance(run, TrainingResult) else run
        ranks, speed = int(row["ranks"]), float(row["images_per_s"])
        slowest[ranks] = min(speed, slowest.get(ranks, speed))
    require(bool(slowest), "runs", "hold at least one TrainingResult", [])
    ranks = sorted(slowest)
    speeds = [slowest[count] for count in ranks]
    ideal = [speeds[0] * count / ranks[0] for count in ranks]
    efficiency = [100 * speed / best for speed, best in zip(speeds, ideal, strict=True)]

    drawn, (left, right) = figure(columns=2)
    label = f"ideal, from {ranks[0]} rank{'s' * (ranks[0] > 1)}"
    left.plot([0, ranks[-1]], [0, ideal[-1]], color=GREY, linestyle="--", label=label)
    left.plot(ranks, speeds, color=BLUE, marker="o", label="measured")
    for count, speed in zip(ranks, speeds, strict=True):
        # Below the point and to its right there is no line.
        left.annotate(f"{speed:.0f}", (count, speed), (6, -4), textcoords="offset points", va="top")
    left.set(xlabel="ranks", ylabel="images/s over all ranks", title="Throughput")
    left.set_ylim(bottom=0)
    left.legend(loc="upper left", frameon=False)

    right.axhline(100, color=GREY, linestyle="--", zorder=0.9)
    right.bar([str(count) for count in ranks], efficiency, color=BLUE, width=0.5)
    above = {"textcoords": "offset points", "ha": "center"}
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the dashed line
    for index, percent in enumerate(efficiency):
        right.annotate(f"{percent:.0f} %", (index, percent), (0, 5), bbox=white, **above)
    right.set(xlabel="ranks", ylabel="parallel efficiency (%)", title="Efficiency")
    right.set_ylim(0, 1.15 * max(100, *efficiency))
    right.set_xlim(-0.75, len(ranks) - 0.25)
    left.set_xlim(0, ranks[-1] * 1.15)
    left.set_xticks(ranks)
    return drawn


def training(runs: TrainingResult | Sequence[TrainingResult]) -> Figure:
    """Draw loss and test accuracy over epochs, and where the seconds went.

    Args:
        runs: a TrainingResult, or several to compare; of the ranks of one run give one.

    Returns:
        Figure: loss, accuracy, and a bar of seconds for each run.

    Raises:
        ValueError: when there is nothing to draw.
    """
    runs = [runs] if isinstance(runs, TrainingResult) else list(runs)
    require(bool(runs), "runs", "hold at least one TrainingResult", [])
    drawn, (loss, accuracy, seconds) = figure(columns=3)
    names = [f"{run.ranks} rank{'s' * (run.ranks > 1)}, batch {run.batch_per_rank}" for run in runs]
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        look = {"color": COLOURS[number % 6], "marker": MARKERS[number % 6], "label": name}
        first = run.first_epoch
        loss.plot(range(first + 1, first + 1 + len(run.loss)), run.loss, **look)
        # A run that only evaluated has an accuracy, but of the epochs before it.
        last = first + max(len(run.loss), 1 if run.first_epoch == 0 else 0)
        percent = [100 * one for one in run.test_accuracy]
        accuracy.plot(range(last - len(percent) + 1, last + 1), percent, **look)
        left = 0.0
        for phase, colour in _PHASE_COLOURS.items():
            if took_s := getattr(run, f"{phase}_s"):
                seconds.barh(number, took_s, left=left, height=0.6, color=colour, label=phase)
                left += took_s
    loss.set(xlabel="epoch", ylabel="loss (mean over training images)", title="Loss")
    loss.set_ylim(bottom=0)
    accuracy.set(xlabel="epoch", ylabel="test accuracy (%)", title="Test accuracy")
    for axes in (loss, accuracy):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if len(runs) > 1:
        loss.legend(frameon=False)
    seconds.set(xlabel="time (s)", title="Where the seconds went")
    seconds.set_yticks(range(len(runs)), names)
    seconds.set_ylim(len(runs) - 0.4, -0.6)
    legend_below(seconds)
    return drawn


def utilisation(
    record: Utilisation, runs: TrainingResult | Sequence[TrainingResult] = ()
) -> Figure:
    """Draw how busy every core was, below the phases of the ranks.

    Record and runs must come from one machine, since their clocks are compared.

    Args:
        record: samples of `measure.utilisation`.
        runs: the TrainingResults of the ranks that trained meanwhile, one line each.

    Returns:
        Figure: one line for each rank, below it one curve for each core.

    Raises:
        ValueError: when nothing was sampled.
    """
    runs = [runs] if isinstance(runs, TrainingResult) else sorted(runs, key=lambda run: run.rank)
    require(len(record.time_s) > 0, "record", "hold at least one sample", 0, "Wait longer.")
    drawn, panels = figure(rows=len(record.cpus) + bool(runs), width=8, height=1.3)
    if runs:
        lines, panels = panels[0], panels[1:]
        for number, run in enumerate(runs):
            offset_s = run.started_unix_s - record.started_unix_s
            for name, begin, end in run.phases:
                look = {"color": _PHASE_COLOURS.get(name, GREEN), "label": name}
                lines.barh(number, end - begin, left=begin + offset_s, height=0.6, **look)
        lines.set_yticks(range(len(runs)), [f"rank {run.rank}" for run in runs])
        lines.set_ylim(len(runs) - 0.4, -0.6)
        lines.set_title("What the ranks did, and how busy each core was", loc="left", fontsize=10)
        legend_above(lines)
    edges = [0.0, *record.time_s]
    for place, (cpu, axes) in enumerate(zip(record.cpus, panels, strict=True)):
        axes.stairs([row[place] for row in record.busy], edges, fill=True, color=SKY)
        axes.set_ylim(0, 105)
        axes.set_yticks([0, 50, 100])
        axes.set_ylabel(f"core {cpu}\nbusy (%)")
    for at, name in record.marks:
        for axes in panels:
            axes.axvline(at, color=ORANGE, linewidth=1)
        near = any(0 < other - at < edges[-1] / 10 for other, _ in record.marks)
        side, shift = ("right", -2) if near else ("left", 2)  # two names in one place
        panels[0].annotate(
            name, (at, 105), (shift, 2), textcoords="offset points", color=ORANGE, ha=side
        )
    panels[-1].set_xlabel("time (s)")
    for axes in drawn.axes:
        axes.set_xlim(0, record.time_s[-1])
        axes.label_outer()
    return drawn


# --- schedules ---

_COLOURS = (*COLOURS, "black")  # 7 colours and 4 dashes give 28 different lines
_POINTS = 4000


def schedules(schedules: Mapping[str, Any], log: bool = False) -> Figure:
    """Draw the learning rate of each training over its epochs.

    Schedules with different steps per epoch share the axis. At most 4000 steps of each are drawn.

    Args:
        schedules: for each name a `schedules.StepSchedule`, with `rate`, `steps` and
            `steps_per_epoch`.
        log: logarithmic axis of rates.

    Returns:
        Figure: one stepped line for each name.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(schedules), "schedules", "hold at least one schedule", dict(schedules))
    points, summary = {}, []
    for name, each in schedules.items():
        places = np.linspace(0, each.steps - 1, min(each.steps, _POINTS))
        steps = np.unique(places.round().astype(int))
        rates = each.rate(steps)
        top = int(rates.argmax())
        summary.append(
            f"{name}: begins at {rates[0]:.3g}, is highest at epoch "
            f"{steps[top] / each.steps_per_epoch:.3g} with {rates[top]:.3g}, "
            f"ends at {rates[-1]:.3g}"
        )
        epochs = np.append(steps, each.steps) / each.steps_per_epoch
        points[name] = epochs, np.append(rates, rates[-1])
    alt = f"Learning rate against epochs. {'; '.join(summary)}."
    drawn, (axes,) = figure(width=7.0, height=3.2, alt=alt)
    for number, (name, (epochs, rates)) in enumerate(points.items()):
        look = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": DASHES[number % len(DASHES)],
        }
        axes.plot(epochs, rates, drawstyle="steps-post", label=name, **look)
    axes.set_title("learning rate over the epochs", fontsize=10)
    axes.set(xlabel="epochs", ylabel="learning rate", yscale="log" if log else "linear")
    axes.set_xlim(left=0)
    if not log:
        axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return drawn


# --- bottleneck ---

_STEPS_SHOWN = 20


def bottleneck(found: Any) -> Figure:
    """Draw the samples/s of each stage alone and of all together, and the steps over time.

    The axis of speeds is logarithmic: stages differ by powers of ten. The slowest stage is
    orange and hatched. Below, each step is a piece of a strip: waiting for data orange and
    hatched, computing blue.

    Args:
        found: result of `training.bottleneck`.

    Returns:
        Figure: the bars, and below them the strip of the last steps.

    Raises:
        ValueError: when nothing was measured.
    """
    require(bool(found.stages and found.wait_s), "found", "hold stages and steps", found)
    rows = len(found.stages) + 2
    height = 0.36 * rows + 2.0
    drawn, (bars, strip) = figure(2, 1, 8.5, height / 2, _bottleneck_words(found))
    bars.get_gridspec().set_height_ratios([height - 1.2, 0.5])
    _bars(bars, found)
    _strip(strip, found)
    return drawn


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
        listed = f" {speed:,.0f}" if speed >= 10 else f" {speed:.2g}"
        axes.text(speed, row, listed + "  holds the others back" * slowest, va="center", fontsize=9)
    axes.axhline(len(alone) - 0.5, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlabel="samples/s, each stage alone on ready inputs")
    axes.set(xlim=(min(speeds) / 4, 12 * max(speeds)), ylim=(len(names) - 0.5, -0.5))
    axes.grid(visible=False)


def _strip(axes: Axes, found: Any) -> None:
    steps = list(zip(found.wait_s, found.compute_s, strict=True))[-_STEPS_SHOWN:]
    now = 0.0
    waits = {"color": ORANGE, "hatch": "////", "label": "waits"}
    looks = (waits, {"color": BLUE, "label": "computes"})
    for step in steps:
        for seconds, look in zip(step, looks, strict=True):
            bar = {"height": 0.8, "edgecolor": "white", "linewidth": 0.5, **look}
            axes.barh(0, 1e3 * seconds, left=now, **bar)
            now += 1e3 * seconds
    axes.set(xlim=(0, now), ylim=(-0.5, 0.5), xlabel=f"time of the last {len(steps)} steps (ms)")
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.set_title(f"steps wait {found.wait_share:.0%} of the time", fontsize=9, loc="left")
    legend_above(axes)


def _bottleneck_words(found: Any) -> str:
    stages = ", ".join(f"{stage.name} {stage.samples_per_s:.3g}" for stage in found.stages)
    return (
        f"Bars of samples per second, each stage alone: {stages}. All together "
        f"{found.predicted_samples_per_s:.3g} predicted, {found.measured_samples_per_s:.3g} "
        f"measured. Slowest: {found.slowest.name}. Below, a strip of the last steps: the training "
        f"waits for data {found.wait_share:.0%} of the time."
    )
