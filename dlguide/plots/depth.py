"""Pictures of deep nets: how large gradients are layer by layer, and what whole nets cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = ((BLUE, "o-"), (ORANGE, "s--"), (GREEN, "^-."), (PURPLE, "v:"), (GREY, "x-"))
_RATIOS = (30, 100, 300)  # flops for each byte of gradients, a line each


def gradients_by_layer(
    sizes: Mapping[str, Sequence[float]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw how large the gradient of each layer is, next to that of the last layer.

    Args:
        sizes: label of a net -> size of each layer's gradient, from the first layer to the last
            one; layers whose gradient is 0 have no point.
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: one line for each net, over the number of the layer, with powers of ten.

    Raises:
        ValueError: when there is no net, or a last layer without a gradient.
    """
    require(bool(sizes), "sizes", "hold at least one net", {})
    shares = {}
    for label, each in sizes.items():
        numbers = np.asarray(each, float)
        there = numbers.size > 0 and np.isfinite(numbers).all() and numbers[-1] > 0
        must = "have finite gradients and one in the last layer"
        require(bool(there), f"sizes[{label!r}]", must, list(numbers[-3:]))
        shares[label] = numbers / numbers[-1]
    said = "; ".join(f"{label}: {each[0]:.1e} in the first layer" for label, each in shares.items())
    alt = f"Size of the gradient, layer by layer, with 1 in the last layer. {said}."
    drawn, (axes,) = figure(width=8.4, height=3.8, alt=alt)
    for number, (label, each) in enumerate(shares.items()):
        colour, style = _LOOKS[number % len(_LOOKS)]
        layers = np.arange(1, len(each) + 1)
        seen = each > 0
        axes.plot(layers[seen], each[seen], style, color=colour, label=label, markersize=3)
    axes.set_yscale("log")
    axes.set(xlabel="layer (1 sees the image)", ylabel="gradient / that of the last layer")
    axes.set_title("Size of the gradient", loc="left")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return written(drawn, path)


def footprints(found: Iterable[Any], path: str | os.PathLike | None = None) -> Figure:
    """Draw nets by the work of a training step on one image and by the bytes of their gradients.

    Args:
        found: objects with `name`, `gradient_bytes` and `flops_per_gradient_byte`.
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: a point for each net; along a dashed line flops for each byte are equal.

    Raises:
        ValueError: when there is no net.
    """
    rows = list(found)
    require(bool(rows), "found", "hold at least one net", [])
    said = "; ".join(f"{row.name} {row.flops_per_gradient_byte:.0f}" for row in rows)
    alt = f"Work against bytes of gradients. Flops for each byte: {said}."
    drawn, (axes,) = figure(width=7.4, height=4.4, alt=alt)
    for row in rows:
        place = (row.gradient_bytes / 1e6, row.flops_per_gradient_byte * row.gradient_bytes / 1e9)
        axes.plot(*place, "o", color=BLUE)
        words = axes.annotate(row.name, place, (6, -3), textcoords="offset points", fontsize=8)
        words.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85})
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="bytes of gradients (1e6)", ylabel="flops of a training step, one image (1e9)")
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    axes.set(xlim=(left, 2.5 * right), ylim=(low, high))  # room for the names
    for ratio in _RATIOS:
        ends = np.array([left, 2.5 * right])
        axes.plot(ends, ratio * ends / 1e3, "--", color=GREY, linewidth=0.8)
        x = min(0.8 * right, 0.8 * high * 1e3 / ratio)
        words = f"{ratio} flops/byte"
        axes.text(x, ratio * x / 1e3, words, color=GREY, fontsize=8, ha="right", va="bottom")
    axes.set_title("Higher and further left scales better", loc="left")
    return written(drawn, path)
