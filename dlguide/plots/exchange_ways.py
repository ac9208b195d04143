"""Ways to exchange gradients side by side: what they send, and how fast they train."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, ORANGE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROLES = {"worker": (BLUE, ""), "server": (ORANGE, "//")}


def exchange_ways(
    sent: Mapping[str, Mapping[str, float]],
    predicted: Mapping[str, Mapping[str, float]],
    images_per_s: Mapping[str, float],
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw bytes of the busiest worker and server of each way, and images/s.

    Args:
        sent: for each way the most bytes in a step that a process of each role sent; a role that
            it has not is left out.
        predicted: the same as a formula says it; drawn as black marks.
        images_per_s: of each way, over all workers.
        path: file to write; None for none.

    Returns:
        Figure: bars of bytes on the left, of images/s on the right.

    Raises:
        ValueError: when there is no way, or the three do not name the same.
    """
    same = bool(sent) and list(sent) == list(images_per_s) and set(predicted) == set(sent)
    require(same, "sent", "name the same ways as the others, at least one", list(sent))
    told = "; ".join(
        f"{way}: {', '.join(f'{role} {n / 1e6:.2f}e6 bytes' for role, n in each.items())}, "
        f"{images_per_s[way]:.0f} images/s"
        for way, each in sent.items()
    )
    alt = f"Bytes that a process sends in a step, and images/s. {told}."
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
    return written(drawn, path)
