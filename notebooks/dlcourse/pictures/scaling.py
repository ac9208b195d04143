"""Scaling: parts of a step, predictions beside published numbers, waiting and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.pictures.shapes import log_counts
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure
from dlguide.scaling import step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = tuple(
    zip((BLUE, GREEN, ORANGE, PURPLE, "black"), "o^sDv", ("-", "--", ":", "-.", "-"), strict=True)
)


def undivided_hours(
    hours: Mapping[int, float],
    rates: Mapping[int, float],
    u: float,
    from_one: Mapping[int, float],
    direct: Mapping[int, float],
) -> Figure:
    """Draw published speed-ups with two laws, and the hours not divided, by two bases."""
    counts = sorted(hours)
    speedup = np.array([rates[p] / rates[1] for p in counts])
    published = np.array([hours[p] for p in counts])
    drawn, (left, right) = figure(columns=2)
    ideal, law = hours[1] / speedup, u + (hours[1] - u) / speedup
    left.plot(counts, hours[1] / ideal, "--", color=GREY, label="throughput")
    left.plot(counts, hours[1] / law, color=BLUE, label=f"{u:.1f} h not divided")
    left.plot(counts, hours[1] / published, "o", color="black", label="published")
    left.set(xlabel="GPUs", ylabel="times as fast as one", title="Whole training")
    left.legend(frameon=False)
    places = np.arange(len(from_one))
    right.bar(places - 0.2, [*from_one.values()], 0.4, color=SKY, label="by one GPU's hours")
    right.bar(places + 0.2, [*direct.values()], 0.4, color=ORANGE, label="by images / throughput")
    right.axhline(0, color="black", linewidth=0.8)
    right.set_xticks(places, [*from_one])
    right.set(xlabel="GPUs", ylabel="hours", title="Hours not divided", ylim=(-0.2, 2.3))
    right.legend(frameon=False, loc="upper left", fontsize=8)
    return drawn


def step_parts(first: Mapping[str, Any], second: Mapping[str, Any]) -> Figure:
    """Draw a step of two ranks from its parts beside its measurement; one mark per round."""
    pairs = np.array([first["together"], second["together"]])
    seconds = {
        "alone": np.array(first["alone"]),
        "slower": pairs.max(axis=0),
        "exchange": np.maximum(first["exchange"], second["exchange"]),
        "step": np.maximum(first["step"], second["step"]),
    }
    rounds = {name: 1e3 * np.median(each, axis=1) for name, each in seconds.items()}
    whole = {name: np.median(each) for name, each in rounds.items()}
    base = min(whole["alone"], whole["slower"])
    heights = (base, whole["slower"] - base, whole["exchange"])
    names = ("one rank alone", "both at once, slower rank", "exchange")
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in zip(names, heights, strict=True))
    alt = f"Milliseconds of a step. Predicted: {parts}; measured: {whole['step']:.2f}."
    drawn, (axes,) = figure(width=7, height=2.6, alt=alt)
    left = 0.0
    for height, name, colour in zip(heights, names, (SKY, ORANGE, PURPLE), strict=True):
        axes.barh(1, height, left=left, color=colour, label=name)
        left += height
    axes.barh(0, whole["step"], color=GREY)
    for place, marks in ((1, rounds["slower"] + rounds["exchange"]), (0, rounds["step"])):
        axes.plot(marks, np.full(len(marks), place), "|", color="black", markersize=14)
    axes.axvline(whole["alone"], color=BLUE, linestyle=":", linewidth=1)
    axes.set_yticks((0, 1), ("measured", "predicted"))
    axes.set_xlabel("ms per step (bars: median of the rounds; black marks: each round)")
    axes.grid(visible=False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return drawn


def exchange_efficiency(
    exchanges: Mapping[str, Callable[[int], float]], compute_s: float, counts: Sequence[int]
) -> Figure:
    """Draw the efficiency against workers: nothing hidden, and hidden behind the backward pass."""
    drawn, panels = figure(columns=2, height=3.8)
    for axes, overlap in zip(panels, (0.0, 1.0), strict=True):
        for (name, seconds), (colour, marker, line) in zip(
            exchanges.items(), _STYLES, strict=False
        ):
            steps = [step.predict(compute_s, seconds(p), p, overlap) for p in counts]
            shares = [each.efficiency for each in steps]
            axes.plot(counts, shares, marker + line, color=colour, label=name, markersize=4)
        log_counts(axes, counts, "GPUs")
        axes.set(ylim=(0, 1.05), title=("all of it may hide" if overlap else "nothing hidden"))
    panels[0].set_ylabel("efficiency (model)")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return drawn


def predictions_of_one_count(
    points: Mapping[int, float], held: Mapping[int, Any], workers: int
) -> Figure:
    """Draw a series, and the predictions of its last point by fits that saw more and more."""
    drawn, (left, right) = figure(columns=2)
    counts = sorted(points)
    efficiency = [points[p] / p / points[counts[0]] * counts[0] for p in counts]
    left.plot(counts, efficiency, "o-", color="black", label="published")
    log_counts(left, counts, "GPUs")
    left.set(ylim=(0, 1.05), ylabel="published efficiency", title="The series")
    for place, (seen, each) in enumerate(held.items()):
        ends, look = (each.low, each.high), {"color": SKY, "linewidth": 7}
        right.plot((place, place), ends, label=f"interval, up to {seen}", **look)
        right.plot(place, each.predicted, "o", color=BLUE, label=f"up to {seen}")
    right.axhline(points[workers], color="black", linestyle="--", linewidth=1, label="published")
    right.text(2.5, points[workers], "published", va="top", ha="center", fontsize=9)
    right.set_xticks(range(len(held)), [f"up to {k}" for k in held])
    right.set(xlabel="GPUs that the fit has seen", ylabel="images/s", ylim=(0, None))
    right.set_title(f"Predicted for {workers}, 90 % interval")
    return drawn


def three_ways_to_wait(counts: Sequence[int], rates: Mapping[str, Sequence[float]]) -> Figure:
    """Draw gradients per second and worker against workers, by what a step waits for."""
    drawn, (axes,) = figure(width=6.5)
    for (name, values), (colour, marker, line) in zip(rates.items(), _STYLES, strict=False):
        axes.plot(counts, values, marker + line, color=colour, label=name)
        axes.annotate(f"   {name}", (counts[-1], values[-1]), color=colour, va="center", fontsize=9)
    log_counts(axes, counts, "workers")
    axes.set(ylabel="gradients per second and worker", ylim=(0, 1.05), xlim=(None, counts[-1] * 4))
    axes.set_title("Steps of 1 s, spread 10 %, one worker three times slower")
    return drawn


def checkpoint_interval(
    extra: Mapping[float, Sequence[float]], save_s: float, between_s: float, restart_s: float
) -> Figure:
    """Draw the extra time against the work between checkpoints: Young, exact, simulated."""
    tau = np.geomspace(min(extra) / 2, max(extra) * 2, 100)
    growth = np.expm1((tau + save_s) / between_s) * between_s * np.exp(restart_s / between_s)
    young = np.sqrt(2 * save_s * between_s)
    drawn, (axes,) = figure(width=6.5)
    axes.plot(tau / 60, 100 * (growth / tau - 1), color=BLUE, label="expected, exact")
    sum_of_two = 100 * (save_s / tau + tau / 2 / between_s)
    axes.plot(tau / 60, sum_of_two, "--", color=GREY, label="C/τ + τ/2M")
    minutes, values = np.array(list(extra)) / 60, 100 * np.array(list(extra.values()))
    low, middle, high = np.percentile(values, (25, 50, 75), axis=1)
    away = (middle - low, high - middle)
    axes.errorbar(minutes, middle, away, fmt="o", color="black", label="simulated, quartiles")
    axes.axvline(young / 60, color=ORANGE, linestyle=":", label=f"√(2CM) = {young / 60:.0f} min")
    log_counts(axes, [2, 5, 10, 20, 50, 100], "minutes of work between two checkpoints")
    axes.set(ylabel="extra time in % of the work", ylim=(0, 45))
    axes.legend(frameon=False)
    return drawn


def predicted_errors(rows: Mapping[str, Sequence[Any]]) -> Figure:
    """Draw how far predictions lie from what was measured.

    A mark is predicted / measured, its line the interval over the same measurement: where it
    crosses 1, the interval holds the truth.

    Args:
        rows: for each series what `scaling.predict.held_out` gave, the first on top; empty ones
            are left out.
    """
    series = {name: list(held) for name, held in rows.items() if held}
    counts = sorted({each.workers for held in series.values() for each in held})
    styles = {count: _STYLES[place % len(_STYLES)] for place, count in enumerate(counts)}
    alt = "Predicted over measured throughput. " + " ".join(
        f"{name}: " + ", ".join(f"{1 + each.error:.2f} at {each.workers}" for each in held) + "."
        for name, held in series.items()
    )
    drawn, (axes,) = figure(width=8.4, height=1.1 + 0.42 * len(series), alt=alt)
    for row, held in enumerate(series.values()):
        for place, each in enumerate(held):
            colour, marker, _ = styles[each.workers]
            y = row + 0.24 * (place - (len(held) - 1) / 2)
            ends = each.low / each.measured, each.high / each.measured
            axes.plot(ends, (y, y), color=colour, linewidth=1.4, alpha=0.55)
            label = f"{each.workers} workers"
            axes.plot(1 + each.error, y, marker, color=colour, markersize=5, label=label)
    axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(series)), list(series), fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title("Predicted throughput over measured throughput", fontsize=10)
    axes.set_xlabel("predicted / measured; line: 90 % interval")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = [f"{count} workers" for count in counts]
    drawn.legend(
        [handles[label] for label in order], order, loc="outside lower center",
        ncols=len(order), frameon=False, fontsize=8,
    )  # fmt: skip
    return drawn
