"""Who copies what: the way of a message from one GPU to another, through the host or not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from dlcourse.diagrams.shapes import PAPER, arrow, bare, box
from dlguide import plots
from dlguide.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_YELLOW = "#F0E442"
_STOPS = {
    "GPU": ("GPU's\nmemory", plots.SKY),
    "staging": ("host:\npinned", _YELLOW),
    "host": ("host:\npageable", "#E69F00"),
    "card": ("network\ncard", PAPER),
}
# the stops of one side, from the GPU outwards, by the number of copies in the host
_SIDES = {0: ("GPU", "card"), 1: ("GPU", "staging", "card"), 2: ("GPU", "staging", "host", "card")}
_WORDS = {0: "no copy in the host", 1: "1 copy on each side", 2: "2 copies on each side"}


def host_copies(ways: Mapping[str, int]) -> Figure:
    """Draw the stops of a message between the GPUs of two nodes.

    Args:
        ways: copies on each side (0, 1 or 2) by the way's name, such as
            `parallel.host_copies.WAYS`.

    Returns:
        Figure: one row for each way: the sender's stops on the left, the receiver's on the right.

    Raises:
        ValueError: when there is no way, or a number of copies that has no picture.
    """
    require(bool(ways), "ways", "hold at least one way", dict(ways))
    known = all(copies in _SIDES for copies in ways.values())
    require(known, "ways", f"have {', '.join(map(str, _SIDES))} copies", dict(ways))
    told = [
        f"{name}: {' to '.join([*_SIDES[copies], *reversed(_SIDES[copies])])}"
        for name, copies in ways.items()
    ]
    alt = f"Stops of a message from GPU to GPU. {'; '.join(told)}."
    figure, (axes,) = plots.figure(width=9.0, height=0.5 + 0.95 * len(ways), alt=alt)
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
    axes.text(0.95, -0.52, "sender", ha="center", fontsize=8, color=plots.GREY)
    axes.text(6.05, -0.52, "receiver", ha="center", fontsize=8, color=plots.GREY)
    axes.text(3.5, -0.52, "network", ha="center", fontsize=8, color=plots.GREY)
    return figure
