"""Trainings: paths of optimizers, experiments with large batches, and symptoms of a bug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.phases import StartUp
from dlcourse.pictures.shapes import not_empty
from dlguide.errors import require
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
    legend,
)
from dlguide.training.experiments import confidence_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- descent ---

_GRID = 160  # points in each direction from which the contours are drawn


@not_empty
def descent(panels: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> Figure:
    """Draw the paths of optimizers over the contours of the loss, seen from above."""
    for title, (_, paths) in panels.items():
        for name, points in paths.items():
            shape = np.shape(points)
            flat = len(shape) == 2 and shape[1] == 2 and shape[0] > 0
            require(flat, "panels", f"hold points (x, y) in {title!r}, {name!r}", shape)
    wide = max(3.2, 9.5 / len(panels))
    drawn, grid = figure(
        columns=len(panels),
        width=wide * len(panels),
        height=min(3.8, wide),
        alt=_descent_words(panels),
    )
    for axes, (title, (landscape, paths)) in zip(grid, panels.items(), strict=True):
        _contours(axes, landscape)
        for number, (name, points) in enumerate(paths.items()):
            points = np.asarray(points, float)
            axes.plot(
                *points.T,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=3,
                markevery=max(1, len(points) // 40),
                linewidth=1.2,
                zorder=2.9 - 0.05 * number,  # a short first path is not hidden by the others
                label=name,
            )
        for start in dict.fromkeys(tuple(points[0]) for points in paths.values()):
            axes.plot(*start, "o", color="black", markersize=9, fillstyle="none", zorder=3)
        axes.plot(*landscape.minimum, "*", color="black", markersize=9, zorder=3)
        axes.set(title=title, xlabel="weight x", ylabel="weight y")
        axes.legend(frameon=True, framealpha=0.85, fontsize=7, loc="lower left")
    return drawn


def _contours(axes: Axes, landscape: Any) -> None:
    left, right, low, high = landscape.view
    x, y = np.meshgrid(np.linspace(left, right, _GRID), np.linspace(low, high, _GRID))
    loss = landscape.loss(x, y)
    # As much area between any two contours: the bottom of a valley has its own.
    levels = np.unique(np.quantile(loss, np.linspace(0, 1, 14)))
    axes.contourf(x, y, loss, levels, cmap="Greys_r", alpha=0.35)
    axes.contour(x, y, loss, levels, colors="#888888", linewidths=0.5)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.grid(visible=False)


def _descent_words(panels: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> str:
    described = []
    for title, (landscape, paths) in panels.items():
        ends = []
        for name, points in paths.items():
            x, y = np.asarray(points, float)[-1]
            ends.append(
                f"{name} ends after {len(points) - 1} steps at ({x:.2g}, {y:.2g}), "
                f"loss {landscape.loss(x, y):.2g}"
            )
        described.append(f"{title}: {', '.join(ends)}")
    return f"Paths over the contours of a loss. {'; '.join(described)}."


@not_empty
def loss_curves(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    y: str = "loss",
    log: str = "",
) -> Figure:
    """Draw the same trainings against several measures of what they cost."""
    require(log in ("", "x", "y", "xy"), "log", 'be "", "x", "y" or "xy"', log)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    drawn, grid = figure(columns=len(panels), width=max(6.5, 4.7 * len(panels)))
    for axes, (label, curves) in zip(grid, panels.items(), strict=True):
        for name, (xs, ys) in curves.items():
            same = len(xs) == len(ys)
            require(same, "panels", f"have one y for each x in {name!r}", (len(xs), len(ys)))
            number = names.index(name)
            axes.plot(
                xs,
                ys,
                color=COLOURS[number % len(COLOURS)],
                linestyle=DASHES[number % len(DASHES)],
                linewidth=1.4,
                label=name,
            )
        axes.set(xlabel=label, ylabel=y)
        title = " against ".join(text.partition(" (")[0] for text in (y, label))
        axes.set_title(title[0].upper() + title[1:], loc="left", fontsize=10)
        axes.sharey(grid[0])
        if "x" in log:
            axes.set_xscale("log")
        if "y" in log:
            axes.set_yscale("log")
    for axes, curves in zip(grid, panels.values(), strict=True):
        # One legend is enough where the panels hold the same trainings.
        if axes is grid[-1] or list(curves) != list(list(panels.values())[-1]):
            axes.legend(frameon=False, fontsize=8)
    return drawn


@not_empty
def edge(losses: Mapping[str, Any], units: Mapping[str, Any], along: Mapping[str, Any]) -> Figure:
    """Draw the losses of several rates, and rate x curvature / 2, whose limit in a bowl is 1.

    Args:
        losses: rate in words -> (steps, losses).
        units: the same -> (steps, rate times the largest curvature / 2).
        along: the same -> (steps, rate times the curvature along the gradient / 2).
    """
    names = ("Loss", "Rate x L / 2", "Rate x curvature along the gradient / 2")
    ends = "; ".join(
        f"{name} from {units[name][1][0]:.1f} to {units[name][1][-1]:.1f}, along the gradient at "
        f"most {np.max(along[name][1]):.1f}" for name in units
    )  # fmt: skip
    drawn, panels = figure(
        columns=3, width=11.5, alt=f"{', '.join(names)} against the step: {ends}."
    )
    for axes, curves, title in zip(panels, (losses, units, along), names, strict=True):
        for number, (name, (steps, values)) in enumerate(curves.items()):
            style = {"color": COLOURS[number], "linestyle": DASHES[number], "label": name}
            axes.plot(steps, values, linewidth=1.2, **style)
        axes.set(xlabel="step", title=title)
        axes.title.set_fontsize(10)
    for axes in panels[1:]:
        axes.axhline(1, color="black", linewidth=1)
        axes.set(ylim=(0, max(np.max(values) for _, values in units.values()) * 1.05))
        axes.annotate("limit of a bowl", (160, 1), (160, 1.05), ha="right", va="bottom", fontsize=8)
    panels[0].legend(frameon=False)
    return drawn


@not_empty
def batch_costs(
    updates: Mapping[int, Sequence[float]], reach_ms: Mapping[int, Sequence[float]]
) -> Figure:
    """Draw what a goal costs with each batch, in updates and in time; the points are seeds."""
    drawn, panels = figure(columns=2, width=9.5)
    names = ("updates to the goal", "time to the goal (ms)")
    for axes, costs, name in zip(panels, (updates, reach_ms), names, strict=True):
        middle = {batch: float(np.median(values)) for batch, values in costs.items()}
        axes.plot(list(middle), list(middle.values()), color=BLUE)
        for batch, values in costs.items():
            axes.plot([batch] * len(values), values, "o", color=BLUE, markersize=4)
        least = min(middle, key=lambda batch: middle[batch])
        axes.annotate(
            f"least: batch {least}", (least, middle[least]), (0, -12), ha="center", va="top",
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="batch", ylabel=name, title=name.capitalize())
        axes.set_xticks(list(costs), [str(batch) for batch in costs])
        axes.minorticks_off()
        axes.margins(0.12, 0.25)
    return drawn


@not_empty
def rate_scan(
    panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]],
    top: float | None = None,
    x: str = "learning rate",
) -> Figure:
    """Draw what a grid of rates (or of decays) led to; a star marks the best of each way.

    Args:
        panels: what is drawn -> way -> rate -> the values of all seeds.
        top: where the axis ends.
    """
    drawn, grid = figure(columns=len(panels), width=max(6.5, 4.7 * len(panels)))
    for axes, (name, ways) in zip(grid, panels.items(), strict=True):
        for number, (way, tried) in enumerate(ways.items()):
            colour = COLOURS[number % len(COLOURS)]
            means = {rate: float(np.mean(values)) for rate, values in tried.items()}
            axes.plot(list(means), list(means.values()), color=colour, label=way,
                      linestyle=DASHES[number % len(DASHES)])  # fmt: skip
            for rate, values in tried.items():
                axes.plot([rate] * len(values), values, "o", color=colour, markersize=3)
            best = min(means, key=lambda rate: means[rate])
            axes.plot(best, means[best], "*", color=colour, markersize=13, markeredgecolor="white")
        axes.set(xscale="log", xlabel=x, ylabel="loss", title=name[0].upper() + name[1:])
        axes.title.set_fontsize(10)
        axes.sharey(grid[0])
    if top is not None:
        lowest = min(axes.dataLim.y0 for axes in grid)
        grid[0].set_ylim(max(0.0, lowest - 0.1 * (top - lowest)), top)
    grid[0].legend(frameon=False, fontsize=8)
    return drawn


# --- experiments ---

_REGIONS = {"A": "#dddddd", "B": "#ffffff", "C": "#f3dcc9", "AC": "#dccbc0"}


def recipes(
    longer: Mapping[str, Sequence[float]], here: Mapping[str, float], baseline: str
) -> Figure:
    """Draw every seed of each recipe, and its difference from the baseline with the 95 % interval.

    Args:
        longer: recipe -> accuracy of each seed, the same seeds in the same order (shares).
        here: recipe -> accuracy of the training just made (share), drawn as a cross.
        baseline: the recipe that the others are compared with.
    """
    values = {name: 100 * np.array(each) for name, each in longer.items()}
    listed = "; ".join(f"{name} {each.mean():.1f} %" for name, each in values.items())
    alt = f"Test accuracy of each seed, and differences from {baseline}. Means: {listed}."
    drawn, (left, right) = figure(columns=2, width=10.5, height=0.42 * len(values) + 1.1, alt=alt)
    for line, (name, each) in enumerate(values.items()):
        left.plot(each, np.full(len(each), line), "o", color=BLUE, alpha=0.35, markersize=5)
        left.plot(each.mean(), line, "|", color=BLUE, markersize=16, markeredgewidth=2)
        if name in here:
            left.plot(100 * here[name], line, "x", color="black", markersize=7)
        if name != baseline:
            low, high = confidence_interval(each - values[baseline])
            mean = (low + high) / 2
            right.errorbar(mean, line, xerr=(high - low) / 2, fmt="o", color=ORANGE, capsize=3)
            where = {"color": ORANGE, "fontsize": 9, "ha": "center", "va": "bottom"}
            right.text(mean, line - 0.14, f"{mean:+.1f}", **where)
    right.axvline(0, color="black", linewidth=0.8)
    left.set_yticks(range(len(values)), list(values))
    right.set_yticks(range(len(values)), [""] * len(values))
    left.set(xlabel="test accuracy (%)", title="Dots: seeds of the longer runs; x: here")
    right.set(xlabel="points", title=f"Difference from {baseline}, 95 % interval")
    for axes in (left, right):
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    return drawn


@not_empty
def dead_and_sharp(watched: Mapping[str, Sequence[Sequence[tuple]]]) -> Figure:
    """Draw dead units and sharpness over epochs, a column per recipe.

    Args:
        watched: recipe -> for each seed the places (epoch, dead units, sharpness or None, limit of
            the sharpness).
    """
    listed = "; ".join(
        f"{name} {', '.join(str(each[-1][1]) for each in seeds)}" for name, seeds in watched.items()
    )
    alt = f"Dead units of 64 after four epochs, for each seed: {listed}. Below the sharpness."
    drawn, panels = figure(2, len(watched), 11.5, 2.0, alt)
    for column, (name, seeds) in enumerate(watched.items()):
        above, below = panels[column], panels[column + len(watched)]
        for each in seeds:
            above.plot([one[0] for one in each], [one[1] for one in each], color=ORANGE)
        looked = [one for one in seeds[0] if one[2] is not None]
        below.plot([one[0] for one in looked], [one[2] for one in looked], ".-", color=BLUE)
        below.plot([one[0] for one in seeds[0]], [one[3] for one in seeds[0]], "--", color="black")
        above.set(title=name, ylim=(-1, 64))
        below.set(xlabel="epoch", ylim=(0, 24))
        if column:
            above.set_yticklabels([])
            below.set_yticklabels([])
    panels[0].set_ylabel("dead units of 64")
    panels[len(watched)].set_ylabel("sharpness\n(dashed: limit)")
    return drawn


def speed_and_quality(
    sizes: Sequence[int],
    images_per_s: Sequence[float],
    accuracies: Sequence[Sequence[float]],
    regions: Sequence[str],
    enough: float,
    tolerance: float,
) -> Figure:
    """Draw speed and accuracy (percent, each seed) by batch, shaded by the region of each."""
    words = ", ".join(f"{size} {region}" for size, region in zip(sizes, regions, strict=True))
    drawn, (speed, quality) = figure(2, 1, 7.0, 2.1, f"Speed and accuracy by batch: {words}.")
    places, means = np.arange(len(sizes)), [np.mean(each) for each in accuracies]
    speed.plot(places, images_per_s, "o-", color=BLUE)
    speed.axhline(enough * max(images_per_s), color="black", linestyle=":", linewidth=1)
    for place, each in zip(places, accuracies, strict=True):
        quality.plot([place] * len(each), each, "o", color=ORANGE, alpha=0.4, markersize=5)
    quality.plot(places, means, "-", color=ORANGE)
    quality.axhline(max(means) - tolerance, color="black", linestyle=":", linewidth=1)
    quality.set_ylim(max(means) - 12 * tolerance, max(means) + 2 * tolerance)
    for place, mean in zip(places, means, strict=True):
        if mean < max(means) - 12 * tolerance:
            low = (place, max(means) - 11.5 * tolerance)
            quality.text(*low, f"{mean:.0f} %", color=ORANGE, ha="center")
    for axes in (speed, quality):
        axes.set_xticks(places, [str(size) for size in sizes])
        for place, region in zip(places, regions, strict=True):
            axes.axvspan(place - 0.5, place + 0.5, color=_REGIONS[region.replace(" and ", "")],
                         zorder=0, linewidth=0)  # fmt: skip
        axes.set_xlim(-0.5, len(sizes) - 0.5)
    for place, region in zip(places, regions, strict=True):
        speed.text(place, 1.2 * max(images_per_s), region, ha="center", va="top", weight="bold")
    speed.set(ylim=(0, 1.22 * max(images_per_s)), ylabel="images/s", title="A: slow; C: inaccurate")
    quality.set(xlabel="images per worker and step", ylabel="test accuracy (%)")
    return drawn


# --- recipes ---


def recipe_curves(
    rates: Mapping[str, Sequence[float]],
    accuracies: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    steps_per_epoch: int,
    leaves_at: float,
    tested: int,
) -> Figure:
    """Draw the last epochs of trainings that begin alike: learning rate and test accuracy.

    Args:
        rates: name -> learning rate of each step.
        accuracies: name -> (epochs, test accuracies after them, shares).
        steps_per_epoch: steps of an epoch (count).
        leaves_at: where the trainings part (epochs).
        tested: test images; the bars are plus and minus one binomial standard error (count).
    """
    require(1 <= len(rates) <= 2, "rates", "hold one or two trainings", list(rates))
    same = set(accuracies) == set(rates)
    require(same, "accuracies", f"have the names {', '.join(rates)}", list(accuracies))
    ended = "; ".join(f"{name} {100 * each[-1]:.1f} %" for name, (_, each) in accuracies.items()
                      if len(each))  # fmt: skip
    alt = f"Rate and test accuracy up to and after epoch {leaves_at:g}. At the end: {ended}."
    drawn, (left, right) = figure(columns=2, width=8.4, height=2.4, alt=alt)
    end = max(map(len, rates.values())) / steps_per_epoch
    begin = max(0.0, leaves_at - 1.5 * (end - leaves_at) - 1)
    looks = zip(rates, ((BLUE, "-", "o"), (ORANGE, "--", "s")), strict=False)
    for shift, (name, (colour, dashes, marker)) in enumerate(looks):
        shown = np.array(rates[name])[int(begin * steps_per_epoch) :]
        left.plot(end - np.arange(len(shown), 0, -1) / steps_per_epoch, shown, dashes,
                  color=colour, label=name)  # fmt: skip
        places = [(at, each) for at, each in zip(*accuracies[name], strict=True) if at >= begin]
        if places:
            at, share = np.array(places).T
            error = 100 * np.sqrt(share * (1 - share) / tested)
            right.errorbar(at + 0.03 * shift, 100 * share, error, linestyle=dashes, marker=marker,
                           markersize=4, capsize=3, color=colour, label=name)  # fmt: skip
    for axes in (left, right):
        axes.axvspan(leaves_at, end, color=GREY, alpha=0.15, linewidth=0)
        axes.set(xlabel="epochs")
    left.set(ylabel="learning rate", ylim=(0, None))
    right.set(ylabel="test accuracy (%)")
    legend(left, loc="upper right", fontsize=8)
    return drawn


# --- symptoms ---

_LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"), (PURPLE, "-."))
_NOBODY, _ONE, _SEVERAL = "#222222", SKY, ORANGE


@not_empty
def symptoms(trials: Sequence[Any], reference: Sequence[Any] = ()) -> Figure:
    """Draw what each rank showed: its loss, the distance of the weights, who took which sample.

    Args:
        reference: sound runs, whose losses are drawn in grey.
    """
    counts = ranks_per_sample(trials)
    alt = _symptoms_words(trials, counts)
    drawn, (loss, distance, samples) = figure(columns=3, width=11, height=2.9, alt=alt)
    for number, one in enumerate(reference):
        steps = range(1, len(one.loss) + 1)
        label = "reference" if number == 0 else None
        loss.plot(steps, one.loss, color=GREY, linewidth=3, alpha=0.4, label=label)
    for trial in trials:
        colour, line = _LINES[trial.rank % len(_LINES)]
        steps = range(1, len(trial.loss) + 1)
        loss.plot(steps, trial.loss, line, color=colour, linewidth=2, label=f"rank {trial.rank}")
    loss.set(xlabel="step", ylabel="loss on the same test images", title="Loss of each rank")
    loss.set_ylim(bottom=0)
    loss.legend(frameon=False)

    apart = trials[0].distance
    distance.plot(range(1, len(apart) + 1), apart, color=PURPLE, linewidth=2)
    top = max(apart, default=0.0)
    distance.set(xlabel="step", ylabel="largest difference of a weight", title="Ranks apart")
    distance.set_ylim(-0.04 * (top or 1), 1.15 * top or 1)
    if not top:
        distance.set_yticks([0])
        middle = (0.5, 0.5)
        distance.annotate("0 after every step", middle, xycoords="axes fraction", ha="center")
    _grid(samples, counts)
    return drawn


@not_empty
def ranks_per_sample(trials: Sequence[Any]) -> np.ndarray:
    """Count for each sample the ranks that took it in the first epoch."""
    counts = np.zeros(trials[0].samples, int)
    for trial in trials:
        counts[list(set(trial.taken))] += 1
    return counts


def _grid(axes: Axes, counts: np.ndarray) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    columns = _columns(len(counts))
    rows = -(-len(counts) // columns)
    squares = np.full(rows * columns, np.nan)
    squares[: len(counts)] = np.minimum(counts, 2)
    colours = ListedColormap([_NOBODY, _ONE, _SEVERAL])
    axes.imshow(squares.reshape(rows, columns), cmap=colours, vmin=0, vmax=2, aspect="auto")
    named = zip((_NOBODY, _ONE, _SEVERAL), _kinds(counts).items(), strict=True)
    patches = [Patch(color=colour, label=f"{name}: {count}") for colour, (name, count) in named]
    axes.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False,
                fontsize=9, ncols=3, columnspacing=1.0, handlelength=1.0)  # fmt: skip
    axes.set(title=f"{len(counts)} samples, first epoch", xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _columns(samples: int) -> int:
    """Half as many columns again as rows, and full rows where that is nearly possible."""
    ideal = max(1, round((1.5 * samples) ** 0.5))
    near = range(max(1, ideal * 2 // 3), ideal * 3 // 2 + 1)
    full = [columns for columns in near if samples % columns == 0]
    return min(full, key=lambda columns: abs(columns - ideal), default=ideal)


def _kinds(counts: np.ndarray) -> dict[str, int]:
    found = Counter(np.minimum(counts, 2).tolist())
    return {name: found[i] for i, name in enumerate(("no rank", "one rank", "several"))}


def _symptoms_words(trials: Sequence[Any], counts: np.ndarray) -> str:
    losses = ", ".join(f"{each.loss[-1]:.3f}" for each in trials)
    kinds = ", ".join(f"{name} {count}" for name, count in _kinds(counts).items())
    return (
        f"Three panels. Loss at the end on ranks 0 to {len(trials) - 1}: {losses}. Largest "
        f"difference of the weights at the end: {trials[0].distance[-1]:.2g}. "
        f"Samples of the first epoch by who took them: {kinds}."
    )


# --- start up ---

_START_UP_LOOKS = ((ORANGE, "-"), (BLUE, "--"), (GREEN, "-."), (PURPLE, ":"))


def start_up(starts: Mapping[str, StartUp], marks: Mapping[str, int] | None = None) -> Figure:
    """Draw the mean throughput against the number of batches it is over."""
    few = 0 < len(starts) <= len(_START_UP_LOOKS)
    require(few, "starts", f"hold 1 to {len(_START_UP_LOOKS)} names", len(starts))
    most = 5 * max(
        [*(one.batches for one in starts.values()), *(n for n in (marks or {}).values())]
    )
    counts = np.unique(np.geomspace(1, most, 200).astype(int))
    summary = "; ".join(
        f"{name}: {one.images_per_s_with_first:.0f} images/s over {one.batches} batches, "
        f"{one.images_per_s:.0f} without the first"
        for name, one in starts.items()
    )
    alt = f"Mean images/s over the first batches rises to that of the others. {summary}."
    pair = len(starts) == 2
    drawn, panels = figure(rows=1 + pair, width=7.0, height=2.5 if pair else 3.4, alt=alt)
    axes = panels[0]
    for (name, one), (colour, dashes) in zip(starts.items(), _START_UP_LOOKS, strict=False):
        means = [one.after(int(count)) for count in counts]
        axes.plot(counts, means, dashes, color=colour, label=name)
        axes.axhline(one.images_per_s, color=colour, linestyle=":", linewidth=0.9)
    axes.set_ylim(0, 1.3 * max(one.images_per_s for one in starts.values()))
    axes.set(ylabel="images/s", title="Mean throughput; dotted: without the first batch")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    if pair:
        _ratio(panels[1], starts, counts)
    for panel in panels:
        for count in (marks or {}).values():
            panel.axvline(count, color=GREY, linewidth=0.9)
        panel.set(xscale="log", xlim=(1, most))
    for name, count in (marks or {}).items():
        panels[-1].annotate(
            name, (count, 0.96), (3, 0), xycoords=("data", "axes fraction"), fontsize=8,
            textcoords="offset points", color=GREY, rotation=90, ha="left", va="top",
        )  # fmt: skip
    panels[-1].set_xlabel("batches that the mean is over")
    return drawn


def _ratio(axes: Axes, starts: Mapping[str, StartUp], counts: np.ndarray) -> None:
    (below, first), (above, second) = starts.items()
    ratio = np.array([second.after(int(n)) / first.after(int(n)) for n in counts])
    axes.plot(counts, ratio, color="black")
    axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    # the very first batches are far away from 1, and would hide where the order turns
    late = np.append(ratio[counts >= first.batches / 4], 1.0)
    room = 0.25 * (late.max() - late.min())
    axes.set_ylim(late.min() - room, late.max() + room)
    axes.set(ylabel=f"{above}\nover {below}")
