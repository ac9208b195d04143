"""Plots of measurements: reading speeds, oneDNN, streams of inference, busy cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlcourse.phases import Utilisation
from dlguide.errors import require
from dlguide.measure import TrainingResult
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, legend_above

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PHASE_COLOURS = {"setup": GREY, "train": BLUE, "evaluate": ORANGE, "checkpoint": PURPLE}


def reading_speeds(speeds: Sequence[Any]) -> Figure:
    """Draw the MB/s of formats, read in several ways, as `bench.io.compare` measured them.

    There is a panel for each access pattern and state of the page cache, all with one logarithmic
    axis; blue dots for samples that were checked and decoded, grey diamonds for the raw bytes.
    """
    panels = list(dict.fromkeys((each.access, each.cold) for each in speeds))
    kinds = list(dict.fromkeys(each.kind for each in speeds))
    alt = "MB/s, higher is better. " + "; ".join(
        f"{each.kind} {each.access} {('warm', 'cold')[each.cold]}, "
        f"{('raw', 'checked')[each.checked]}: {each.bytes_per_s / 1e6:.3g}"
        for each in speeds
    ) + "."  # fmt: skip
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn, axes_of = figure(rows, columns, 4.6 * columns, 0.9 + 0.27 * len(kinds), alt)
    quartiles = [
        sorted(each.nbytes / 1e6 / s for s in (each.timing.low, each.timing.high))
        for each in speeds
    ]
    span = min(low for low, _ in quartiles) / 1.5, max(high for _, high in quartiles) * 1.5
    for axes, panel in zip(axes_of, panels, strict=False):
        for each, (low, high) in zip(speeds, quartiles, strict=True):
            if (each.access, each.cold) != panel:
                continue
            y, speed = kinds.index(each.kind), each.bytes_per_s / 1e6
            around = _around(speed, low, high)
            look = {"color": GREY, "fmt": "D", "label": "bytes alone"}
            if each.checked:
                look = {"color": BLUE, "fmt": "o", "label": "checked and taken apart"}
            axes.errorbar([speed], [y + (-0.15 if each.checked else 0.15)], xerr=around, **look)
        axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
        axes.set(xscale="log", xlim=span, ylim=(len(kinds) - 0.5, -0.5))
        axes.set_title(f"{panel[0]}, {'cold' if panel[1] else 'warm'}", fontsize=10)
        axes.set_xlabel("MB/s of samples")
    for axes in axes_of[len(panels) :]:
        axes.set_visible(False)
    labelled = dict(zip(*reversed(axes_of[0].get_legend_handles_labels()), strict=True))
    place = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 8}
    drawn.legend(labelled.values(), labelled.keys(), **place)
    return drawn


def _around(speed: float, low: float, high: float) -> list[list[float]]:
    # rounding can put a quartile that equals the median on the wrong side of it
    return [[max(0.0, speed - low)], [max(0.0, high - speed)]]


def onednn_speeds(speeds: Sequence[Any]) -> Figure:
    """Draw the images per second with oneDNN on and off, as `bench.onednn.compare` measured them.

    There is a panel for each mode, bars with the quartiles as lines.
    """
    require(len(speeds) > 0, "speeds", "hold at least one", [])
    modes = list(dict.fromkeys(each.mode for each in speeds))
    alt = "Images per second, higher is better. " + " ".join(
        f"{each.mode}, oneDNN {('off', 'on')[each.onednn]}: {each.images_per_s:.3g}."
        for each in speeds
    )
    drawn, panels = figure(columns=len(modes), width=3.2 * len(modes), height=2.6, alt=alt)
    for axes, mode in zip(panels, modes, strict=True):
        for each in speeds:
            if each.mode == mode:
                low, high = (each.batch_per_rank / s for s in (each.timing.high, each.timing.low))
                look = {"yerr": _around(each.images_per_s, low, high), "capsize": 3}
                colour = (ORANGE, BLUE)[each.onednn]
                axes.bar(("off", "on")[each.onednn], each.images_per_s, 0.6, color=colour, **look)
        axes.set_title(mode)
        axes.set_xlabel("oneDNN")
    panels[0].set_ylabel("images/s")
    return drawn


def streams(splits: Sequence[Any]) -> Figure:
    """Draw throughput and latency of inference against streams, as `bench.streams.compare` gave.

    Images/s of all streams are on the left, the latency is on the right.
    """
    names = [f"{each.streams} x {each.threads}" for each in splits]
    alt = "Streams x threads. " + " ".join(
        f"{name}: {each.median_images_per_s:.3g} images/s, latency {1e3 * each.latency.median:.3g} "
        f"ms, 95 of 100 within {1e3 * each.late_s:.3g} ms."
        for name, each in zip(names, splits, strict=True)
    )
    drawn, (left, right) = figure(columns=2, height=2.8, alt=alt)
    left.bar(names, [each.median_images_per_s for each in splits], 0.6, color=BLUE)
    left.set(title="all streams together", ylabel="images/s", xlabel="streams x threads")
    late = [1e3 * each.late_s for each in splits]
    right.bar(names, late, 0.6, color=SKY, label="95 of 100 within")
    middle = [1e3 * each.latency.median for each in splits]
    right.plot(names, middle, "o", color=ORANGE, label="median")
    right.set(title="one answer", ylabel="latency (ms)", xlabel="streams x threads")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def utilisation(
    record: Utilisation, runs: TrainingResult | Sequence[TrainingResult] = ()
) -> Figure:
    """Draw how busy every core was, below the phases of the ranks.

    Record and runs must come from one machine, since their clocks are compared.

    Args:
        record: samples of `phases.utilisation`.
        runs: the TrainingResults of the ranks that trained meanwhile, one line each.
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
