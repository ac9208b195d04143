"""Pictures of hardware: cores, the catalogue over the years, links, a systolic array."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    figure,
    legend_below,
    written,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = {
    "cpu": (BLUE, "o"),
    "gpu": (ORANGE, "s"),
    "tpu": (GREEN, "^"),
    "asic": (PURPLE, "D"),
    "manycore": (SKY, "v"),
    "ipu": (GREY, "P"),
    "fpga": ("black", "X"),
}
_PALE = "#bcdff5"
_MOST_LABELS = 64  # cores that still get their numbers


def topology(machine: Any, path: str | os.PathLike | None = None) -> Figure:
    """Draw the cores that this process may use: sockets, NUMA nodes, hardware threads.

    Args:
        machine: what `machine.describe` found.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: a box for each socket, in it one for each NUMA node, in it the cores.
    """
    sockets: dict[int, dict[int, dict[int, list[int]]]] = {}
    for each in machine.cores:
        nodes = sockets.setdefault(each.socket, {})
        nodes.setdefault(each.numa, {}).setdefault(each.core, []).append(each.cpu)
    most = max(len(cores) for nodes in sockets.values() for cores in nodes.values())
    across = max(2, math.ceil(math.sqrt(1.6 * most)))
    down = -(-most // across)
    wide, high = across + 0.6, down + 0.9
    columns = max(len(nodes) for nodes in sockets.values())
    caches = ", ".join(f"{kind} {size // 2**10} KiB" for kind, size in machine.caches.items())
    alt = (
        f"{machine.sockets} sockets, {machine.numa_nodes} NUMA nodes, {machine.physical_cores} "
        f"cores, {machine.logical_cores} hardware threads; caches of a core: {caches or 'unknown'}"
    )
    size = min(11.0, max(4.0, 0.62 * columns * wide)), min(9.0, 0.5 * high * len(sockets) + 1.2)
    drawing, (axes,) = figure(width=size[0], height=size[1], alt=alt)
    axes.set_axis_off()
    for row, (socket, nodes) in enumerate(sorted(sockets.items())):
        bottom = -(row + 1) * (high + 1.0)
        _frame(axes, -0.2, bottom - 0.2, columns * (wide + 0.3) + 0.1, high + 0.8, "white")
        axes.text(-0.1, bottom + high + 0.25, f"socket {socket}", fontsize=9, va="center")
        for column, (node, cores) in enumerate(sorted(nodes.items())):
            left = column * (wide + 0.3)
            _frame(axes, left, bottom, wide, high, "#f2f2f2")
            axes.text(left + 0.15, bottom + high - 0.35, f"NUMA node {node}", fontsize=8)
            for number, cpus in enumerate(cores[core] for core in sorted(cores)):
                x = left + 0.3 + number % across
                y = bottom + high - 1.6 - number // across
                _frame(axes, x, y, 0.85, 0.85, SKY)
                if machine.physical_cores <= _MOST_LABELS:
                    told = "\n".join(str(cpu) for cpu in cpus)
                    axes.text(x + 0.42, y + 0.42, told, ha="center", va="center", fontsize=7)
    axes.set_xlim(-0.4, columns * (wide + 0.3) + 0.2)
    axes.set_ylim(-len(sockets) * (high + 1.0) - 0.4, 0.2)
    axes.set_title(f"{machine.processor}; numbers: logical CPUs", fontsize=9)
    told = textwrap.fill(f"caches of a core: {caches or 'unknown'}", 44)
    axes.text(0.5, -0.02, told, transform=axes.transAxes, fontsize=8, ha="center", va="top")
    return written(drawing, path)


def catalogue(
    processors: Sequence[Any],
    labels: Mapping[str, str] | None = None,
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw processors over the years: peak in training, memory bandwidth, and their quotient.

    Args:
        processors: what `machine.catalogue.processors` gave.
        labels: short names to write beside a point, by the processor's name.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: three panels with logarithmic axes; each kind has its colour and marker.

    Raises:
        ValueError: when there is no processor.
    """
    require(bool(processors), "processors", "hold at least one", [])
    alt = (
        f"{len(processors)} processors by year. Peaks in the format for training, bandwidth and "
        "flop per byte; accelerators gained peak faster than bandwidth."
    )
    drawing, panels = figure(columns=3, width=11.5, height=4.2, alt=alt)
    titles = ("peak in training (flop/s)", "memory bandwidth (bytes/s)", "balance (flop/byte)")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_yscale("log")
        axes.set_xlabel("year")
    for each in processors:
        dtype = each.training_format()
        peak = each.flops_per_s[dtype] if dtype else None
        balance = each.balance(dtype) if dtype else None
        colour, marker = _KINDS[each.kind]
        for axes, value in zip(panels, (peak, each.bytes_per_s, balance), strict=True):
            if value is None:
                continue
            style = {"color": colour, "marker": marker, "linestyle": "none", "markersize": 5}
            axes.plot([each.year], [value], **style, label=each.kind)
            if labels and each.name in labels:
                place = {"textcoords": "offset points", "xytext": (4, 3), "fontsize": 7}
                axes.annotate(labels[each.name], (each.year, value), **place)
    years = [each.year for each in processors]
    for axes in panels:
        axes.set_xlim(min(years) - 0.5, max(years) + 1.6)
    legend_below(panels[1])
    return written(drawing, path)


def links(
    graph: Mapping[tuple[int, int], float],
    ring: Sequence[int] = (),
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw devices on a circle and the links between them; a ring through them stands out.

    Args:
        graph: bytes per second by pair of devices.
        ring: devices in the order of a ring, perhaps from `links.best_ring`; () for none.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: thicker lines are faster links; the ring is dashed in another colour over them.
    """
    everyone = sorted({device for pair in graph for device in pair})
    slowest = min(graph.values())
    told = "; ".join(f"{a}-{b} {speed / 1e9:g}e9 bytes/s" for (a, b), speed in graph.items())
    way = f" Ring: {', '.join(map(str, ring))}." if ring else ""
    drawing, (axes,) = figure(width=5.6, height=5.2, alt=f"Graph of links: {told}.{way}")
    axes.set_axis_off()
    axes.set_aspect("equal")
    order = [*ring, *(each for each in everyone if each not in ring)]
    angle = {each: 2 * math.pi * k / len(order) for k, each in enumerate(order)}
    place = {each: (math.sin(a), math.cos(a)) for each, a in angle.items()}
    for (a, b), speed in graph.items():
        (x, y), (u, v) = place[a], place[b]
        width = 3.0 * speed / slowest
        axes.plot([x, u], [y, v], color=_PALE, linewidth=width, zorder=1)
        middle = (0.62 * x + 0.38 * u, 0.62 * y + 0.38 * v)
        axes.text(*middle, f"{speed / 1e9:g}", fontsize=7, ha="center", va="center", zorder=3)
    for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True):
        (x, y), (u, v) = place[a], place[b]
        axes.plot([x, u], [y, v], color=ORANGE, linewidth=1.8, linestyle="--", zorder=2)
    for each, (x, y) in place.items():
        axes.plot([x], [y], "o", markersize=24, color="#f2f2f2", markeredgecolor=GREY, zorder=4)
        axes.text(x, y, str(each), ha="center", va="center", fontsize=10, zorder=5)
    axes.set_title("links in 1e9 bytes/s, both directions; dashed: the ring", fontsize=9)
    return written(drawing, path)


def systolic(
    clocks: Sequence[Any],
    weights: Sequence[Sequence[int]],
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw some clocks of a systolic array side by side.

    Args:
        clocks: some of what `systolic.clocks` gave.
        weights: the number that each cell keeps.
        path: a file to write, its ending names the format; None for none.

    Returns:
        Figure: for each clock the cells with input x weight and the sum they hand down; idle
        cells are white; below, what has left so far.

    Raises:
        ValueError: when there is no clock.
    """
    require(bool(clocks), "clocks", "hold at least one", [])
    alt = "A systolic array. " + " ".join(
        f"Clock {each.number}: {each.busy} cells multiply." for each in clocks
    )
    drawing, panels = figure(columns=len(clocks), width=3.4 * len(clocks), height=4.6, alt=alt)
    depth, columns = len(weights), len(weights[0])
    for axes, each in zip(panels, clocks, strict=True):
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set_title(f"clock {each.number}: {each.busy} of {depth * columns} cells", fontsize=9)
        for k in range(depth):
            for n in range(columns):
                entered, total = each.inputs[k][n], each.sums[k][n]
                idle = entered is None
                _frame(axes, n, -k, 0.92, 0.92, "white" if idle else SKY)
                text = f"{weights[k][n]}" if idle else f"{entered} x {weights[k][n]}\n↓ {total}"
                colour = GREY if idle else "black"
                place = (n + 0.46, -k + 0.46)
                axes.text(*place, text, ha="center", va="center", fontsize=8, color=colour)
        for m, row in enumerate(each.results):
            for n, value in enumerate(row):
                done = "·" if value is None else str(value)
                place = (n + 0.46, -depth - 0.05 - 0.42 * m)
                axes.text(*place, done, ha="center", va="center", fontsize=8, color=BLUE)
        axes.set_xlim(-0.1, columns + 0.1)
        axes.set_ylim(-depth - 0.42 * len(each.results) - 0.1, 1.05)
    return written(drawing, path)


def _frame(axes: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle((x, y), width, height, facecolor=colour, edgecolor=GREY, linewidth=0.8)
    axes.add_patch(box)
