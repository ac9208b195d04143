"""Scaling: our throughput on more ranks beside that of the published tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlguide import published
from dlguide.errors import require, require_known
from dlguide.training.experiments.record import Result
from dlguide.training.experiments.tables import table

THESIS = "Horovod 0.15.2 + PyTorch 1.0.0"


@dataclass(frozen=True)
class Step:
    """So many workers: speed-up over one, and efficiency, ours and theirs; None where not known.

    workers (count), speed_up, efficiency (speed-up / workers), and the same published.
    """

    workers: int
    speed_up: float | None
    efficiency: float | None
    published_speed_up: float | None
    published_efficiency: float | None


@dataclass(frozen=True)
class Scaling:
    """Steps of rising numbers of workers, and the framework of the published ones."""

    steps: tuple[Step, ...]
    framework: str

    def __str__(self) -> str:
        lines, common = [], []
        for step in self.steps[1:]:
            told = []
            if step.speed_up is not None:
                told.append(f"ours {step.speed_up:.2f} times one ({100 * step.efficiency:.0f} %)")
            if step.published_speed_up is not None:
                percent = 100 * step.published_efficiency
                told.append(f"{self.framework} {step.published_speed_up:.2f} ({percent:.0f} %)")
            if len(told) == 2:
                common.append(step)
            lines.append(f"{step.workers} workers: {', '.join(told)}")
        for step in common[-1:]:
            apart = 100 * (step.efficiency - step.published_efficiency)
            told = f"{abs(apart):.0f} points {'above' if apart > 0 else 'below'} theirs"
            lines.append(f"With {step.workers} workers our efficiency is {told}.")
        if not common:
            lines.append("No number of workers is common to both.")
        return "\n".join(lines)


def against_throughput(
    results: Sequence[Result], framework: str = THESIS, batch: int = 128
) -> Scaling:
    """Put the speed-up on several ranks beside a published one.

        speed-up = images/s of p workers / images/s of one,  efficiency = speed-up / p

    Args:
        results: that differ in `ranks` and seed only, 1 rank among them.
        framework: of the published table "throughput", as it stands there.
        batch: images per worker of the published one (count).

    Returns:
        Scaling: prints as lines.

    Raises:
        ValueError: when there is no run on 1 rank, or nothing published on one worker.

    Source:
        The thesis, Tables 1 to 9; the guide, Tables 8 and 9.
    """
    rows = published.load("throughput")
    require_known(framework, {row["framework"] for row in rows}, "framework")
    theirs = {
        row["workers"]: row["images_per_s"]
        for row in rows
        if row["framework"] == framework and row["batch_per_worker"] == batch
    }
    must = f"be one that was published for 1 worker of {framework}"
    require(1 in theirs, "batch", must, batch, "Look at `published.load('throughput')`.")
    named = {row.name: row.images_per_s for row in table(results, by="ranks")}
    ours = {int(name.split()[1]): speed for name, speed in named.items() if speed is not None}
    require(1 in ours, "results", "hold a run of 1 rank that came through", sorted(ours))
    steps = []
    for count in sorted(set(ours) | set(theirs)):
        here, there = ours.get(count), theirs.get(count)
        times = None if here is None else here / ours[1]
        published_times = None if there is None else there / theirs[1]
        steps.append(
            Step(
                count,
                times,
                None if times is None else times / count,
                published_times,
                None if published_times is None else published_times / count,
            )
        )
    return Scaling(tuple(steps), framework)
