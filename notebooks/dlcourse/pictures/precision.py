"""Pictures of number formats: their bits, their ranges, gradients among them, and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.pictures.shapes import PLAIN, listed, middle, note, once
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_FIELDS = (("sign", GREY), ("exponent", ORANGE), ("fraction", BLUE))
_COLOURS = {"fp32": BLUE, "bf16": GREEN, "fp16": ORANGE, "int8": PURPLE}


def bit_fields(rows: Sequence[Any]) -> Figure:
    """Draw numbers bit by bit: sign, exponent and fraction in their colours."""
    words = "; ".join(
        f"{row.format}: sign {row.sign}, exponent {row.exponent or 'none'}, "
        f"fraction {row.fraction}, which is {row.value:.9g}"
        for row in rows
    )
    height = 0.9 + 0.42 * len(rows)
    drawn, (axes,) = figure(width=8.4, height=height, alt=f"Bits of numbers. {words}")
    for line, row in enumerate(rows):
        place = 0
        for name, colour in _FIELDS:
            for bit in getattr(row, name):
                axes.barh(line, 1, left=place, color=colour, edgecolor="white", height=0.8)
                middle(axes, bit, place + 0.5, line, 9, color="white")
                place += 1
        axes.text(place + 0.4, line, f"= {row.value:.9g}", va="center", fontsize=9)
    for place, (name, colour) in enumerate(_FIELDS):
        axes.text(8 * place, -0.95, name, color=colour, fontsize=9, weight="bold", va="center")
    widest = max(len(row.sign + row.exponent + row.fraction) for row in rows)
    axes.set(xlim=(0, widest + 8), ylim=(len(rows) - 0.4, -1.4), xticks=[])
    axes.set_yticks(range(len(rows)), [row.format for row in rows])
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return drawn


def number_ranges(
    rows: Sequence[Any], values: Sequence[float], spacings: Mapping[str, ArrayLike]
) -> Figure:
    """Draw how far formats reach, and how far apart their numbers are."""
    words = "; ".join(
        f"{row.name} from {row.smallest_normal:.2g}, subnormal from {row.smallest_subnormal:.2g}, "
        f"to {row.largest:.2g}"
        for row in rows
    )
    drawn, (left, right) = figure(columns=2, width=9.6, alt=f"Ranges of number formats: {words}.")
    for line, row in enumerate(rows):
        low, normal, high = (
            np.log10(float(n)) for n in (row.smallest_subnormal, row.smallest_normal, row.largest)
        )
        left.barh(line, high - normal, left=normal, color=BLUE, label="normal")
        look = {"color": SKY, "hatch": "///", "edgecolor": "white", "label": "subnormal"}
        left.barh(line, normal - low, left=low, **look)
    left.set_yticks(range(len(rows)), [row.name for row in rows])
    left.set(ylim=(len(rows) - 0.4, -1.2), xlabel="size of the number (power of ten)")
    left.set_title("Range", loc="left")
    left.legend(**once(left), **PLAIN, loc="upper center", ncols=2)
    left.grid(axis="x", color="#dddddd", linewidth=0.6)
    lines = ("-", "--", ":", "-.")
    for number, (name, gaps) in enumerate(spacings.items()):
        share = np.asarray(gaps, float) / np.asarray(values, float)
        colour = _COLOURS.get(name, GREY)
        right.plot(values, share, color=colour, linestyle=lines[number % 4], label=name)
    right.set(xscale="log", yscale="log", xlabel="size of the number")
    right.set_ylabel("distance to the next / number")
    right.set_title("Spacing", loc="left")
    right.legend(frameon=False, fontsize=8)
    return drawn


def gradient_sizes(gradients: Mapping[str, ArrayLike], rows: Sequence[Any], scale: float) -> Figure:
    """Draw how large gradients are, and where formats end."""
    logs = {}
    for label, values in gradients.items():
        numbers = np.abs(np.asarray(values, float)).ravel()
        logs[label] = np.log2(numbers[numbers > 0])
    words = listed(logs, lambda each: f"median {2 ** np.median(each):.1e}")
    ends = "; ".join(f"{row.name} from {row.smallest_subnormal:.1e}" for row in rows)
    alt = f"Histogram of sizes. {words}. Formats: {ends}."
    drawn, (axes,) = figure(width=8.4, height=3.8, alt=alt)
    low = min(np.floor(each.min()) for each in logs.values())
    high = max(np.ceil(each.max()) for each in logs.values()) + np.log2(scale)
    edges = np.arange(low, high + 2)  # the last bin holds its right end, so one more
    for colour, (label, each) in zip((BLUE, PURPLE, GREY), logs.items(), strict=False):
        for shift in (0.0, np.log2(scale)):
            shares = np.histogram(each + shift, edges)[0] / len(each)
            name = label if not shift else f"{label}, times 2^{shift:.0f}"
            style = "-" if not shift else "--"
            axes.stairs(100 * shares, edges, color=colour, linestyle=style, label=name)
    top = axes.get_ylim()[1]
    for number, row in enumerate(rows):
        colour = _COLOURS.get(row.name, GREEN)
        ends = np.log2([row.smallest_subnormal, row.smallest_normal, row.largest])
        level = top * (1.12 + 0.14 * number)
        axes.plot(ends[1:], [level] * 2, color=colour, linewidth=5, solid_capstyle="butt")
        axes.plot(ends[:2], [level] * 2, color=colour, linewidth=5, alpha=0.4, linestyle=":")
        place = min(max(np.mean(ends[1:]), edges[0] + 4), edges[-1] - 4)
        axes.text(place, level + 0.03 * top, row.name, color=colour, ha="center", va="bottom")
        axes.axvline(ends[0], color=colour, linewidth=1)
    axes.set(
        xlim=(edges[0] - 1, max(edges[-1], 17)),
        ylim=(0, top * (1.15 + 0.14 * len(rows))),
        xlabel="size (power of two); the vertical line is the smallest number of a format",
        ylabel="share of the numbers (%)",
    )
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.75))
    return drawn


def kernel_rates(found: Sequence[Any], loops: Mapping[str, float]) -> Figure:
    """Draw the best rate of matrix products by level and format, every turn, and loops' rates.

    The words are ratios to the best fp32 rate of any level.
    """
    levels = list(dict.fromkeys(row.level for row in found))
    rows = sorted(found, key=lambda row: levels.index(row.level))
    wide = max((row.flops_per_s for row in rows if row.format == "fp32"), default=None)
    ratios = [f"{row.flops_per_s / wide:.1f} times" if wide else "" for row in rows]
    words = "; ".join(
        f"{row.level} {row.format} {row.flops_per_s / 1e9:.0f}e9, {ratio} the best fp32"
        for row, ratio in zip(rows, ratios, strict=True)
    )
    alt = f"Operations per second. {words}."
    drawn, (axes,) = figure(width=8.4, height=1.3 + 0.32 * len(rows), alt=alt)
    for line, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        best = row.flops_per_s / 1e9
        axes.barh(line, best, 0.7, color=_COLOURS.get(row.format, GREY), alpha=0.6)
        axes.plot([each / 1e9 for each in row.turns], [line] * len(row.turns), "k|", markersize=7)
        note(axes, ratio, (best, line), 5, 0, va="center", fontsize=10)
    top = max(row.flops_per_s for row in rows)
    for number, (name, rate) in enumerate(loops.items()):
        axes.axvline(rate / 1e9, color=GREY, linestyle="--", linewidth=1)
        place = (rate / 1e9, -0.9 - 0.7 * (number % 3))
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"loop: {name}", place, ha="center", fontsize=8, bbox=white)
        top = max(top, rate)
    axes.set_yticks(range(len(rows)), [f"{row.level}  {row.format}" for row in rows], fontsize=8)
    axes.set(xlim=(0, 1.15e-9 * top), ylim=(len(rows) - 0.4, -3.0 if loops else -0.7))
    axes.set_xlabel("operations/s (1e9), best of all turns; small lines: each turn")
    axes.grid(axis="y", visible=False)
    return drawn
