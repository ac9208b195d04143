"""How a training that does not fit into one job's time passes: what waits, works and is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlguide import plots
from dlguide.errors import require, require_count, require_positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "queue": ("white", ""),
    "staging": (plots.ORANGE, "//"),
    "start": (plots.PURPLE, ""),
    "training": (plots.BLUE, ""),
    "lost": ("black", ""),
}


@dataclass(frozen=True)
class Span:
    """What a training does for a while."""

    kind: str
    job: int
    start_s: float
    end_s: float


def spans(
    epochs: int,
    epoch_s: float,
    limit_s: float,
    before: Mapping[str, float],
    per_job: int | None = None,
) -> list[Span]:
    """Tell how a training of several jobs passes that saves after each epoch."""
    require_count(epochs, "epochs")
    require_positive(epoch_s, "epoch_s")
    room_s = require_positive(limit_s, "limit_s") - before["staging"] - before["start"]
    most = math.floor(room_s / epoch_s)
    wanted = 1 if per_job is None else require_count(per_job, "per_job")
    must = f"leave time for {wanted} epochs of {epoch_s:g} s"
    require(most >= wanted, "limit_s", must, limit_s, "Save more often, or ask for more time.")
    found: list[Span] = []
    now_s, done, job = 0.0, 0, 0
    while done < epochs:
        job += 1
        trained = min(epochs - done, most if per_job is None else per_job)
        done += trained
        lost_s = room_s - trained * epoch_s if per_job is None and done < epochs else 0.0
        lasts = {**before, "training": trained * epoch_s, "lost": lost_s}
        for kind in KINDS:
            if lasts[kind] > 0:
                found.append(Span(kind, job, now_s, now_s + lasts[kind]))
                now_s += lasts[kind]
    return found


def totals(found: Sequence[Span]) -> dict[str, float]:
    """Sum the seconds of each kind."""
    return {
        kind: sum(each.end_s - each.start_s for each in found if each.kind == kind)
        for kind in KINDS
    }


def draw(ways: Mapping[str, Sequence[Span]], unit_s: float = 3600.0, unit: str = "h") -> Figure:
    """Draw trainings as bars below each other, on one scale of time."""
    from matplotlib.patches import Patch

    require(bool(ways), "ways", "hold at least one", {})
    ends = {name: found[-1].end_s / unit_s for name, found in ways.items()}
    said = "; ".join(
        f"{name}: {ends[name]:.3g} {unit}, {found[-1].job} jobs" for name, found in ways.items()
    )
    alt = f"How trainings pass. {said}."
    figure, (axes,) = plots.figure(width=8, height=0.5 * len(ways) + 1.3, alt=alt)
    for row, found in enumerate(ways.values()):
        for each in found:
            colour, hatch = KINDS[each.kind]
            axes.barh(
                row, (each.end_s - each.start_s) / unit_s, left=each.start_s / unit_s, height=0.6,
                color=colour, hatch=hatch, edgecolor="black", linewidth=0.5,
            )  # fmt: skip
    axes.set_yticks(range(len(ways)), list(ways))
    axes.set(xlabel=f"time ({unit})", xlim=(0, None), ylim=(len(ways) - 0.5, -0.5))
    axes.grid(visible=False)
    there = {each.kind for found in ways.values() for each in found}
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=kind)
        for kind, (colour, hatch) in KINDS.items()
        if kind in there
    ]
    axes.set_title("How the trainings pass", fontsize=10, loc="left")
    figure.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8,
    )  # fmt: skip
    return figure
