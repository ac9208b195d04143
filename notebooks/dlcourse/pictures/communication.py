"""Communication: the steps of collectives, compression, overlap, and ways to exchange gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.pictures.shapes import PAPER, arrow, bare, box, not_empty
from dlguide.errors import require, require_count, require_known
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- collectives ---

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


@not_empty
def collective(panels: Mapping[str, Sequence[Step]], ranks: int = 4) -> Figure:
    """Draw the steps of collectives side by side, time running down.

    A row of small boxes is a rank's array in p parts; the number in a box counts the ranks whose
    numbers are already in it. An arrow is a message, the thicker the more parts it carries.

    Args:
        panels: for each title the steps, as `steps` lists them.
        ranks: number of ranks (count).
    """
    require_count(ranks, "ranks")
    most = max(len(schedule) for schedule in panels.values())
    size = (max(4.6, 1.25 * ranks) * len(panels), 0.8 * (most + 1) + 0.6)
    drawn, grid = figure(1, len(panels), *size, _steps_words(panels))
    for axes, (title, schedule) in zip(grid, panels.items(), strict=True):
        bare(axes, (-0.95, ranks - 0.45), (-most - 0.35, 0.75))
        axes.set_title(title, fontsize=10)
        _steps_panel(axes, schedule, ranks)
    return drawn


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


def _steps_panel(axes: Axes, schedule: Sequence[Step], ranks: int) -> None:
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
                style = {"facecolor": colour, "edgecolor": GREY, "linewidth": 0.7}
                axes.add_patch(Rectangle((left, -level - 0.17), width, 0.34, **style))
                middle = (left + width / 2, -level - 0.01)
                axes.text(*middle, str(len(held)), ha="center", va="center", fontsize=7)
    for level, step in enumerate(schedule):
        for message in step:
            adds, thick = message.adds, 0.7 + 2.3 * len(message.parts) / ranks
            style = {"arrowstyle": "->", "color": BLUE if adds else ORANGE}
            style |= {"linestyle": "-" if adds else "--", "linewidth": thick, "shrinkA": 0}
            start, end = (message.source, -level - 0.19), (message.target, -level - 0.81)
            axes.annotate("", end, start, arrowprops={**style, "shrinkB": 0})


def _steps_words(panels: Mapping[str, Sequence[Step]]) -> str:
    listed = []
    for title, schedule in panels.items():
        summary = []
        for number, step in enumerate(schedule, start=1):
            each = [f"{m.source} to {m.target} parts {_list(m.parts)}" for m in step]
            kind = "to be added" if step and step[0].adds else "to be kept"
            summary.append(f"step {number}, {kind}: rank {', '.join(each)}")
        listed.append(f"{title.replace(chr(10), ' ')}: {'; '.join(summary) or 'no message'}.")
    return "Who sends what to whom. " + " ".join(listed)


def _list(parts: Sequence[int]) -> str:
    return "+".join(map(str, parts))


# --- compression ---

_COMPRESSION_COLOURS, _HATCHES = (
    (BLUE, ORANGE, SKY, GREEN, PURPLE, GREY),
    ("", "//", "..", "xx", "\\\\", "oo"),
)
_MARKS = "os^vD*PX<>hp"


@not_empty
def budget(parts: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw what the time of a step is made of, one bar for each case."""
    names = list(next(iter(parts.values())))
    for case, one in parts.items():
        require(list(one) == names, "parts", f"have the parts {names} in {case!r}", list(one))
    summary = "; ".join(
        f"{case}: {', '.join(f'{name} {1e3 * s:.3g} ms' for name, s in one.items())}"
        for case, one in parts.items()
    )
    drawn, (axes,) = figure(
        width=8.5, height=0.7 + 0.3 * len(parts), alt=f"Parts of a step. {summary}"
    )
    left, wholes = np.zeros(len(parts)), [sum(one.values()) for one in parts.values()]
    for number, name in enumerate(names):
        widths = np.array([1e3 * one[name] for one in parts.values()])
        look = {
            "color": _COMPRESSION_COLOURS[number % 6],
            "hatch": _HATCHES[number % 6],
            "edgecolor": "white",
        }
        axes.barh(range(len(parts)), widths, 0.7, left=left, label=name, linewidth=0, **look)
        left = left + widths
    for place, whole in enumerate(wholes):
        axes.text(left[place], place, f" {1e3 * whole:.0f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(left))
    axes.set_xlabel("milliseconds")
    axes.grid(visible=False)
    legend_above(axes)
    return drawn


@not_empty
def error_feedback(
    given: Mapping[str, Sequence[float]], sent: Mapping[str, Sequence[float]]
) -> Figure:
    """Draw the sums of what was given and sent of some elements, and the error that is kept."""
    require(list(given) == list(sent), "sent", f"have the titles {list(given)}", list(sent))
    for title, one in given.items():
        same = len(sent[title]) == len(one)
        require(same, "sent", f"have {len(one)} steps of {title!r}", len(sent[title]))
    sums = {
        title: (np.cumsum([0, *one]), np.cumsum([0, *sent[title]])) for title, one in given.items()
    }
    summary = "; ".join(
        f"{title}: given {a[-1]:.3g}, sent {b[-1]:.3g}, kept {a[-1] - b[-1]:.3g}"
        for title, (a, b) in sums.items()
    )
    size = {"width": 3.3 * len(given), "height": 2.8}
    drawn, panels = figure(columns=len(given), alt=f"Sums over steps. {summary}", **size)
    for axes, (title, (all_given, all_sent)) in zip(panels, sums.items(), strict=True):
        steps = np.arange(len(all_given))
        look = {"step": "post", "color": "#dddddd", "label": "kept (the error)"}
        axes.fill_between(steps, all_sent, all_given, **look)
        axes.step(steps, all_given, where="post", color=BLUE, label="given so far")
        axes.step(steps, all_sent, "--", where="post", color=ORANGE, label="sent so far")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
    panels[0].set_ylabel("sum of this number")
    panels[0].legend(frameon=False, fontsize=8)
    return drawn


@not_empty
def accuracy_and_bytes(trials: Mapping[str, Sequence[Any]]) -> Figure:
    """Draw the accuracy that each way reached against the bytes of a step."""
    points = {
        way: [(each.nbytes_per_step, 100 * each.accuracy[-1]) for each in found]
        for way, found in trials.items()
    }
    summary = "; ".join(
        f"{way}: {found[0][0]:.0f} bytes, {', '.join(f'{y:.1f}' for _, y in found)} percent"
        for way, found in points.items()
    )
    drawn, (axes,) = figure(width=8.5, height=3.6, alt=f"Accuracy and bytes of a step. {summary}")
    for number, (way, found) in enumerate(points.items()):
        x, y = zip(*found, strict=True)
        look = {"color": _COMPRESSION_COLOURS[number % 6], "marker": _MARKS[number % len(_MARKS)]}
        axes.plot(x, y, linewidth=1, markersize=6, label=way, **look)
    axes.set_xscale("log")
    axes.set_xlabel("bytes that one rank hands over in a step (logarithmic)")
    axes.set_ylabel("test accuracy (%)")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


@not_empty
def seconds_on_links(seconds: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Draw how long each way takes on each link."""
    links = list(next(iter(seconds.values())))
    for way, one in seconds.items():
        require(list(one) == links, "seconds", f"have the links {links} for {way!r}", list(one))
    summary = "; ".join(
        f"{way}: "
        + ", ".join(f"{link} {'never' if s is None else f'{s:.3g} s'}" for link, s in one.items())
        for way, one in seconds.items()
    )
    size = {"width": 8.5, "height": 0.8 + 0.28 * len(seconds)}
    drawn, (axes,) = figure(alt=f"Seconds of each way. {summary}", **size)
    for number, link in enumerate(links):
        there = [
            (one[link], place)
            for place, one in enumerate(seconds.values())
            if one[link] is not None
        ]
        x, y = zip(*there, strict=True) if there else ((), ())
        axes.plot(
            x, y, _MARKS[number], color=_COMPRESSION_COLOURS[number % 6], markersize=7, label=link
        )
    for place, one in enumerate(seconds.values()):
        if all(each is None for each in one.values()):
            words = "not reached"
            axes.text(0.02, place, words, transform=axes.get_yaxis_transform(), va="center")
    axes.set_xscale("log")
    axes.set_yticks(range(len(seconds)), list(seconds))
    axes.set_ylim(len(seconds) - 0.5, -0.5)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("seconds (logarithmic)")
    legend_above(axes)
    return drawn


# --- overlap ---

_ROWS = {"forward": 0, "update": 0, "backward": 0, "exchange": 1}
_OVERLAP_COLOURS = {"backward": ORANGE, "forward": SKY, "update": GREEN, "exchange": BLUE}


@not_empty
def overlap(schedules: Mapping[str, Any]) -> Figure:
    """Draw schedules below each other: computing above, exchange below it.

    All panels have one axis of time and begin with the backward pass. Layers are numbered from
    the input on. Where the upper row is hatched nothing is computed: that time is exposed.

    Args:
        schedules: for each title an `OverlapStep` of `parallel.overlap`, predicted or
            measured: `intervals` with `kind`, `layer`, `start_s` and `end_s`, and the sums.
    """
    for title, schedule in schedules.items():
        require(bool(schedule.intervals), "schedules", "have intervals in each schedule", title)
    drawn, grid = figure(len(schedules), 1, 9.0, 1.35, _overlap_words(schedules))
    longest_s = max(schedule.step_s for schedule in schedules.values())
    for axes, (title, schedule) in zip(grid, schedules.items(), strict=True):
        _overlap_panel(axes, schedule.intervals, longest_s)
        share = f", overlap {schedule.overlap:.2f}" if schedule.exchange_s > 0 else ""
        listed = f"{title}: step {_ms(schedule.step_s)}, exposed {_ms(schedule.exposed_s)}{share}"
        axes.set_title(listed, fontsize=9, loc="left")
    grid[-1].set_xlabel("time (ms)")
    _legend(grid[0], schedules)
    return drawn


def _overlap_panel(axes: Axes, intervals: Sequence[Any], longest_s: float) -> None:
    begin = min(each.start_s for each in intervals)
    end = max(each.end_s for each in intervals)
    computing = sorted((e.start_s, e.end_s) for e in intervals if _ROWS[e.kind] == 0)
    now = begin
    for start, stop in [*computing, (end, end)]:
        if start - now > 0.002 * longest_s:
            style = {"facecolor": "white", "edgecolor": GREY, "hatch": "////", "linewidth": 0.5}
            axes.broken_barh([(1e3 * (now - begin), 1e3 * (start - now))], (-0.4, 0.8), **style)
        now = max(now, stop)
    for each in intervals:
        place = (1e3 * (each.start_s - begin), 1e3 * (each.end_s - each.start_s))
        row = _ROWS[each.kind]
        colour = _OVERLAP_COLOURS[each.kind]
        # a white edge would cover what is hardly wider than the edge
        edge = "white" if each.end_s - each.start_s > 0.01 * longest_s else colour
        style = {"facecolor": colour, "edgecolor": edge, "linewidth": 0.5}
        axes.broken_barh([place], (row - 0.4, 0.8), **style)
        if each.end_s - each.start_s > 0.025 * longest_s and each.kind != "update":
            name = "all" if each.layer is None else str(each.layer)
            ink = "white" if each.kind == "exchange" else "black"
            middle = (place[0] + place[1] / 2, row)
            axes.text(*middle, name, color=ink, ha="center", va="center", fontsize=7)
    axes.set_yticks([0, 1], ["compute", "exchange"])
    axes.set(xlim=(0, 1e3 * longest_s), ylim=(1.5, -0.5))
    axes.grid(visible=False)


def _legend(axes: Axes, schedules: Mapping[str, Any]) -> None:
    from matplotlib.patches import Patch

    kinds = {each.kind for schedule in schedules.values() for each in schedule.intervals}
    handles = [
        Patch(facecolor=c, label=kind) for kind, c in _OVERLAP_COLOURS.items() if kind in kinds
    ]
    handles.append(Patch(facecolor="white", edgecolor=GREY, hatch="////", label="exposed"))
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.12)}
    axes.legend(handles=handles, frameon=False, ncols=5, fontsize=8, **place)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{1e3 * seconds:.0f} ms"


def _overlap_words(schedules: Mapping[str, Any]) -> str:
    listed = [
        f"{title}: step {_ms(one.step_s)}, computing {_ms(one.computing_s)}, exchange "
        f"{_ms(one.exchange_s)} of which {_ms(one.exposed_s)} exposed"
        for title, one in schedules.items()
    ]
    return f"Computing and exchange over time. {'; '.join(listed)}."


# --- exchange ways ---

_ROLES = {"worker": (BLUE, ""), "server": (ORANGE, "//")}


def server_and_allreduce(
    sent: Mapping[str, Mapping[str, float]],
    predicted: Mapping[str, Mapping[str, float]],
    images_per_s: Mapping[str, float],
) -> Figure:
    """Draw bytes of the busiest worker and server of each way, and images/s.

    Args:
        sent: for each way the most bytes in a step that a process of each role sent; a role that
            it has not is left out.
        predicted: the same by a formula, drawn as black marks.
        images_per_s: of each way, over all workers.
    """
    same = bool(sent) and list(sent) == list(images_per_s) and set(predicted) == set(sent)
    require(same, "sent", "name the same ways as the others, at least one", list(sent))
    summary = "; ".join(
        f"{way}: {', '.join(f'{role} {n / 1e6:.2f}e6 bytes' for role, n in each.items())}, "
        f"{images_per_s[way]:.0f} images/s"
        for way, each in sent.items()
    )
    alt = f"Bytes that a process sends in a step, and images/s. {summary}."
    size = {"width": 9.0, "height": 1.2 + 0.42 * len(sent)}
    drawn, (left, right) = figure(columns=2, alt=alt, **size)
    for place, (way, each) in enumerate(sent.items()):
        for at, (role, (colour, hatch)) in zip((-0.2, 0.2), _ROLES.items(), strict=True):
            if role in each:
                look = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": role}
                left.barh(place + at, each[role] / 1e6, 0.36, **look)
            if role in predicted[way]:
                value = predicted[way][role] / 1e6
                left.plot(
                    [value], [place + at], "|", color="black", markersize=13, label="predicted"
                )
        right.barh(place, images_per_s[way], 0.5, color=GREEN)
        right.annotate(
            f"{images_per_s[way]:.0f}", (images_per_s[way], place), (3, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    for axes in (left, right):
        axes.set_yticks(range(len(sent)), list(sent) if axes is left else [])
        axes.set_ylim(len(sent) - 0.4, -0.6)
        axes.grid(visible=False)
    left.set(xlabel="1e6 bytes sent in a step", title="The busiest process of each role")
    right.set(xlabel="images/s, all workers", title="Throughput")
    right.set_xlim(0, 1.15 * max(images_per_s.values()))
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    left.legend(handles.values(), handles.keys(), frameon=False, fontsize=8)
    return drawn


# --- host copies ---

_YELLOW = "#F0E442"
_STOPS = {
    "GPU": ("GPU's\nmemory", SKY),
    "staging": ("host:\npinned", _YELLOW),
    "host": ("host:\npageable", "#E69F00"),
    "card": ("network\ncard", PAPER),
}
# the stops of one side, from the GPU outwards, by the number of copies in the host
_SIDES = {0: ("GPU", "card"), 1: ("GPU", "staging", "card"), 2: ("GPU", "staging", "host", "card")}
_WORDS = {0: "no copy in the host", 1: "1 copy on each side", 2: "2 copies on each side"}


@not_empty
def host_copies(ways: Mapping[str, int]) -> Figure:
    """Draw the stops of a message between the GPUs of two nodes.

    Args:
        ways: copies on each side (0, 1 or 2) by the way's name, such as
            `dlcourse.kvstore.COPIES`.
    """
    known = all(copies in _SIDES for copies in ways.values())
    require(known, "ways", f"have {', '.join(map(str, _SIDES))} copies", dict(ways))
    summary = [
        f"{name}: {' to '.join([*_SIDES[copies], *reversed(_SIDES[copies])])}"
        for name, copies in ways.items()
    ]
    alt = f"Stops of a message from GPU to GPU. {'; '.join(summary)}."
    drawn, (axes,) = figure(width=9.0, height=0.5 + 0.95 * len(ways), alt=alt)
    bare(axes, (-2.5, 7.5), (-0.6, len(ways) - 0.3))
    for row, (name, copies) in enumerate(sorted(ways.items(), key=lambda each: -each[1])):
        height = len(ways) - 1 - row
        axes.text(-2.4, height + 0.12, name, fontsize=10, fontweight="bold", va="bottom")
        axes.text(-2.4, height + 0.06, _WORDS[copies], fontsize=8, va="top")
        stops = _SIDES[copies]
        left = {"GPU": 0.0, "staging": 0.95, "host": 1.9, "card": 2.85}
        places = [(left[stop], stop) for stop in stops]
        places += [(7.0 - left[stop], stop) for stop in reversed(stops)]
        for place, stop in places:
            words, colour = _STOPS[stop]
            box(axes, place, height, words, colour, 0.75, 0.62)
        for (a, _), (b, _) in pairwise(places):
            arrow(axes, (a + 0.39, height), (b - 0.39, height))
    axes.text(0.95, -0.52, "sender", ha="center", fontsize=8, color=GREY)
    axes.text(6.05, -0.52, "receiver", ha="center", fontsize=8, color=GREY)
    axes.text(3.5, -0.52, "network", ha="center", fontsize=8, color=GREY)
    return drawn
