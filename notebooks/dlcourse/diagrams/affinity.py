"""The map of a node: sockets, NUMA nodes, cores, hardware threads, and which rank uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlguide import plots
from dlguide.errors import require
from dlguide.machine.describe import Machine, describe
from dlguide.machine.threads import roles
from dlguide.machine.threads.explaining import Explanation
from dlguide.machine.threads.planning import ThreadPlan
from dlguide.machine.threads.roles import Role

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Neighbouring ranks differ in lightness as well; the rank's number stands in every box.
_COLOURS = (plots.SKY, "#E69F00", plots.GREEN, plots.PURPLE, "#F0E442", "#A6A6A6")
_ROW = 12  # cores side by side in a box


def affinity(
    layout: ThreadPlan | Explanation, machine: Machine | None = None, title: str = ""
) -> Figure:
    """Draw which rank uses which core of a node.

    A box is a socket's NUMA node, a column in it a core, a cell a hardware thread with the
    number of its logical CPU below the rank's. Colours tell ranks; hatched cells are kept for
    communication; white ones are free; a thick frame marks a CPU that several ranks share, or on
    which one computes where another communicates.

    Args:
        layout: a thread plan or what `threads.explain` gave.
        machine: the machine of a plan, None for this one; an explanation brings its own.
        title: what it is a map of.

    Returns:
        Figure: the map.

    Raises:
        ValueError: when it is neither, or the plan names CPUs the machine does not have.
    """
    known = isinstance(layout, ThreadPlan | Explanation)
    require(known, "layout", "be a ThreadPlan or an Explanation", layout)
    if isinstance(layout, Explanation):
        machine, used = layout.machine, layout.roles
    else:
        machine = describe() if machine is None else machine
        used = roles.of_plan(layout, machine)
    nodes = roles.rows(machine)
    widest = min(max(len(cores) for cores in nodes.values()), _ROW)
    siblings = max(len(core) for cores in nodes.values() for core in cores)
    lines = sum(-(-len(cores) // widest) for cores in nodes.values())
    units = lines * (siblings * 0.9 + 0.25) + 0.75 * len(nodes)
    width, height = max(0.62 * widest + 0.6, 4.5), 0.42 * units + 0.9
    figure, (axes,) = plots.figure(width=width, height=height, alt=_words(machine, used))
    axes.set_axis_off()
    axes.set_title(title or f"{machine.name}: who runs where", fontsize=10)
    top = 0.0
    for (socket, numa), cores in nodes.items():
        top = _node(axes, f"socket {socket}, NUMA node {numa}", cores, used, widest, top)
    margin = max(4 - widest, 0) / 2  # few cores stay small
    axes.set_xlim(-0.3 - margin, widest + 0.3 + margin)
    axes.set_ylim(top, 0.0)
    _legend(axes, used)
    return figure


def _node(
    axes: Axes,
    name: str,
    cores: list[list[int]],
    used: dict[int, Role],
    widest: int,
    top: float,
) -> float:
    """Draw one NUMA node below `top` and return where it ends."""
    from matplotlib.patches import Rectangle

    axes.text(0.0, top + 0.35, name, fontsize=9, va="center")
    y = top + 0.65
    for begin in range(0, len(cores), widest):
        part = cores[begin : begin + widest]
        tall = 0.9 * max(len(core) for core in part)
        for column, core in enumerate(part):
            for row, cpu in enumerate(core):
                _cell(axes, column + 0.06, y + 0.9 * row, cpu, used[cpu])
            frame = {"fill": False, "edgecolor": plots.GREY, "linewidth": 0.7}
            axes.add_patch(Rectangle((column + 0.02, y - 0.03), 0.96, tall + 0.01, **frame))
        y += tall + 0.25
    style = {"fill": False, "edgecolor": "black", "linewidth": 1.0}
    axes.add_patch(Rectangle((-0.15, top + 0.08), widest + 0.3, y - top - 0.13, **style))
    return y + 0.1


def _cell(axes: Axes, x: float, y: float, cpu: int, role: Role) -> None:
    from matplotlib.patches import Rectangle

    ranks = sorted({*role.computes, *role.communicates})
    crowded = role.sign.startswith("!")
    first = [*role.computes, *role.communicates][:1]
    face = _COLOURS[first[0] % len(_COLOURS)] if first else "white"
    axes.add_patch(
        Rectangle(
            (x, y), 0.88, 0.84, facecolor=face,
            hatch="////" if role.communicates else None,
            edgecolor="black" if crowded else plots.GREY, linewidth=2.2 if crowded else 0.4,
        )
    )  # fmt: skip
    who = "+".join(map(str, ranks)) if len(ranks) < 4 else f"{len(ranks)}x"
    box = {"facecolor": face, "edgecolor": "none", "pad": 0.8} if role.communicates else None
    style = {"ha": "center", "va": "center", "fontsize": 8}
    axes.text(x + 0.44, y + 0.3, who, weight="bold", bbox=box, **style)
    axes.text(x + 0.44, y + 0.66, f"{cpu}", **style | {"fontsize": 6, "bbox": box})


def _legend(axes: Axes, used: dict[int, Role]) -> None:
    from matplotlib.patches import Patch

    edge = {"edgecolor": plots.GREY}
    handles = [Patch(facecolor="white", label="bold: rank, small: CPU", linewidth=0)]
    if any(role.communicates for role in used.values()):
        handles.append(Patch(facecolor="white", hatch="////", label="communicates", **edge))
    if any(not role.computes and not role.communicates for role in used.values()):
        handles.append(Patch(facecolor="white", label="free", **edge))
    if any(role.sign.startswith("!") for role in used.values()):
        handles.append(Patch(facecolor="white", edgecolor="black", linewidth=2.2, label="shared"))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
    axes.legend(handles=handles, frameon=False, ncols=4, fontsize=8, **place)


def _words(machine: Machine, used: dict[int, Role]) -> str:
    """Say the map for those who cannot see it."""
    where = {
        cpu: node for node, cores in roles.rows(machine).items() for core in cores for cpu in core
    }
    groups: dict[tuple[str, tuple[int, int]], list[int]] = {}
    for cpu, role in used.items():
        for kind, ranks in (("computes", role.computes), ("communicates", role.communicates)):
            for rank in ranks:
                groups.setdefault((f"Rank {rank} {kind}", where[cpu]), []).append(cpu)
        if not role.computes and not role.communicates:
            groups.setdefault(("Free", where[cpu]), []).append(cpu)
    said = [
        f"{what} on socket {node[0]}, NUMA node {node[1]}: CPUs {roles.short(cpus)}."
        for (what, node), cpus in sorted(groups.items())
    ]
    return "Map of a node. " + " ".join(said)
