"""Pictures of points in the plane: where they lie densely, and where they should."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require, require_positive
from dlguide.plots.figures import BLUE, ORANGE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_CELLS = 72  # of a panel, along each axis


def densities(
    clouds: Mapping[str, ArrayLike],
    density: Callable[[np.ndarray], np.ndarray] | None = None,
    limit: float = 3.0,
    columns: int = 5,
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw how densely points lie, one panel for each set, and outline where they should lie.

    The shade is the share of the set's points in a cell, a little blurred; each panel has its own
    darkest shade, so compare places within a panel. Points beyond the panel are counted in its
    title. The outline stands where the density is a tenth of its largest value.

    Args:
        clouds: title -> points, shape (samples, 2).
        density: called with points of shape (..., 2), gives the density that is aimed at; None
            for no outline.
        limit: the panels go from -limit to limit along both axes.
        columns: panels in a row (count).
        path: file to write; None for none.

    Returns:
        Figure: the panels, in rows of `columns`.

    Raises:
        ValueError: when there is nothing to draw, or a set has another shape.
    """
    from matplotlib.colors import LinearSegmentedColormap

    require(bool(clouds), "clouds", "hold at least one set of points", {})
    limit = require_positive(limit, "limit")
    sets = {title: np.asarray(points, float) for title, points in clouds.items()}
    for points in sets.values():
        flat = points.ndim == 2 and points.shape[1] == 2 and len(points) > 0
        require(flat, "clouds", "hold points of shape (samples, 2)", points.shape)
    columns = min(columns, len(sets))
    rows = -(-len(sets) // columns)
    said = f"Density of points in the plane, {len(sets)} panels: {'; '.join(sets)}."
    said += " Outlined is where they should lie." if density else ""
    drawn, panels = figure(rows, columns, width=2.1 * columns, height=2.75, alt=said)
    shades = LinearSegmentedColormap.from_list("shades", ["white", BLUE, "black"])
    edges = np.linspace(-limit, limit, _CELLS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    for axes, (title, points) in zip(panels, sets.items(), strict=False):
        counts = np.histogram2d(points[:, 0], points[:, 1], (edges, edges))[0]
        beyond = len(points) - int(counts.sum())
        shares = _blurred(counts.T / len(points))
        axes.imshow(
            shares,
            cmap=shades,
            origin="lower",
            extent=(-limit, limit) * 2,
            interpolation="bilinear",
        )
        if density is not None:
            aim = density(np.stack(np.meshgrid(middles, middles), axis=-1))
            axes.contour(middles, middles, aim, [aim.max() / 10], colors=ORANGE, linewidths=0.8)
        more = f"\n({beyond} beyond)" if beyond else ""
        axes.set_title(f"{title}{more}", fontsize=9)
        axes.set(aspect="equal", xticks=(-2, 0, 2), yticks=(-2, 0, 2))
        axes.tick_params(labelsize=7)
        axes.grid(False)
    for number, axes in enumerate(panels):
        if number >= len(sets):
            axes.set_axis_off()
        else:
            lowest = number + columns >= len(sets)
            axes.set_xlabel("first number" if lowest else "", fontsize=8)
            axes.set_ylabel("second number" if number % columns == 0 else "", fontsize=8)
    return written(drawn, path)


def _blurred(shares: np.ndarray) -> np.ndarray:
    """Spread each cell over its neighbours (1/4, 1/2, 1/4 along each axis); the sum stays."""
    for axis in (0, 1):
        wide = np.pad(shares, [(1, 1) if axis == each else (0, 0) for each in (0, 1)])
        first, middle, last = (np.take(wide, range(k, k + len(shares)), axis) for k in (0, 1, 2))
        shares = first / 4 + middle / 2 + last / 4
    return shares
