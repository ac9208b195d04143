"""Train the same net on different numbers of ranks and put the runs side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlguide.errors import require
from dlguide.machine import threads
from dlguide.machine.threads import ThreadPlan

if TYPE_CHECKING:
    from dlguide.machine.describe import Machine
    from dlguide.measure import Run


@dataclass(frozen=True)
class Row:
    """One line of the table of a comparison.

    ranks (count), threads (per rank, count), images_per_s (steady state, all ranks),
    speed_up and efficiency (per core) against the first row, test_accuracy (fraction, None
    when not evaluated), seconds (of the whole training on the slowest rank).
    """

    ranks: int
    threads: int
    images_per_s: float
    speed_up: float
    efficiency: float
    test_accuracy: float | None
    seconds: float


def plans(machine: Machine, plan: ThreadPlan) -> list[ThreadPlan]:
    """List what a plan for several ranks should be compared with, itself the last.

    One rank with as many threads as each of them has, which is the reference, and one rank with
    all the threads: the best that a single process can do with the same cores.
    """
    alone = ThreadPlan(1, plan.threads, plan.cpus[:1], plan.oversubscribed)
    whole = threads.plan(machine, ranks=1)
    return list(dict.fromkeys([alone, whole, plan]))


def rows(runs: Iterable[Sequence[Run]]) -> list[Row]:
    """Reduce runs to one row each; of the ranks of a run the slowest one counts.

        speed_up = images_per_s / images_per_s of the first run
        efficiency = speed_up / (cores / cores of the first run),  cores = ranks * threads

    so that two ranks with one thread each and one rank with two threads, which use the same two
    cores, are measured by the same rule.

    Args:
        runs: for each training the Runs of all its ranks, the reference first.

    Returns:
        list[Row]: in the same order.

    Raises:
        ValueError: when there is nothing to compare, or the work was not equal.
    """
    runs = [list(each) for each in runs]
    require(bool(runs) and all(runs), "runs", "hold the Runs of at least one training", [])
    base = _slowest(runs[0])
    table = []
    for each in runs:
        run = _slowest(each)
        require(_work(run) == _work(base), "runs", f"do equal work, {_work(base)}", _work(run))
        speed_up = run.images_per_s / base.images_per_s
        table.append(
            Row(
                ranks=run.ranks,
                threads=run.threads,
                images_per_s=run.images_per_s,
                speed_up=speed_up,
                efficiency=speed_up * base.ranks * base.threads / (run.ranks * run.threads),
                test_accuracy=run.test_accuracy[-1] if run.test_accuracy else None,
                seconds=max(one.total_s for one in each),
            )
        )
    return table


def _slowest(runs: Sequence[Run]) -> Run:
    """Return the Run of the rank with the fewest images per second."""
    return min(runs, key=lambda run: run.images_per_s)


def _work(run: Run) -> tuple[str, str, int, int, int]:
    """Name the work of a run: net, data, parameters, epochs and samples an epoch."""
    return (run.model, run.data, run.parameters, run.epochs, run.samples)


def write(runs: Iterable[Sequence[Run]], table: Sequence[Row], path: str | os.PathLike) -> None:
    """Write table and runs as JSON, in one piece.

    Args:
        runs: for each training the Runs of all its ranks.
        table: what `rows` made of them.
        path: the file.
    """
    record = {
        "rows": [vars(row) for row in table],
        "runs": [[run.as_dict() for run in each] for each in runs],
    }
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(record, indent=1) + "\n")
    draft.replace(path)
