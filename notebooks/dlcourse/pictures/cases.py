"""Use cases: ROC curves and their areas, predicted video."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from dlcourse.pictures.networks import image_grid
from dlcourse.pictures.shapes import not_empty
from dlguide.errors import require, require_count, require_positive
from dlguide.plots.figures import (
    BLUE,
    GREEN,
    GREY,
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
    from numpy.typing import ArrayLike


# --- auroc ---

# Name, value, and the two ends of its interval.
Row = tuple[str, float, float, float]
_AUROC_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))


def areas_under_curves(
    areas: Mapping[str, Sequence[Row]], published: Mapping[str, float] | None = None
) -> Figure:
    """Draw the AUROC of each finding with its interval, for one net or for some side by side."""
    names = _names(areas)
    first = {name: value for name, value, *_ in next(iter(areas.values()))}
    names.sort(key=lambda name: (name == "mean", -first[name]))
    best, worst = names[0], [name for name in names if name != "mean"][-1]
    described = ", ".join(
        f"{net} {dict((row[0], row[1]) for row in rows).get('mean', rows[-1][1]):.3f}"
        for net, rows in areas.items()
    )
    alt = (
        f"Area under the ROC curve of {len(first) - ('mean' in first)} findings with intervals. "
        f"Means: {described}. Highest for {best} ({first[best]:.2f}), lowest for {worst} "
        f"({first[worst]:.2f})."
    )
    drawn, (axes,) = figure(1, 1, 7.2, 0.9 + 0.31 * len(names), alt)
    _rows(axes, areas, names)
    if published:
        there = [name for name in names if name in published]
        places = [names.index(name) for name in there]
        values = [published[name] for name in there]
        axes.plot(values, places, "D", color=GREY, markersize=4, label="published CheXNet")
    axes.axvline(0.5, color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="AUROC (0.5 is guessing), with 95 % intervals", xlim=(None, 1.01))
    legend_above(axes)
    axes.set_title("Area under the ROC curve", loc="left", fontsize=10)
    return drawn


def area_gains(gains: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw by how much the AUROC of each finding differs between two nets."""
    names = _names(gains)
    first = {row[0]: row for row in next(iter(gains.values()))}
    names.sort(key=lambda name: (name == "mean", -first[name][1]))
    summary = sum(row[2] > 0 or row[3] < 0 for row in first.values() if row[0] != "mean")
    better = sum(row[1] > 0 for row in first.values() if row[0] != "mean")
    count = len(first) - ("mean" in first)
    alt = (
        f"Differences of AUROC for {count} findings with intervals: above 0 in {better}, and with "
        f"an interval on one side of 0 in {summary}."
    )
    drawn, (axes,) = figure(1, 1, 7.2, 0.9 + 0.31 * len(names), alt)
    _rows(axes, gains, names)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(xlabel="difference of AUROC, with 95 % intervals")
    legend_above(axes)
    axes.set_title("Difference by finding", loc="left", fontsize=10)
    return drawn


def roc_curves(judged: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """Draw ROC curves: what is found against what is wrongly alarmed, over all thresholds."""
    require(0 < len(judged) <= len(_AUROC_MARKS), "judged", "hold 1 to 3 curves", len(judged))
    areas = {name: _curve(name, *each) for name, each in judged.items()}
    described = ", ".join(f"{name} with an area of {each[2]:.3f}" for name, each in areas.items())
    alt = f"Found against false alarms, for {described}; guessing is the diagonal."
    drawn, (axes,) = figure(1, 1, 4.6, 4.2, alt)
    for number, ((name, (alarms, hits, area)), (colour, _)) in enumerate(
        zip(areas.items(), _AUROC_MARKS, strict=False)
    ):
        axes.plot(alarms, hits, color=colour, linewidth=1.8, label=f"{name}: area {area:.3f}")
        if number == 0:
            axes.fill_between(alarms, hits, color=colour, alpha=0.12, linewidth=0)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.set(
        xlabel="false alarms (part of those without the finding)",
        ylabel="found (part of those with the finding)",
    )
    axes.set_title("ROC curve", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return drawn


def area_by_pictures(
    areas: Mapping[tuple[int, int, str], Sequence[float]], before: float
) -> Figure:
    """Draw mean AUROC against labelled pictures seen, a panel for each number of labels.

    Args:
        areas: (labels, pictures, "scratch" or "transfer") -> one area per seed.
        before: pictures of the pre-training, added to those of the transfer in hollow marks.
    """
    panels = sorted({labels for labels, _, _ in areas})
    words = "; ".join(f"{labels} labels, {seen} pictures, {start} {np.mean(each):.3f}"
                      for (labels, seen, start), each in areas.items())  # fmt: skip
    alt = f"Mean AUROC over labelled pictures seen, means of seeds: {words}."
    drawn, axes = figure(1, len(panels), 8.4, 3.2, alt)
    for panel, labels in zip(axes, panels, strict=True):
        for start, (colour, mark) in zip(("scratch", "transfer"), _AUROC_MARKS, strict=False):
            points = {seen: each for (n, seen, kind), each in areas.items()
                      if (n, kind) == (labels, start)}  # fmt: skip
            seen, means = list(points), [np.mean(each) for each in points.values()]
            panel.plot(seen, means, mark + "-", color=colour, label=start)
            for x, each in points.items():
                panel.vlines(x, min(each), max(each), color=colour)
            if start == "transfer":
                later = [x + before for x in seen]
                panel.plot(later, means, mark + ":", color=colour, markerfacecolor="white",
                           label="transfer, with its pre-training")  # fmt: skip
        panel.axvline(before, color=GREY, linewidth=1, linestyle=":")
        panel.set(xscale="log", xlabel="pictures seen", title=f"{labels} labelled")
        panel.minorticks_off()
        panel.set_xticks([2500, 5000, 10_000], ["2500", "5000", "10 000"])
    low = min(min(each) for each in areas.values())
    for panel in axes:
        panel.set_ylim(low - 0.02, 1.0)
    axes[0].set_ylabel("mean AUROC (mean, range of seeds)")
    axes[-1].legend(frameon=False, fontsize=7, loc="upper left")
    return drawn


def loss_and_rate(losses: Sequence[float], rates: Sequence[float], chosen: int) -> Figure:
    """Draw loss and learning rate at the end of each epoch above each other, one epoch marked."""
    epochs = np.arange(1, len(losses) + 1)
    alt = (
        f"Loss and learning rate over {len(losses)} epochs: loss {losses[0]:.3f} to "
        f"{losses[-1]:.3f}, rate {rates[0]:.3g} to {rates[-1]:.3g}; epoch {chosen} is chosen."
    )
    drawn, (above, below) = figure(2, 1, 6.2, 1.7, alt)
    for axes, values, what in ((above, losses, "loss"), (below, rates, "rate at the end")):
        axes.plot(epochs, values, "o-", color=BLUE)
        axes.plot(chosen, values[chosen - 1], "o", color=ORANGE, markersize=9)
        axes.set(ylabel=what, ylim=(0, 1.15 * max(values)))
        axes.set_xticks(epochs)
    above.annotate("chosen", (chosen, losses[chosen - 1]), (0, 9), textcoords="offset points",
                   ha="center", color=ORANGE)  # fmt: skip
    below.set_xlabel("epoch of the pre-training")
    return drawn


def reliability(judged: Mapping[str, tuple[ArrayLike, ArrayLike]], bins: int = 8) -> Figure:
    """Draw the observed share of ones against the predicted probability, all labels together."""
    from sklearn.calibration import calibration_curve

    curves = {name: calibration_curve(np.ravel(truth), np.ravel(chances), n_bins=bins,
                                      strategy="quantile")
              for name, (truth, chances) in judged.items()}  # fmt: skip
    words = "; ".join(f"{name}: highest bin predicted {said[-1]:.2f}, observed {seen[-1]:.2f}"
                      for name, (seen, said) in curves.items())  # fmt: skip
    drawn, (axes,) = figure(1, 1, 4.6, 4.2, f"Observed share over predicted probability. {words}.")
    for (name, (seen, said)), (colour, mark) in zip(curves.items(), _AUROC_MARKS, strict=False):
        axes.plot(said, seen, mark + "-", color=colour, label=name)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="predicted probability", ylabel="observed share of ones")
    axes.set_title("Calibration", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return drawn


def _curve(name: str, labels: ArrayLike, scores: ArrayLike) -> tuple[np.ndarray, np.ndarray, float]:
    labels, scores = np.asarray(labels, bool), np.asarray(scores, float)
    both = labels.any() and not labels.all()
    require(both, "judged", "hold both a 0 and a 1", f"{name}: {labels.sum()} ones")
    # the lowest score that is still called positive; with infinity nothing is
    thresholds = np.r_[np.inf, np.unique(scores)[::-1]][:, None]
    hits, alarms = ((scores[kind] >= thresholds).mean(1) for kind in (labels, ~labels))
    return alarms, hits, float(np.trapezoid(hits, alarms))


def _names(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    require(0 < len(tables) <= len(_AUROC_MARKS), "areas", "hold 1 to 3 nets", len(tables))
    lists = [[row[0] for row in rows] for rows in tables.values()]
    require(all(set(one) == set(lists[0]) for one in lists), "areas", "be of equal findings", lists)
    return lists[0]


def _rows(axes: Axes, tables: Mapping[str, Sequence[Row]], names: list[str]) -> None:
    for number, ((net, rows), (colour, mark)) in enumerate(
        zip(tables.items(), _AUROC_MARKS, strict=False)
    ):
        by_name = {row[0]: row[1:] for row in rows}
        values, low, high = np.array([by_name[name] for name in names], float).T
        places = np.arange(len(names)) + 0.22 * (number - (len(tables) - 1) / 2)
        ends = np.stack([values - low, high - values]).clip(0)
        axes.errorbar(
            values, places, xerr=ends, fmt=mark, color=colour, markersize=4.5, elinewidth=1.2,
            label=net,
        )  # fmt: skip
    if "mean" in names:
        axes.axhline(names.index("mean") - 0.5, color=GREY, linewidth=0.6)
    labels = [name.replace("_", " ") for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)


# --- video ---

_COLOURS = (GREY, SKY, ORANGE, BLUE, GREEN, PURPLE)
_VIDEO_MARKS = "osv^Dx"
# Pixels of a frame in a film, of the line under it, and between two of them.
_FRAME, _LINE, _GAP = 128, 16, 6


@not_empty
def predicted_frames(frames: Mapping[str, ArrayLike], clip: int = 0) -> Figure:
    """Draw one clip: what was seen, what came, and what each predictor described would come."""
    rows = {name: np.asarray(clips) for name, clips in frames.items()}
    for name, clips in rows.items():
        must = "have the shape (clips, frames, rows, columns, 3)"
        require(clips.ndim == 5, "frames", must, f"{clips.shape} for {name!r}")
        there = require_count(clip, "clip", least=0) < len(clips)
        require(there, "clip", f"be below the {len(clips)} clips of {name!r}", clip)
    counts = {clips.shape[1] for clips in rows.values()}
    require(len(counts) == 1, "frames", "have as many frames in each row", sorted(counts))
    images = np.concatenate([clips[clip] for clips in rows.values()])
    described = f"Frames of one clip in rows: {', '.join(rows)}; time goes from left to right."
    return image_grid(images, None, counts.pop(), row_titles=list(rows), alt=described)


def frame_scores(scores: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Draw how near predictors are, frame by frame: it gets harder the further they look."""
    count = len(scores)
    require(0 < count <= len(_COLOURS), "scores", f"hold 1 to {len(_COLOURS)} predictors", count)
    summary = "; ".join(
        f"{name}: {both[0][0]:.1f} to {both[0][-1]:.1f} dB, {both[1][0]:.2f} to {both[1][-1]:.2f}"
        for name, both in scores.items()
    )
    alt = f"PSNR and SSIM from the first frame to the last. {summary}."
    drawn, panels = figure(columns=2, height=3.0, alt=alt)
    for panel, label, which in zip(panels, ("PSNR (dB)", "SSIM"), (0, 1), strict=True):
        for (name, both), colour, mark in zip(scores.items(), _COLOURS, _VIDEO_MARKS, strict=False):
            numbers = list(both[which])
            frames = range(1, len(numbers) + 1)
            panel.plot(frames, numbers, color=colour, marker=mark, markersize=5, label=name)
        panel.set(
            xlabel="frame after the last one seen", ylabel=label, title=f"{label}: higher is nearer"
        )
    legend_below(panels[0])
    return drawn


def growth(errors: Sequence[float], sizes: Sequence[int]) -> Figure:
    """Draw the error of each epoch with the resolution that was the finest then."""
    require(len(errors) == len(sizes) > 0, "sizes", f"be {len(errors)}, at least 1", len(sizes))
    summary = ", ".join(f"{100 * each:.1f}" for each in errors)
    alt = f"Mean error of each epoch in % of the range, finer and finer frames: {summary}."
    drawn, (panel,) = figure(width=6.0, height=3.0, alt=alt)
    known = sorted(set(sizes))
    for size, colour, mark in zip(
        known, (SKY, ORANGE, BLUE, GREEN, PURPLE, GREY), _VIDEO_MARKS, strict=False
    ):
        epochs = [number for number, one in enumerate(sizes, 1) if one == size]
        panel.plot(
            epochs, [100 * errors[number - 1] for number in epochs],
            color=colour, marker=mark, markersize=5, label=f"{size} x {size} pixels",
        )  # fmt: skip
    panel.set(xlabel="epoch", ylabel="mean error (% of the range)", title="The pair grows")
    panel.set_ylim(bottom=0)
    legend_below(panel)
    return drawn


@not_empty
def shares(rows: Sequence[tuple[str, float, float, float]]) -> Figure:
    """Draw what part of a step goes to the exchange, case by case."""
    wholes = [require_positive(compute_s + more_s, "rows") for _, _, compute_s, more_s in rows]
    summary = [f"{row[0]} {row[3] / whole:.0%}" for row, whole in zip(rows, wholes, strict=True)]
    alt = f"Share of the exchange in a step: {', '.join(summary)}."
    drawn, (panel,) = figure(width=7.0, height=3.2, alt=alt)
    for at, ((_, _, _, exchange_s), whole) in enumerate(zip(rows, wholes, strict=True)):
        part = 100 * exchange_s / whole
        panel.bar(at, 100 - part, color=BLUE, label="computing")
        panel.bar(at, part, bottom=100 - part, color=ORANGE, hatch="//", label="exchange")
        panel.text(at, 101, f"{part:.0f} %", ha="center", va="bottom", fontsize=9)
    panel.set_xticks(range(len(rows)))
    panel.set_xticklabels([f"{name}\n{1e-6 * nbytes:.3g} MB" for name, nbytes, *_ in rows])
    panel.set(
        ylabel="share of a step (%)",
        ylim=(0, 112),
        title="What a step's time goes to",
    )
    legend_below(panel)
    return drawn


def film(
    frames: Mapping[str, ArrayLike],
    clip: int = 0,
    seconds: float = 0.25,
) -> bytes:
    """Make a film of predictors side by side, as a GIF that a page shows without any script."""
    chosen = {name: np.asarray(clips)[clip] for name, clips in frames.items()}
    counts = {len(each) for each in chosen.values()}
    require(len(counts) == 1, "frames", "have as many frames each", sorted(counts))
    pause = round(1000 * require_positive(seconds, "seconds"))
    count = counts.pop()
    pages = [_page({name: each[at] for name, each in chosen.items()}, at) for at in range(count)]
    data = io.BytesIO()
    pages[0].save(
        data, format="GIF", save_all=True, append_images=pages[1:], loop=0,
        duration=[pause] * (count - 1) + [4 * pause],
    )  # fmt: skip
    return data.getvalue()


def _page(frames: Mapping[str, Any], number: int) -> Image.Image:
    """Put the frames of one moment side by side, each with its name under it."""
    width = len(frames) * (_FRAME + _GAP) - _GAP
    page = Image.new("RGB", (width, _FRAME + _LINE), "white")
    pen = ImageDraw.Draw(page)
    for place, (name, frame) in enumerate(frames.items()):
        left = place * (_FRAME + _GAP)
        large = Image.fromarray(np.asarray(frame, np.uint8))
        page.paste(large.resize((_FRAME, _FRAME), Image.Resampling.NEAREST), (left, 0))
        pen.text((left + 3, _FRAME + 2), f"{name}, {number + 1}", fill="black")
    return page.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
