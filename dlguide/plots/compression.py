"""Sending less: where a step's time goes, what waits in the error, what accuracy costs in bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    figure,
    legend_above,
    written,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS, _HATCHES = (BLUE, ORANGE, SKY, GREEN, PURPLE, GREY), ("", "//", "..", "xx", "\\\\", "oo")
_MARKS = "os^vD*PX<>hp"


def budget(
    parts: Mapping[str, Mapping[str, float]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw what the time of a step is made of, one bar for each case."""
    require(bool(parts), "parts", "hold at least one case", {})
    names = list(next(iter(parts.values())))
    for case, one in parts.items():
        require(list(one) == names, "parts", f"have the parts {names} in {case!r}", list(one))
    told = "; ".join(
        f"{case}: {', '.join(f'{name} {1e3 * s:.3g} ms' for name, s in one.items())}"
        for case, one in parts.items()
    )
    drawn, (axes,) = figure(
        width=8.5, height=0.7 + 0.3 * len(parts), alt=f"Parts of a step. {told}"
    )
    left, wholes = np.zeros(len(parts)), [sum(one.values()) for one in parts.values()]
    for number, name in enumerate(names):
        widths = np.array([1e3 * one[name] for one in parts.values()])
        look = {"color": _COLOURS[number % 6], "hatch": _HATCHES[number % 6], "edgecolor": "white"}
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
    return written(drawn, path)


def error_feedback(
    given: Mapping[str, Sequence[float]],
    sent: Mapping[str, Sequence[float]],
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw for some numbers of a gradient what was given so far, what was sent, and what waits."""
    require(bool(given), "given", "hold at least one number", {})
    require(list(given) == list(sent), "sent", f"have the titles {list(given)}", list(sent))
    for title, one in given.items():
        same = len(sent[title]) == len(one)
        require(same, "sent", f"have {len(one)} steps of {title!r}", len(sent[title]))
    sums = {
        title: (np.cumsum([0, *one]), np.cumsum([0, *sent[title]])) for title, one in given.items()
    }
    told = "; ".join(
        f"{title}: given {a[-1]:.3g}, sent {b[-1]:.3g}, kept {a[-1] - b[-1]:.3g}"
        for title, (a, b) in sums.items()
    )
    size = {"width": 3.3 * len(given), "height": 2.8}
    drawn, panels = figure(columns=len(given), alt=f"Sums over steps. {told}", **size)
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
    return written(drawn, path)


def accuracy_and_bytes(
    trials: Mapping[str, Sequence[Any]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw the accuracy that each way reached against the bytes of a step."""
    filled = bool(trials) and all(len(each) > 0 for each in trials.values())
    require(filled, "trials", "hold a training of every way", dict(trials))
    points = {
        way: [(each.nbytes_per_step, 100 * each.accuracy[-1]) for each in found]
        for way, found in trials.items()
    }
    told = "; ".join(
        f"{way}: {found[0][0]:.0f} bytes, {', '.join(f'{y:.1f}' for _, y in found)} percent"
        for way, found in points.items()
    )
    drawn, (axes,) = figure(width=8.5, height=3.6, alt=f"Accuracy against bytes of a step. {told}")
    for number, (way, found) in enumerate(points.items()):
        x, y = zip(*found, strict=True)
        look = {"color": _COLOURS[number % 6], "marker": _MARKS[number % len(_MARKS)]}
        axes.plot(x, y, linewidth=1, markersize=6, label=way, **look)
    axes.set_xscale("log")
    axes.set_xlabel("bytes that one rank hands over in a step (logarithmic)")
    axes.set_ylabel("test accuracy (%)")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return written(drawn, path)


def seconds_on_links(
    seconds: Mapping[str, Mapping[str, float | None]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw how long each way takes on each link."""
    require(bool(seconds), "seconds", "hold at least one way", {})
    links = list(next(iter(seconds.values())))
    for way, one in seconds.items():
        require(list(one) == links, "seconds", f"have the links {links} for {way!r}", list(one))
    told = "; ".join(
        f"{way}: "
        + ", ".join(f"{link} {'never' if s is None else f'{s:.3g} s'}" for link, s in one.items())
        for way, one in seconds.items()
    )
    size = {"width": 8.5, "height": 0.8 + 0.28 * len(seconds)}
    drawn, (axes,) = figure(alt=f"Seconds of each way. {told}", **size)
    for number, link in enumerate(links):
        there = [
            (one[link], place)
            for place, one in enumerate(seconds.values())
            if one[link] is not None
        ]
        x, y = zip(*there, strict=True) if there else ((), ())
        axes.plot(x, y, _MARKS[number], color=_COLOURS[number % 6], markersize=7, label=link)
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
    return written(drawn, path)
