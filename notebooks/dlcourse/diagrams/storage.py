"""A parallel file system: who is asked for what, and where the stripes of a file lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlcourse.diagrams.shapes import PAPER, arrow, bare, box
from dlguide import plots
from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_YELLOW = "#F0E442"
_FILLS = (plots.SKY, "#E69F00", _YELLOW, plots.PURPLE, PAPER)


def file_system(nodes: int = 4, targets: int = 6) -> Figure:
    """Draw how a node opens and reads a file of Lustre.

    Args:
        nodes: compute nodes (count).
        targets: object storage targets (count), at least 2.

    Returns:
        Figure: nodes above, the metadata server and the targets below, three numbered arrows.
    """
    require_count(nodes, "nodes")
    require_count(targets, "targets", least=2)
    alt = (
        f"{nodes} nodes above, one metadata server and {targets} object storage targets below, a "
        "network between them. Arrow 1: a node asks the metadata server to open a file. Arrow 2: "
        "it answers where the stripes lie. Arrow 3: the node reads them from the targets."
    )
    figure, (axes,) = plots.figure(width=9.0, height=3.0, alt=alt)
    wide = targets + 2.4
    bare(axes, (-0.9, wide - 0.6), (-0.5, 2.75))
    places = [1.0 + (wide - 2.6) * (node + 0.5) / nodes for node in range(nodes)]
    for node, place in enumerate(places):
        box(axes, place, 2.4, f"node {node}", plots.SKY, 0.9, 0.4)
    box(axes, wide / 2 - 0.75, 1.75, "network", PAPER, wide, 0.24)
    knows = "metadata server\nnames, folders,\nwho may read,\nwhere it lies"
    box(axes, 0.0, 0.1, knows, _YELLOW, 1.5, 1.0)
    for target in range(targets):
        box(axes, 2.0 + target, 0.1, f"OST {target}\nbytes", "#E69F00", 0.85, 0.6)
    first = places[0]
    arrow(axes, (first - 0.3, 2.2), (-0.25, 0.62))
    arrow(axes, (0.25, 0.62), (first, 2.2))
    for target in (0, 1):
        arrow(axes, (2.0 + target, 0.42), (first + 0.2 + 0.1 * target, 2.2))
    says = {"ha": "left", "va": "center", "fontsize": 8}
    axes.text(-0.7, 1.15, "1 open it", **says)
    axes.text(0.62, 0.78, "2 it lies on\nOST 0 and 1", **says)
    axes.text(2.75, 1.15, "3 read: from here on the metadata server is not asked", **says)
    return figure


def striping(panels: Mapping[str, Sequence[tuple[int, int]]], targets: int = 4) -> Figure:
    """Draw on which targets the stripes of files lie.

    The first stripe of each file lies on the target after that of the file before; the next ones
    follow in turn over as many targets as the file's stripe count says.

    Args:
        panels: for each title its files: (stripes that the file has, its stripe count).
        targets: object storage targets (count).

    Returns:
        Figure: one panel for each title; a column is a target, a box a stripe with the name of its
        file and its number.

    Raises:
        ValueError: when a stripe count is not of 1 to `targets`.
    """
    require(bool(panels), "panels", "hold at least one layout", {})
    laid = {title: _laid(files, targets) for title, files in panels.items()}
    highest = max(len(column) for columns in laid.values() for column in columns)
    said = "; ".join(
        f"{title}: "
        + ", ".join(f"OST {i} has {' '.join(c) or 'nothing'}" for i, c in enumerate(cs))
        for title, cs in laid.items()
    )
    size = {"width": 3.1 * len(panels), "height": 0.55 + 0.3 * (highest + 1)}
    figure, grid = plots.figure(columns=len(panels), alt=f"Stripes on targets. {said}.", **size)
    for axes, (title, columns) in zip(grid, laid.items(), strict=True):
        bare(axes, (-0.6, targets - 0.4), (-1.1, highest - 0.3))
        axes.set_title(title, fontsize=9)
        for target, column in enumerate(columns):
            axes.text(target, -0.8, f"OST {target}", ha="center", va="center", fontsize=8)
            for height, stripe in enumerate(column):
                fill = _FILLS[(ord(stripe[0]) - ord("a")) % len(_FILLS)]
                box(axes, target, height, stripe, fill, 0.9, 0.8)
    return figure


def _laid(files: Sequence[tuple[int, int]], targets: int) -> list[list[str]]:
    require_count(targets, "targets")
    require(0 < len(files) <= 26, "panels", "have 1 to 26 files in each", len(files))
    columns: list[list[str]] = [[] for _ in range(targets)]
    for number, (stripes, count) in enumerate(files):
        fits = 1 <= require_count(count, "stripe count") <= targets
        require(fits, "stripe count", f"be at most the {targets} targets", count)
        for stripe in range(require_count(stripes, "stripes")):
            name = f"{chr(ord('a') + number)}{stripe}"
            columns[(number + stripe % count) % targets].append(name)
    return columns
