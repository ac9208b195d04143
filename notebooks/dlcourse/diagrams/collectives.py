"""The steps of an allreduce: who sends which parts to whom, and what everyone has afterwards.

The array of every rank is cut into p parts. A tuple of messages at the same time is a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dlcourse.diagrams.shapes import bare
from dlguide import plots
from dlguide.errors import require, require_count, require_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From few to all contributions; dark enough to differ in grey, light enough for black numbers.
_LIGHT, _DARK = (1.0, 1.0, 1.0), (0.34, 0.71, 0.91)


@dataclass(frozen=True)
class Message:
    """One message of a step.

    Args:
        source: the rank that sends.
        target: the rank that receives.
        parts: numbers of the parts that it carries.
        adds: whether the target adds them to its own; otherwise it takes them instead.
    """

    source: int
    target: int
    parts: tuple[int, ...]
    adds: bool


Step = tuple[Message, ...]


def steps(name: str, ranks: int = 4, ranks_per_node: int = 2) -> tuple[Step, ...]:
    """List the messages of an allreduce, step by step."""
    ways: dict[str, Callable[[], list[Step]]] = {
        "tree": partial(_tree, range(ranks), ranks),
        "ring": partial(_ring, range(ranks), ranks),
        "recursive_doubling": partial(_doubling, ranks),
        "halving_doubling": partial(_halving, ranks),
        "hierarchical": partial(_hierarchical, ranks, ranks_per_node),
    }
    require_known(name, ways, "name")
    require_count(ranks, "ranks")
    if name.endswith("_doubling"):
        require(ranks & (ranks - 1) == 0, "ranks", "be a power of two for this picture", ranks)
    if name == "hierarchical":
        require_count(ranks_per_node, "ranks_per_node")
        text = "fill whole nodes"
        require(ranks % ranks_per_node == 0, "ranks", f"{text} of {ranks_per_node}", ranks)
    return tuple(ways[name]())


def contributions(
    schedule: Sequence[Step], ranks: int
) -> tuple[tuple[tuple[frozenset[int], ...], ...], ...]:
    """Play the steps: whose numbers are in each part of each rank, at first and after each step."""
    now = [[frozenset({rank})] * ranks for rank in range(ranks)]
    course = [tuple(map(tuple, now))]
    for step in schedule:
        before = course[-1]
        for message in step:
            for part in message.parts:
                come, own = before[message.source][part], now[message.target][part]
                if message.adds:
                    text = "add every rank's numbers once"
                    require(not come & own, "schedule", text, sorted(come & own))
                    come = come | own
                now[message.target][part] = come
        course.append(tuple(map(tuple, now)))
    return tuple(course)


def collective(panels: Mapping[str, Sequence[Step]], ranks: int = 4) -> Figure:
    """Draw the steps of collectives side by side, time running down.

    A row of small boxes is a rank's array in p parts; the number in a box counts the ranks whose
    numbers are already in it. An arrow is a message, the thicker the more parts it carries.

    Args:
        panels: for each title the steps, as `steps` lists them.
        ranks: number of ranks (count).

    Returns:
        Figure: one panel for each title.

    Raises:
        ValueError: when there is nothing to draw.
    """
    require(bool(panels), "panels", "hold at least one collective", {})
    require_count(ranks, "ranks")
    most = max(len(schedule) for schedule in panels.values())
    size = (max(4.6, 1.25 * ranks) * len(panels), 0.8 * (most + 1) + 0.6)
    figure, grid = plots.figure(1, len(panels), *size, _words(panels))
    for axes, (title, schedule) in zip(grid, panels.items(), strict=True):
        bare(axes, (-0.95, ranks - 0.45), (-most - 0.35, 0.75))
        axes.set_title(title, fontsize=10)
        _panel(axes, schedule, ranks)
    return figure


def _tree(members: Sequence[int], ranks: int) -> list[Step]:
    up, distance, everything = [], 1, tuple(range(ranks))
    while distance < len(members):
        pairs = range(0, len(members) - distance, 2 * distance)
        up.append(
            tuple(Message(members[i + distance], members[i], everything, True) for i in pairs)
        )
        distance *= 2
    down = [tuple(Message(m.target, m.source, m.parts, False) for m in step) for step in up]
    return up + down[::-1]


def _ring(members: Sequence[int], ranks: int) -> list[Step]:
    size, found = len(members), []
    bounds = [place * ranks // size for place in range(size + 1)]
    for adds in (True, False):
        for step in range(size - 1):
            messages = []
            for place, member in enumerate(members):
                part = (place - step - adds) % size
                carried = tuple(range(bounds[part], bounds[part + 1]))
                messages.append(Message(member, members[(place + 1) % size], carried, adds))
            found.append(tuple(messages))
    return found


def _doubling(ranks: int) -> list[Step]:
    everything = tuple(range(ranks))
    return [
        tuple(Message(rank, rank ^ 1 << power, everything, True) for rank in range(ranks))
        for power in range(ranks.bit_length() - 1)
    ]


def _halving(ranks: int) -> list[Step]:
    ways, distance = [], ranks // 2
    while distance:
        # a rank keeps the half on its own side and sends the other; both are `distance` long
        step = []
        for rank in range(ranks):
            partner = rank ^ distance
            start = partner // distance * distance
            parts = tuple(range(start, start + distance))
            step.append(Message(rank, partner, parts, True))
        ways.append(tuple(step))
        distance //= 2
    back = [
        tuple(Message(m.target, m.source, m.parts, False) for m in step) for step in reversed(ways)
    ]
    return ways + back


def _hierarchical(ranks: int, ranks_per_node: int) -> list[Step]:
    nodes = [range(start, start + ranks_per_node) for start in range(0, ranks, ranks_per_node)]
    inside = [sum(step, ()) for step in zip(*(_tree(node, ranks) for node in nodes), strict=True)]
    half = len(inside) // 2
    return [*inside[:half], *_ring([node[0] for node in nodes], ranks), *inside[half:]]


def _panel(axes: Axes, schedule: Sequence[Step], ranks: int) -> None:
    from matplotlib.patches import Rectangle

    width = 0.74 / ranks
    for rank in range(ranks):
        axes.text(rank, 0.32, f"rank {rank}", ha="center", va="bottom", fontsize=8)
    for level, state in enumerate(contributions(schedule, ranks)):
        axes.text(
            -0.5,
            -level,
            f"step {level}" if level else "before",
            ha="right",
            va="center",
            fontsize=8,
        )
        for rank, parts in enumerate(state):
            for part, held in enumerate(parts):
                left = rank - 0.37 + part * width
                share = (len(held) - 1) / max(1, ranks - 1)
                colour = [a + share * (b - a) for a, b in zip(_LIGHT, _DARK, strict=True)]
                style = {"facecolor": colour, "edgecolor": plots.GREY, "linewidth": 0.7}
                axes.add_patch(Rectangle((left, -level - 0.17), width, 0.34, **style))
                middle = (left + width / 2, -level - 0.01)
                axes.text(*middle, str(len(held)), ha="center", va="center", fontsize=7)
    for level, step in enumerate(schedule):
        for message in step:
            adds, thick = message.adds, 0.7 + 2.3 * len(message.parts) / ranks
            style = {"arrowstyle": "->", "color": plots.BLUE if adds else plots.ORANGE}
            style |= {"linestyle": "-" if adds else "--", "linewidth": thick, "shrinkA": 0}
            start, end = (message.source, -level - 0.19), (message.target, -level - 0.81)
            axes.annotate("", end, start, arrowprops={**style, "shrinkB": 0})


def _words(panels: Mapping[str, Sequence[Step]]) -> str:
    said = []
    for title, schedule in panels.items():
        told = []
        for number, step in enumerate(schedule, start=1):
            each = [f"{m.source} to {m.target} parts {_list(m.parts)}" for m in step]
            kind = "to be added" if step and step[0].adds else "to be kept"
            told.append(f"step {number}, {kind}: rank {', '.join(each)}")
        said.append(f"{title.replace(chr(10), ' ')}: {'; '.join(told) or 'no message'}.")
    return "Who sends what to whom. " + " ".join(said)


def _list(parts: Sequence[int]) -> str:
    return "+".join(map(str, parts))
