"""Processes and ranks: where they run, what they exchange, and when they compute or wait."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse import cpu_map
from dlcourse.cpu_map import CpuUse
from dlcourse.pictures.shapes import (
    AMBER,
    HATCHES,
    PAPER,
    YELLOW,
    area,
    arrow,
    bare,
    box,
    listed,
    middle,
    named_rows,
    not_empty,
    patches,
)
from dlcourse.recipes_2019 import RecipeExplanation
from dlguide.errors import require, require_known
from dlguide.machine.describe import Machine, describe
from dlguide.machine.threads import ThreadPlan
from dlguide.plots.figures import BLUE, COLOURS, GREEN, GREY, ORANGE, PURPLE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- ranks ---

_STATES = {"done": SKY, "waits": ORANGE, "never": "white"}


def processes(engines: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the notebook's kernel and the ranks as what they are: processes with own memories."""
    ranks = len(engines)
    require(ranks > 0, "engines", "hold at least one entry", engines, "Start the cluster.")
    alt = (
        f"The notebook's kernel sends functions to {ranks} ranks and gets results back. Each rank "
        "is a process with its own memory and its own cores. Ranks send messages to each other."
    )
    drawn, (axes,) = figure(width=max(6.0, 2.6 * ranks), height=3.4, alt=alt)
    bare(axes, (-0.6, ranks - 0.4), (-0.75, 2.5))
    centre = (ranks - 1) / 2
    kernel = "this notebook's kernel\na process with the variables of your cells"
    box(axes, centre, 2.0, kernel, PAPER, width=1.3, height=0.6)
    for place, engine in enumerate(engines):
        cpus = ", ".join(str(cpu) for cpu in engine["cpus"])
        text = f"rank {engine['rank']}\nprocess {engine['pid']}\nCPU {cpus}\nits own memory"
        box(axes, place, 0.35, text, SKY, width=0.7, height=0.95)
        arrow(axes, (centre + (place - centre) / ranks, 1.68), (place, 0.85), both=True)
    for place in range(ranks - 1):
        arrow(axes, (place + 0.36, 0.35), (place + 0.64, 0.35), both=True)
        axes.text(place + 0.5, 0.42, "messages", ha="center", va="bottom", fontsize=8)
    axes.text(centre, 1.28, "functions down, results up", ha="center", fontsize=8)
    axes.text(centre, -0.6, f"ranks: {ranks}", ha="center", fontsize=9)
    return drawn


@not_empty
def exchange(
    panels: Mapping[str, tuple[Sequence[Any], Sequence[Any], Sequence[tuple[int, int]]]],
    columns: int = 3,
    by_source: bool = False,
) -> Figure:
    """Draw who has what before and after a communication.

    Args:
        by_source: colour what comes from a rank in the colour of this rank: a list in pieces, a
            result of several ranks as a white box with their colours below.
    """
    alt = "Who has what. " + " ".join(
        f"{title}: before {_said(before)}; after {_said(after)}."
        for title, (before, after, _) in panels.items()
    )
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    widest = max(len(before) for before, _, _ in panels.values())
    drawn, grid = figure(rows, columns, max(1.0 * widest, 3.0) * columns, 2.3, alt)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, (before, after, arrows)) in zip(grid, panels.items(), strict=False):
        ranks = len(before)
        require(len(after) == ranks, "panels", f"have {ranks} ranks after {title}", len(after))
        bare(axes, (-1.05, ranks - 0.45), (-0.45, 1.85))
        axes.set_title(title, fontsize=10)
        for height, name, values in ((1.1, "before", before), (0.0, "after", after)):
            axes.text(-0.55, height, name, ha="right", va="center", fontsize=8)
            for rank, value in enumerate(values):
                if by_source and value is not None:
                    sources = [a for a, b in arrows if b == rank] if name == "after" else [rank]
                    _from_ranks(axes, rank, height, value, sources)
                    continue
                box(axes, rank, height, _short(value), PAPER if value is None else SKY, 0.86, 0.4)
        for rank in range(ranks):
            axes.text(rank, 1.42, f"rank {rank}", ha="center", va="bottom", fontsize=8)
        for start, end in arrows:
            look = {"color": _BY_RANK[start % len(_BY_RANK)]} if by_source else {}
            arrow(axes, (start, 0.88), (end, 0.22), **look)
    return drawn


_BY_RANK = (BLUE, ORANGE, GREEN, PURPLE, GREY, AMBER)


def _from_ranks(axes: Axes, x: float, y: float, value: Any, sources: Sequence[int]) -> None:
    """Draw a box in the colours of the ranks whose data are in it."""
    several = isinstance(value, list) and len(value) == len(sources) > 1
    if len(sources) == 1 or several:
        width = 0.86 / len(sources)
        for place, source in enumerate(sources):
            left, colour = x - 0.43 + place * width, _BY_RANK[source % len(_BY_RANK)]
            area(axes, left, y - 0.2, width, 0.4, colour, alpha=0.45)
            text = str(value[place]) if several else _short(value)
            middle(axes, text, left + width / 2, y)
        return
    box(axes, x, y, _short(value), "white", 0.86, 0.4)
    for place, source in enumerate(sources):
        width, colour = 0.86 / len(sources), _BY_RANK[source % len(_BY_RANK)]
        area(axes, x - 0.43 + place * width, y - 0.2, width, 0.08, colour, linewidth=0)


@not_empty
def timelines(
    panels: Mapping[str, Sequence[Sequence[tuple[str, str]]]], columns: int = 2
) -> Figure:
    """Draw the events of each rank in order, and where it waits indefinitely."""
    alt = "What each rank does. " + " ".join(
        f"{title}: " + "; ".join(f"rank {rank} {_told(row)}" for rank, row in enumerate(rows)) + "."
        for title, rows in panels.items()
    )
    columns = min(columns, len(panels))
    longest = max(len(row) for rows in panels.values() for row in rows)
    tallest = max(len(rows) for rows in panels.values())
    size = (1.35 * longest * columns + 1.0, 0.62 * tallest + 0.5)
    drawn, grid = figure(-(-len(panels) // columns), columns, *size, alt)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, rows) in zip(grid, panels.items(), strict=False):
        bare(axes, (-0.95, longest - 0.45), (0.45 - tallest, 0.5))
        axes.set_title(title, fontsize=10)
        for rank, row in enumerate(rows):
            axes.text(-0.55, -rank, f"rank {rank}", ha="right", va="center", fontsize=8)
            for place, (text, state) in enumerate(row):
                colour = _STATES[require_known(state, _STATES, "state")]
                box(axes, place, -rank, text, colour, 0.92, 0.6, dashed=state == "never")
    return drawn


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return textwrap.fill(text, 8)


def _told(row: Sequence[tuple[str, str]]) -> str:
    words = {"done": "", "waits": " (waits indefinitely)", "never": " (never reached)"}
    return ", then ".join(text.replace("\n", " ") + words.get(state, "") for text, state in row)


def _said(values: Sequence[Any]) -> str:
    described = [f"rank {rank} {'nothing' if v is None else v}" for rank, v in enumerate(values)]
    return ", ".join(described).replace("\n", " ")


# --- affinity ---

# Neighbouring ranks differ in lightness as well; every box has the rank's number.
_AFFINITY_COLOURS = (SKY, AMBER, GREEN, PURPLE, YELLOW, "#A6A6A6")
_ROW = 12  # cores side by side in a box


def affinity(
    layout: ThreadPlan | RecipeExplanation, machine: Machine | None = None, title: str = ""
) -> Figure:
    """Draw which rank uses which core of a node."""
    known = isinstance(layout, ThreadPlan | RecipeExplanation)
    require(known, "layout", "be a ThreadPlan or a RecipeExplanation", layout)
    if isinstance(layout, RecipeExplanation):
        machine, used = layout.machine, layout.uses
    else:
        machine = describe() if machine is None else machine
        used = cpu_map.of_plan(layout, machine)
    nodes = cpu_map.by_node(machine)
    widest = min(max(len(cores) for cores in nodes.values()), _ROW)
    siblings = max(len(core) for cores in nodes.values() for core in cores)
    lines = sum(-(-len(cores) // widest) for cores in nodes.values())
    units = lines * (siblings * 0.9 + 0.25) + 0.75 * len(nodes)
    width, height = max(0.62 * widest + 0.6, 4.5), 0.42 * units + 0.9
    drawn, (axes,) = figure(width=width, height=height, alt=_affinity_words(machine, used))
    axes.set_axis_off()
    axes.set_title(title or f"{machine.name}: who runs where", fontsize=10)
    top = 0.0
    for (socket, numa), cores in nodes.items():
        top = _node(axes, f"socket {socket}, NUMA node {numa}", cores, used, widest, top)
    margin = max(4 - widest, 0) / 2  # few cores stay small
    axes.set_xlim(-0.3 - margin, widest + 0.3 + margin)
    axes.set_ylim(top, 0.0)
    _affinity_legend(axes, used)
    return drawn


def _node(
    axes: Axes,
    name: str,
    cores: list[list[int]],
    used: dict[int, CpuUse],
    widest: int,
    top: float,
) -> float:
    """Draw one NUMA node below `top` and return where it ends."""
    axes.text(0.0, top + 0.35, name, fontsize=9, va="center")
    y = top + 0.65
    for begin in range(0, len(cores), widest):
        part = cores[begin : begin + widest]
        tall = 0.9 * max(len(core) for core in part)
        for column, core in enumerate(part):
            for row, cpu in enumerate(core):
                _cell(axes, column + 0.06, y + 0.9 * row, cpu, used[cpu])
            area(
                axes, column + 0.02, y - 0.03, 0.96, tall + 0.01, "none", fill=False, linewidth=0.7
            )
        y += tall + 0.25
    style = {"edgecolor": "black", "linewidth": 1.0, "fill": False}
    area(axes, -0.15, top + 0.08, widest + 0.3, y - top - 0.13, "none", **style)
    return y + 0.1


def _cell(axes: Axes, x: float, y: float, cpu: int, role: CpuUse) -> None:
    first = [*role.computes, *role.communicates][:1]
    face = _AFFINITY_COLOURS[first[0] % len(_AFFINITY_COLOURS)] if first else "white"
    edge = {"edgecolor": "black", "linewidth": 2.2} if role.shared else {"linewidth": 0.4}
    area(axes, x, y, 0.88, 0.84, face, hatch="////" if role.communicates else None, **edge)
    who = "+".join(map(str, role.ranks)) if len(role.ranks) < 4 else f"{len(role.ranks)}x"
    box = {"facecolor": face, "edgecolor": "none", "pad": 0.8} if role.communicates else None
    middle(axes, who, x + 0.44, y + 0.3, weight="bold", bbox=box)
    middle(axes, f"{cpu}", x + 0.44, y + 0.66, 6, bbox=box)


def _affinity_legend(axes: Axes, used: dict[int, CpuUse]) -> None:
    white = {"facecolor": "white", "edgecolor": GREY}
    looks = {"bold: rank, small: CPU": white | {"linewidth": 0}}
    if any(role.communicates for role in used.values()):
        looks["communicates"] = white | {"hatch": "////"}
    if any(not role.ranks for role in used.values()):
        looks["free"] = white
    if any(role.shared for role in used.values()):
        looks["shared"] = white | {"edgecolor": "black", "linewidth": 2.2}
    patches(axes, looks, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0.0))


def _affinity_words(machine: Machine, used: dict[int, CpuUse]) -> str:
    """Say the map for those who cannot see it."""
    where = {
        cpu: node
        for node, cores in cpu_map.by_node(machine).items()
        for core in cores
        for cpu in core
    }
    groups: dict[tuple[str, tuple[int, int]], list[int]] = {}
    for cpu, role in used.items():
        for kind, ranks in (("computes", role.computes), ("communicates", role.communicates)):
            for rank in ranks:
                groups.setdefault((f"Rank {rank} {kind}", where[cpu]), []).append(cpu)
        if not role.computes and not role.communicates:
            groups.setdefault(("Free", where[cpu]), []).append(cpu)
    described = [
        f"{what} on socket {node[0]}, NUMA node {node[1]}: CPUs {cpu_map.short(cpus)}."
        for (what, node), cpus in sorted(groups.items())
    ]
    return "Map of a node. " + " ".join(described)


# --- pipeline ---

_PIPELINE_COLOURS = {"forward": SKY, "backward": AMBER}


@not_empty
def pipeline(
    panels: Mapping[str, Sequence[Any]], unit_s: float = 1.0, unit: str = "forward times"
) -> Figure:
    """Draw schedules below each other, on one scale of time."""
    most = max(1 + max(cell.stage for cell in cells) for cells in panels.values())
    drawn, grid = figure(len(panels), 1, 9.0, 0.42 * most + 0.95, _pipeline_words(panels))
    end = max(cell.end_s for cells in panels.values() for cell in cells) / unit_s
    for axes, (title, cells) in zip(grid, panels.items(), strict=True):
        for cell in cells:
            start, width = cell.start_s / unit_s, (cell.end_s - cell.start_s) / unit_s
            look = {"edgecolor": "white", "linewidth": 0.8}
            area(axes, start, cell.stage - 0.4, width, 0.8, _PIPELINE_COLOURS[cell.kind], **look)
            if cell.kind == "backward":
                bar = min(width, 0.004 * end)
                area(axes, start, cell.stage - 0.4, bar, 0.8, "black", edgecolor="black")
            if width > 0.018 * end:
                middle(axes, str(cell.microbatch), start + width / 2, cell.stage)
        rows = 1 + max(cell.stage for cell in cells)
        named_rows(axes, [f"stage {stage}" for stage in range(rows)], 0.55)
        axes.set_xlim(0, end)
        axes.set_title(title, fontsize=10)
    grid[-1].set_xlabel(f"time ({unit})")
    looks = {kind: {"facecolor": colour} for kind, colour in _PIPELINE_COLOURS.items()}
    looks["waits"] = {"facecolor": "white", "edgecolor": GREY}
    patches(grid[0], looks, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 0.98))
    return drawn


@not_empty
def layout_steps(predicted: Mapping[str, Sequence[float]], measured: Mapping[str, Any]) -> Figure:
    """Draw the predicted parts of a step for each layout, and the measured time with its range.

    Args:
        predicted: layout -> seconds of computing, exchange and bubble.
        measured: layout -> its timing.
    """
    words = listed(predicted, lambda parts: f"{1e3 * sum(parts):.0f} ms predicted")
    found = ", ".join(f"{name} {1e3 * measured[name].median:.0f} ms" for name in predicted)
    drawn, (axes,) = figure(width=7, height=2.8, alt=f"Step times. {words}. Measured: {found}.")
    looks = (("computing", BLUE), ("exchange", SKY), ("bubble", "#dddddd"))
    for row, (name, parts) in enumerate(predicted.items()):
        left = 0.0
        for seconds, (label, colour) in zip(parts, looks, strict=True):
            look = {"color": colour, "label": label if row == 0 else "_"}
            axes.barh(row, 1e3 * seconds, 0.6, left=left, **look)
            left += 1e3 * seconds
        here = measured[name]
        axes.plot([1e3 * here.low, 1e3 * here.high], [row, row], color=ORANGE, linewidth=3)
        axes.plot(1e3 * here.median, row, "D", color=ORANGE, label="_" if row else "measured")
    named_rows(axes, predicted)
    axes.set(xlabel="ms per step", xlim=(0, None))
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    return drawn


def _pipeline_words(panels: Mapping[str, Sequence[Any]]) -> str:
    described = []
    for title, cells in panels.items():
        rows: dict[int, list[Any]] = {}
        for cell in sorted(cells, key=lambda cell: cell.start_s):
            rows.setdefault(cell.stage, []).append(cell)
        orders = [
            f"stage {stage}: " + " ".join(f"{cell.kind[0]}{cell.microbatch}" for cell in row)
            for stage, row in sorted(rows.items())
        ]
        described.append(f"{title}: {'; '.join(orders)}.")
    return "Schedules, f forward and b backward with the microbatch. " + " ".join(described)


# --- server ---


@not_empty
def worker_timeline(panels: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> Figure:
    """Draw when each worker computed and, between two steps, when it waited for the server."""
    most = max(len(rows) for rows in panels.values())
    size = {"width": 9.0, "height": 0.45 + 0.32 * most}
    drawn, grid = figure(rows=len(panels), alt=_server_words(panels), **size)
    for axes, (title, rows) in zip(grid, panels.items(), strict=True):
        start = min(row[0][0] for row in rows)
        for worker, row in enumerate(rows):
            begins, ends = (1e3 * (np.array(each) - start) for each in zip(*row, strict=True))
            computing = list(zip(begins, ends - begins, strict=True))
            waiting = list(zip(ends[:-1], begins[1:] - ends[:-1], strict=True))
            axes.broken_barh(waiting, (worker - 0.35, 0.7), color="#dddddd")
            axes.broken_barh(
                computing, (worker - 0.35, 0.7), facecolor=BLUE, edgecolor="white", linewidth=0.6
            )
        named_rows(axes, [f"worker {worker}" for worker in range(len(rows))])
        axes.set_title(title, fontsize=9, loc="left")
        axes.sharex(grid[0])
    spans = [max(r[-1][1] for r in rows) - min(r[0][0] for r in rows) for rows in panels.values()]
    grid[0].set_xlim(0, 1020 * max(spans))
    grid[-1].set_xlabel("milliseconds (blue: computes, grey: waits)")
    return drawn


@not_empty
def staleness(values: Mapping[str, Sequence[int]]) -> Figure:
    """Draw how many gradients were how stale."""
    means = listed(values, lambda each: f"mean {np.mean(each):.1f}")
    drawn, (axes,) = figure(width=7.0, height=3.0, alt=f"Staleness of gradients. {means}.")
    wide = 0.8 / len(values)
    for number, (name, each) in enumerate(values.items()):
        counts = np.bincount(np.asarray(each, int))
        places = np.arange(len(counts)) + wide * (number - (len(values) - 1) / 2)
        look = {"color": COLOURS[number % len(COLOURS)], "hatch": HATCHES[number % 3]}
        axes.bar(places, 100 * counts / len(each), wide, label=name, **look)
    axes.set_title("How stale the gradients were", loc="left", fontsize=10)
    axes.set_xlabel("staleness (updates)")
    axes.set_ylabel("percent of the gradients")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)
    return drawn


@not_empty
def delays(
    curves: Mapping[str, Mapping[int, Sequence[float]]], times: Mapping[int, float]
) -> Figure:
    """Draw accuracy against updates for each delay: one rate, then smaller rates and a control.

    Args:
        curves: title -> delay -> accuracy after every fourth update; the third is drawn dashed.
        times: delay -> the first rate as a multiple of the delay's limit.
    """
    ends = listed(curves, lambda each: listed(each, lambda curve: f"{np.mean(curve[-8:]):.2f}"))
    drawn, panels = figure(columns=2, width=9, height=3.2, alt=f"Accuracy at the end. {ends}.")
    places = [(panels[0], "-"), (panels[1], "-"), (panels[1], "--")]
    for (axes, line), (title, each) in zip(places, curves.items(), strict=False):
        for (delay, curve), colour in zip(each.items(), COLOURS, strict=False):
            looks = {"color": colour, "linewidth": 1 if line == "-" else 2}
            name = f"delay {delay}" + f": {times[delay]:.1f} x its limit" * (axes is panels[0])
            axes.plot(
                4 * np.arange(1, len(curve) + 1),
                curve,
                line,
                label=name if line == "-" else "_",
                **looks,
            )
        if line == "-":
            axes.set_title(title, fontsize=10)
        else:
            axes.set_title(f"{axes.get_title()}; dashed: {title}", fontsize=10)
        axes.set(xlabel="updates", ylabel="test accuracy", ylim=(0, 1))
        axes.legend(frameon=False, fontsize=7, loc="lower right")
    return drawn


def _server_words(panels: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> str:
    described = []
    for title, rows in panels.items():
        length = max(row[-1][1] for row in rows) - min(row[0][0] for row in rows)
        shares = []
        for row in rows:
            busy = sum(end - begin for begin, end in row)
            shares.append(f"{100 * busy / (row[-1][1] - row[0][0]):.0f} percent")
        described.append(f"{title}: {1e3 * length:.0f} ms, workers compute {', '.join(shares)}")
    return f"When workers compute. {'; '.join(described)}."
